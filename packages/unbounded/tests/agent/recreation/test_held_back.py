"""Blockers of a recreation: pauses, operations, and Machines that are to be no node."""

from __future__ import annotations

import asyncio

import pytest

from tests.agent.recreation.world import NEW, NodeWorld, story
from unbounded.agent.model import Slot
from unbounded.api.configuration import MACHINE_CONFIGURATION_VERSIONS
from unbounded.api.core import CONFIG_MAPS
from unbounded.api.machine import MACHINES
from unbounded.api.names import ANNOTATION_ABOUT_TO_CHANGE, ANNOTATION_PAUSED


@story
async def test_no_node_is_begun_from_a_version_that_is_about_to_change(world: NodeWorld) -> None:
    await world.joined()
    await world.configure(1, NEW)
    said = {"metadata": {"annotations": {ANNOTATION_ABOUT_TO_CHANGE: "true"}}}
    await world.api.patch(MACHINE_CONFIGURATION_VERSIONS, "workers-v1", said)
    await world.api.patch(MACHINES, "m1", {"spec": {"configurationRef": {"name": "workers"}}})
    world.node_agent().start()
    await asyncio.sleep(5)
    assert (await world.condition("RepavePending"))[:2] == ("True", "Pending"), "what is announced is not hidden"
    await world.delete_node()
    await asyncio.sleep(60)
    assert world.host.builds == 0
    assert "workers-v1 is about to change" in (await world.condition("NodeUpdated"))[2]
    edited = {"metadata": {"annotations": None}, "spec": {"template": {"kubernetes": {"version": "v1.34.0"}}}}
    await world.api.patch(MACHINE_CONFIGURATION_VERSIONS, "workers-v1", edited)
    await world.settled(within_s=300)
    assert world.version() == "1.34.0"


@pytest.mark.slow
@pytest.mark.parametrize("where", ["the Machine", "all"])
@story
async def test_a_pause_holds_a_recreation_back(world: NodeWorld, where: str) -> None:
    await world.joined()
    annotated = {"metadata": {"annotations": {ANNOTATION_PAUSED: "true"}}}
    if where == "all":
        body = {"metadata": {"name": "unbounded-operations", **annotated["metadata"]}}
        await world.api.create(CONFIG_MAPS, body, namespace="unbounded-kube")
    else:
        await world.api.patch(MACHINES, "m1", annotated)
    world.node_agent().start()
    await world.delete_node()
    await asyncio.sleep(300)
    assert world.host.builds == 0
    assert "paused" in (await world.condition("NodeUpdated"))[2]
    if where == "all":
        await world.api.delete(CONFIG_MAPS, "unbounded-operations", namespace="unbounded-kube")
    else:
        await world.api.patch(MACHINES, "m1", {"metadata": {"annotations": {ANNOTATION_PAUSED: None}}})
    await world.settled(within_s=300)


@story
async def test_a_recreation_waits_for_the_operation_that_has_the_machine(world: NodeWorld) -> None:
    await world.joined()
    slot = {
        "uid": "x",
        "name": "reboot",
        "kind": "HostReboot",
        "executor": "metalman/lab",
        "since": "2030-01-01T00:00:00Z",
    }
    await world.api.patch(MACHINES, "m1", {"status": {"activeOperation": slot}}, subresource="status")
    world.node_agent().start()
    await world.delete_node()
    await asyncio.sleep(300)
    assert world.host.builds == 0
    assert "HostReboot reboot" in (await world.condition("NodeUpdated"))[2]
    await world.api.patch(MACHINES, "m1", {"status": {"activeOperation": None}}, subresource="status")
    await world.settled(within_s=300)


@story
async def test_recreation_without_its_lock_pauses_before_the_next_step(world: NodeWorld) -> None:
    await world.joined()
    world.node_agent().start()
    await world.delete_node()
    await world.reached(lambda: world.phases[-1:] == ["Preparing"], within_s=60)
    slot = {
        "uid": "x",
        "name": "reboot",
        "kind": "HostReboot",
        "executor": "metalman/lab",
        "since": "2030-01-01T00:00:00Z",
    }
    await world.api.patch(MACHINES, "m1", {"status": {"activeOperation": slot}}, subresource="status")
    await asyncio.sleep(400)
    assert world.host.slots[Slot.KUBE1].running, "the old machine was not stopped"
    assert world.phases[-1] in ("Preparing", "Switching")
    assert (
        "waiting, as HostReboot reboot (metalman/lab) holds the lock of the Machine"
        in (await world.condition("NodeUpdated"))[2]
    )
    holder = (await world.m1()).status.active_operation
    assert holder is not None
    assert holder.uid == "x"
    await world.api.patch(MACHINES, "m1", {"status": {"activeOperation": None}}, subresource="status")
    await world.settled(within_s=300)
    assert world.home() is Slot.KUBE2


@story
async def test_a_slot_that_an_agent_left_behind_is_given_back(world: NodeWorld) -> None:
    await world.joined()
    slot = {"uid": "x", "name": "m1-recreation", "kind": "NodeRecreation", "executor": "unbounded-agent/m1",
            "since": "2030-01-01T00:00:00Z"}  # fmt: skip
    await world.api.patch(MACHINES, "m1", {"status": {"activeOperation": slot}}, subresource="status")
    world.node_agent().start()
    await asyncio.sleep(5)
    assert (await world.m1()).status.active_operation is None


@pytest.mark.parametrize("gone", ["deleted", "no node wanted"])
@story
async def test_host_of_a_machine_without_node_spec_is_not_recreated(world: NodeWorld, gone: str) -> None:
    await world.joined()
    world.node_agent().start()
    await asyncio.sleep(5)
    if gone == "deleted":
        await world.api.delete(MACHINES, "m1")
    else:
        await world.api.patch(MACHINES, "m1", {"spec": {"kubernetes": None}})
    await world.delete_node()
    await asyncio.sleep(1000)
    assert world.host.builds == 0
    assert world.host.slots[Slot.KUBE1].running
