"""Storms: schedules of several Machines, operations and processes that are cut off, under a judge of what came of it.

A seed is one schedule. What a process has sent arrives although that process has died, as late as a call may last.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final

import msgspec

from tests.operations.faults import FAIR, STORM, Between, Incarnation, Weather
from tests.operations.judge import EXECUTOR, Act, Judge, Send
from tests.operations.simulated import Host, PowerExecutor
from tests.operations.world import Process, World
from tests.support.memory_api import MemoryApi
from tests.support.virtual_time import virtual_now
from unbounded.api.failures import Failure, Transient
from unbounded.api.machine import MACHINES, NODE_RECREATION, Machine
from unbounded.api.meta import Kind
from unbounded.api.operation import MACHINE_OPERATIONS, MachineOperation
from unbounded.kube.api import ApiError, NotFound
from unbounded.kube.clock import rfc3339
from unbounded.metalman import power
from unbounded.metalman.bmc_events import PowerEvents
from unbounded.metalman.executor import EVENT_POLLS_S
from unbounded.metalman.redfish.bmc_interface import BmcPowerState
from unbounded.operations.executor_protocol import Target
from unbounded.workflow.procedure import Observation, Procedure

KINDS: Final = ("HostReboot", "HostReboot", "HostReboot", "HostPowerOff", "HostPowerOn")
VANISHES: Final = 0.3  # of what is on its way when its process dies
LAGS: Final = 0.5
RIVALS: Final = 1  # of four schedules: in that one, others write at the very moments at which an executor does
READS: Final = 16  # of executors, and WRITES, among which those are
WRITES: Final = 50
STALLING: Final = Weather(freeze=0.1)


def host_of(machine: Machine) -> str:
    """Return the host behind a Machine's BMC."""
    assert machine.spec.pxe is not None
    assert machine.spec.pxe.redfish is not None
    return machine.spec.pxe.redfish.url.removeprefix("https://")


class BmcStream(StrEnum):
    """The events of a schedule's BMCs."""

    ABSENT = "no stream"
    PUNCTUAL = "in time"
    LATE = "up to 40 s late"
    DOUBLED = "twice"
    DISORDERED = "out of order"
    NEVER = "an open stream without events"
    DROPS = "a stream that ends, and its events with it"


