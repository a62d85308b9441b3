"""Simulated outsides with a truth of their own, which the crash test compares with what operations claim."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

from tests.operations.faults import Incarnation
from unbounded.api.failures import Transient, Uncertain
from unbounded.api.machine import MACHINES, Machine
from unbounded.api.operation import MachineOperation, OperationKind
from unbounded.kube.api import Api
from unbounded.metalman import power, replace_table
from unbounded.operations.claim_gates import Gate
from unbounded.operations.executor_protocol import Target
from unbounded.workflow.procedure import COMPLETE, Observation, Procedure, Repeat, Stage, Step


class Violation(AssertionError):
    """The system did what it must never do."""


@dataclass(frozen=True)
class Act:
    """One action that reached the outside."""

    at: float
    machine: str
    operation: str  # UID
    action: str
    doubled: bool = False  # an earlier equal call of the same process had taken effect already
    life: str = ""


@dataclass
class Host:
    """A machine with power, an operating system, and a boot id."""

    name: str
    power: str = "On"
    boot: int = 1
    armed: str = ""  # boots from the network: Once, Continuous, or not at all
    by_media: bool = False  # it boots from its virtual CD drive instead
    image: str = ""  # URL of the image in that drive
    image_of: str = ""  # UID of the operation that inserted it
    sources: list[str] = field(default_factory=list)  # of its starts
    off_at: float | None = None
    on_at: float | None = None
    was_off: list[float] = field(default_factory=list)
    was_on: list[float] = field(default_factory=list)

    def settle(self, now: float) -> None:
        """Let what was under way come true."""
        if self.off_at is not None and now >= self.off_at:
            if self.power != "Off":
                self.was_off.append(self.off_at)
            self.power, self.off_at = "Off", None
        if self.on_at is not None and now >= self.on_at:
            if self.power != "On":
                self.was_on.append(self.on_at)
                self.start()
            self.power, self.on_at = "On", None

    def start(self) -> None:
        """Boot from the override's source; one for a single start is used up."""
        self.boot += 1
        armed = ("Cd" if self.image else "Hdd") if self.by_media else "Pxe"
        self.sources.append(armed if self.armed else "Hdd")
        self.armed = "" if self.armed == "Once" else self.armed

    def ask(self, action: str, now: float, chance: random.Random, *, deaf: bool) -> bool:
        """Carry out a call; return whether the host had the requested state already."""
        self.settle(now)
        action = replace_table.NETWORK_ACTIONS.get(action, action)
        match action:
            case power.SHUT_DOWN | power.SWITCH_OFF if self.power == "Off":
                return True
            case power.SHUT_DOWN if not deaf:
                self.off_at = now + chance.uniform(0.2, 6)
            case power.SHUT_DOWN:
                pass
            case power.SWITCH_OFF:
                self.off_at, self.on_at = now + chance.uniform(0, 2), None
            case power.SWITCH_ON | replace_table.START if self.power == "On":
                return True
            case power.SWITCH_ON | replace_table.START:
                self.armed = self.armed if action == replace_table.START else ""
                self.on_at, self.off_at = now + chance.uniform(0.5, 4), None
            case _:
                raise Violation(f"the host was asked for {action}")
        return False


