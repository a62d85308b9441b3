"""The API server as a process of its own, for tests that end it, or take its disk away."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import aiohttp

from tests.apiserver.support import Client, admin_context

START_S: Final = 60.0
PARENT: Final = """
import asyncio, logging, os, signal, sys
from pathlib import Path
from unbounded_apiserver.server import ApiServer

async def serve(directory):
    server = ApiServer(Path(directory))
    await server.start()
    print(os.getpid(), server.url, flush=True)
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await stop.wait()
    await server.stop()

logging.basicConfig(level=logging.WARNING)
for line in sys.stdin:
    child = os.fork()
    if not child:
        asyncio.run(serve(line.strip()))
        os._exit(0)
    _, status = os.waitpid(child, 0)
    print("ended", os.waitstatus_to_exitcode(status), flush=True)
"""


class ServerProcess:
    """A running server; `client` speaks to it as its administrator."""

    def __init__(self, parent: Parent, pid: int, client: Client) -> None:
        self.pid = pid
        self.client = client
        self._parent = parent
        self._running = True

    async def end(self, number: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal and wait until the process has ended of it."""
        if self._running:
            self._running = False
            os.kill(self.pid, number)
            word, status = await self._parent.line()
            assert (word, status) == ("ended", "0" if number == signal.SIGTERM else str(-number))

    def limit_files(self, size: int | None) -> None:
        """Let no file of it grow beyond this size; None lifts that."""
        _, hard = resource.prlimit(self.pid, resource.RLIMIT_FSIZE)
        soft = resource.RLIM_INFINITY if size is None else size
        resource.prlimit(self.pid, resource.RLIMIT_FSIZE, (soft, hard))


class Parent:
    """A process that has loaded what a server needs, so that each server, one at a time, is only a fork away."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def line(self) -> list[str]:
        assert self._process.stdout is not None
        async with asyncio.timeout(START_S):
            return (await self._process.stdout.readline()).decode().split()

    @asynccontextmanager
    async def serving(self, directory: Path) -> AsyncIterator[ServerProcess]:
        """Run a server while inside; it is killed at the end if it still runs."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{directory}\n".encode())
        pid, url = await self.line()
        assert pid != "ended", "the server did not start"
        connector = aiohttp.TCPConnector(ssl=admin_context(directory / "kubeconfig"), limit=0)
        async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=60)) as session:
            server = ServerProcess(self, int(pid), Client(session, url))
            try:
                yield server
            finally:
                await server.end()


@asynccontextmanager
async def parent() -> AsyncIterator[Parent]:
    """A process from which servers are started, while inside."""
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", PARENT, stdin=PIPE, stdout=PIPE)
    try:
        yield Parent(process)
    finally:
        process.kill()
        await process.wait()
