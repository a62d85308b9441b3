"""A control plane in virtual time on the in-memory API: controllers that are cut off and started again, and a judge."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tests.operations.faults import FAIR, Between, Incarnation, Weather, WeatheredApi
from tests.operations.simulated import (
    BOOTED,
    HANDED_OVER,
    OLD_GONE,
    RUNS,
    AgentExecutor,
    Instance,
    Outside,
    PowerExecutor,
    ReplaceExecutor,
    SimulatedExecutor,
    Violation,
)
from tests.support.memory_api import MemoryApi
from tests.support.virtual_time import virtual_now
from unbounded.api.core import CONFIG_MAPS, NODES
from unbounded.api.machine import MACHINES, Machine
from unbounded.api.meta import Kind
from unbounded.api.names import ANNOTATION_REQUESTED_BY, LABEL_MACHINE
from unbounded.api.operation import MACHINE_OPERATIONS, MachineOperation, OperationKind
from unbounded.kube.api import Api, NotFound
from unbounded.kube.cache import Cache
from unbounded.kube.events import EventSink, no_events
from unbounded.kube.process_epoch import Epoch, ProcessEpoch
from unbounded.kube.tracing import NO_TRACER, Tracer
from unbounded.metalman import power
from unbounded.operations.caches import (
    INDEX_BMC,
    INDEX_EXECUTOR,
    INDEX_MACHINE,
    INDEX_PARENT,
    Caches,
    SupervisorCaches,
    by_bmc,
    by_executor,
    by_machine,
    by_parent,
)
from unbounded.operations.executor_engine import Engine
from unbounded.operations.executor_protocol import Executor
from unbounded.operations.executor_selection import ExecutorHealth
from unbounded.operations.supervisor import Supervisor
from unbounded.operations.telemetry import OperationMetrics
from unbounded.workflow.run_state import ACT_ON_S, ACT_WITHIN_S

TERMINAL: Final = ("Complete", "Failed")

PROOF: Final = {
    "HostReboot": {power.EVIDENCE_OFF, power.EVIDENCE_ON},
    "HostPowerOff": {power.EVIDENCE_OFF, power.EVIDENCE_OFF_AGAIN},
    "HostPowerOn": {power.EVIDENCE_ON, power.EVIDENCE_ON_AGAIN},
    "NodeReboot": {BOOTED},
    "AgentReset": {BOOTED},
    "HostReplace": {RUNS, HANDED_OVER, OLD_GONE},
}

ExecutorFactory = Callable[[Incarnation, Api], Executor]


def defaults(kind: Kind[Any], new: dict[str, Any]) -> None:
    """The schema's defaults that the engine reads."""
    if kind.kind == "MachineOperation":
        for name, value in (("startDeadlineSeconds", 3600), ("maxConcurrent", 10), ("maxFailures", 1)):
            new.setdefault("spec", {}).setdefault(name, value)


@dataclass
class Story:
    """The judge's record of one operation, at the moment of each write."""

    name: str
    machine: str
    claimed_at: float | None = None
    ended_at: float | None = None
    free_at: float | None = None  # when it gave the Machine's slot back
    power_at_claim: str = ""
    power_at_end: str = ""
    status: dict[str, Any] = field(default_factory=dict)
    intents: list[tuple[float, str]] = field(default_factory=list)  # when which action was written down


def _holder(machine: dict[str, Any]) -> str:
    return str((machine.get("status", {}).get("activeOperation") or {}).get("uid", ""))


