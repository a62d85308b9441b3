"""Releases of an agent that only records its arguments, and a server that breaks off as configured."""

from __future__ import annotations

import io
import ssl
import tarfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

AGENT = """\
#!/bin/sh
echo "agent: $*"
cp "$UNBOUNDED_AGENT_CONFIG_FILE" "{told}/config"
env > "{told}/environment"
{then}
"""


def tarball(agent: str, *, folder: bool = True) -> bytes:
    """The executable in a directory of its own, or alone."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        for name, text in {"unbounded-agent": agent, "library": "x" * 40_000}.items():
            info = tarfile.TarInfo(f"unbounded-agent/{name}" if folder else name)
            info.size, info.mode = len(text), 0o755
            if folder or name == "unbounded-agent":
                tar.addfile(info, io.BytesIO(text.encode()))
    return out.getvalue()


@dataclass
class Releases:
    """The served releases, by path.

    Args:
        cuts: how many answers break off after half of their content.
        ranges: whether a client can continue them.
        wrong: statuses that come first.
    """

    base: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    cuts: int = 0
    ranges: bool = True
    wrong: list[int] = field(default_factory=list)
    asked: list[tuple[str, str]] = field(default_factory=list)


@contextmanager
def releases(context: ssl.SSLContext | None = None) -> Iterator[Releases]:
    """A server on loopback.

    Args:
        context: of https; None for http.
    """
    served = Releases()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked = self.headers.get("Range", "")
            served.asked.append((self.path, asked))
            content = served.files.get(self.path.partition("?")[0])
            if served.wrong or content is None:
                self.send_error(served.wrong.pop(0) if served.wrong else 404)
                return
            begins = int(asked.removeprefix("bytes=").partition("-")[0]) if asked and served.ranges else 0
            if begins and begins >= len(content):
                self.send_error(416)
                return
            self.send_response(206 if begins else 200)
            if begins:
                self.send_header("Content-Range", f"bytes {begins}-{len(content) - 1}/{len(content)}")
            self.send_header("Content-Length", str(len(content) - begins))
            self.end_headers()
            rest = content[begins:]
            if served.cuts:
                served.cuts -= 1
                rest = rest[: len(rest) // 2]
                self.close_connection = True
            self.wfile.write(rest)

        def log_message(self, *_: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        def handle_error(self, *_: Any) -> None:
            """Ignore a client that does not trust the server and leaves."""

    server = Server(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    served.base = f"http{'s' if context else ''}://127.0.0.1:{server.server_address[1]}"
    try:
        yield served
    finally:
        server.shutdown()
        thread.join(20)
        server.server_close()
