"""Logs of hosts in the archive of the command `support`: install, journal of the agent, and console of a failed boot.

The user's own keys open the hosts. Logs of many hosts are bounded by their number, size and time; the archive names
the Machines whose logs are not in it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from typing import Final

from unbounded.api.failures import Failure
from unbounded.api.machine import MACHINES, Machine, MachinePhase
from unbounded.cli.machine_logs import AGENT, CONSOLE, INSTALL, LogPart, LogRange, read_logs
from unbounded.cli.support_bundle import Raw, SupportBundle
from unbounded.join.boot_secrets import boot_secrets
from unbounded.kube.api import ApiError
from unbounded.kube.secret_text import without_secrets

MOST_SECRETS: Final = 2000  # to search for in a log
LINES: Final = 5000  # of each log of one Machine
MOST_HOSTS: Final = 50
HOSTS_AT_ONCE: Final = 8
LINES_OF_MANY: Final = 1000
HOST_BYTES: Final = 256 * 1024  # of each log, of many hosts
ALL_BYTES: Final = 16 * 1024 * 1024  # of the logs of all hosts
HOST_S: Final = 45.0
ALL_S: Final = 240.0  # after this time, no further host is read


def by_need(machines: Sequence[Raw]) -> list[Raw]:
    """Return Machines in the order of their names, those first that are not Ready."""

    def rank(machine: Raw) -> tuple[bool, str]:
        return (machine.get("status") or {}).get("phase") == MachinePhase.READY, machine["metadata"]["name"]

    return sorted(machines, key=rank)


async def add_logs(bundle: SupportBundle, machine: Machine) -> None:
    """Add the logs of one Machine; `bundle.known` has what may be secret in its user data, also for later files."""
    known = await _know_secrets(bundle, machine)
    if known is None:
        return
    bundle.known = known
    if not bundle.session.invocation.args.host_logs:
        bundle.leave_out("logs of the host: --host-logs=false was given")
    if machine.status.console_output is not None and not bundle.session.invocation.args.console:
        bundle.leave_out("the console of the last failed boot: --console=false was given")
    for part in await _read(bundle, machine, LINES, known):
        if part.missing:
            bundle.leave_out(f"the {part.name} log: {_cause(part, known)}")
        elif not bundle.add_text(f"logs/{part.name}.log", f"# {part.source}\n{part.text}\n"):
            bundle.leave_out(f"the {part.name} log: the archive has reached its size")


async def add_logs_of_all(bundle: SupportBundle, machines: Sequence[Raw]) -> None:
    """Add the logs of as many Machines as the limits allow, those first that are not Ready."""
    args = bundle.session.invocation.args
    if not args.host_logs:
        bundle.leave_out("logs of the hosts: --host-logs=false was given")
    if not args.console:
        bundle.leave_out("consoles of failed boots: --console=false was given")
    names = [one["metadata"]["name"] for one in by_need(machines) if _has_logs(one, bundle)]
    if len(names) > MOST_HOSTS:
        bundle.leave_out(f"logs of {len(names) - MOST_HOSTS} of {len(names)} Machines", names[MOST_HOSTS:])
    await _HostQueue(bundle).run(names[:MOST_HOSTS])


def _has_logs(machine: Raw, bundle: SupportBundle) -> bool:
    """Return whether a Machine can have logs that were not declined."""
    args, spec, status = bundle.session.invocation.args, machine.get("spec") or {}, machine.get("status") or {}
    return bool((args.host_logs and spec.get("ssh")) or (args.console and status.get("consoleOutput")))


class _HostQueue:
    """Reads of the logs of many hosts, some at the same time."""

    def __init__(self, bundle: SupportBundle) -> None:
        self._bundle = bundle
        self._left = ALL_BYTES
        self._free = asyncio.Semaphore(HOSTS_AT_ONCE)

    async def run(self, names: Sequence[str]) -> None:
        ends_at = asyncio.get_running_loop().time() + ALL_S
        async with asyncio.TaskGroup() as group:
            for name in names:
                group.create_task(self._add(name, ends_at))

    async def _add(self, name: str, ends_at: float) -> None:
        async with self._free:
            if asyncio.get_running_loop().time() >= ends_at:
                self._bundle.leave_out(f"logs of Machines that were not read within {ALL_S:g} s", [name])
                return
            try:
                async with asyncio.timeout(HOST_S):
                    await self._add_machine(name)
            except TimeoutError:
                self._bundle.leave_out(f"logs of Machines that took more than {HOST_S:g} s", [name])
            except Failure as error:
                self._bundle.leave_out(f"logs of Machine {name}: {error}")

    async def _add_machine(self, name: str) -> None:
        bundle = self._bundle
        machine = await bundle.session.api.get(MACHINES, name)
        known = await _know_secrets(bundle, machine)
        if known is None:
            return
        for part in await _read(bundle, machine, LINES_OF_MANY, known):
            if part.missing:
                bundle.leave_out(
                    "logs of hosts that could not be read", [f"{part.name} of {name}: {_cause(part, known)}"]
                )
            else:
                self._add_text(f"{name}/{part.name}", part)

    def _add_text(self, name: str, part: LogPart) -> None:
        text, is_cut = _end_of(part.text, HOST_BYTES)
        self._left -= len(text.encode())
        if self._left < 0 or not self._bundle.add_text(f"logs/{name}.log", f"# {part.source}\n{text}\n"):
            self._bundle.leave_out(f"logs of hosts after the first {ALL_BYTES // 1024**2} MiB", [name])
        elif is_cut:
            self._bundle.leave_out(f"older lines of logs of more than {HOST_BYTES // 1024} KiB", [name])


def _end_of(text: str, most: int) -> tuple[str, bool]:
    """Return the whole lines at the end of a text that fit into so many bytes, and whether others are before them."""
    encoded = text.encode()
    if len(encoded) <= most:
        return text, False
    return encoded[-most:].partition(b"\n")[2].decode(errors="replace"), True


def _cause(part: LogPart, known: Collection[str]) -> str:
    """Return why a log could not be read, without secrets."""
    return without_secrets(f"{part.missing} ({part.source})", known)


async def _read(bundle: SupportBundle, machine: Machine, lines: int, known: Collection[str]) -> list[LogPart]:
    """Return the logs that were not declined, without secrets; the console only where one is kept."""
    args = bundle.session.invocation.args
    parts = (INSTALL, AGENT) if args.host_logs and (machine.spec.ssh is not None or not args.all) else ()
    if args.console and machine.status.console_output is not None:
        parts = (*parts, CONSOLE)
    return await read_logs(bundle.session, machine, parts, LogRange(lines), known=known, reads_secrets=False)


async def _know_secrets(bundle: SupportBundle, machine: Machine) -> set[str] | None:
    """Return what a log must not show; None, with a note, where it cannot be known."""
    names = {machine.name, machine.site, machine.spec.ssh.host if machine.spec.ssh is not None else ""}
    try:
        found = await boot_secrets(bundle.session.api, machine) - names  # user data may have them, too
    except ApiError as error:
        why = "user data and profile may be in them, and cannot be read"
        bundle.leave_out(f"logs of Machines whose {why}", [f"{machine.name}: {error}"])
        return None
    if len(found) > MOST_SECRETS:
        bundle.leave_out(
            f"logs of Machines whose user data have more than {MOST_SECRETS} possible secrets", [machine.name]
        )
        return None
    return found