@dataclass
class World:
    """One schedule: its chance, its API, its outside, and the processes that live in it."""

    chance: random.Random
    weather: Weather = FAIR
    outside: Outside = field(init=False)
    api: MemoryApi = field(init=False)
    lives: list[Incarnation] = field(default_factory=list)
    kinds: dict[str, str] = field(default_factory=dict)
    reaps: bool = True  # what starts a process waits for the end of the one before, as a Lease or a lock on data has it
    absences: ExecutorHealth = field(default_factory=ExecutorHealth)
    announced: list[tuple[str, str, str]] = field(default_factory=list)  # object, Normal or Warning, reason
    call_limit_s: float = SimulatedExecutor.call_limit_s
    between: Between = field(default_factory=Between)
    faults: list[str] = field(default_factory=list)  # seen at a write, where a process would swallow an exception

    def __post_init__(self) -> None:
        random.seed(self.chance.random())  # of the jitter in back-off, so that a seed is one schedule
        self.api = MemoryApi(defaults=defaults, admit=self._write_down, now=virtual_now)
        self.outside = Outside(self.chance)
        self.stories: dict[str, Story] = {}

    def _write_down(self, kind: Kind[Any], old: dict[str, Any] | None, new: dict[str, Any]) -> None:
        """See every write before it is stored: a terminal status never changes, and what was true then is kept."""
        had_it = self.stories.get(_holder(old)) if kind.kind == "Machine" and old is not None else None
        if had_it is not None and old is not None and _holder(old) != _holder(new):
            had_it.free_at = asyncio.get_running_loop().time()
        if kind.kind != "MachineOperation" or old is None or not new.get("status"):
            return
        before, after, meta = old.get("status", {}).get("phase"), new["status"].get("phase"), new["metadata"]
        if before in TERMINAL and before != after:
            self.faults.append(f"{meta['name']} was {before} and became {after}")
        machine = new["spec"].get("machineRef", "")
        self.kinds.setdefault(meta["name"], new["spec"]["operationKind"])  # children of selector operations too
        story = self.stories.setdefault(meta["uid"], Story(meta["name"], machine))
        story.status, now = new["status"], asyncio.get_running_loop().time()
        if action := (new["status"].get("execution") or {}).get("action"):
            story.intents.append((now, action))
        if after == "InProgress" and story.claimed_at is None:
            story.claimed_at, story.power_at_claim = now, self.outside.host(machine).power
        if after in TERMINAL and story.ended_at is None:
            story.ended_at, story.power_at_end = now, self.outside.host(machine).power
        if after != "" and not new["status"].get("message"):
            self.faults.append(f"{meta['name']} is {after} and does not say what it waits for")

    def announce(self, about: MachineOperation | Machine, type_: str, reason: str, _message: str) -> None:
        self.announced.append((about.name, type_, reason))

    # Actions of users

    async def machine(self, name: str, **spec: Any) -> Machine:
        labels = {"unbounded-cloud.io/site": "lab", **spec.pop("labels", {})}
        spec = spec or {"pxe": {"image": "i", "redfish": {"url": f"https://{name}", "username": "u", "passwordRef": {
            "name": "s", "namespace": "n"}}}}  # fmt: skip
        body = {"metadata": {"name": name, "labels": labels}, "spec": spec}
        if "providerID" in spec:
            self.outside.instances[spec["providerID"]] = Instance(spec["providerID"], "", 0.0)
        return await self.api.create(MACHINES, body)

    async def take_away(self, name: str) -> None:
        """Delete a Machine as a user who removes its finalizers."""
        await self.api.patch(MACHINES, name, {"metadata": {"finalizers": []}})
        await self.api.delete(MACHINES, name)

    async def operation(self, name: str, kind: str, machine: str | None = None, **spec: Any) -> MachineOperation:
        self.kinds[name] = kind
        target = {"machineRef": machine} if machine else {}
        metadata: dict[str, Any] = {"name": name}
        if kind == OperationKind.HOST_ERASE:
            metadata["annotations"] = {ANNOTATION_REQUESTED_BY: "alice"}
            spec = {"parameters": {"disks": "All"}, **spec}
        return await self.api.create(
            MACHINE_OPERATIONS, {"metadata": metadata, "spec": {"operationKind": kind, **target, **spec}}
        )

    async def get(self, name: str) -> MachineOperation:
        return await self.api.get(MACHINE_OPERATIONS, name)

    async def cancel(self, name: str) -> None:
        await self.api.patch(MACHINE_OPERATIONS, name, {"spec": {"cancel": True}})

    # Processes

    def executor(
        self,
        name: str,
        make: ExecutorFactory,
        *,
        concurrent: int = 10,
        alone: bool = False,
        watches_pause: bool = True,
        metrics: OperationMetrics | None = None,
        tracer: Tracer = NO_TRACER,
    ) -> Process:
        def main(life: Incarnation, api: Api) -> Coroutine[Any, Any, None]:
            made = make(life, api)
            return run_engine(
                life,
                api,
                made,
                self.announce,
                concurrent=concurrent,
                alone=alone,
                watches_pause=watches_pause,
                metrics=metrics,
                tracer=tracer,
                subscribe=made.subscribe if isinstance(made, SimulatedExecutor) else None,
            )

        return Process(self, name, main)

    def redfish(self, name: str = "metalman/lab", **options: Any) -> Process:
        return self.executor(name, lambda life, _api: PowerExecutor(name, life, self.outside), **options)

    def agent(self, machine: str, **options: Any) -> Process:
        name = f"unbounded-agent/{machine}"
        options = {"watches_pause": False} | options
        return self.executor(name, lambda life, _api: AgentExecutor(name, life, self.outside), **options)

    def replacer(self, name: str = "machine-ops-controller/lab/Sim") -> Process:
        return self.executor(name, lambda life, api: ReplaceExecutor(name, life, self.outside, api))

    def steward(self) -> Process:
        return Process(self, "steward", lambda _life, api: steward_of(api, self.announce, self.absences))

    # Waiting

    async def until(self, name: str, done: Callable[[MachineOperation], bool], *, within_s: float) -> MachineOperation:
        """Wait for an operation, once a virtual second; the message has the last state."""
        operation = None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while True:
                    operation = await self.get(name)
                    if done(operation):
                        return operation
                    await asyncio.sleep(0.5)
        raise AssertionError(f"{name} is not there after {within_s} s: {operation}")

    async def ended(self, name: str, *, within_s: float = 7200) -> MachineOperation:
        return await self.until(name, lambda operation: operation.terminal, within_s=within_s)

    async def slot_free(self, machine: str, *, within_s: float) -> None:
        """Wait until no operation has the Machine."""
        async with asyncio.timeout(within_s):
            while True:
                if (await self.api.get(MACHINES, machine)).status.active_operation is None:
                    return
                await asyncio.sleep(0.5)

    async def gone(self, name: str, *, within_s: float = 7200) -> None:
        async with asyncio.timeout(within_s):
            while True:
                try:
                    await self.get(name)
                except NotFound:
                    return
                await asyncio.sleep(0.5)

    # The judge

    def judge(self) -> None:
        """Everything that must hold at the end of any schedule."""
        if self.faults:
            raise Violation(self.faults[0])
        self._once_is_once()
        self._no_act_is_doubled()
        self._acts_follow_their_intents()
        self._one_operation_acts_on_a_machine()
        self._complete_is_true()
        keys = [instance.key for instance in self.outside.instances.values() if instance.key and not instance.deleted]
        if len(keys) != len(set(keys)):
            raise Violation(f"two replacements of one operation: {self.outside.instances}")

    def _once_is_once(self) -> None:
        """Check that a call that must not be repeated was never sent a second time, whether it took effect or not."""
        if len(self.outside.sent) != len(set(self.outside.sent)):
            raise Violation(f"sent more than once: {self.outside.sent}")

    def _no_act_is_doubled(self) -> None:
        for act in self.outside.acts:
            if act.doubled:
                raise Violation(f"doubled: {act}")

    def _acts_follow_their_intents(self) -> None:
        """Check that an action leaves within ACT_WITHIN_S of the write of its intent, and lands within the limit of its
        call.
        """
        for act in self.outside.acts:
            written = [
                at for at, action in self.stories[act.operation].intents if action == act.action and at <= act.at
            ]
            if not written or act.at - max(written) > ACT_WITHIN_S + self.call_limit_s:
                raise Violation(f"{act} came without an intent, or long after it: {written}")

    def _one_operation_acts_on_a_machine(self) -> None:
        """Check that from an operation's first act on, while it has its Machine, no other operation acts on that
        Machine.
        """
        ends = {uid: story.free_at or float("inf") for uid, story in self.stories.items()}
        spans: dict[str, tuple[str, float]] = {}
        for act in self.outside.acts:
            spans.setdefault(act.operation, (act.machine, act.at))
            if act.at > ends.get(act.operation, float("inf")):
                raise Violation(f"acted after it gave its Machine back at {ends[act.operation]}: {act}")
        for act in self.outside.acts:
            for uid, (machine, first) in spans.items():
                foreign = uid != act.operation and machine == act.machine
                if foreign and first <= act.at <= ends.get(uid, float("inf")):
                    raise Violation(f"{act} while operation {uid} had the Machine since {first}")

    def _complete_is_true(self) -> None:
        for story in self.stories.values():
            if story.status.get("phase") != "Complete" or not story.machine:
                continue
            kind = self.kinds[story.name]
            seen = {evidence["what"] for evidence in story.status.get("evidence", ())}
            if missing := PROOF[kind] - seen:
                raise Violation(f"{story} is Complete without {missing}")
            if not self._happened(kind, story):
                raise Violation(f"{story} is Complete, and it did not happen: {self.outside.hosts}")

    def _happened(self, kind: str, story: Story) -> bool:
        host, since = self.outside.host(story.machine), story.claimed_at or 0.0
        match kind:
            case "HostReboot":
                was_off = any(since - ACT_ON_S <= at <= since for at in host.was_on)  # a user switched it on meanwhile
                went_off = story.power_at_claim == "Off" or was_off or any(at >= since for at in host.was_off)
                return went_off and story.power_at_end == "On"
            case "HostPowerOff":
                return story.power_at_end == "Off"
            case "HostPowerOn":
                return story.power_at_end == "On"
            case "HostReplace":
                return any(one.key in self.stories and not one.deleted for one in self.outside.instances.values())
            case _:
                return host.boot > 1