class StormExecutor(PowerExecutor):
    """metalman's tables on hosts that requests reach although the process that sent them has died."""

    def __init__(self, name: str, life: Incarnation, world: StormWorld) -> None:
        super().__init__(name, life, world.outside)
        self.judge = world.verdict
        self.world = world
        self.events = PowerEvents()
        world.listeners.append(self)

    def subscribe(self, wake: Callable[[str], None]) -> None:
        self.events.subscribe(wake)

    def procedure(self, operation: MachineOperation) -> Procedure:
        found, machine = super().procedure(operation), operation.spec.machine_ref or ""
        if self.world.stream is not BmcStream.ABSENT and machine not in self.world.dropped:
            self.events.opened(machine)
        return replace(found, polls_s=EVENT_POLLS_S) if self.events.arrive(machine) else found

    def target_digest(self, machine: Machine) -> str:
        return f"host:{host_of(machine)}"

    async def observe(self, target: Target) -> Observation:
        async def read() -> Observation:
            try:
                await self.reach(float("inf"))
            except Failure:
                self.events.failed(target.machine.name)
                raise
            host = self.outside.host(host_of(target.machine))
            self.events.record(target.machine.name, BmcPowerState(host.power))
            return Observation(
                power.BmcPowerFact(host.power), detail=f"PowerState is {host.power}", where="simulated BMC"
            )

        try:
            return await self.life.through("observe", read)
        finally:  # that nothing can be read is known then, too
            ends = self.judge.reads.setdefault((self.life.name, target.operation.metadata.uid), [])
            ends.append(self.outside.now())

    async def perform(self, target: Target, action: str, *, before: float) -> None:
        try:
            await self._perform(target, action, before)
        except Failure:
            self.events.failed(target.machine.name)
            raise

    async def _perform(self, target: Target, action: str, before: float) -> None:
        await self.life.through(f"perform {action}", _nothing)
        if self.outside.now() > before or self.outside.dice(self.outside.unreachable):
            raise Transient("the outside was not reached")
        uid, name = target.operation.metadata.uid, host_of(target.machine)
        self.judge.sends.append(Send(self.outside.now(), uid, action, self.life.name, name))
        arrival = self._send(target, action, name)
        await self.life.point(f"{action} on its way")
        await arrival
        await self.life.point(f"{action} answered")
        await self.answered()

    def _send(self, target: Target, action: str, name: str) -> asyncio.Future[None]:
        loop, chance = asyncio.get_running_loop(), self.outside.chance
        arrival: asyncio.Future[None] = loop.create_future()
        ends = loop.time() + self.call_limit_s
        lags = chance.random() < LAGS

        def arrive() -> None:
            if self.life.dead.is_set() and not arrival.done():
                if chance.random() < VANISHES:
                    return
                if lags:
                    arrival.cancel()
                    loop.call_later(chance.uniform(0, max(ends - loop.time(), 0.0)), arrive)
                    return
            host, deaf = self.outside.host(name), self.outside.dice(self.outside.deaf)
            satisfied = host.ask(action, loop.time(), chance, deaf=deaf)
            self.world.announce_power(target.machine.name, host)
            self.judge.acts.append(
                Act(
                    loop.time(),
                    name,
                    target.machine.name,
                    target.operation.metadata.uid,
                    action,
                    self.life.name,
                    satisfied,
                )
            )
            if not arrival.done():
                arrival.set_result(None)

        slow = self.outside.dice(self.outside.slow)
        loop.call_later(chance.uniform(0, 0.9 * self.call_limit_s if slow else 0.2), arrive)
        return arrival


async def _nothing() -> None:
    return


class TracingApi(MemoryApi):
    """Reports every object that is deleted."""

    def __init__(self, gone: Callable[[str], None], **options: Any) -> None:
        super().__init__(**options)
        self._gone = gone

    def _remove(self, collection: Any, key: Any, old: Any) -> None:
        self._gone(old.body["metadata"]["uid"])
        super()._remove(collection, key, old)


class Rivals(Between):
    """Users and other controllers that write in the moment before a process's call takes effect, on what that is about.

    Args:
        reads, writes: those of executors, each kind counted from 0, before which they write.
    """

    def __init__(self, storm: Storm, reads: Iterable[int] = (), writes: Iterable[int] = ()) -> None:
        self._storm = storm
        self._at = {"get": frozenset(reads), "patch": frozenset(writes)}
        self._calls = {"get": 0, "patch": 0}

    async def before(self, life: Incarnation, call: str, name: str) -> None:
        if not life.name.startswith(EXECUTOR):
            return
        verb = call.partition(" ")[0]
        number, self._calls[verb] = self._calls[verb], self._calls[verb] + 1
        if number in self._at[verb]:
            await self._storm.come_between(name)

    def answered(self, life: Incarnation, call: str, answer: object) -> None:
        """Record each Machine that a process received, in its state at that time."""
        if isinstance(answer, Machine | dict) and call.endswith(" Machine"):
            machine = answer if isinstance(answer, Machine) else msgspec.convert(answer, Machine)
            self._storm.world.verdict.tell(life.name, machine, host_of(machine))
        if isinstance(answer, MachineOperation) and call.startswith("patch") and life.name.startswith(EXECUTOR):
            self._storm.world.verdict.wrote(life.name, answer)


