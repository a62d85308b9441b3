"""Restarts during operations: dark time of hosts, and lateness of deadlines.

The controllers are the deployed commands, with a Lease each. They act on sushy-tools' Redfish emulator (its `fake`
driver, a power change takes 1 s), which records each power change. Where hosts have to ignore a shutdown, they act on
the lab's simulated BMCs; replacements act on the simulated Azure.

1. Hosts are rebooted (`force`), undisturbed, round by round. Then metalman gets SIGTERM or SIGKILL while hosts are
   dark: up to a second after a random one of them was switched off. It restarts at once.
2. Hosts that ignore their shutdown are rebooted with a deadline; metalman is killed every 20 s.
3. A VM is replaced undisturbed, and with machine-ops-controller killed every 60 s.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import msgspec

from benchmarks import children, cloud
from benchmarks.cloud_lab import Ready
from benchmarks.frame import Limit, Measured, percentile, print_progress, run_benchmark
from tests.support.sushy import PASSWORD, USERNAME, Sushy, sushy
from unbounded.api.core import LEASES, SECRETS
from unbounded.api.machine import MACHINES
from unbounded.api.names import LABEL_SITE, NAMESPACE
from unbounded.api.operation import MACHINE_OPERATIONS, MachineOperation
from unbounded.cli import child
from unbounded.kube.api import Api, NotFound
from unbounded.kube.client import HttpApi
from unbounded.kube.config import from_kubeconfig
from unbounded.metalman.settings import MetalmanSettings
from unbounded_lab import machines as lab
from unbounded_lab.bmc.fleet import start_fleet

SITE: Final = lab.SITE
SECRET: Final = "emulator"
DARK_S: Final = 1.0  # the longest delay of a signal after a host was switched off
ENDS_S: Final = 180.0
KILLED_EVERY_S: Final = 20.0
CLOUD_KILLED_EVERY_S: Final = 60.0
DEADLINE_S: Final = 60
AGAIN_S: Final = 1.0  # between a process's end and its restart, as a service manager waits

AMOUNT: Final = "{hosts:g} hosts, {rounds:g} rounds of each kind"
LIMITS: Final[Mapping[str, Limit]] = {
    "extra_dark_after_sigterm_s": Limit("the longest dark time with a stop, less that without, s", most=5.0),
    "extra_dark_after_sigkill_s": Limit("the longest dark time with a kill, less that without, s", most=15.0),
    "dark_with_sigterm_vs_undisturbed": Limit("p95 of dark times with a stop, over that without"),
    "dark_with_sigkill_vs_undisturbed": Limit("p95 of dark times with a kill, over that without"),
    "deadline_late_s": Limit("lateness of a deadline with a kill every 20 s, s", most=10.0),
    "replacement_with_kills_vs_undisturbed": Limit(
        "time for a replacement with a kill every 60 s, over that without", most=1.5
    ),
}


@dataclass(frozen=True)
class Size:
    """Amounts of one run."""

    hosts: int
    rounds: int
    replaces: bool


FULL: Final = Size(hosts=20, rounds=6, replaces=True)
QUICK: Final = Size(hosts=3, rounds=1, replaces=False)


async def run(quick: bool) -> Measured:
    size = QUICK if quick else FULL
    dark = await dark_times(size)
    late_s = await deadline_late_s(size)
    whole_s = [await replaced_s(killed=killed) for killed in (False, True)] if size.replaces else [1.0, 1.0]
    p95 = {how: percentile(times, 0.95) for how, times in dark.items()}
    return Measured(
        figures={
            "hosts": size.hosts,
            "rounds": size.rounds,
            **{f"dark_p95_{how}_s": value for how, value in p95.items()},
            **{f"dark_longest_{how}_s": max(times) for how, times in dark.items()},
            "extra_dark_after_sigterm_s": max(dark["sigterm"]) - max(dark["undisturbed"]),
            "extra_dark_after_sigkill_s": max(dark["sigkill"]) - max(dark["undisturbed"]),
            "deadline_late_s": late_s,
            "replacement_s": whole_s[0],
            "replacement_with_kills_s": whole_s[1],
        },
        ratios={
            "dark_with_sigterm_vs_undisturbed": p95["sigterm"] / p95["undisturbed"],
            "dark_with_sigkill_vs_undisturbed": p95["sigkill"] / p95["undisturbed"],
            "replacement_with_kills_vs_undisturbed": whole_s[1] / whole_s[0],
        },
    )


# Dark time


async def dark_times(size: Size) -> dict[str, list[float]]:
    """Return the seconds that hosts were dark in a reboot, by the disturbance of metalman."""
    found: dict[str, list[float]] = {}
    async with _plane() as (folder, kubeconfig, api):
        emulated = folder / "sushy"
        emulated.mkdir()
        async with sushy(emulated, systems=size.hosts) as emulator:
            await _register(api, emulator)
            await _operate(api, "HostPowerOn", "on", kubeconfig)
            for how, number in (("undisturbed", 0), ("sigterm", signal.SIGTERM), ("sigkill", signal.SIGKILL)):
                for turn in range(size.rounds):
                    name = f"{how}-{turn}"
                    found.setdefault(how, []).extend(await _round(api, emulator, name, kubeconfig, number))
    return found


async def _round(api: Api, emulator: Sushy, name: str, kubeconfig: str, number: int) -> list[float]:
    """Reboot all hosts once; return the dark time of each."""
    before = len(emulator.changes())

    async def some_dark() -> None:
        chosen = random.randint(1, len(emulator.device_ids))
        while sum(state == "Off" for _, _, state in emulator.changes()[before:]) < chosen:  # noqa: ASYNC110, polls a file
            await asyncio.sleep(0.02)
        await asyncio.sleep(random.uniform(0, DARK_S))

    await _operate(api, "HostReboot", name, kubeconfig, number, some_dark)
    dark = _dark(emulator.changes()[before:])
    print_progress(f"{name}: dark for {min(dark):.1f} to {max(dark):.1f} s")
    return dark


def _dark(changes: Sequence[tuple[float, str, str]]) -> list[float]:
    """Return the seconds for which each system was off, of its changes in order."""
    off: dict[str, float] = {}
    dark: dict[str, float] = {}
    for at, device, state in changes:
        if state == "Off":
            off.setdefault(device, at)
        elif device in off:
            dark[device] = dark.get(device, 0.0) + at - off.pop(device)
    return list(dark.values())


async def _operate(
    api: Api,
    kind: str,
    name: str,
    kubeconfig: str,
    number: int = 0,
    moment: Callable[[], Awaitable[None]] | None = None,
) -> None:
    """Complete an operation of every Machine; metalman gets a signal at some moment, and restarts."""
    machines = [one.name for one in (await api.list(MACHINES)).items]
    metalman = await _start_metalman(kubeconfig)
    try:
        await _leads(api, metalman)
        parameters = {"parameters": {"force": "true"}} if kind == "HostReboot" else {}
        for machine in machines:
            spec = {"operationKind": kind, "machineRef": machine, **parameters}
            await api.create(MACHINE_OPERATIONS, {"metadata": {"name": f"{name}-{machine}"}, "spec": spec})
        if number and moment is not None:
            await moment()
            metalman.send_signal(number)
            await metalman.wait()
            metalman = await _start_metalman(kubeconfig)
        ended = await _ended(api, [f"{name}-{machine}" for machine in machines], ENDS_S)
        failed = [(one.name, one.status.message) for one in ended if one.status.phase != "Complete"]
        if failed:
            raise RuntimeError(f"{len(failed)} operations failed: {failed[0]}")
    finally:
        await child.end(metalman)


async def _register(api: Api, emulator: Sushy) -> None:
    data = {"stringData": {"password": PASSWORD}}
    await api.create(SECRETS, {"metadata": {"name": SECRET}, **data}, namespace=NAMESPACE)
    reference = {"name": SECRET, "namespace": NAMESPACE, "key": "password"}
    for number, device in enumerate(emulator.device_ids):
        redfish = {"url": emulator.url, "deviceID": device, "username": USERNAME, "passwordRef": reference}
        pxe = {"image": "registry.example.com/host:v1", "redfish": redfish | {"caBundle": emulator.ca_bundle}}
        metadata = {"name": f"host-{number:02d}", "labels": {LABEL_SITE: SITE}}
        await api.create(MACHINES, {"metadata": metadata, "spec": {"pxe": pxe}})


# Deadlines


async def deadline_late_s(size: Size) -> float:
    """Return by how many seconds the latest operation missed its deadline."""
    async with _plane() as (_folder, kubeconfig, api), start_fleet(size.hosts, profile="os-ignores-shutdown") as fleet:
        for bmc in fleet:
            await api.create(SECRETS, lab.secret(bmc))
            for manifest in lab.machines(bmc):
                await api.create(MACHINES, manifest)
        names = [f"late-{bmc.name}" for bmc in fleet]
        killing = asyncio.create_task(_run_with_kills(lambda: _start_metalman(kubeconfig), KILLED_EVERY_S))
        try:
            for bmc, name in zip(fleet, names, strict=True):
                spec = {
                    "operationKind": "HostReboot",
                    "machineRef": bmc.name,
                    "deadlineSeconds": DEADLINE_S,
                    "parameters": {"graceSeconds": "600"},
                }
                await api.create(MACHINE_OPERATIONS, {"metadata": {"name": name}, "spec": spec})
            ended = await _ended(api, names, DEADLINE_S + ENDS_S)
        finally:
            killing.cancel()
            await asyncio.wait({killing})
        late = [_seconds(one) - DEADLINE_S for one in ended]
        print_progress(f"deadlines: {min(late):.1f} to {max(late):.1f} s late: {ended[0].status.reason}")
        return max(late)


def _seconds(ended: MachineOperation) -> float:
    """Return the seconds from the claim to the end."""
    status = ended.status
    if status.started_at is None or status.completed_at is None:
        raise RuntimeError(f"{ended.name} was not carried out: {status.message}")
    return (datetime.fromisoformat(status.completed_at) - datetime.fromisoformat(status.started_at)).total_seconds()


# A replacement


async def replaced_s(*, killed: bool) -> float:
    """Return the seconds from a HostReplace's creation to its end."""
    with TemporaryDirectory(prefix="unbounded-benchmark-") as name:
        folder = Path(name)
        async with (
            children.start("benchmarks.cloud_lab", "1", "2", str(folder / "ca.pem"), "--slow") as azure_lab,
            children.start("benchmarks.server", str(folder / "data")) as server,
            HttpApi(from_kubeconfig(Path(server.ready["kubeconfig"]))) as api,
            children.start("benchmarks.controllers", "--kubeconfig", server.ready["kubeconfig"], "--site", "none"),
        ):
            azure = msgspec.convert(azure_lab.ready, Ready)
            kubeconfig = await cloud.prepared(api, azure, folder)
            machine = next(one for one in azure.machines if one.kind == "HostReplace")
            every_s = CLOUD_KILLED_EVERY_S if killed else 3600.0
            command = cloud.controller_command(kubeconfig, concurrent=10)
            start = lambda: asyncio.create_subprocess_exec(  # noqa: E731
                *command, env=os.environ | cloud.environment(kubeconfig, azure), start_new_session=True
            )
            running = asyncio.create_task(_run_with_kills(start, every_s))
            try:
                began = time.monotonic()
                spec = {"operationKind": "HostReplace", "machineRef": machine.name}
                await api.create(MACHINE_OPERATIONS, {"metadata": {"name": "replace"}, "spec": spec})
                (ended,) = await _ended(api, ["replace"], 1800.0)
                whole_s = time.monotonic() - began
            finally:
                running.cancel()
                await asyncio.wait({running})
            if ended.status.phase != "Complete":
                raise RuntimeError(f"the replacement failed: {ended.status.message}")
            print_progress(f"replacement{' with kills' if killed else ''}: {whole_s:.1f} s")
            return whole_s


