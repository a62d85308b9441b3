"""Serial consoles that a user and the recording of a boot share: most BMCs have one session for each console."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from unbounded.api.failures import Failure
from unbounded.api.machine import MACHINES, Machine
from unbounded.kube.api import Api
from unbounded.kube.logs import Log
from unbounded.kube.status_writer import StatusWriter
from unbounded.metalman.bmc_access import BmcAccess, binding_of
from unbounded.metalman.redfish.bmc_interface import BmcUnreachable, ConsoleOffers, SerialConsole
from unbounded.metalman.redfish.pool import BmcPool

PIECES: Final = 4  # that wait for a reader; then the console waits for it, too

log = Log("metalman.serial")


class JoinedConsole:
    """A reader's view of a console: a `SerialConsole` that gets all output from the time at which it joined."""

    def __init__(self, opened: _OpenConsole) -> None:
        self._opened = opened
        self._pieces: asyncio.Queue[bytes] = asyncio.Queue(PIECES)
        self._is_left = False
        self.over = ""
        self.interactive = False

    @property
    def is_alone(self) -> bool:
        return len(self._opened.readers) == 1

    async def read(self) -> bytes:
        return await self._pieces.get()

    async def write(self, data: bytes) -> None:
        if self._opened.task.done():
            raise BmcUnreachable("the BMC has closed the serial console")
        await self._opened.console.result().write(data)

    async def put(self, data: bytes) -> None:
        """Give the reader a piece; wait while it has too many. An empty one is the end."""
        if not self._is_left:
            await self._pieces.put(data)

    def leave(self) -> None:
        """Take no more pieces, and let a waiting `put` return."""
        self._is_left = True
        while not self._pieces.empty():
            self._pieces.get_nowait()


class _OpenConsole:
    """A console, the task that reads it, and its readers."""

    def __init__(self) -> None:
        self.readers: list[JoinedConsole] = []
        self.console: asyncio.Future[SerialConsole] = asyncio.get_running_loop().create_future()
        self.task: asyncio.Task[None]


class SharedConsoles:
    """Consoles of one process, by BMC and system: each is opened for its first reader, and closed after its last."""

    def __init__(self, api: Api, access: BmcAccess, pool: BmcPool) -> None:
        self._access = access
        self._pool = pool
        self._status = StatusWriter(api, MACHINES, fields=("redfish",))
        self._open: dict[str, _OpenConsole] = {}

    @asynccontextmanager
    async def join(self, machine: Machine, offers: ConsoleOffers | None = None) -> AsyncIterator[JoinedConsole]:
        """Read the console of a Machine's host, until the end of the context.

        Args:
            offers: the consoles that the BMC offers; None reads them.
        Raises:
            Refusal, Failure: it cannot be opened; see `PooledBmc.console`.
        """
        key = binding_of(machine)
        opened = self._open.get(key)
        if opened is None:
            opened = self._open[key] = _OpenConsole()
            opened.task = asyncio.create_task(self._serve(key, opened, machine, offers), name=f"console {machine.name}")
        reader = JoinedConsole(opened)
        opened.readers.append(reader)
        try:
            console = await asyncio.shield(opened.console)
            reader.over, reader.interactive = console.over, console.interactive
            yield reader
        finally:
            opened.readers.remove(reader)
            reader.leave()
            if not opened.readers:
                self._forget(key, opened)
                opened.task.cancel()
                await asyncio.wait({opened.task})

    def _forget(self, key: str, opened: _OpenConsole) -> None:
        if self._open.get(key) is opened:
            del self._open[key]

    async def _serve(self, key: str, opened: _OpenConsole, machine: Machine, offers: ConsoleOffers | None) -> None:
        """Open a console, and give its output to all readers until its end."""
        try:
            await self._copy(opened, machine, offers)
        except Exception as error:
            if not opened.console.done():
                opened.console.set_exception(error)
                opened.console.exception()  # retrieved, also where its readers have left
            elif isinstance(error, Failure):
                log.info("serial console broke", machine=machine.name, error=error)
            else:
                log.exception("cannot read serial console", machine=machine.name)
        finally:
            self._forget(key, opened)
        for reader in tuple(opened.readers):
            await reader.put(b"")

    async def _copy(self, opened: _OpenConsole, machine: Machine, offers: ConsoleOffers | None) -> None:
        account = await self._access.of(machine)
        pin = machine.status.redfish.ssh_host_key if machine.status.redfish else None

        async def trust(fingerprint: str) -> None:
            status = {"redfish": {"sshHostKey": fingerprint}}
            await self._status.merge(machine.name, status, uid=machine.metadata.uid)
            log.info("SSH host key of BMC pinned", machine=machine.name, fingerprint=fingerprint)

        async with self._pool.bmc(account).console(pin, trust, offers) as console:
            opened.console.set_result(console)
            while data := await console.read():
                for reader in tuple(opened.readers):
                    await reader.put(data)