@dataclass
class StormWorld(World):
    """A world whose judge sees everything."""

    verdict: Judge = field(init=False)
    stream: BmcStream = BmcStream.ABSENT
    listeners: list[StormExecutor] = field(default_factory=list)
    dropped: set[str] = field(default_factory=set)  # Machines whose stream has ended
    events: random.Random = field(default_factory=lambda: random.Random(0))

    def __post_init__(self) -> None:
        super().__post_init__()
        self.verdict = Judge(self.call_limit_s, lives=self.lives)
        self.api = TracingApi(self.verdict.gone, defaults=self.api._defaults, admit=self._see, now=self.api._now)

    def _see(self, kind: Kind[Any], old: dict[str, Any] | None, new: dict[str, Any]) -> None:
        if kind.kind == "Machine":
            self.verdict.stored(kind.kind, old, new, "", self._host(new))
        elif kind.kind == "MachineOperation":
            versions = self.api._collection(MACHINES).versions
            machine = versions.get(("", new["spec"].get("machineRef", "")))
            host = "" if machine is None else self._host(machine.body)
            self.verdict.stored(kind.kind, old, new, self.outside.host(host).power if host else "", host)

    @staticmethod
    def _host(machine: dict[str, Any]) -> str:
        url: str = machine["spec"]["pxe"]["redfish"]["url"]
        return url.removeprefix("https://")

    def announce_power(self, machine: str, host: Host) -> None:
        """Let the BMC send the events of what is under way on its host."""
        if self.stream in (BmcStream.ABSENT, BmcStream.NEVER):
            return
        loop, chance = asyncio.get_running_loop(), self.events
        for due in (host.off_at, host.on_at):
            for _ in range(2 if self.stream is BmcStream.DOUBLED else 1) if due is not None else ():
                late_s = {BmcStream.LATE: 40.0, BmcStream.DISORDERED: 8.0, BmcStream.DOUBLED: 2.0}.get(self.stream, 0.2)
                loop.call_at((due or 0.0) + chance.uniform(0.01, late_s), self._deliver, machine)
        if self.stream is BmcStream.DROPS and chance.random() < 0.5:
            loop.call_later(chance.uniform(0.0, 5.0), self._drop, machine)

    def _deliver(self, machine: str) -> None:
        for executor in self.listeners:
            if not executor.life.dead.is_set() and machine not in self.dropped:
                executor.events.hint(machine)

    def _drop(self, machine: str) -> None:
        self.dropped.add(machine)
        for executor in self.listeners:
            if not executor.life.dead.is_set():
                executor.events.closed([machine])
        asyncio.get_running_loop().call_later(self.events.uniform(30.0, 60.0), self.dropped.discard, machine)

    def metalman(self, name: str = "metalman/lab", **options: Any) -> Process:
        return self.executor(name, lambda life, _api: StormExecutor(name, life, self), **options)

    def transitions(self) -> dict[str, list[tuple[float, str]]]:
        """Return when each host became On or Off, its first state at 0."""
        names = {one.host for states in self.verdict.machines.values() for one in states}
        return {name: _transitions(self.outside.host(name)) for name in sorted(names)}


def _transitions(host: Host) -> list[tuple[float, str]]:
    changes = sorted([(at, "Off") for at in host.was_off] + [(at, "On") for at in host.was_on])
    first = "Off" if changes and changes[0][1] == "On" else "On" if changes else host.power
    return [(0.0, first), *changes]


