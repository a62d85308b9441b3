"""A TLS handshake that fails is told to the client.

asyncio closes such a connection without the alert that OpenSSL has ready: a client whose certificate has expired,
or is from another authority, would read "EOF" and know nothing. Here the alert goes out first. Who speaks HTTP
without TLS is told so in HTTP.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
from contextvars import ContextVar
from typing import Final

# The connection that is to shake hands.
ARRIVING: Final[ContextVar[socket.socket | None]] = ContextVar("arriving", default=None)
PLAIN: Final = b"HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n"


class Handshake(ssl.SSLObject):
    """The TLS of one connection."""

    line: socket.socket | None = None
    outgoing: ssl.MemoryBIO | None = None

    def do_handshake(self) -> None:
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError as error:
            self._alert(PLAIN if error.reason == "HTTP_REQUEST" else b"")
            raise
        self.line = self.outgoing = None

    def _alert(self, instead: bytes) -> None:
        """What is left to say, as far as it can be said without waiting."""
        if self.line is not None and self.outgoing is not None:
            with contextlib.suppress(OSError):
                self.line.send(instead or self.outgoing.read())


class Context(ssl.SSLContext):
    """For servers: a handshake speaks to the connection that is in `ARRIVING` when it begins."""

    sslobject_class = Handshake

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLObject:
        made = super().wrap_bio(incoming, outgoing, server_side, server_hostname, session)
        if isinstance(made, Handshake):
            made.line, made.outgoing = ARRIVING.get(), outgoing
        return made
