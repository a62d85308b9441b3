"""Courses: the engine's writes and calls in stories without chance, recorded in `courses.txt`.

The judge of storms has to be lenient, as many faults can coincide. Here one fault occurs at a time, and each stage,
call, wait and message has its place. A change of the engine's behaviour shows as a difference, for review.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, TypeVar

from tests.operations.faults import Between, Incarnation
from tests.operations.simulated import AgentExecutor, PowerExecutor, SimulatedExecutor
from tests.operations.world import Process, World, defaults
from tests.support.bugs import noted
from tests.support.memory_api import MemoryApi
from tests.support.virtual_time import run_virtual
from unbounded.api.meta import Kind
from unbounded.api.operation import OperationKind
from unbounded.kube.api import Api, ApiError, Conflict, ServerUnreachable
from unbounded.operations.executor_protocol import Target
from unbounded.workflow.procedure import Observation, Procedure

METALMAN: Final = "metalman/lab"

KNOWN: Final = (
    "answer",
    "handle",
    "lost",
    "late",
    "nextBinding",
    "failingReason",
    "failingCause",
    "fact",
    "readAt",
    "spentSeconds",
)
T = TypeVar("T")
Tell = Callable[["Recorded"], Awaitable[None]]
COURSES: Final[dict[str, Tell]] = {}


def course(report: Tell) -> Tell:
    """Add a story to those that are written down."""
    COURSES[report.__name__] = report
    return report


@dataclass
class Recorded(World):
    """A world that records each change of an object, and each call."""

    lines: list[str] = field(default_factory=list)
    api: AwayApi = field(init=False)
    said: dict[str, str] = field(default_factory=dict)
    requests: dict[str, int] = field(default_factory=dict)
    looks: int = 0
    unknown: str = ""  # a field of statuses that the CRDs of the server do not have

    def __post_init__(self) -> None:
        super().__post_init__()
        self.between = _Counting(self)
        self.api = AwayApi(defaults=self._pruned, admit=self.api._admit, now=self.api._now)

    def say(self, about: str, text: str) -> None:
        if self.said.get(about) != text:
            self.said[about] = text
            self.lines.append(f"{self.outside.now():8.1f}  {about}: {text}")

    def _pruned(self, kind: Kind[Any], new: dict[str, Any]) -> None:
        defaults(kind, new)
        new.get("status", {}).pop(self.unknown, None)

    def user(self, text: str) -> None:
        self.lines.append(f"{self.outside.now():8.1f}  --- {text}")

    def _write_down(self, kind: Kind[Any], old: dict[str, Any] | None, new: dict[str, Any]) -> None:
        super()._write_down(kind, old, new)
        if kind.kind == "MachineOperation":
            self.say(new["metadata"]["name"], _told_operation(new))
        elif kind.kind == "Machine":
            self.say(new["metadata"]["name"], _told_machine(new))

    def metalman(self, name: str = METALMAN, **options: Any) -> Process:
        return self.executor(name, lambda life, _api: RecordedPower(name, life, self), **options)

    def end(self) -> str:
        said = ", ".join(f"{count} {what}" for what, count in sorted(self.requests.items()))
        told = ", ".join(f"{about} {reason}" for about, _type, reason in self.announced)
        return "\n".join([*self.lines, f"          {self.looks} looks; {said}; announced: {told or 'nothing'}"])


class AwayApi(MemoryApi):
    """Fails writes of an operation's status: so many more cannot reach it, or meet another write."""

    away = 0
    conflicts = 0

    async def patch(
        self, kind: Kind[T], name: str, patch: Mapping[str, Any], *, namespace: str = "", subresource: str = ""
    ) -> T:
        if kind.kind == "MachineOperation" and subresource == "status":
            if self.away:
                self.away -= 1
                raise ServerUnreachable("away")
            if self.conflicts:
                self.conflicts -= 1
                raise Conflict("another write came first")
        return await super().patch(kind, name, patch, namespace=namespace, subresource=subresource)


class _Counting(Between):
    def __init__(self, world: Recorded) -> None:
        self._world = world

    async def before(self, life: Incarnation, call: str, name: str) -> None:
        if not life.name.startswith("steward"):
            self._world.requests[call] = self._world.requests.get(call, 0) + 1


def _told_operation(new: Mapping[str, Any]) -> str:
    status = new.get("status") or {}
    target, execution = (status.get("targets") or [{}])[0], status.get("execution") or {}
    parts = [f"{status.get('phase', 'new')}/{status.get('reason', '')}", str(target.get("stage") or "-")]
    if execution.get("action"):
        parts.append(f"{execution['action']}#{target.get('attempts')}")
    elif target.get("attempts"):
        parts.append(f"#{target['attempts']}")
    known = [name for name in KNOWN if execution.get(name)]
    parts += [f"{name}={_plain(execution[name])}" for name in known]
    if status.get("cause"):
        parts.append(f"cause={_plain(status['cause'])}")
    if status.get("evidence"):
        parts.append(f"saw {len(status['evidence'])}")
    parts += [f"{one['type']}={one['status']}/{one['reason']}" for one in status.get("conditions", ())]
    return f"{' '.join(parts)} | {status.get('message', '').replace('2030-01-01T', '')}"