class Outside:
    """All hosts and instances, and a record of every act on them. The faults are chances, for each call."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.lost = self.unreachable = self.deaf = self.slow = 0.0
        self.hosts: dict[str, Host] = {}
        self.instances: dict[str, Instance] = {}
        self.acts: list[Act] = []
        self.sent: list[str] = []  # operations whose action must go out once, for each time that it went

    def host(self, name: str) -> Host:
        host = self.hosts.setdefault(name, Host(name))
        host.settle(self.now())
        return host

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    def record(self, target: Target, action: str, *, satisfied: bool, life: str) -> None:
        """Record an act; it is doubled if an earlier equal call of the same process has taken effect."""
        uid = target.operation.metadata.uid
        before = any((act.operation, act.action, act.life) == (uid, action, life) for act in self.acts)
        self.acts.append(Act(self.now(), target.machine.name, uid, action, before and satisfied, life))

    def dice(self, chance: float) -> bool:
        return chance > 0 and self.chance.random() < chance


@dataclass
class Instance:
    """A cloud VM of one replacement."""

    id: str
    key: str
    running_at: float
    replaces: str = ""
    deleted: bool = False


class SimulatedExecutor:
    """Shared parts of the three kinds: a name, a life, and the way to the outside."""

    kinds: frozenset[OperationKind]
    call_limit_s = 30.0

    def __init__(self, name: str, life: Incarnation, outside: Outside) -> None:
        self.name = name
        self.life = life
        self.outside = outside

    def subscribe(self, wake: Callable[[str], None]) -> None:
        """Call the listener with the names of Machines whose outside announces changes; this one never does."""

    def claims(self, kind: OperationKind, machine: Machine) -> bool:
        return kind in self.kinds

    def endpoint(self, machine: Machine) -> str:
        return f"the outside of {machine.name}"

    def target_digest(self, machine: Machine) -> str:
        return f"host:{machine.name}"

    def concurrency_group(self, machine: Machine) -> str:
        return ""

    def claim_gate(self, operation: MachineOperation, machine: Machine) -> Gate | None:
        return None

    def observation_key(self, operation: MachineOperation, machine: Machine) -> object:
        return None

    async def reach(self, before: float) -> None:
        """The way to the outside: not begun too late, and then as slow as a call may be."""
        if self.outside.now() > before or self.outside.dice(self.outside.unreachable):
            raise Transient("the outside was not reached")
        slow = self.outside.dice(self.outside.slow)
        await asyncio.sleep(self.outside.chance.uniform(0, 0.9 * self.call_limit_s if slow else 0.2))

    async def answered(self) -> None:
        await asyncio.sleep(self.outside.chance.uniform(0, 3.0 if self.outside.dice(0.1) else 0.2))
        if self.outside.dice(self.outside.lost):
            raise Uncertain("the answer was lost")


class PowerExecutor(SimulatedExecutor):
    """Redfish: metalman's own tables on a simulated host."""

    kinds = frozenset(power.PROCEDURES)

    def procedure(self, operation: MachineOperation) -> Procedure:
        return power.PROCEDURES[OperationKind(operation.spec.operation_kind)](operation)

    async def observe(self, target: Target) -> Observation:
        async def read() -> Observation:
            await self.reach(float("inf"))
            host = self.outside.host(target.machine.name)
            return Observation(
                power.BmcPowerFact(host.power), detail=f"PowerState is {host.power}", where="simulated BMC"
            )

        return await self.life.through("observe", read)

    async def perform(self, target: Target, action: str, *, before: float) -> None:
        async def act() -> None:
            await self.reach(before)
            self.life.hold_if_dead()
            host = self.outside.host(target.machine.name)
            deaf = self.outside.dice(self.outside.deaf)
            satisfied = host.ask(action, self.outside.now(), self.outside.chance, deaf=deaf)
            self.outside.record(target, action, satisfied=satisfied, life=self.life.name)

        await self.life.through(f"perform {action}", act)
        await self.answered()


class Boot(StrEnum):
    SAME = "Same"
    OTHER = "Other"


BOOTED = "the agent is back with another host boot id"


class AgentExecutor(SimulatedExecutor):
    """An executor on the machine: its own action ends it, and its successor observes the result."""

    kinds = frozenset({OperationKind.NODE_REBOOT, OperationKind.AGENT_UPGRADE})

    def claims(self, kind: OperationKind, machine: Machine) -> bool:
        return kind in self.kinds and self.name.endswith(f"/{machine.name}")

    def procedure(self, operation: MachineOperation) -> Procedure:
        return Procedure(
            start="Starting",
            facts=Boot,
            stages={
                "Starting": Stage("the agent to look at itself", limit_s=60),
                "Restarting": Stage("the agent to be back", limit_s=120, retry_after_s=60),
            },
            table={
                ("Starting", Boot.SAME): Step("Restarting", action="Restart"),
                ("Starting", Boot.OTHER): Step("Restarting", action="Restart"),
                ("Restarting", Boot.SAME): Step("Restarting", action="Restart"),
                ("Restarting", Boot.OTHER): Step(COMPLETE, evidence=BOOTED),
            },
            actions={"Restart": Repeat.ONCE},
            proof=frozenset({BOOTED}),
        )

    async def observe(self, target: Target) -> Observation:
        async def look() -> Observation:
            boot = f"boot-{self.outside.host(target.machine.name).boot}"
            asked_in = target.run.boot_id
            fact = Boot.OTHER if asked_in is not None and asked_in != boot else Boot.SAME
            return Observation(fact, detail=f"host boot id {boot}", where="the host", boot_id=boot)

        return await self.life.through("observe", look)

    async def perform(self, target: Target, action: str, *, before: float) -> None:
        self.outside.sent.append(target.operation.metadata.uid)

        async def restart() -> None:
            self.life.hold_if_dead()
            host = self.outside.host(target.machine.name)
            self.outside.record(
                target, action, satisfied=target.run.boot_id != f"boot-{host.boot}", life=self.life.name
            )
            host.boot += 1
            self.life.crash()

        await self.life.through(f"perform {action}", restart)


class Cloud(StrEnum):
    NOTHING = "Nothing"
    COMING = "Coming"
    RUNNING = "Running"
    HANDED = "HandedOver"
    ALONE = "Alone"


RUNS = "the replacement runs"
HANDED_OVER = "spec.providerID names the replacement"
OLD_GONE = "the old instance is gone"


