"""The board of a lab host: it runs what the host boots, in place of the machine that a real board would be."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from unbounded_lab.bmc.device import BmcSystem, SimulatedBmc
from unbounded_lab.bmc.inventory import CORES, DIMM_MIB, DIMMS, DRIVE_BYTES, DRIVES, PROCESSORS
from unbounded_lab.bmc.power import HostBootOverride, HostEvent
from unbounded_lab.bmc.resources import SECOND_NIC
from unbounded_lab.clock import LabClock
from unbounded_lab.hosts.installer import (
    InstalledSystem,
    InstallEnd,
    LabDisk,
    LabHardware,
    boot_parameters,
    install,
)
from unbounded_lab.hosts.node import LabNode, report_first_boot
from unbounded_lab.hosts.wire import BootServer, HostFailed

MIB: Final = 1 << 20
SECOND_ADDRESS: Final = "127.255.255.254"  # of another client of the same boot
CD: Final = "Cd"
DISK: Final = "Hdd"


class LabBoard:
    """The board of one host, which runs an installer, or the system on its disk.

    Args:
        medium: content of the image in the CD drive; empty without one.
        folder: for keys and certificates of its nodes.
    """

    def __init__(
        self, bmc: SimulatedBmc, system: BmcSystem, medium: Callable[[], bytes], clock: LabClock, folder: Path
    ) -> None:
        self._bmc = bmc
        self._system = system
        self._medium = medium
        self._clock = clock
        self._folder = folder
        self._running: asyncio.Task[None] | None = None
        self._starts = 0
        self._installs = 0
        self.installed: InstalledSystem | None = None
        self.disks = tuple(
            LabDisk(f"sd{'ab'[number]}", bmc.identity.serial_number(f"{bay} {system.index}"), DRIVE_BYTES)
            for number, bay in enumerate(DRIVES)
        )

    # ---- as a HostBoard

    def start(self, boot: HostBootOverride) -> None:
        """Run from a boot source, in place of what ran before."""
        self.halt()
        self._starts += 1
        self._running = asyncio.create_task(
            self._run(boot.source, self._starts), name=f"host {self._bmc.identity.name}"
        )

    def halt(self) -> None:
        """Stop at once."""
        self._starts += 1  # what ran before cannot end any more
        if self._running is not None:
            self._running.cancel()
            self._running = None

    def press_button(self) -> None:
        """Shut down in order, which takes the time of the host."""
        self.halt()
        asyncio.get_running_loop().call_later(
            self._bmc.times.shutdown_s, partial(self._end, self._starts, restarts=False)
        )

    async def close(self) -> None:
        """Stop, and wait for the end."""
        running = self._running
        self.halt()
        if running is not None:
            with suppress(asyncio.CancelledError):
                await running

    # ---- what runs

    @property
    def _pause_s(self) -> float:
        """Time between tries: a second, and less on hosts that boot faster."""
        return min(1.0, self._bmc.times.boot_s)

    async def _run(self, source: str, start: int) -> None:
        await self._clock.sleep(self._bmc.times.boot_s)
        try:
            if source == CD and self._system.image is not None:
                restarts = await self._install(self._medium())
                self._end(start, restarts=restarts)
            elif self.installed is not None:
                await self._run_system(self.installed)
            else:
                self._record("failed", f"nothing to boot: {source}")
        except HostFailed as failure:  # the host stands still until it is reset
            self._record("failed", str(failure))

    async def _install(self, medium: bytes) -> bool:
        """Run the installer; return whether the host restarts, in place of switching off."""
        words, hardware, faults = boot_parameters(medium), self.hardware(), self._bmc.faults
        address, pause_s = words.address(hardware.macs), self._pause_s
        async with BootServer(words.serve_url, address=address, pause_s=pause_s) as server:
            if faults.second_client:
                async with BootServer(words.serve_url, address=SECOND_ADDRESS, pause_s=pause_s) as other:
                    await server.once("GET", "metadata.yaml")
                    await other.once("GET", "metadata.yaml")
            end, system, disks = await install(server, words, hardware)
        self._record("installer", end.value)
        if end is InstallEnd.POWER_OFF or system is None:
            return False
        self._installs += 1
        self.installed, self.disks = system, tuple(disks)
        return True

    def hardware(self) -> LabHardware:
        """Return the hardware that an installer finds in the host now."""
        faults = self._bmc.faults
        size = DRIVE_BYTES if faults.disk_bytes is None else faults.disk_bytes
        disks = tuple(LabDisk(one.name, one.serial_number, size, one.owner) for one in self.disks)
        macs = tuple(self._bmc.identity.mac(self._system.index + offset) for offset in (0, SECOND_NIC))
        return LabHardware(
            disks=disks,
            macs=macs[: len(macs) - faults.lost_nics],
            cpus=len(PROCESSORS) * CORES * 2,
            memory_bytes=len(DIMMS) * DIMM_MIB * MIB,
        )

    async def _run_system(self, system: InstalledSystem) -> None:
        """Run the system on the disk: its first start reports, and each one joins."""
        folder = self._folder / str(self._installs)
        if not folder.exists():
            async with BootServer(system.serve_url, address=system.address) as server:
                await report_first_boot(server)
            folder.mkdir(parents=True)
            self._record("started", system.machine)
        if not system.agent_config:
            return
        while self._bmc.faults.never_joins:
            await self._clock.sleep(self._pause_s)
        node = LabNode(system, folder, self._bmc.times.boot_s, hardware=self.hardware())
        self._record("joins", node.name)
        await node.run()
        rest = {name: text for name, text in system.seed.items() if name != "vendor-data"}
        self.installed = replace(system, seed=rest)
        self._record("reset", node.name)

    # ---- inside

    def _end(self, start: int, *, restarts: bool) -> None:
        """Report the end of what this start ran, once its task has ended."""

        def ended() -> None:
            if self._starts == start:
                self._system.host.board_ended(self._clock.now(), restarts=restarts)

        asyncio.get_running_loop().call_soon(ended)

    def _record(self, what: str, detail: str) -> None:
        self._system.host.history.append(HostEvent(self._clock.now(), what, detail))
