"""`kubectl unbounded console` and `unbounded-console` as processes of their own."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from asyncio.subprocess import DEVNULL, PIPE, STDOUT
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from signal import SIGTERM

from unbounded.kube.config import from_kubeconfig

START_S = 60.0
PLUGIN = ("-m", "unbounded.cli.plugin.main")
CLUSTER_CONSOLE = ("-m", "unbounded.console.main")
URL = re.compile(r"http://127\.0\.0\.1:[0-9]+/start/[-_A-Za-z0-9]+")


class Console:
    """A running console, and the addresses that it has printed."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.printed = ""
        self.urls: list[str] = []
        self._more = asyncio.Event()
        self._reader = asyncio.create_task(self._read())

    async def _read(self) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            self.printed += line.decode()
            self.urls += URL.findall(line.decode())
            self._more.set()
        self._more.set()

    async def url(self, number: int = 0) -> str:
        """Wait for an address, counted from 0."""
        async with asyncio.timeout(START_S):
            while len(self.urls) <= number:
                assert not self._reader.done(), self.printed
                self._more.clear()
                await self._more.wait()
        return self.urls[number]

    async def next_url(self) -> str:
        """Return the last address, which no browser has used."""
        await self.url()
        return self.urls[-1]

    async def stop(self) -> None:
        if self.process.returncode is None:
            self.process.send_signal(SIGTERM)
            await self.process.wait()
        await self._reader


@asynccontextmanager
async def console(kubeconfig: Path, *flags: str, program: Sequence[str] = PLUGIN) -> AsyncIterator[Console]:
    """Run the console inside of the context."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, *program, "console", "--kubeconfig", str(kubeconfig), *flags),
        stdin=DEVNULL,
        stdout=PIPE,
        stderr=STDOUT,
    )
    running = Console(process)
    try:
        yield running
    finally:
        await running.stop()


@asynccontextmanager
async def cluster_console(
    kubeconfig: Path, folder: Path, *flags: str, environment: Mapping[str, str] | None = None
) -> AsyncIterator[str]:
    """Run `unbounded-console` inside of the context, with further variables; yields host and port."""
    config = from_kubeconfig(kubeconfig)
    own = console_of(config.server, config.ca or b"", folder, *flags, environment=environment)
    async with own as (address, _printed):
        yield address


@asynccontextmanager
async def console_of(
    server: str,
    authority: bytes,
    folder: Path,
    *flags: str,
    environment: Mapping[str, str] | None = None,
    program: Sequence[str] = CLUSTER_CONSOLE,
) -> AsyncIterator[tuple[str, list[str]]]:
    """Run `unbounded-console` before an API server; yields host and port, and what it prints by the end."""
    ca = folder / "ca.crt"
    ca.write_bytes(authority)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, *program, "--api-server", server, "--api-server-ca", str(ca)),
        *("--health-addr", "0", "--log-format", "text", *flags),
        env={**os.environ, **(environment or {})},
        stdin=DEVNULL,
        stdout=PIPE,
        stderr=STDOUT,
    )
    all_printed: list[str] = []
    try:
        assert process.stdout is not None
        printed = ""
        async with asyncio.timeout(START_S):
            while (found := re.search(r"serving the console .*port=([0-9]+)", printed)) is None:
                line = await process.stdout.readline()
                assert line, printed
                printed += line.decode()
        yield f"127.0.0.1:{found[1]}", all_printed
    finally:
        process.send_signal(SIGTERM)
        printed += (await process.stdout.read()).decode() if process.stdout is not None else ""
        all_printed.append(printed)
        assert await process.wait() == 0, printed
        assert "Traceback" not in printed, printed