class ReplaceExecutor(SimulatedExecutor):
    """A replacement: a long call with a handle, a hand-over of identity through the API, and a clean-up."""

    kinds = frozenset({OperationKind.HOST_REPLACE})

    def __init__(self, name: str, life: Incarnation, outside: Outside, api: Api) -> None:
        super().__init__(name, life, outside)
        self.api = api

    def target_digest(self, machine: Machine) -> str:
        return f"instance:{machine.spec.provider_id}"

    def procedure(self, operation: MachineOperation) -> Procedure:
        creating, handing, cleaning = (
            Step("Creating", action="Create"),
            Step("Handing", action="HandOver", evidence=RUNS),
            "Cleaning",
        )
        clean = Step(cleaning, action="DeleteOld", evidence=HANDED_OVER)
        ends = Step(COMPLETE, evidence=OLD_GONE)
        rows = {
            "Starting": (creating, Step("Creating"), handing, clean, ends),
            "Creating": (creating, Step("Creating"), handing, clean, ends),
            "Handing": (
                creating,
                Step("Creating"),
                Step("Handing", action="HandOver"),
                clean,
                Step(cleaning, evidence=HANDED_OVER),
            ),
            cleaning: (creating, Step("Creating"), handing, Step(cleaning, action="DeleteOld"), ends),
        }
        return Procedure(
            start="Starting",
            facts=Cloud,
            stages={
                "Starting": Stage("the cloud's record", limit_s=120),
                "Creating": Stage("the replacement to run", limit_s=600, retry_after_s=30),
                "Handing": Stage("the Machine to name the replacement", limit_s=300, attempts=20),
                cleaning: Stage("the old instance to be gone", limit_s=300, attempts=20),
            },
            table={
                (stage, fact): step for stage, steps in rows.items() for fact, step in zip(Cloud, steps, strict=True)
            },
            actions={"Create": Repeat.SETS_STATE, "HandOver": Repeat.SETS_STATE, "DeleteOld": Repeat.SETS_STATE},
            proof=frozenset({RUNS, HANDED_OVER, OLD_GONE}),
        )

    def _mine(self, target: Target) -> Instance | None:
        key = target.operation.metadata.uid
        return next((one for one in self.outside.instances.values() if one.key == key), None)

    async def observe(self, target: Target) -> Observation:
        async def read() -> Observation:
            await self.reach(float("inf"))
            machine = await self.api.get(MACHINES, target.machine.name)
            return self._sight(target, machine)

        return await self.life.through("observe", read)

    def _sight(self, target: Target, machine: Machine) -> Observation:
        mine = self._mine(target)
        old = self.outside.instances.get(mine.replaces) if mine else None
        if mine is None:
            return Observation(Cloud.NOTHING, "no replacement", "the cloud")
        if self.outside.now() < mine.running_at:
            return Observation(Cloud.COMING, "the replacement is being created", "the cloud")
        if machine.spec.provider_id != mine.id:
            return Observation(Cloud.RUNNING, "the replacement runs", "the cloud", target_digest=f"instance:{mine.id}")
        if old is not None and not old.deleted:
            return Observation(Cloud.HANDED, "the old instance is there", "the cloud")
        return Observation(Cloud.ALONE, "the replacement is alone", "the cloud")

    async def perform(self, target: Target, action: str, *, before: float) -> str | None:
        async def act() -> str | None:
            await self.reach(before)
            self.life.hold_if_dead()
            return await self._act(target, action, before)

        handle = await self.life.through(f"perform {action}", act)
        await self.answered()
        return handle

    async def _act(self, target: Target, action: str, before: float) -> str | None:
        mine, outside = self._mine(target), self.outside
        match action:
            case "Create":
                outside.record(
                    target, action, satisfied=mine is not None and outside.now() >= mine.running_at, life=self.life.name
                )
                if mine is None:
                    key, former = target.operation.metadata.uid, target.machine.spec.provider_id or ""
                    mine = Instance(f"new-{key}", key, outside.now() + 20, replaces=former)
                    outside.instances[mine.id] = mine
                return f"handle-of-{mine.id}"
            case "HandOver":
                if mine is None:
                    raise Violation("handed over to nobody")
                machine = await self.api.get(MACHINES, target.machine.name)
                if outside.now() > before + self.call_limit_s:  # the answer came, and the process stood still with it
                    raise Transient("too late to hand over")
                outside.record(target, action, satisfied=machine.spec.provider_id == mine.id, life=self.life.name)
                await self.api.patch(MACHINES, machine.name, {"spec": {"providerID": mine.id}})
            case "DeleteOld":
                if mine is None:
                    raise Violation("the old one was to be deleted before there was a new one")
                replaced = outside.instances[mine.replaces]
                outside.record(target, action, satisfied=replaced.deleted, life=self.life.name)
                replaced.deleted = True
            case _:
                raise Violation(f"the cloud was asked for {action}")
        return None
