"""Many simulated BMCs in processes of their own."""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
from aiohttp import ClientSession, ClientTimeout

from unbounded_lab.bmc.power import HostEvent, HostPower
from unbounded_lab.bmc.profiles import faults_for
from unbounded_lab.bmc.replay import load_recording
from unbounded_lab.bmc.worker import WorkerOrder, WorkerReport

READY_S: Final = 60.0
STOP_S: Final = 2.0
LINE_BYTES: Final = 1 << 24
CONTROL_CALL: Final = ClientTimeout(total=10.0)


class FleetFailed(Exception):
    """A process of the fleet did not start, or did not answer."""


@dataclass(frozen=True)
class FleetBmc:
    """One BMC of a fleet: its address and credentials, and access to its true state and its faults."""

    name: str
    url: str
    username: str
    password: str
    device_ids: tuple[str, ...]
    fingerprint: str  # SHA-256 of its certificate, colon-separated lower hex
    profile: str  # its misbehaviours joined with +, or `ideal`
    control: str  # the address of its control interface
    _http: ClientSession

    async def truth(self) -> dict[str, Any]:
        """Return the true state of the BMC and its hosts, as its control interface reports it."""
        truth: dict[str, Any] = await self._json("GET", "")
        return truth

    async def power(self, device_id: str | None = None) -> HostPower:
        """Return the true power of a host; of the first one if no id is given."""
        systems = (await self.truth())["systems"]
        return HostPower(systems[device_id or self.device_ids[0]]["power"])

    async def history(self, device_id: str | None = None) -> list[HostEvent]:
        """Return the events of a host, oldest first."""
        events = await self._json("GET", f"/history?system={device_id or self.device_ids[0]}")
        return msgspec.convert(events, list[HostEvent])

    async def set_profile(self, profile: str) -> None:
        await self._json("PUT", "/profile", {"profile": profile})

    async def set_faults(self, **settings: Any) -> None:
        await self._json("PATCH", "/faults", settings)

    async def unplug(self) -> None:
        await self._json("POST", "/unplug")

    async def plug(self) -> None:
        await self._json("POST", "/plug")

    async def _json(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        async with self._http.request(method, self.control + path, json=body) as answer:
            content = await answer.read()
            if answer.status == 400:
                raise ValueError(content.decode())
            if answer.status != 200:
                raise FleetFailed(f"{method} {self.control}{path}: {answer.status} {content.decode()}")
            return msgspec.json.decode(content)


@dataclass(frozen=True)
class Fleet:
    """The BMCs of a fleet in the order of their names, and the processes that serve them."""

    bmcs: tuple[FleetBmc, ...]
    pids: tuple[int, ...]

    def __iter__(self) -> Iterator[FleetBmc]:
        return iter(self.bmcs)

    def __len__(self) -> int:
        return len(self.bmcs)

    def __getitem__(self, index: int) -> FleetBmc:
        return self.bmcs[index]


@asynccontextmanager
async def start_fleet(
    count: int,
    *,
    profile: str = "ideal",
    processes: int = 1,
    seed: int = 0,
    shutdown_s: float = 1.0,
    boot_s: float = 2.0,
    port_base: int = 0,
    power: HostPower = HostPower.ON,
    prefix: str = "lab",
    recording: Path | None = None,
    media_ca: str = "",
    boots: bool = False,
) -> AsyncIterator[Fleet]:
    """Serve `count` BMCs, named `lab-01` and so on, inside the context.

    Args:
        profile: as in `profiles.py`; the BMCs take turns with several separated by commas.
        processes: number of processes that share the BMCs; at most `count`.
        seed: the same seed gives the same passwords, certificates and profile mix.
        port_base: the port of the first BMC, the others follow; 0 takes free ones.
        recording: file of a recorded BMC, which all replay.
        media_ca: certificates in PEM that servers of virtual media must chain to; the system's if empty.
        boots: the hosts run what they boot, and each BMC has an address of its own.

    Raises:
        ValueError: there is no such profile, or the recording cannot be read.
        FleetFailed: a process did not start, such as for a port in use.
    """
    faults_for(profile, seed=seed)
    if recording is not None:
        load_recording(recording)
    names = bmc_names(count, prefix)
    orders = [
        WorkerOrder(
            indexes=tuple(range(start, count, processes)),
            names=tuple(names[start::processes]),
            profile=profile,
            seed=seed,
            shutdown_s=shutdown_s,
            boot_s=boot_s,
            port_base=port_base,
            power=power,
            recording=str(recording or ""),
            media_ca=media_ca,
            boots=boots,
        )
        for start in range(min(processes, count))
    ]
    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(ClientSession(timeout=CONTROL_CALL))
        workers = [await stack.enter_async_context(_worker()) for _ in orders]
        rolls = await asyncio.gather(*map(_start, workers, orders))
        bmcs = sorted((bmc for roll in rolls for bmc in _bmcs(roll, http)), key=lambda bmc: names.index(bmc.name))
        yield Fleet(tuple(bmcs), tuple(worker.pid for worker in workers))


def bmc_names(count: int, prefix: str = "lab") -> list[str]:
    """Return `lab-01`, `lab-02`, with as many digits as the last one needs."""
    digits = max(2, len(str(count)))
    return [f"{prefix}-{number:0{digits}d}" for number in range(1, count + 1)]


@asynccontextmanager
async def _worker() -> AsyncIterator[Process]:
    """Start a process without an order yet; it ends with the context."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "unbounded_lab.bmc.worker",
        stdin=PIPE,
        stdout=PIPE,
        limit=LINE_BYTES,
        start_new_session=True,  # Ctrl-C goes to the parent alone, which then ends the process
    )
    try:
        yield process
    finally:
        await asyncio.shield(_stop(process))


async def _stop(process: Process) -> None:
    """End a process by closing its input, and then by signals."""
    if process.stdin is not None:
        process.stdin.close()
    for nudge in (None, process.terminate, process.kill):
        with suppress(TimeoutError, ProcessLookupError):
            if nudge is not None:
                nudge()
            async with asyncio.timeout(STOP_S):
                await process.wait()
                return


async def _start(process: Process, order: WorkerOrder) -> WorkerReport:
    if process.stdin is None or process.stdout is None:
        raise FleetFailed("the process has no pipes")
    process.stdin.write(msgspec.json.encode(order) + b"\n")
    try:
        async with asyncio.timeout(READY_S):
            line = await process.stdout.readline()
    except TimeoutError as error:
        raise FleetFailed(f"BMCs are not ready after {READY_S:.0f} s") from error
    if not line:
        raise FleetFailed(f"a process of the fleet exited with status {await process.wait()}")
    roll = msgspec.json.decode(line, type=WorkerReport)
    if roll.error:
        raise FleetFailed(roll.error)
    return roll


def _bmcs(roll: WorkerReport, http: ClientSession) -> Sequence[FleetBmc]:
    return [
        FleetBmc(
            name=bmc["name"],
            url=bmc["url"],
            username=bmc["username"],
            password=bmc["password"],
            device_ids=tuple(bmc["deviceIDs"]),
            fingerprint=bmc["certFingerprint"],
            profile=bmc["profile"],
            control=f"{roll.control}/lab/bmcs/{bmc['name']}",
            _http=http,
        )
        for bmc in roll.bmcs
    ]
