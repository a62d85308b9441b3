"""Probe of an address for an SSH server. The server greets first; the probe sends nothing."""

from __future__ import annotations

import asyncio
from typing import cast

import asyncssh

from unbounded.machina.ssh.greeting import GREETING_BYTES, Greeting, greeting


class GreetingReceiver(asyncio.Protocol, asyncssh.SSHTCPSession[bytes]):
    """Receiver of a server's greeting over a connection of its own or of a bastion.

    Attributes:
        completed: completes when the server has sent enough or closed the connection.
    """

    def __init__(self) -> None:
        self.received = b""
        self.closed = False
        self.completed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._transport: asyncio.Transport | None = None

    @property
    def is_ssh(self) -> bool:
        return greeting(self.received) is Greeting.SSH

    def connection_made(self, transport: object) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes, datatype: int | None = None) -> None:  # noqa: ARG002
        self.received = (self.received + data)[:GREETING_BYTES]
        if greeting(self.received) is not Greeting.UNFINISHED:
            self._complete()

    def eof_received(self) -> bool:
        self.closed = True
        self._complete()
        return False

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self.closed = True
        self._complete()

    def hang_up(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _complete(self) -> None:
        if not self.completed.done():
            self.completed.set_result(None)