# Common parts


@asynccontextmanager
async def _plane() -> AsyncIterator[tuple[Path, str, Api]]:
    """Run an API server and machina's controllers, without a metalman."""
    with TemporaryDirectory(prefix="unbounded-benchmark-") as name:
        folder = Path(name)
        async with children.start("benchmarks.server", str(folder / "data")) as server:
            kubeconfig = server.ready["kubeconfig"]
            async with HttpApi(from_kubeconfig(Path(kubeconfig))) as api:
                machina = await asyncio.create_subprocess_exec(
                    *child.command(
                        "unbounded.machina.main",
                        "controller",
                        "--kubeconfig",
                        kubeconfig,
                        "--metrics-addr",
                        "127.0.0.1:0",
                        "--probe-addr",
                        "127.0.0.1:0",
                        "--log-level",
                        "warning",
                    )
                )
                try:
                    yield folder, kubeconfig, api
                finally:
                    await child.end(machina)


async def _start_metalman(kubeconfig: str) -> Process:
    flags = {
        "--kubeconfig": kubeconfig,
        "--site": SITE,
        "--health-bind": "127.0.0.1",
        "--health-port": "0",
        "--operation-max-concurrent-machines": "50",
        "--log-level": "warning",
    }
    options = [word for flag in flags.items() for word in flag]
    return await asyncio.create_subprocess_exec(*child.command("unbounded.metalman.main", "controller", *options))


