"""machina and the agent follow the same Node: both bring it to the desired state, and neither reverts the other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import pytest

from tests.agent.recreation.world import NodeWorld, random_world
from tests.machina.machines.world import SETTINGS, KnownFacts, caches_of
from tests.support.installer import FakeInstaller
from tests.support.machina import FakeSsh
from tests.support.virtual_time import run_virtual, virtual_now
from unbounded.api.core import NODES, Node
from unbounded.api.machine import MACHINES
from unbounded.api.names import ANNOTATION_PAUSED
from unbounded.kube.cache import Cache
from unbounded.machina.machines.controller import MachineController, Ports

ROLE: Final = "node-role.kubernetes.io/worker"
OURS: Final = {"unbounded-cloud.io/machine": "m1", "unbounded-cloud.io/site": "lab"}


@asynccontextmanager
async def machina(world: NodeWorld) -> AsyncIterator[None]:
    """The loop over Machines; the one of this world has no SSH."""
    caches = caches_of(world.api)
    ports = Ports(world.api, FakeSsh({}), FakeInstaller(), KnownFacts(), now=virtual_now)
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(cache.run())
            for cache in (caches.machines, caches.nodes, caches.operations, caches.pause, caches.versions)
        ]
        tasks.append(group.create_task(MachineController(ports, caches, SETTINGS).run()))
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()


def shown(node: Node) -> tuple[dict[str, str], list[str]]:
    """Labels and taints, without what Nodes have of their own."""
    labels = {key: value for key, value in node.metadata.labels.items() if not key.startswith("kubernetes.io/")}
    return labels, sorted(f"{taint.key}={taint.value or ''}:{taint.effect}" for taint in node.spec.taints)


CHANGES: Final[list[tuple[dict[str, Any], dict[str, str], list[str]]]] = [
    ({"nodeLabels": {"tier": "a", ROLE: ""}}, {"tier": "a", ROLE: ""}, []),
    ({"registerWithTaints": ["gpu=yes:NoSchedule"]}, {"tier": "a", ROLE: ""}, ["gpu=yes:NoSchedule"]),
    ({"nodeLabels": {"tier": "b", ROLE: None, "zone": "z"}}, {"tier": "b", "zone": "z"}, ["gpu=yes:NoSchedule"]),
    (
        {"registerWithTaints": ["gpu=no:NoSchedule", "new=:NoExecute"], "nodeLabels": None},
        {"tier": "b", "zone": "z"},
        ["gpu=no:NoSchedule", "new=:NoExecute"],
    ),
    ({"registerWithTaints": None}, {"tier": "b", "zone": "z"}, ["gpu=no:NoSchedule", "new=:NoExecute"]),
    ({"registerWithTaints": [], "nodeLabels": {"tier": None}}, {}, []),
]


@pytest.mark.slow
def test_both_come_to_the_same_and_to_rest_after_every_change() -> None:
    async def story() -> None:
        world = random_world(1)
        await world.joined()
        agent = world.node_agent().start()
        seen: list[tuple[dict[str, str], list[str]]] = []
        nodes = Cache(world.api, NODES)
        nodes.subscribe(lambda _old, new: seen.append(shown(new)) if new is not None else None)
        watching = asyncio.create_task(nodes.run())
        async with machina(world):
            for spec, labels, taints in CHANGES:
                await world.api.patch(MACHINES, "m1", {"spec": {"kubernetes": spec}})
                await asyncio.sleep(60)
                assert shown(await world.api.get(NODES, "m1")) == (OURS | labels, taints), spec
                seen.clear()
                await asyncio.sleep(600)
                assert all(one == (OURS | labels, taints) for one in seen), spec
        watching.cancel()
        await agent.stop()

    run_virtual(story())


def test_a_node_whose_agent_is_away_is_followed_all_the_same() -> None:
    async def story() -> None:
        world = random_world(1)
        await world.joined()
        async with machina(world):
            await asyncio.sleep(5)
            spec = {"nodeLabels": {"tier": "a"}, "registerWithTaints": ["gpu=yes:NoSchedule"]}
            paused: dict[str, Any] = {"annotations": {ANNOTATION_PAUSED: "true"}}
            await world.api.patch(MACHINES, "m1", {"metadata": paused, "spec": {"kubernetes": spec}})
            await asyncio.sleep(60)
            assert shown(await world.api.get(NODES, "m1")) == (OURS, [])
            await world.api.patch(MACHINES, "m1", {"metadata": {"annotations": {ANNOTATION_PAUSED: None}}})
            await asyncio.sleep(5)
            assert shown(await world.api.get(NODES, "m1")) == (OURS | {"tier": "a"}, ["gpu=yes:NoSchedule"])
        agent = world.node_agent().start()
        await asyncio.sleep(60)
        assert shown(await world.api.get(NODES, "m1")) == (OURS | {"tier": "a"}, ["gpu=yes:NoSchedule"])
        await agent.stop()

    run_virtual(story())
