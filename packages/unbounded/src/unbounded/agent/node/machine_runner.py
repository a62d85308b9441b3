"""Start and stop of a slot's machine and its services, with kills where they do not stop. Every wait has a limit."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from unbounded.agent.durations import Durations, TimedWork
from unbounded.agent.interfaces import Commands, HostCommandResult, Units
from unbounded.agent.model import Slot
from unbounded.agent.node import containerd, kubelet
from unbounded.agent.node.nspawn import unit_of
from unbounded.agent.paths import HostPaths
from unbounded.api.failures import Failure, Rejected, Transient
from unbounded.kube.durable_files import sync_directory
from unbounded.kube.logs import Log

log = Log("agent")

BOOT_ID: Final = "/proc/sys/kernel/random/boot_id"
TARGET: Final = "machines.target"
_LINES: Final = 200  # of a journal: a panic of Go takes a hundred
_READ_S: Final = 10.0
_THERE_ALREADY: Final = ("already exists", "file exists", "already registered")
_UP: Final = frozenset({"active", "activating", "reloading", "deactivating"})


@dataclass(frozen=True)
class MachineLimits:
    """Limits in seconds. `boot_s` and `service_s` are the floors of limits that grow with this host's earlier
    durations.

    Args:
        poll_s: between two observations.
        start_s, boot_s: for the machine's unit, and until it answers.
        vanish_s: until a terminated machine is gone.
        service_s: until a service is active.
        service_stop_s: for a service to stop; its own unit kills it before.
        kill_s: until killed processes are gone.
        stop_s: for the machine to power off; its own unit kills it before.
    """

    poll_s: float = 0.05
    start_s: float = 60.0
    boot_s: float = 30.0
    vanish_s: float = 15.0
    service_s: float = 60.0
    service_stop_s: float = 25.0
    kill_s: float = 10.0
    stop_s: float = 40.0


class MachineRunner:
    """The machines of all slots, and their services.

    Args:
        inside: the service manager of a slot's machine.
    """

    def __init__(
        self,
        paths: HostPaths,
        commands: Commands,
        units: Units,
        inside: Callable[[Slot], Units],
        limits: MachineLimits,
        durations: Durations,
    ) -> None:
        self._paths = paths
        self._commands = commands
        self._units = units
        self._inside = inside
        self.limits = limits
        self._durations = durations

    async def boot_id(self, slot: Slot) -> str:
        """Return the boot id of the machine, whether it answers or not; empty when there is none."""
        leader = await self.leader(slot)
        return own_boot_id(self._paths.at(f"/proc/{leader}")) if leader else ""

    async def leader(self, slot: Slot) -> str:
        """Return the pid of the machine's first process; empty when there is none."""
        try:
            ran = await self._commands.run(
                "machinectl", "show", "--property=Leader", "--value", "--", slot, check=False
            )
        except Failure:  # a host without machinectl has no machines
            return ""
        output = ran.stdout.strip()
        return output if ran.ok and output.isdigit() else ""

    async def active(self, slot: Slot) -> bool:
        """Return whether the machine's unit is active, activating or deactivating."""
        return (await self._units.observe(unit_of(slot))).active in _UP

    async def run_inside(self, slot: Slot, *argv: str, timeout_s: float) -> str:
        """Run a command in the machine and return its output. Raises Transient as Commands.run."""
        return (await self.execute_inside(slot, *argv, timeout_s=timeout_s)).stdout

    async def execute_inside(
        self, slot: Slot, *argv: str, timeout_s: float, stdin: bytes | None = None, check: bool = True
    ) -> HostCommandResult:
        """Run a command in the machine. Raises as Commands.run."""
        options = (f"--machine={slot}", "--quiet", "--collect", "--pipe", "--wait")
        argv = ("systemd-run", *options, "--", *argv)
        return await self._commands.run(*argv, timeout_s=timeout_s, stdin=stdin, check=check)

    async def service_active(self, slot: Slot, unit: str) -> bool:
        try:
            return (await self._inside(slot).observe(unit)).active == "active"
        except Failure:  # no machine, or one that does not answer
            return False

    async def journal(self, slot: Slot, unit: str) -> str:
        """Return a service's last output since the machine's boot; empty where the journal cannot be read."""
        message = (
            "journalctl",
            "--boot",
            "--quiet",
            "--no-pager",
            "--output=cat",
            f"--lines={_LINES}",
            f"--unit={unit}",
        )
        try:
            return (await self.execute_inside(slot, *message, timeout_s=_READ_S, check=False)).stdout
        except Failure:
            return ""

    # Start

    async def start(self, slot: Slot) -> None:
        """Start the machine and wait until it answers. Raises Transient when it does not within the limits."""
        was_up = await self.active(slot)
        await self._at_boot("enable", TARGET, unit_of(slot))
        self._sync_enabled()
        try:
            await self._units.start(unit_of(slot), timeout_s=self.limits.start_s)
        except Transient as failure:
            if not await self._in_the_way(slot, failure):
                raise
            log.warning("a machine of this name exists already; ending it first", error=failure, slot=slot)
            await self._clear_the_way(slot)
            await self._units.start(unit_of(slot), timeout_s=self.limits.start_s)
        alike = () if self._durations.known(TimedWork.BOOT) else await self._host_boot()
        boot_s = self._durations.limit(TimedWork.BOOT, floor=self.limits.boot_s, alike=alike)
        async with self._durations.measured(TimedWork.BOOT, boot_s, whole=not was_up):
            await self._until(lambda: self._answers(slot), boot_s, f"{slot}: the machine does not answer")

    async def _host_boot(self) -> tuple[float, ...]:
        """Return how long the host's own systemd took to boot: a machine's needs about as long."""
        properties = ("UserspaceTimestampMonotonic", "FinishTimestampMonotonic")
        shown = await self._commands.run("systemctl", "show", f"--property={','.join(properties)}", check=False)
        found = dict(line.split("=", 1) for line in shown.stdout.splitlines() if "=" in line)
        began, ended = (int(found[one]) if found.get(one, "").isdigit() else 0 for one in properties)
        return ((ended - began) / 1e6,) if 0 < began < ended else ()

    async def _at_boot(self, verb: str, *units: str) -> None:
        """Enable or disable units. The manager is not reloaded, as only the next boot uses the result."""
        ran = await self._commands.run("systemctl", verb, "--quiet", "--no-reload", "--", *units, check=False)
        if not ran.ok and not (verb == "disable" and "does not exist" in ran.stderr):
            raise Transient(f"systemctl {verb} {' '.join(units)}: {ran.stderr.strip()}")

    async def start_service(self, slot: Slot, unit: str) -> None:
        """Start a service and wait until it is active. Raises Transient with its manager's message."""
        inside, within_s = self._inside(slot), self._durations.limit(TimedWork.SERVICE, floor=self.limits.service_s)
        async with self._durations.measured(TimedWork.SERVICE, within_s):
            with suppress(Transient):  # the observed state counts
                await inside.start(unit, timeout_s=within_s)
            await self._until(
                lambda: self.service_active(slot, unit), within_s, f"{slot}: {unit} does not become active"
            )

    async def restart_service(self, slot: Slot, unit: str) -> None:
        """Restart a service with its files as they are now. Raises Transient as `start_service`."""
        await self._inside(slot).restart(unit, timeout_s=self.limits.service_s)
        await self.start_service(slot, unit)

    async def reread(self, slot: Slot) -> None:
        """Reload the units of a running machine, for their next start."""
        if await self.boot_id(slot):
            await self._inside(slot).reload()

    async def _answers(self, slot: Slot) -> bool:
        try:
            await self._inside(slot).observe(containerd.UNIT)
        except Failure:
            return False
        return True

    async def _in_the_way(self, slot: Slot, failure: Transient) -> bool:
        return any(words in str(failure).lower() for words in _THERE_ALREADY) or await self._registered(slot)

    async def _registered(self, slot: Slot) -> bool:
        try:
            ran = await self._commands.run("machinectl", "show", "--property=State", "--", slot, check=False)
        except Rejected:  # a host without machinectl has no machines
            return False
        return ran.ok

    async def _clear_the_way(self, slot: Slot) -> None:
        await self._units.reset_failed(unit_of(slot))
        await self._commands.run("machinectl", "terminate", "--", slot, check=False)
        await self._until(lambda: self._vanished(slot), self.limits.vanish_s, f"{slot}: the old machine does not end")

    async def _vanished(self, slot: Slot) -> bool:
        return not await self._registered(slot)

    # Stop

    async def stop_services(self, slot: Slot) -> None:
        """Stop kubelet, then containerd; kill those that do not stop. Raises Transient where a killed one remains."""
        if not await self.active(slot):
            return
        for unit in (kubelet.UNIT, containerd.UNIT):
            await self._stop_service(slot, unit)

    async def _stop_service(self, slot: Slot, unit: str) -> None:
        try:
            await self._inside(slot).stop(unit, timeout_s=self.limits.service_stop_s)
        except Transient as failure:  # the service hangs, or the machine's own manager does
            log.warning("service does not stop; killing its processes", error=failure, slot=slot, unit=unit)
        else:
            return
        group = await self._group(slot, unit)
        kill_group(group)
        await self._until(lambda: _empty(group), self.limits.kill_s, f"{slot}: {unit} cannot be killed")

    async def _group(self, slot: Slot, unit: str) -> Path:
        """Return the control group of a service in the machine, as a path of the host."""
        argv = ("systemctl", "show", "--property=ControlGroup", "--value", "--", unit_of(slot))
        output = (await self._commands.run(*argv)).stdout.strip()
        roots = (self._paths.at("/sys/fs/cgroup/unified"), self._paths.at("/sys/fs/cgroup"))
        root = next((root for root in roots if (root / "cgroup.controllers").exists()), roots[-1])
        return root / output.strip("/") / "payload" / "system.slice" / unit

    async def stop(self, slot: Slot) -> None:
        """Stop the machine and disable its start at boot, durably.

        Raises:
            Transient: the machine does not end, or would start at the next boot.
        """
        unit = unit_of(slot)
        enabled: Transient | None = None
        try:
            await self._at_boot("disable", unit)
        except Transient as failure:
            log.warning("cannot disable machine", error=failure, slot=slot)
            enabled = failure
        try:
            await self._units.stop(unit, timeout_s=self.limits.stop_s)
        except Transient as failure:
            log.warning("machine does not power off; ending it by force", error=failure, slot=slot)
            await self._force(slot)
        registered, _ = await asyncio.gather(self._registered(slot), self._units.reset_failed(unit))
        if registered:  # not by the unit
            await self._force(slot)
            await self._units.reset_failed(unit)
        if enabled is not None:
            raise enabled
        self._sync_enabled()

    def _sync_enabled(self) -> None:
        """Sync the links that start units at boot, which systemd does not."""
        wants = self._paths.units / f"{TARGET}.wants"
        if wants.is_dir():
            sync_directory(wants)

    async def _force(self, slot: Slot) -> None:
        await self._commands.run("machinectl", "terminate", "--", slot, check=False)
        await self._units.kill(unit_of(slot), "SIGKILL")

        async def gone() -> bool:
            return await self._vanished(slot) and not await self.active(slot)

        await self._until(gone, self.limits.vanish_s, f"{slot}: the machine cannot be ended")

    async def _until(self, done: Callable[[], Awaitable[bool]], within_s: float, words: str) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + within_s
        while not await done():
            if loop.time() > until:
                raise Transient(f"{words} within {within_s:g} s")
            await asyncio.sleep(self.limits.poll_s)


def own_boot_id(process: Path) -> str:
    """Return the boot id that a machine's process sees; empty until nspawn has mounted the machine's own over the
    host's.

    Args:
        process: its folder below /proc.
    """
    try:
        mounts = (process / "mountinfo").read_text().splitlines()
        if not any(line.split()[4] == BOOT_ID for line in mounts):
            return ""
        return (process / "root" / BOOT_ID.lstrip("/")).read_text().strip()
    except OSError:  # the process has ended
        return ""


async def _empty(group: Path) -> bool:
    return not processes(group)


def processes(group: Path) -> list[int]:
    """Return the processes of a control group and of its descendants; none where there is no such group."""
    found: list[int] = []
    for folder, _, _ in os.walk(group):
        with suppress(OSError):
            found += map(int, (Path(folder) / "cgroup.procs").read_text().split())
    return found


def kill_group(group: Path) -> None:
    """Send SIGKILL to every process of a control group."""
    with suppress(OSError):
        (group / "cgroup.kill").write_text("1")  # since Linux 5.14; it also catches forks
    for process in processes(group):
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