def _plain(value: Any) -> str:
    """Return a value without the names of epochs, which are others in each run."""
    if isinstance(value, list):
        value = [{key: one for key, one in entry.items() if key != "epoch"} for entry in value]
    return json.dumps(value, sort_keys=True) if not isinstance(value, str) else value.removeprefix("2030-01-01T")


def _told_machine(new: Mapping[str, Any]) -> str:
    status = new.get("status") or {}
    active = status.get("activeOperation")
    lost = f" (lost {active.get('lostSeconds', 0)} s)" if active and active.get("lost") else ""
    slot = f"{active.get('name')}{lost}" if active else "free"
    marks = [f"{one['type']}={one['status']}/{one['reason']}: {one['message']}" for one in status.get("conditions", ())]
    past = [f"{one['name']}:{one['phase']}" for one in status.get("recentOperations", ())]
    return " ".join([slot, *marks, *past])


class RecordedPower(PowerExecutor):
    """An executor with metalman's tables, whose calls are recorded."""

    def __init__(self, name: str, life: Incarnation, world: Recorded) -> None:
        super().__init__(name, life, world.outside)
        self.world = world

    async def observe(self, target: Target) -> Observation:
        self.world.looks += 1
        return await super().observe(target)

    async def perform(self, target: Target, action: str, *, before: float) -> None:
        self.world.lines.append(f"{self.outside.now():8.1f}  > {action} for {target.operation.name}")
        await super().perform(target, action, before=before)


class Work(StrEnum):
    ROUGH = "Rough"
    CUT = "Cut"
    DONE = "Done"
    ODD = "Odd"


Sees = Callable[[float, int], Observation | Work | Exception | float]


@dataclass
class Plot:
    """A made-up procedure, with the states and answers of its outside.

    Attributes:
        sees: the observation so many seconds after the beginning, after so many accepted calls; a number is the
            duration of an observation that fails.
        answers: to one call after the other: None is an acceptance, text its handle, a number its duration, and
            both together a handle that comes late.
    """

    procedure: Procedure
    sees: Sees
    answers: list[Exception | str | float | tuple[float, str] | None] = field(default_factory=list)
    done: int = 0


class Workshop(SimulatedExecutor):
    """Follows a plot."""

    kinds = frozenset({OperationKind.HOST_REPLACE})

    def __init__(self, name: str, life: Incarnation, world: Recorded, plot: Plot) -> None:
        super().__init__(name, life, world.outside)
        self.world, self.plot = world, plot

    def procedure(self, operation: Any) -> Procedure:
        return self.plot.procedure

    async def observe(self, target: Target) -> Observation:
        async def look() -> Observation:
            self.world.looks += 1
            sight = self.plot.sees(self.outside.now(), self.plot.done)
            if isinstance(sight, float):
                await asyncio.sleep(sight)
                sight = Work.ROUGH
            if isinstance(sight, Exception):
                raise sight
            return sight if isinstance(sight, Observation) else Observation(sight, f"it is {sight}", "workshop")

        return await self.life.through("observe", look)

    async def perform(self, target: Target, action: str, *, before: float) -> str | None:
        async def act() -> str | None:
            self.life.hold_if_dead()
            self.world.lines.append(f"{self.outside.now():8.1f}  > {action} for {target.operation.name}")
            answer = self.plot.answers.pop(0) if self.plot.answers else None
            if isinstance(answer, Exception):
                raise answer
            if isinstance(answer, tuple):
                seconds, answer = answer
                await asyncio.sleep(seconds)
            elif isinstance(answer, int | float):
                await asyncio.sleep(answer)
            self.plot.done += 1
            return answer if isinstance(answer, str) else None

        return await self.life.through(f"perform {action}", act)


def workshop(world: Recorded, plot: Plot, **options: Any) -> Process:
    name = "machine-ops-controller/lab/Sim"
    return world.executor(name, lambda life, _api: Workshop(name, life, world, plot), **options)


class RecordedAgent(AgentExecutor):
    def __init__(self, name: str, life: Incarnation, world: Recorded) -> None:
        super().__init__(name, life, world.outside)
        self.world = world

    async def perform(self, target: Target, action: str, *, before: float) -> None:
        self.world.lines.append(f"{self.outside.now():8.1f}  > {action} for {target.operation.name}")
        await super().perform(target, action, before=before)


def agent(world: Recorded, machine: str, **options: Any) -> Process:
    name = f"unbounded-agent/{machine}"

    def make(life: Incarnation, _api: Api) -> RecordedAgent:
        return RecordedAgent(name, life, world)

    return world.executor(name, make, watches_pause=False, **options)


async def until_ended(world: Recorded, *names: str, within_s: float = 3600) -> None:
    """Wait for the ends, and for what comes after them."""
    for name in names:
        try:
            await world.ended(name, within_s=within_s)
        except (AssertionError, ApiError) as error:
            world.user(f"{name} has no end: {type(error).__name__}")
    await asyncio.sleep(60)


def told(name: str) -> str:
    """Run one story, and return its course."""

    async def run() -> str:
        world = Recorded(random.Random(1))
        await COURSES[name](world)
        return world.end()

    with noted() as bugs:
        course = run_virtual(run())
    return "\n".join([course, *(f"          logged: {bug}" for bug in sorted(set(bugs)))])
