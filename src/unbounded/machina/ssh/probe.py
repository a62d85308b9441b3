"""Whether something that speaks SSH answers at an address: it says so first, and nothing is said to it."""

from __future__ import annotations

import asyncio
from typing import cast

import asyncssh

from unbounded.machina.ssh.greeting import GREETING_BYTES, Greeting, greeting


class Listener(asyncio.Protocol, asyncssh.SSHTCPSession[bytes]):
    """Listens to a server over a connection of its own, or over a bastion's.

    Attributes:
        heard: ends when the server has said enough, or closed.
    """

    def __init__(self) -> None:
        self.said = b""
        self.closed = False
        self.heard: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._transport: asyncio.Transport | None = None

    @property
    def is_ssh(self) -> bool:
        return greeting(self.said) is Greeting.SSH

    def connection_made(self, transport: object) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes, datatype: int | None = None) -> None:  # noqa: ARG002
        self.said = (self.said + data)[:GREETING_BYTES]
        if greeting(self.said) is not Greeting.UNFINISHED:
            self._end()

    def eof_received(self) -> bool:
        self.closed = True
        self._end()
        return False

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self.closed = True
        self._end()

    def hang_up(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _end(self) -> None:
        if not self.heard.done():
            self.heard.set_result(None)
