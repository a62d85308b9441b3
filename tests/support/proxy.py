"""A line between a client and a server that can be cut, fall silent, or lose what comes back."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

CHUNK = 65536


class Proxy:
    """A proxy of bytes, TLS or not; its dials may be changed at any time.

    Attributes:
        refuse: new connections are closed at once.
        mute: bytes of the server are dropped from now on.
        stall: nothing passes in either direction.
        delay_s: the delay of each piece.
        room: the number of bytes of the server that still pass. With the last of them the connection breaks, possibly
            in the middle of a message. None for no limit.
    """

    def __init__(self, host: str, port: int) -> None:
        self.url = ""
        self.refuse = False
        self.mute = False
        self.stall = False
        self.delay_s = 0.0
        self.room: int | None = None
        self._target = (host, port)
        self._lines: set[asyncio.Task[None]] = set()
        self._silent: set[asyncio.Task[None]] = set()
        self._ends: set[asyncio.StreamWriter] = set()  # towards the clients

    def cut(self) -> None:
        """Break all connections."""
        for task in self._lines:
            task.cancel()

    def half_close(self) -> None:
        """End the server's direction for all clients, and leave their own direction open."""
        for end in self._ends:
            if not end.is_closing():
                end.write_eof()

    def calm(self) -> None:
        """All is well from now on."""
        self.refuse = self.mute = self.stall = False
        self.delay_s, self.room = 0.0, None

    def stalled_for_good(self) -> None:
        """Let new connections pass again, while those that are open stay silent."""
        self._silent |= self._lines
        self.stall = False

    async def connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.refuse:
            writer.transport.abort()
            return
        task = asyncio.current_task()
        assert task is not None
        self._lines.add(task)
        self._ends.add(writer)
        far_writer: asyncio.StreamWriter | None = None
        try:
            far_reader, far_writer = await asyncio.open_connection(*self._target)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pass(task, reader, far_writer, from_server=False))
                group.create_task(self._pass(task, far_reader, writer, from_server=True))
        except (asyncio.CancelledError, OSError, ExceptionGroup):
            pass
        finally:
            self._lines.discard(task)
            self._ends.discard(writer)
            for end in (writer, far_writer):
                if end is not None:
                    end.transport.abort()

    async def _pass(
        self, line: asyncio.Task[None], source: asyncio.StreamReader, to: asyncio.StreamWriter, *, from_server: bool
    ) -> None:
        while content := await source.read(CHUNK):
            if self.stall or line in self._silent or (self.mute and from_server):
                continue
            if self.delay_s:
                await asyncio.sleep(self.delay_s)
            if from_server and self.room is not None:
                content, left = content[: self.room], self.room - len(content)
                self.room = max(left, 0)
                if left < 0:
                    to.write(content)
                    break
            to.write(content)
            await to.drain()
        raise ConnectionResetError  # one end has closed: close both


@asynccontextmanager
async def proxy(url: str) -> AsyncIterator[Proxy]:
    """A line to the server at `url`, under `Proxy.url`."""
    target = urlsplit(url)
    assert target.hostname is not None
    assert target.port is not None
    line = Proxy(target.hostname, target.port)
    listener = await asyncio.start_server(line.connection, "127.0.0.1", 0)
    line.url = f"{target.scheme}://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    try:
        yield line
    finally:
        listener.close()
        lines = list(line._lines)
        line.cut()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(*lines, return_exceptions=True)
