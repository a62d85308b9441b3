"""A line between a client and a server that can be cut, fall silent, or lose what comes back."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

CHUNK = 65536


class Proxy:
    """Passes bytes on, TLS or not; its dials may be turned at any time.

    Attributes:
        refuse: new connections are closed at once.
        mute: what the server says is dropped from now on.
        stall: nothing passes in either direction.
        delay_s: each piece waits for so long before it passes on.
        room: so many bytes of the server still pass; with the last of them, in the middle of whatever it is, the
            connection breaks. None for no limit.
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
        """Tell all clients that nothing more comes, and leave their own direction open."""
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