class Process:
    """A controller process: started, cut off, started again."""

    def __init__(self, world: World, name: str, main: Callable[[Incarnation, Api], Any]) -> None:
        self.world = world
        self.name = name
        self._main = main
        self._number = 0

    def start(self, *, crash_at: int | None = None, weather: Weather | None = None) -> Running:
        number = len(self.world.lives) + 1  # a name is never used again
        name = f"{self.name}#{number}"
        self._number += 1
        line = Epoch(f"line-{id(self)}", self._number) if self.world.reaps else None
        life = Incarnation(
            name,
            self.world.chance,
            weather or self.world.weather,
            crash_at=crash_at,
            epoch=ProcessEpoch(line, unique=name),
        )
        self.world.lives.append(life)
        life.born_at = asyncio.get_running_loop().time()
        task = asyncio.create_task(
            self._main(life, WeatheredApi(self.world.api, life, self.world.between)), name=life.name
        )
        return Running(life, task)

    async def keep(
        self,
        *,
        crashes: Sequence[int] = (),
        ends_s: Sequence[float] = (),
        stops: bool = False,
        pause_s: tuple[float, float] = (0.0, 40.0),
    ) -> None:
        """Live, crash at the given awaits, and live again; the last life continues.

        Args:
            ends_s: how long further lives last.
            stops: those get a signal to stop, in place of being killed.
        """
        remaining: list[tuple[int | None, float | None]] = [
            *((at, None) for at in crashes),
            *((None, s) for s in ends_s),
        ]
        for crash_at, ends_s_ in [*remaining, (None, None)]:
            running = self.start(crash_at=crash_at)
            try:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(ends_s_):
                        await running.life.dead.wait()
                if stops and ends_s_ is not None:
                    await running.terminate()
            finally:
                await running.stop()
            await asyncio.sleep(self.world.chance.uniform(*pause_s))
        while True:  # what restarts itself by its own action is started again
            running = self.start()
            try:
                await running.life.dead.wait()
            finally:
                await running.stop()
            await asyncio.sleep(self.world.chance.uniform(0.5, 5.0))


