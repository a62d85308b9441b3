"""Stories in virtual time: a test runs in a `World`, and the judge checks it at the end."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from tests.operations.faults import Incarnation
from tests.operations.simulated import PowerExecutor
from tests.operations.world import Process, World, defaults
from tests.support.memory_api import MemoryApi
from tests.support.stories import told_in
from tests.support.virtual_time import virtual_now
from unbounded.api.core import CONFIG_MAPS, NODES
from unbounded.api.machine import MACHINES, Machine
from unbounded.api.meta import Kind
from unbounded.api.names import ANNOTATION_PAUSED
from unbounded.api.operation import MACHINE_OPERATIONS, MachineOperation
from unbounded.kube.api import Api
from unbounded.kube.cache import Cache
from unbounded.kube.tracing import NO_TRACER, Tracer
from unbounded.operations.caches import (
    INDEX_BMC,
    INDEX_EXECUTOR,
    INDEX_MACHINE,
    INDEX_PARENT,
    SupervisorCaches,
    by_bmc,
    by_executor,
    by_machine,
    by_parent,
)
from unbounded.operations.executor_protocol import Target
from unbounded.operations.supervisor import Supervisor
from unbounded.operations.telemetry import OperationMetrics
from unbounded.workflow.procedure import Observation

T = TypeVar("T")
Body = dict[str, Any]


class Kinds(dict[str, str]):
    """The kinds of operations by their names; a child has that of its parent."""

    def __missing__(self, name: str) -> str:
        return next(kind for parent, kind in self.items() if name.startswith(f"{parent}-"))


@told_in
@asynccontextmanager
async def story() -> AsyncIterator[World]:
    """A test from an `async def test(world, …)`: run in virtual time and judged; parameters come from pytest."""
    world = World(random.Random(1), kinds=Kinds())
    yield world
    world.judge()


class MeddledApi(MemoryApi):
    """An API in which a test comes in between: `before` is called ahead of each patch with (kind, name, patch)."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.before: Callable[[Kind[Any], str, Mapping[str, Any]], Awaitable[None]] | None = None
        self.drop: Callable[[Kind[Any], Body], None] = lambda kind, body: None

    async def patch(
        self, kind: Kind[T], name: str, patch: Mapping[str, Any], *, namespace: str = "", subresource: str = ""
    ) -> T:
        before, self.before = self.before, None
        if before is not None:
            await before(kind, name, patch)
            self.before = self.before or before
        return await super().patch(kind, name, patch, namespace=namespace, subresource=subresource)


def meddle(world: World) -> MeddledApi:
    """Replace the world's API, before anything is in it, by one in which the test comes in between."""

    def pruned(kind: Kind[Any], new: Body) -> None:
        defaults(kind, new)
        api.drop(kind, new)

    api = MeddledApi(defaults=pruned, admit=world._write_down, now=virtual_now)
    world.api = api
    return api


class DeadExecutor(PowerExecutor):
    """A PowerExecutor whose machines named `dead-…` never answer."""

    def __init__(self, name: str, life: Incarnation, world: World) -> None:
        super().__init__(name, life, world.outside)
        self.asked_after: list[str] = []

    async def observe(self, target: Target) -> Observation:
        if target.machine.name.startswith("dead"):
            self.asked_after.append(target.machine.name)
            await asyncio.get_running_loop().create_future()
        return await super().observe(target)


@dataclass
class Announced:
    """The Events of a supervisor, as (name, reason)."""

    events: list[tuple[str, str]] = field(default_factory=list)

    def __call__(self, about: MachineOperation | Machine, _type: str, reason: str, _message: str) -> None:
        self.events.append((about.name, reason))


def announcing_steward(
    world: World, announced: Announced, metrics: OperationMetrics | None = None, tracer: Tracer = NO_TRACER
) -> Process:
    async def main(_life: Incarnation, api: Api) -> None:
        indexes = {INDEX_MACHINE: by_machine, INDEX_PARENT: by_parent, INDEX_EXECUTOR: by_executor}
        caches = SupervisorCaches(
            operations=Cache(api, MACHINE_OPERATIONS, indexes=indexes),
            machines=Cache(api, MACHINES, indexes={INDEX_BMC: by_bmc}),
            nodes=Cache(api, NODES, indexes={INDEX_MACHINE: lambda _node: ()}),
            pause=Cache(api, CONFIG_MAPS, namespace="unbounded-kube"),
        )
        steward = Supervisor(api, caches, emit_event=announced, now=virtual_now, metrics=metrics, tracer=tracer)
        async with asyncio.TaskGroup() as tasks:
            for cache in (caches.operations, caches.machines, caches.nodes, caches.pause):
                tasks.create_task(cache.run())
                await cache.synced.wait()
            tasks.create_task(steward.run())

    return Process(world, "steward", main)


async def machine(world: World, name: str = "m1") -> Machine:
    return await world.api.get(MACHINES, name)


async def annotate(world: World, name: str, **annotations: str | None) -> None:
    await world.api.patch(MACHINES, name, {"metadata": {"annotations": annotations}})


async def pause(world: World, name: str) -> None:
    await annotate(world, name, **{ANNOTATION_PAUSED: "true"})


async def resume(world: World, name: str) -> None:
    await annotate(world, name, **{ANNOTATION_PAUSED: None})


def stage_of(operation: MachineOperation) -> str:
    return (operation.status.targets[0].stage or "") if operation.status.targets else ""


async def in_stage(world: World, name: str, stage: str, *, within_s: float = 300) -> MachineOperation:
    return await world.until(name, lambda operation: stage_of(operation) == stage, within_s=within_s)


async def waits(world: World, name: str, reason: str, *, within_s: float = 5) -> MachineOperation:
    """Return the operation once its status has this reason to wait, with the blocker, since and until when."""

    def says(operation: MachineOperation) -> bool:
        waiting = operation.status.waiting
        return waiting is not None and waiting.reason == reason

    operation = await world.until(name, says, within_s=within_s)
    waiting = operation.status.waiting
    assert waiting is not None
    assert waiting.held_by
    assert waiting.since
    assert waiting.until
    assert operation.status.message
    return operation


def result(operation: MachineOperation) -> tuple[str | None, str | None]:
    return (operation.status.phase, operation.status.reason)