async def _run_with_kills(start: Any, every_s: float) -> None:
    """Run a process, and kill and restart it at intervals."""
    while True:
        process = await start()
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(every_s):
                    await process.wait()
        finally:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
        await asyncio.sleep(AGAIN_S)


async def _leads(api: Api, metalman: Process) -> None:
    """Wait until the new process is the leader."""
    name, since = MetalmanSettings(site=SITE).lease, datetime.now(UTC)
    async with asyncio.timeout(ENDS_S):
        while metalman.returncode is None:
            with suppress(NotFound):
                spec = (await api.get(LEASES, name, namespace=NAMESPACE)).spec
                if spec.holder_identity and datetime.fromisoformat(spec.renew_time or "") >= since:
                    return
            await asyncio.sleep(0.1)
    raise children.ChildFailed(f"metalman ended with status {metalman.returncode}")


async def _ended(api: Api, names: Sequence[str], within_s: float) -> list[MachineOperation]:
    """Wait until operations have ended."""
    async with asyncio.timeout(within_s):
        while True:
            operations = {one.name: one for one in (await api.list(MACHINE_OPERATIONS)).items}
            ended = [operations[name] for name in names if operations[name].terminal]
            if len(ended) == len(names):
                return ended
            await asyncio.sleep(0.2)


if __name__ == "__main__":
    run_benchmark("recovery", run)