@dataclass
class Storm:
    """One schedule, drawn from its seed."""

    seed: int
    chance: random.Random = field(init=False)
    world: StormWorld = field(init=False)
    names: list[str] = field(default_factory=list)
    machines: list[str] = field(default_factory=list)
    _returns: list[asyncio.Task[None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        self._rival = random.Random(f"rivals of {self.seed}")  # so that without them a schedule is what it is

    async def run(self) -> None:
        """Let it come to its end, and judge it."""
        chance = self.chance
        weather = chance.choice((FAIR, FAIR, STORM, STORM, STALLING))
        self.world = world = StormWorld(chance, weather=weather, reaps=chance.random() < 0.8)
        world.events = random.Random(f"events of {self.seed}")
        world.stream = world.events.choice(tuple(BmcStream))
        world.verdict.unannounced = world.stream not in (BmcStream.ABSENT, BmcStream.PUNCTUAL, BmcStream.DOUBLED)
        world.verdict.weather, world.verdict.alone = world.weather, world.reaps
        world.between = self._rivals()
        self._disturb()
        machines = self.machines = [f"m{number}" for number in range(chance.randint(1, 3))]
        for name in machines:
            await world.machine(name)
            if chance.random() < 0.2:
                world.outside.host(name).power = "Off"
        keepers = [asyncio.create_task(keeping) for keeping in self._processes()]
        await self._ask(machines)
        meddler = asyncio.create_task(self._meddle(machines))
        await asyncio.sleep(chance.uniform(100, 400))
        world.outside.lost = world.outside.unreachable = world.outside.deaf = world.outside.slow = 0
        world.weather = FAIR
        for life in world.lives:
            life.weather = FAIR
        await meddler
        await self._end()
        for keeper in keepers:
            keeper.cancel()
        world.verdict.judge(world.transitions())

    def _disturb(self) -> None:
        chance, outside = self.chance, self.world.outside
        if chance.random() < 0.5:
            outside.lost, outside.unreachable = chance.choice([0, 0.1]), chance.choice([0, 0.1])
            outside.deaf, outside.slow = chance.choice([0, 0.5, 1.0]), chance.choice([0, 0.1, 0.3])
        self.world.verdict.deaf = outside.deaf > 0
        self.world.verdict.troubled = any((outside.lost, outside.unreachable, outside.slow))
        self.world.verdict.troubled |= not self.world.reaps

    def _processes(self) -> list[Coroutine[Any, Any, None]]:
        chance, world = self.chance, self.world
        often = chance.random() < 0.3
        cuts: dict[str, Any]
        if often:  # killed or stopped again and again, with little between
            ends_s = [chance.uniform(12, 28) for _ in range(chance.randint(3, 12))]
            cuts = {"ends_s": ends_s, "stops": chance.random() < 0.3, "pause_s": (0.2, 2.0)}
        else:
            cuts = {"crashes": [chance.randrange(80) for _ in range(chance.randrange(4))]}
        ends = [chance.randrange(60) for _ in range(chance.randrange(3))]
        processes = [world.metalman().keep(**cuts), world.steward().keep(crashes=ends)]
        if not world.reaps and chance.random() < 0.5:  # another leader, which does not know that it is none
            processes.append(world.metalman().keep(crashes=[chance.randrange(80)]))
        return processes

    async def _ask(self, machines: list[str]) -> None:
        chance, world = self.chance, self.world
        for number in range(chance.randint(2, 6)):
            spec: dict[str, Any] = {}
            if chance.random() < 0.4:
                spec["deadlineSeconds"] = chance.choice((20, 45, 90, 150))
            if chance.random() < 0.3:
                spec["ttlSecondsAfterFinished"] = chance.choice((0, 5, 60))
            kind, name = chance.choice(KINDS), f"op{number}"
            if kind != "HostPowerOn" and chance.random() < 0.5:
                spec["parameters"] = {"force": "true"} if chance.random() < 0.6 else {"graceSeconds": "15"}
            if chance.random() < 0.15:
                selector = {"matchLabels": {"unbounded-cloud.io/site": "lab"}}
                await world.operation(name, kind, machineSelector=selector, maxConcurrent=chance.randint(1, 3), **spec)
            else:
                await world.operation(name, kind, chance.choice(machines), **spec)
            self.names.append(name)
            await asyncio.sleep(chance.uniform(0, 25))

    async def _meddle(self, machines: list[str]) -> None:
        """Do what users do in the midst of it."""
        chance = self.chance
        for _ in range(chance.randrange(6)):
            await asyncio.sleep(chance.uniform(0, 25))
            deeds = (
                self._cancel,
                self._cancel,
                self._delete,
                self._abandon,
                self._retarget,
                self._delete_machine,
                self._compact,
            )
            try:
                await chance.choice(deeds)(chance.choice(self.names), chance.choice(machines))
            except ApiError:
                continue  # it is gone, or terminal, or another wrote first

    def _rivals(self) -> Rivals:
        if self.seed % 4 != RIVALS:
            return Rivals(self)
        reads = self._rival.sample(range(READS), self._rival.randint(2, 6))
        return Rivals(self, reads, self._rival.sample(range(WRITES), self._rival.randint(0, 6)))

    async def come_between(self, name: str) -> None:
        """Write on a Machine, or on that of an operation, while an executor is about to rest on what it has read."""
        deeds = (self._retarget, self._retarget, self._recreate, self._cancel, self._take_slot, self._take_slot)
        try:
            machine = name
            if name not in self.machines:
                machine = (await self.world.get(name)).spec.machine_ref or ""
            operations = (await self.world.api.list(MACHINE_OPERATIONS)).items
            there = [one.name for one in operations if one.spec.machine_ref == machine and not one.terminal]
            if machine and there:
                await self._rival.choice(deeds)(self._rival.choice(there), machine)
        except ApiError:
            return  # it is gone, or terminal

    async def _cancel(self, name: str, _machine: str) -> None:
        await self.world.cancel(name)

    async def _delete(self, name: str, _machine: str) -> None:
        uid = (await self.world.get(name)).metadata.uid
        if uid in self.world.verdict.stories:
            self.world.verdict.stories[uid].deleted = True
        await self.world.api.delete(MACHINE_OPERATIONS, name)

    async def _abandon(self, name: str, _machine: str) -> None:
        await self.world.api.patch(MACHINE_OPERATIONS, name, {"spec": {"abandon": True}})

    async def _retarget(self, _name: str, machine: str) -> None:
        url = f"https://{machine}-{self.chance.choice('bc')}"
        await self.world.api.patch(MACHINES, machine, {"spec": {"pxe": {"redfish": {"url": url}}}})

    async def _delete_machine(self, _name: str, machine: str) -> None:
        await self.world.api.delete(MACHINES, machine)

    async def _recreate(self, _name: str, machine: str) -> None:
        """Delete a Machine with its finalizers, and register it again: calls to its host are still on their way."""
        self.world.verdict.forced.append((machine, self.world.outside.now()))
        await self.world.take_away(machine)
        await self.world.machine(machine)

    async def _take_slot(self, _name: str, machine: str) -> None:
        """Let the Machine's agent recreate its node: it takes a lock that was lost, or removed by hand."""
        uid = f"recreation-{self._rival.random()}"
        active = {
            "uid": uid,
            "name": f"recreate-{machine}",
            "kind": NODE_RECREATION,
            "executor": f"unbounded-agent/{machine}",
        }
        await self.world.api.patch(MACHINES, machine, {"status": {"activeOperation": None}}, subresource="status")
        slot = {"activeOperation": {**active, "since": rfc3339(virtual_now())}}
        await self.world.api.patch(MACHINES, machine, {"status": slot}, subresource="status")
        seconds = self._rival.uniform(2, 40)
        self.world.verdict.taken.append((machine, self.world.outside.now(), self.world.outside.now() + seconds))
        asyncio.get_running_loop().call_later(
            seconds, lambda: self._returns.append(asyncio.create_task(self._give_back(uid, machine)))
        )

    async def _give_back(self, uid: str, machine: str) -> None:
        with contextlib.suppress(ApiError):
            active = (await self.world.api.get(MACHINES, machine)).status.active_operation
            if active is not None and active.uid == uid:
                await self.world.api.patch(
                    MACHINES, machine, {"status": {"activeOperation": None}}, subresource="status"
                )

    async def _compact(self, _name: str, _machine: str) -> None:
        self.world.api.compact()

    async def _end(self) -> None:
        """Wait until every operation has ended, and for what may come after."""
        for name in self.names:
            with contextlib.suppress(NotFound):
                await self.world.ended(name, within_s=3 * 3600)
        await asyncio.sleep(120)
