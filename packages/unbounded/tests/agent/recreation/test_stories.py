"""Causes and results of a recreation, as stories on a simulated host in virtual time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.agent.recreation.simulated import BAD, NEVER_READY, NO_SANDBOX, UNBUILDABLE, WILL_NOT_START
from tests.agent.recreation.world import LIMITS, NEW, OLD, NodeWorld, story
from tests.explain.staging import commands, why
from unbounded.agent.durations import FACTOR, TimedWork
from unbounded.agent.model import Slot
from unbounded.agent.recreation.report import ConditionReport
from unbounded.api.conditions import ConditionReason, ConditionStatus, ConditionType
from unbounded.api.configuration import MACHINE_CONFIGURATION_VERSIONS
from unbounded.api.core import NODES
from unbounded.api.failures import Rejected
from unbounded.api.machine import MACHINES
from unbounded.explain.links import Topic


async def rolled_back(world: NodeWorld) -> None:
    """A node that was to become one which cannot be built, and went back to what it was."""
    await world.joined()
    world.node_agent().start()
    await world.want(UNBUILDABLE)
    await world.delete_node()
    await world.settled(within_s=900)


async def said_by_why(world: NodeWorld, reason: str, phase: str) -> None:
    """Check that `why` has the phase and NodeUpdated, and the command for the agent."""
    status, said, message = await world.condition("NodeUpdated")
    assert (status, said) == ("False", reason), message
    (link,) = await why(world.api, "m1", topic=Topic.MACHINE)
    assert link.what == f"{phase}{message}"
    assert link.held_by == f"condition NodeUpdated=False ({reason})"
    assert commands([link])[0] == "sudo unbounded-agent status"


@story
async def test_what_a_person_changed_is_listed_before_and_after_it_is_discarded(world: NodeWorld) -> None:
    text = "1 file was changed by hand in kube1, and a recreation discards the changes: /etc/motd (changed)"
    world.more = (ConditionReport(ConditionType.NODE_MODIFIED, ConditionStatus.TRUE, ConditionReason.MODIFIED, text),)
    await world.joined()
    world.node_agent().start()
    await asyncio.sleep(5)
    await world.delete_node()
    await world.reached(lambda: "Preparing" in world.phases, within_s=60)
    assert await world.condition("NodeModified") == ("True", "Modified", text)
    await world.settled(within_s=300)
    assert text in (await world.condition("NodeUpdated"))[2]
    assert "/etc/motd" in ((await world.m1()).status.recent_operations[-1].message or "")


@story
async def test_slow_first_node_extends_the_limits_of_the_next_one(world: NodeWorld) -> None:
    await world.joined(registered=False)
    world.node_agent().start()
    world.host.ready_after_s = 60.0
    world.host.start_kubelet(Slot.KUBE1)
    await world.settled(within_s=200)
    await asyncio.sleep(1)
    assert 50.0 <= world.durations.limit(TimedWork.READY, floor=0.0) / FACTOR <= 60.0
    world.host.ready_after_s = 150.0  # longer than LIMITS.verify_s
    await world.delete_node()
    await world.settled(within_s=600)
    assert (world.home(), world.phases[-1]) == (Slot.KUBE2, "Committed")
    assert world.durations.limit(TimedWork.READY, floor=0.0) / FACTOR >= 148.0


@story
async def test_deleted_node_is_recreated_in_the_other_slot_without_drift(world: NodeWorld) -> None:
    await world.joined()
    world.node_agent().start()
    await asyncio.sleep(5)
    assert world.home() is Slot.KUBE1
    lost = await world.delete_node()
    await world.settled(within_s=300)
    assert (world.home(), world.version()) == (Slot.KUBE2, OLD)
    node = await world.node()
    assert node is not None
    assert node.metadata.uid != lost
    status, reason, message = await world.condition("NodeUpdated")
    assert (status, reason) == ("True", "Succeeded")
    assert lost in message
    recent = (await world.m1()).status.recent_operations[-1]
    assert (recent.kind, recent.phase, recent.name) == ("NodeRecreation", "Complete", "m1-recreation")
    expected = ["Clearing", "Preparing", "Switching", "Starting", "Verifying", "Committed"]
    assert world.phases == expected


@story
async def test_old_kubelet_stops_first_and_old_machine_after_the_build(
    world: NodeWorld,
) -> None:
    await world.joined()
    world.node_agent().start()
    await world.delete_node()
    await world.settled(within_s=300)
    done = [line.partition(" ")[2] for line in world.host.log]
    in_order = [
        "stop kubelet kube1",
        "build kube2 begins",
        "build kube2 ends",
        "power off kube1",
        "start machine kube2",
        "kube2 registers",
        "remove kube1",
    ]
    assert sorted(in_order, key=done.index) == in_order


@story
async def test_pending_version_is_reported_and_applied_after_node_deletion(
    world: NodeWorld,
) -> None:
    await world.joined()
    world.node_agent().start()
    await asyncio.sleep(5)
    assert (await world.condition("RepavePending"))[:2] == ("False", "Applied")
    await world.want(NEW)
    await asyncio.sleep(5)
    status, reason, message = await world.condition("RepavePending")
    assert (status, reason) == ("True", "Pending")
    assert f"{OLD} → {NEW}" in message
    assert world.host.builds == 0, "OnDelete: nothing happens before"
    await world.delete_node()
    await world.settled(within_s=300)
    assert world.version() == NEW
    assert (await world.condition("RepavePending"))[:2] == ("False", "Applied")


@story
async def test_node_deleted_while_the_agent_was_stopped_is_recreated_at_start(world: NodeWorld) -> None:
    await world.joined()
    await world.delete_node()
    await asyncio.sleep(100)
    world.node_agent().start()
    await world.settled(within_s=300)
    assert world.home() is Slot.KUBE2


@story
async def test_node_that_reregistered_after_deletion_is_recreated(world: NodeWorld) -> None:
    await world.joined()
    world.host.stubborn = True
    lost = await world.delete_node()
    back = await world.node_ready()
    assert back.metadata.uid != lost
    world.node_agent().start()
    await world.settled(within_s=300)
    assert world.home() is Slot.KUBE2


@story
async def test_newest_version_at_node_deletion_is_applied_and_recorded_in_status(
    world: NodeWorld,
) -> None:
    await world.joined()
    await world.configure(1, OLD)
    await world.api.patch(MACHINES, "m1", {"spec": {"configurationRef": {"name": "workers"}}})
    world.node_agent().start()
    await asyncio.sleep(5)
    told = (await world.m1()).status.configuration
    assert told is not None
    assert told.version_name == "workers-v1"  # the node is as that version wants it
    await world.configure(2, "1.34.0")
    await world.configure(10, NEW)
    await world.delete_node()
    await world.settled(within_s=300)
    machine = await world.m1()
    assert world.version() == NEW
    assert machine.status.configuration is not None
    assert (machine.status.configuration.version, machine.status.configuration.version_name) == (10, "workers-v10")
    assert machine.spec.configuration_ref is not None
    assert machine.spec.configuration_ref.version is None, "never in spec"
    assert "workers-v10 overrides spec in kubernetes.version" in (await world.condition("RepavePending"))[2]


@story
async def test_lock_names_the_configuration_version_from_its_acquisition(world: NodeWorld) -> None:
    await world.joined()
    await world.configure(1, NEW)
    await world.api.patch(MACHINES, "m1", {"spec": {"configurationRef": {"name": "workers"}}})
    seen: list[object] = []
    patch = world.api.patch

    async def noting(kind: Any, name: str, body: Any, **more: Any) -> Any:
        """The version changes just after the slot was taken for it for the first time."""
        slot = body.get("status", {}).get("activeOperation")
        written = await patch(kind, name, body, **more)
        if slot:
            seen.append(slot.get("configuration"))
            if len(seen) == 1:
                template = {"spec": {"template": {"kubernetes": {"version": "v1.34.0"}}}}
                await patch(MACHINE_CONFIGURATION_VERSIONS, "workers-v1", template)
        return written

    world.api.patch = noting  # type: ignore[method-assign, assignment]
    world.node_agent().start()
    await world.delete_node()
    await world.settled(within_s=300)
    assert seen == [{"name": "workers", "version": 1, "versionName": "workers-v1"}] * 2, "it was decided anew"
    assert world.version() == "1.34.0", "the node is built from the version as it is"


@story
async def test_pinned_configuration_version_may_be_older_than_the_present_one(world: NodeWorld) -> None:
    await world.joined(NEW)
    await world.configure(1, OLD)
    await world.configure(2, NEW)
    await world.api.patch(MACHINES, "m1", {"spec": {"configurationRef": {"name": "workers", "version": 1}}})
    world.node_agent().start()
    await asyncio.sleep(5)
    assert (await world.condition("RepavePending"))[:2] == ("True", "Pending")
    await world.delete_node()
    await world.settled(within_s=300)
    assert world.version() == OLD


@story
async def test_a_version_that_is_not_there_is_waited_for(world: NodeWorld) -> None:
    await world.joined()
    await world.api.patch(MACHINES, "m1", {"spec": {"configurationRef": {"name": "workers", "version": 7}}})
    world.node_agent().start()
    await asyncio.sleep(5)
    assert (await world.condition("RepavePending"))[:2] == ("Unknown", "ConfigurationMissing")
    await world.delete_node()
    await asyncio.sleep(120)
    assert world.host.builds == 0
    assert "workers-v7" in (await world.condition("NodeUpdated"))[2]
    await said_by_why(world, "Waiting", "Joining: ")
    await world.configure(7, NEW)
    await world.settled(within_s=300)
    assert world.version() == NEW


@pytest.mark.parametrize("version", BAD)
@story
async def test_a_node_that_cannot_be_proven_gives_way_to_the_old_one(world: NodeWorld, version: str) -> None:
    await world.joined()
    world.node_agent().start()
    await world.want(version)
    await world.delete_node()
    await world.settled(within_s=900)
    assert (world.home(), world.version()) == (Slot.KUBE1, OLD)
    await said_by_why(world, "RolledBack", "Ready: Node m1 joined; ")
    assert (await world.condition("RepavePending"))[:2] == ("True", "RolledBack")
    recent = (await world.m1()).status.recent_operations[-1]
    assert (recent.kind, recent.phase, recent.reason) == ("NodeRecreation", "Failed", "RolledBack")


@pytest.mark.slow
@story
async def test_what_failed_is_tried_again_ever_more_rarely_and_not_for_ever(world: NodeWorld) -> None:
    await world.joined()
    world.node_agent().start()
    await world.want(NEVER_READY)
    await world.delete_node()
    await asyncio.sleep(6 * 3600)
    assert world.host.builds == LIMITS.attempts
    await world.settled(within_s=10)
    assert (
        "after 3 attempts, the next one follows only when the request changes"
        in (await world.condition("NodeUpdated"))[2]
    )
    begun = [one for one in world.host.store.written if one.phase == "Clearing"]
    assert [one.attempt for one in begun] == [1, 2, 3]


@story
async def test_a_slot_in_which_no_pod_sandbox_runs_is_not_the_node(world: NodeWorld) -> None:
    await world.joined()
    world.node_agent().start()
    await world.want(NO_SANDBOX)
    await world.delete_node()
    await world.reached(lambda: world.host.store.failed() is not None, within_s=1200)
    await world.settled(within_s=300)
    assert world.version() == OLD
    assert set(world.host.sandboxes) == {Slot.KUBE2}, "the old slot is not asked for one"
    said = (await world.condition("NodeUpdated"))[2]
    assert "no Pod sandbox starts in kube2: open /etc/hosts: no such file or directory" in said


@story
async def test_a_new_slot_runs_one_pod_sandbox_and_says_so(world: NodeWorld) -> None:
    await world.joined()
    world.node_agent().start()
    await world.delete_node()
    await world.settled(within_s=600)
    assert world.home() is Slot.KUBE2
    assert world.host.sandboxes == [Slot.KUBE2]
    assert "a Pod sandbox ran in it" in (await world.condition("NodeUpdated"))[2]


@story
async def test_a_change_of_what_is_wanted_tries_again_at_once(world: NodeWorld) -> None:
    await rolled_back(world)
    assert world.version() == OLD
    await world.want(NEW)
    await world.reached(lambda: world.version() == NEW, within_s=60)
    await world.settled(within_s=300)
    assert world.host.store.failed() is None
    assert (await world.condition("NodeUpdated"))[:2] == ("True", "Succeeded")


@story
async def test_another_label_is_no_reason_to_try_again_what_failed(world: NodeWorld) -> None:
    await rolled_back(world)
    builds = world.host.builds
    wanted = {"nodeLabels": {"tier": "a"}, "registerWithTaints": ["gpu=yes:NoSchedule"]}
    await world.api.patch(MACHINES, "m1", {"spec": {"kubernetes": wanted}})
    await asyncio.sleep(60)
    assert world.host.builds == builds
    assert (await world.api.get(NODES, "m1")).metadata.labels["tier"] == "a", "it follows"
    assert (await world.condition("RepavePending"))[:2] == ("True", "RolledBack")


@pytest.mark.slow
@story
async def test_going_back_to_what_runs_is_no_reason_to_touch_it(world: NodeWorld) -> None:
    await rolled_back(world)
    builds = world.host.builds
    await world.want(OLD)
    await asyncio.sleep(2 * 3600)
    assert world.host.builds == builds
    assert world.host.store.failed() is None
    assert (await world.condition("RepavePending"))[:2] == ("False", "Applied")


@story
async def test_deleting_the_node_again_is_another_request(world: NodeWorld) -> None:
    await rolled_back(world)
    builds = world.host.builds
    await world.delete_node()
    await world.reached(lambda: world.host.builds > builds, within_s=60)
    await world.settled(within_s=900)
    assert world.version() == OLD
    assert (await world.condition("RepavePending"))[:2] == ("True", "RolledBack")


@story
async def test_a_node_deleted_while_it_is_being_proven_is_registered_once_more(world: NodeWorld) -> None:
    await world.joined()
    world.node_agent().start()
    await world.delete_node()
    await world.reached(lambda: world.phases[-1:] == ["Verifying"], within_s=200)
    await world.reached(lambda: world.host.slots[Slot.KUBE2].registered, within_s=60)
    await asyncio.sleep(1.5)  # the agent has seen it
    await world.delete_node()
    await world.settled(within_s=300)
    assert world.home() is Slot.KUBE2
    assert world.host.builds == 1


@story
async def test_recreation_completes_despite_reappearing_node_and_newer_version(
    world: NodeWorld,
) -> None:
    await world.joined()
    world.node_agent().start()
    await world.want("1.34.0")
    await world.delete_node()
    await world.reached(lambda: world.phases[-1:] == ["Preparing"], within_s=60)
    await world.api.create(NODES, {"metadata": {"name": "m1"}})
    await world.want(NEW)
    await world.reached(world.works, within_s=300)
    assert (world.home(), world.version()) == (Slot.KUBE2, "1.34.0")
    assert (await world.condition("RepavePending"))[:2] == ("True", "Pending")


@story
async def test_unregistered_slot_is_not_recreated_before_the_join_limit(world: NodeWorld) -> None:
    await world.joined(registered=False)
    world.node_agent().start()
    await asyncio.sleep(LIMITS.join_s - 20)
    assert world.host.builds == 0
    world.host.start_kubelet(Slot.KUBE1)
    await world.settled(within_s=60)
    assert world.home() is Slot.KUBE1


@pytest.mark.slow
@story
async def test_node_that_never_joins_is_recreated_with_backoff(world: NodeWorld) -> None:
    await world.joined("9.5.0", registered=False)
    world.node_agent().start()
    await world.reached(lambda: world.host.builds == 1, within_s=LIMITS.join_s + 60)
    await asyncio.sleep(4 * 3600)
    assert 4 <= world.host.builds <= 4 * 3600 / LIMITS.retry_s
    status, reason, message = await world.condition("NodeUpdated")
    assert (status, reason) in {("False", "NoWorkingNode"), ("False", "InProgress")}, message
    await world.want(NEW)
    await world.settled(within_s=3600)
    assert world.version() == NEW


@story
async def test_late_return_of_the_old_node_is_a_rollback(world: NodeWorld) -> None:
    await world.joined()
    world.node_agent().start()
    await world.want(UNBUILDABLE)
    world.host.api_away = True
    await world.delete_node()
    await world.reached(lambda: world.host.store.failed() is not None, within_s=900)
    await asyncio.sleep(20)
    await said_by_why(world, "NoWorkingNode", "Joining: ")
    world.host.api_away = False
    await world.settled(within_s=60)
    assert (await world.condition("NodeUpdated"))[:2] == ("False", "RolledBack")
    assert world.host.builds == 1


@story
async def test_an_agent_says_that_it_has_set_up_the_node(world: NodeWorld) -> None:
    await world.joined()
    world.node_agent().start()
    await asyncio.sleep(5)
    assert (await world.condition("AgentBootstrapped"))[:2] == ("True", "Succeeded")


@pytest.mark.slow
@story
async def test_an_idle_agent_writes_nothing(world: NodeWorld) -> None:
    await world.joined()
    world.node_agent().start()
    await asyncio.sleep(30)
    before = (await world.m1()).metadata.resource_version
    await asyncio.sleep(2 * 3600)
    assert (await world.m1()).metadata.resource_version == before


@story
async def test_an_outage_of_the_api_does_not_count_against_the_new_node(world: NodeWorld) -> None:
    await world.joined()
    running = world.node_agent().start()
    await world.delete_node()
    await world.reached(lambda: world.phases[-1:] == ["Verifying"], within_s=200)
    running.life.weather = type(running.life.weather)(unreachable=1.0)
    world.host.api_away = True
    await asyncio.sleep(1000)
    assert world.phases[-1] == "Verifying"
    world.host.api_away = False
    running.life.weather = type(running.life.weather)()
    await world.settled(within_s=300)
    assert world.home() is Slot.KUBE2


@story
async def test_what_cannot_be_read_on_disk_is_said_and_nothing_is_touched(world: NodeWorld) -> None:
    await world.joined()

    def unreadable(_slot: Slot) -> None:
        raise Rejected("kube1-applied-config.json: it is not what its checksum says")

    world.host.applied = unreadable
    world.node_agent().start()
    await world.delete_node()
    await asyncio.sleep(300)
    status, reason, message = await world.condition("NodeUpdated")
    assert (status, reason) == ("Unknown", "Failed")
    assert "checksum" in message
    assert world.host.builds == 0
    world.host.applied = None
    await world.settled(within_s=300)


async def _update(world: NodeWorld, phase: str, version: str = "workers-v2", **more: str) -> None:
    """Write what machina writes for a rolling update."""
    found = await world.api.get(MACHINE_CONFIGURATION_VERSIONS, version)
    update = {"version": version, "uid": found.metadata.uid, "generation": found.metadata.generation, "phase": phase}
    update |= {"since": "2030-01-01T00:00:00Z", **more}
    await world.api.patch(MACHINES, "m1", {"status": {"nodeUpdate": update}}, subresource="status")


async def _rolled(world: NodeWorld, version: str) -> None:
    """m1 with a node of the first version of its configuration, and a second version."""
    await world.joined()
    await world.configure(1, OLD)
    await world.api.patch(MACHINES, "m1", {"spec": {"configurationRef": {"name": "workers"}}})
    world.node_agent().start()
    await asyncio.sleep(5)
    await world.configure(2, version)


@story
async def test_a_rolling_update_has_the_next_node_downloaded_first(world: NodeWorld) -> None:
    await _rolled(world, NEW)
    await _update(world, "Preparing")
    await asyncio.sleep(60)
    agent = (await world.m1()).status.agent
    assert agent is not None
    assert agent.prepared is not None
    assert (agent.prepared.version, agent.prepared.generation, agent.prepared.complete) == ("workers-v2", 1, True)
    assert world.host.builds == 0
    assert sum(line.endswith(f" fetched {NEW}") for line in world.host.log) == 1


@story
async def test_a_rolling_update_of_the_host_has_no_node_downloaded(world: NodeWorld) -> None:
    await _rolled(world, NEW)
    await _update(world, "Preparing", image="registry.example.com/os:v2")
    await asyncio.sleep(60)
    agent = (await world.m1()).status.agent
    assert agent is not None
    assert agent.prepared is None
    assert not [line for line in world.host.log if line.endswith(f" fetched {NEW}")]


@story
async def test_a_download_that_fails_is_reported_and_disrupts_nothing(world: NodeWorld) -> None:
    await _rolled(world, UNBUILDABLE)
    await _update(world, "Preparing")
    await asyncio.sleep(300)
    agent = (await world.m1()).status.agent
    assert agent is not None
    assert agent.prepared is not None
    assert not agent.prepared.complete
    assert f"it has no kubelet {UNBUILDABLE}" in (agent.prepared.message or "")
    assert world.host.builds == 0
    assert len([line for line in world.host.log if f" fetch {UNBUILDABLE}" in line]) > 1, "it is tried again"


@story
async def test_a_rolling_update_that_failed_is_not_retried_by_the_agent(world: NodeWorld) -> None:
    await _rolled(world, WILL_NOT_START)
    await _update(world, "Recreating")
    await world.delete_node()
    await world.reached(lambda: "Abandoned" in world.phases, within_s=1200)
    await world.settled()
    await _update(world, "Failed")
    await asyncio.sleep(6 * LIMITS.retry_max_s)
    assert world.phases.count("Preparing") == 1
    await world.configure(3, NEW)  # nor with another version: machina decides when
    await asyncio.sleep(6 * LIMITS.retry_max_s)
    assert world.phases.count("Preparing") == 1
    await world.delete_node()
    await world.settled()
    assert world.version() == NEW
