"""One connection to the server, as raw as it can be over TLS: bytes out, answers in."""

from __future__ import annotations

import socket
import ssl
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

CHUNK: Final = 65536
HEAD_BYTES: Final = 256 * 1024


class Gone(Exception):
    """The server has closed the connection; `seen` is what came before that."""

    def __init__(self, seen: bytes = b"") -> None:
        super().__init__(f"closed after {seen[-200:]!r}")
        self.seen = seen


@dataclass(frozen=True)
class Answer:
    """One answer. `body` is None for a stream, of which nothing was read."""

    code: int
    headers: dict[str, str]
    body: bytes | None

    @property
    def media(self) -> str:
        return self.headers.get("content-type", "").partition(";")[0]


class Line:
    """A connection; blocking, with a limit for each wait. Raises TimeoutError, Gone."""

    def __init__(self, url: str, context: ssl.SSLContext, *, limit_s: float) -> None:
        target = urlsplit(url)
        assert target.hostname is not None
        plain = socket.create_connection((target.hostname, target.port or 443), timeout=limit_s)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = context.wrap_socket(plain, server_hostname=target.hostname)
        self._socket.settimeout(limit_s)
        self._seen = bytearray()

    def send(self, data: bytes) -> None:
        """Send the data; an error is ignored, as the server may have answered and closed already."""
        try:
            self._socket.sendall(data)
        except (ConnectionError, ssl.SSLError):
            return

    def answer(self, *, head: bool = False) -> Answer:
        """Return the next answer; one to a HEAD request (`head`) has no body."""
        while (end := self._seen.find(b"\r\n\r\n")) < 0:
            self._more()
        lines = self._take(end + 4).decode("latin-1").split("\r\n")
        version, code, *_ = lines[0].split(" ", 2)
        assert version.startswith("HTTP/"), lines[0]
        old = {"connection": "close"} if version != "HTTP/1.1" else {}
        headers = old | {
            name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:-2])
        }
        if head or code in {"204", "304"} or code.startswith("1"):
            return Answer(int(code), headers, b"")
        if "chunked" in headers.get("transfer-encoding", ""):
            return Answer(int(code), headers, None)
        if "content-length" in headers:
            return Answer(int(code), headers, self._exactly(int(headers["content-length"])))
        return Answer(int(code), headers, self._rest())

    def close(self) -> None:
        self._socket.close()

    def _exactly(self, size: int) -> bytes:
        while len(self._seen) < size:
            self._more()
        return self._take(size)

    def _rest(self) -> bytes:
        try:
            while True:
                self._more()
        except Gone:
            return self._take(len(self._seen))

    def _take(self, size: int) -> bytes:
        taken = bytes(self._seen[:size])
        del self._seen[:size]
        return taken

    def _more(self) -> None:
        try:
            data = self._socket.recv(CHUNK)
        except (ConnectionError, ssl.SSLError) as error:
            if isinstance(error, TimeoutError):
                raise
            raise Gone(bytes(self._seen)) from error
        if not data:
            raise Gone(bytes(self._seen))
        self._seen += data