@dataclass
class Running:
    life: Incarnation
    task: asyncio.Task[Any]

    async def terminate(self) -> None:
        """Request its stop, as a signal does, and wait for its end."""
        self.task.cancel()
        await asyncio.wait({self.task}, timeout=10.0)

    async def stop(self) -> None:
        """Cut it off."""
        self.life.crash()
        self.task.cancel()
        await asyncio.wait({self.task})


async def run_engine(
    life: Incarnation,
    api: Api,
    executor: Executor,
    announce: EventSink,
    *,
    concurrent: int,
    alone: bool,
    watches_pause: bool,
    subscribe: Callable[[Callable[[str], None]], None] | None = None,
    **options: Any,
) -> None:
    caches = Caches(
        operations=Cache(api, MACHINE_OPERATIONS, indexes={INDEX_MACHINE: by_machine}),
        machines=Cache(api, MACHINES),
        pause=Cache(api, CONFIG_MAPS, namespace="unbounded-kube") if watches_pause else None,
    )
    engine = Engine(
        api,
        executor,
        caches,
        epoch=life.epoch,
        concurrent=concurrent,
        alone=alone,
        now=virtual_now,
        emit_event=announce,
        **options,
    )
    if subscribe is not None:
        subscribe(engine.wake_machine)
    await live(engine.run, caches.followed)


async def steward_of(api: Api, announce: EventSink = no_events, absences: ExecutorHealth | None = None) -> None:
    indexes = {INDEX_MACHINE: by_machine, INDEX_PARENT: by_parent, INDEX_EXECUTOR: by_executor}
    caches = SupervisorCaches(
        operations=Cache(api, MACHINE_OPERATIONS, indexes=indexes),
        machines=Cache(api, MACHINES, indexes={INDEX_BMC: by_bmc}),
        nodes=Cache(api, NODES, indexes={INDEX_MACHINE: lambda node: (node.metadata.labels.get(LABEL_MACHINE, ""),)}),
        pause=Cache(api, CONFIG_MAPS, namespace="unbounded-kube"),
    )
    steward = Supervisor(api, caches, emit_event=announce, absences=absences, now=virtual_now)
    await live(steward.run, (caches.operations, caches.machines, caches.nodes, caches.pause))


async def live(run: Callable[[], Any], caches: tuple[Cache[Any], ...]) -> None:
    async with asyncio.TaskGroup() as tasks:
        for cache in caches:
            tasks.create_task(cache.run())
        for cache in caches:
            await cache.synced.wait()
        tasks.create_task(run())
