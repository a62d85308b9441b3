"""The simulated machines of `unbounded up --lab`: the same ones again on every start with the same data."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import socket
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import msgspec

from unbounded.api.core import SECRETS
from unbounded.api.machine import MACHINES, Machine
from unbounded.cli.servers import UpFailed
from unbounded.cli.settings import LAB_IDENTITY_FILE
from unbounded.kube.api import AlreadyExists, Api
from unbounded_lab.bmc.fleet import Fleet, FleetFailed, start_fleet
from unbounded_lab.bmc.profiles import faults_for
from unbounded_lab.listener import HOST
from unbounded_lab.machines import SITE, manifests

SIMULATED_SITE: Final = SITE
PORTS: Final = range(20000, 30000)  # below the range from which systems assign ephemeral ports
SETTLE_S: Final = 3.0  # simulators of an earlier run that was killed need this long to release their ports
POLL_S: Final = 0.1
MACHINES_FOR_A_PROCESS: Final = 100


@dataclass(frozen=True)
class LabIdentity:
    """Stored identity of the simulated machines: passwords and certificates are derived from the seed."""

    seed: int
    port_base: int


def check_profile(profile: str) -> None:
    """Refuse a profile that no simulated BMC has.

    Raises:
        UpFailed
    """
    try:
        faults_for(profile)
    except ValueError as error:
        raise UpFailed(f"--lab-profile: {error}") from error


@asynccontextmanager
async def running_lab(data: Path, count: int, profile: str) -> AsyncIterator[Fleet]:
    """Simulate machines inside the context.

    Raises:
        ValueError: there is no such profile.
        UpFailed: a simulator did not start, or has failed.
    """
    identity = await load_identity(data, count)
    processes = -(-count // MACHINES_FOR_A_PROCESS)
    try:
        async with start_fleet(
            count, profile=profile, processes=processes, seed=identity.seed, port_base=identity.port_base
        ) as fleet:
            try:
                yield fleet
            finally:
                _end_at_once(fleet)
    except FleetFailed as error:
        raise UpFailed(str(error)) from error


def _end_at_once(fleet: Fleet) -> None:
    """Kill the simulators: they have no state to save, and an orderly end of many takes seconds."""
    for pid in fleet.pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


async def apply(api: Api, fleet: Fleet) -> list[str]:
    """Create the machines' objects and keep the users' changes to them; returns the Machines' names."""
    names = []
    for manifest in manifests(fleet):
        if manifest["kind"] == "Secret":
            await _create_secret(api, manifest)
        else:
            await _apply_machine(api, manifest)
            names.append(manifest["metadata"]["name"])
    return names


def left_over(machines: Iterable[Machine], names: Iterable[str]) -> list[str]:
    """Return simulated machines of an earlier, larger run, which have no BMC in this one."""
    here = set(names)
    return sorted(m.name for m in machines if m.site == SIMULATED_SITE and m.name not in here and _is_simulated(m))


async def _create_secret(api: Api, manifest: dict[str, Any]) -> None:
    try:
        await api.create(SECRETS, manifest)
    except AlreadyExists:
        return


async def _apply_machine(api: Api, manifest: dict[str, Any]) -> None:
    """Create the Machine. Update only the BMC URL of an existing one, as its simulator may have another port."""
    try:
        await api.create(MACHINES, manifest)
    except AlreadyExists:
        machine = await api.get(MACHINES, manifest["metadata"]["name"])
        url = manifest["spec"]["pxe"]["redfish"]["url"]
        if _is_simulated(machine) and _url(machine) != url:
            await api.patch(MACHINES, machine.name, {"spec": {"pxe": {"redfish": {"url": url}}}})


def _is_simulated(machine: Machine) -> bool:
    return _url(machine).startswith(f"https://{HOST}:")


def _url(machine: Machine) -> str:
    return machine.spec.pxe.redfish.url if machine.spec.pxe and machine.spec.pxe.redfish else ""


async def load_identity(data: Path, count: int) -> LabIdentity:
    """Return the identity stored in the data directory, with new ports if another process uses the stored ones."""
    path = data / LAB_IDENTITY_FILE
    identity = _read(path) or LabIdentity(seed=secrets.randbelow(2**31), port_base=0)
    if not identity.port_base or not await _wait_free(identity.port_base, count):
        identity = replace(identity, port_base=_free_ports(count))
    _write(path, identity)
    return identity


def _read(path: Path) -> LabIdentity | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=LabIdentity)
    except (FileNotFoundError, msgspec.DecodeError):
        return None


def _write(path: Path, identity: LabIdentity) -> None:
    """Replace the file atomically: a torn one would give the old Machines' names to new machines."""
    temporary = path.with_suffix(".new")
    temporary.write_bytes(msgspec.json.encode(identity))
    temporary.rename(path)


async def _wait_free(base: int, count: int) -> bool:
    try:
        async with asyncio.timeout(SETTLE_S):
            while True:
                if _are_free(base, count):
                    return True
                await asyncio.sleep(POLL_S)
    except TimeoutError:
        return False


def _free_ports(count: int) -> int:
    """Return the first of `count` consecutive free ports."""
    while True:
        base = PORTS.start + secrets.randbelow(len(PORTS) - count)
        if _are_free(base, count):
            return base


def _are_free(base: int, count: int) -> bool:
    return all(_is_free(port) for port in range(base, base + count))


def _is_free(port: int) -> bool:
    with socket.socket() as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind((HOST, port))
        except OSError:
            return False
    return True
