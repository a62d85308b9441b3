"""Rolling updates as stories: machina's controllers and the gate at work, agents and kubelets in virtual time."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final

import pytest

from tests.operations.disruption.cluster import cluster_of
from tests.operations.disruption.updates import NodeAgents, run_updates
from tests.operations.staging import Kinds
from tests.operations.world import Process, World
from tests.support.stories import told_in
from tests.support.virtual_time import virtual_now
from unbounded.api.configuration import (
    MACHINE_CONFIGURATION_VERSIONS,
    MACHINE_CONFIGURATIONS,
    UpdateStatus,
)
from unbounded.api.core import NODES
from unbounded.api.machine import MACHINES
from unbounded.api.names import ANNOTATION_PAUSED
from unbounded.explain.chain import explain
from unbounded.explain.links import ExplainLink, Topic

SITE: Final = {"matchLabels": {"unbounded-cloud.io/site": "lab"}}


class Fleet(NodeAgents):
    """Machines with one Node each, and their agents."""

    async def start(
        self, machines: int, *, labels: Mapping[str, dict[str, str]] | None = None, **strategy: Any
    ) -> None:
        """Create a configuration with an update strategy, and as many Machines; wait until all have its version 1.

        Args:
            labels: by the name of the Machine.
        """
        spec = {
            "template": {"kubernetes": {"version": "v1.33.0"}},
            "machineSelector": SITE,
            "updateStrategy": {"type": "RollingUpdate", **strategy},
            "revisionHistoryLimit": 10,
        }
        await self.api.create(MACHINE_CONFIGURATIONS, {"metadata": {"name": "c"}, "spec": spec})
        for number in range(machines):
            name = f"m{number}"
            await self.add_machine(name, (labels or {}).get(name, {}))
            await self.cluster.node(name, f"pod-{name}")
            await self.start_agent(name, "c-v1")
        await self.until(lambda one: one.phase == "Complete" and one.updated == machines)

    async def add_machine(self, name: str, labels: dict[str, str]) -> None:
        await self.cluster.world.machine(name, labels=labels, kubernetes={"nodeRef": {"name": name}})

    async def update(self, machines: int, **strategy: Any) -> None:
        """Start, and begin the update to version 2."""
        await self.start(machines, **strategy)
        await self.want("v1.34.0")

    async def halt(self, machines: int) -> UpdateStatus:
        """Begin an update that halts, as no node can be created from version 2."""
        self.broken.add("c-v2")
        await self.update(machines)
        return await self.phase("Halted", 2)

    async def lose_agents(self, reported: str | None = None) -> None:
        """End all agents; `reported` is their version as the status has it, or none where they never reported."""
        for task in self.agents:
            task.cancel()
        await asyncio.gather(*self.agents, return_exceptions=True)
        for machine in (await self.api.list(MACHINES)).items:
            agent = None if reported is None else {"version": reported}
            await self.api.patch(MACHINES, machine.name, {"status": {"agent": agent}}, subresource="status")

    async def want(self, version: str) -> None:
        await self.edit(template={"kubernetes": {"version": version}})

    async def edit(self, **spec: Any) -> None:
        await self.api.patch(MACHINE_CONFIGURATIONS, "c", {"spec": spec})

    async def rolling(self, **settings: Any) -> None:
        await self.edit(updateStrategy={"rollingUpdate": settings})

    # Observations

    async def status(self) -> UpdateStatus | None:
        return (await self.api.get(MACHINE_CONFIGURATIONS, "c")).status.rollout

    async def until(self, holds: Callable[[UpdateStatus], bool], *, within_s: float = 1800) -> UpdateStatus:
        found = None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while True:
                    found = await self.status()
                    if found is not None and holds(found):
                        return found
                    await asyncio.sleep(0.5)
        states = [(m.name, m.status.node_update, m.status.disruption) for m in (await self.api.list(MACHINES)).items]
        raise AssertionError(f"not there after {within_s} s: {found}\n{states}")

    async def waits(self, name: str, reason: str) -> None:
        async with asyncio.timeout(600):
            while True:
                record = (await self.machine(name)).status.disruption
                if record is not None and record.reason == reason:
                    return
                await asyncio.sleep(0.5)

    async def phase(self, phase: str, version: int, *, within_s: float = 1800) -> UpdateStatus:
        return await self.until(lambda one: (one.phase, one.version) == (phase, version), within_s=within_s)

    async def versions(self) -> dict[str, str]:
        machines = (await self.api.list(MACHINES)).items
        return {
            one.name: (one.status.configuration and one.status.configuration.version_name) or "" for one in machines
        }

    async def quiet(self) -> None:
        """Wait until no Node is disrupted; none is cordoned then."""
        async with asyncio.timeout(600):
            while True:
                if all(one.status.disruption is None for one in (await self.api.list(MACHINES)).items):
                    break
                await asyncio.sleep(0.5)
        assert not [one.metadata.name for one in (await self.api.list(NODES)).items if one.spec.unschedulable]

    def controllers(self) -> Process:
        return Process(self.cluster.world, "machina", run_updates)

    @asynccontextmanager
    async def crashing(self, seed: int, *others: Process) -> AsyncIterator[None]:
        """Run the controllers and other processes, beside one that takes itself for the leader, too; all crash."""
        late = Process(self.cluster.world, "late", partial(run_updates, all_of_them=False))
        chance, tasks = random.Random(seed), list[asyncio.Task[None]]()
        for process in (self.cluster.disrupter(), self.controllers(), late, *others):
            crashes = [chance.randrange(20, 400) for _ in range(4)]
            tasks.append(asyncio.create_task(process.keep(crashes=crashes)))
        try:
            yield
        finally:
            broken = [task.exception() for task in tasks if task.done()]
            for task in (*self.cluster.kubelets.values(), *self.agents, *tasks):
                task.cancel()
            assert not broken


async def why_of(fleet: Fleet, machine: str) -> tuple[ExplainLink, ...]:
    """Return the answer of `why` about a Machine; no answer proposes to delete its Node by hand."""
    found = await explain(fleet.api, Topic.MACHINE, machine, now=virtual_now)
    links, is_settled, unread = found.links, found.settled, found.unread
    assert is_settled == ("nothing blocks it" in links[0].what)
    assert not unread
    assert not [fix for link in links for fix in link.fixes if "delete node" in fix.command]
    return links


@told_in
@asynccontextmanager
async def story() -> AsyncIterator[Fleet]:
    """A test from an `async def test(fleet)`; without a rolling update there is no configuration."""
    cluster = cluster_of(World(random.Random(1), kinds=Kinds()))
    cluster.disrupter().start()
    fleet = Fleet(cluster)
    fleet.controllers().start()
    try:
        yield fleet
    finally:
        for task in (*cluster.kubelets.values(), *fleet.agents):
            task.cancel()
    cluster.world.judge()


@story
async def test_nodes_move_to_the_version_one_after_the_other(fleet: Fleet) -> None:
    await fleet.update(3)
    status = await fleet.phase("Complete", 2)
    assert (status.updated, status.outdated, status.last_good, status.updating) == (3, 0, 2, ())
    assert fleet.created == [("m0", "c-v2"), ("m1", "c-v2"), ("m2", "c-v2")]
    assert set((await fleet.versions()).values()) == {"c-v2"}
    assert fleet.cluster.most_unavailable == 1
    evicted = [node for _at, node, _pod in fleet.cluster.api.evictions]
    assert evicted == ["m0", "m1", "m2"]
    await fleet.quiet()


@story
async def test_two_at_a_time_where_two_may_be_unavailable(fleet: Fleet) -> None:
    await fleet.update(4, maxUnavailable=2)
    await fleet.phase("Complete", 2)
    assert fleet.cluster.most_unavailable == 2
    assert sorted(fleet.created[:2]) == [("m0", "c-v2"), ("m1", "c-v2")]


@story
async def test_nothing_happens_without_a_rolling_update(fleet: Fleet) -> None:
    await fleet.start(2)
    await fleet.edit(updateStrategy={"type": "OnDelete", "rollingUpdate": None})
    await fleet.want("v1.34.0")
    await asyncio.sleep(600)
    assert fleet.created == []
    assert await fleet.status() is None
    assert [one.status.node_update for one in (await fleet.api.list(MACHINES)).items] == [None, None]


@story
async def test_a_failed_node_halts_the_update(fleet: Fleet) -> None:
    status = await fleet.halt(3)
    assert [one.machine for one in status.failed] == ["m0"]
    assert status.waiting is not None
    assert status.waiting.reason == "Halted"
    await asyncio.sleep(3600)
    assert fleet.created == [("m0", "c-v2")]
    await fleet.quiet()
    found = await explain(fleet.api, Topic.CONFIGURATION, "c")
    (link,), is_settled = found.links, found.settled
    assert not is_settled
    assert link.what == f"Halted version 2: {status.message}"
    pause = "kubectl unbounded config pause c"
    assert [fix.command for fix in link.fixes] == ["kubectl unbounded why machine/m0", pause]
    for machine, what in (
        ("m0", "its update to c-v2 by the rolling update of configuration c failed: c-v2: no"),
        ("m1", "the rolling update of configuration c to version 2 has not reached it"),
    ):
        first, second = await why_of(fleet, machine)
        assert first.what == f"Ready: Node {machine} joined; {what}"
        assert first.held_by == second.about == "configuration/c"
        assert second.what == link.what
        assert second.fixes[-1].command == pause
        assert ("kubectl unbounded why machine/m0" in {fix.command for fix in second.fixes}) == (machine != "m0")
    fleet.broken.clear()
    await fleet.want("v1.35.0")  # a corrected version
    await fleet.phase("Complete", 3)


@story
async def test_a_pause_after_a_halt_tries_the_failed_again(fleet: Fleet) -> None:
    await fleet.halt(2)
    fleet.broken.clear()
    await fleet.rolling(paused=True)
    await fleet.phase("Paused", 2)
    await asyncio.sleep(600)
    assert fleet.created == [("m0", "c-v2")]
    await fleet.rolling(paused=False)
    await fleet.phase("Complete", 2)
    assert fleet.created == [("m0", "c-v2"), ("m0", "c-v2"), ("m1", "c-v2")]


@story
async def test_a_rollback_returns_all_to_the_last_good_version(fleet: Fleet) -> None:
    await fleet.update(4, rollingUpdate={"onFailure": "Rollback"})
    await fleet.until(lambda one: one.version == 2 and one.updated == 2)
    fleet.broken.add("c-v2")
    status = await fleet.phase("RolledBack", 1)
    assert status.updated == 4
    assert set((await fleet.versions()).values()) == {"c-v1"}
    bad = await fleet.api.get(MACHINE_CONFIGURATION_VERSIONS, "c-v2")
    assert bad.bad
    begun = len(fleet.created)
    await asyncio.sleep(3600)
    assert len(fleet.created) == begun, "a Bad version is not begun again"
    await fleet.quiet()
    assert fleet.cluster.most_unavailable == 1
    await fleet.want("v1.35.0")
    await fleet.phase("Complete", 3)


@story
async def test_a_pause_ends_a_drain_and_starts_nothing(fleet: Fleet) -> None:
    await fleet.start(2)
    fleet.cluster.api.guarded.add("pod-m0")
    await fleet.want("v1.34.0")
    blocker = "PodDisruptionBudget default/web"
    status = await fleet.until(lambda one: one.waiting is not None and one.waiting.held_by == blocker)
    assert status.waiting is not None
    assert status.waiting.reason == "WaitingForDrain"
    (link,) = (await explain(fleet.api, Topic.CONFIGURATION, "c")).links
    assert (link.held_by, link.since) == (blocker, status.waiting.since)
    assert [fix.command for fix in link.fixes] == ["kubectl -n default describe pdb web"]
    (link,) = await why_of(fleet, "m0")
    assert "the rolling update of configuration c: " in link.what
    assert link.held_by == blocker
    assert [fix.command for fix in link.fixes] == [
        "kubectl -n default describe pdb web",
        "kubectl get pods --all-namespaces --field-selector spec.nodeName=m0",
    ]
    await fleet.rolling(paused=True)
    await fleet.phase("Paused", 2)
    await fleet.quiet()
    fleet.cluster.api.guarded.clear()
    await asyncio.sleep(600)
    assert fleet.created == []
    await fleet.rolling(paused=False)
    await fleet.phase("Complete", 2)


@story
async def test_a_drain_that_times_out_halts_and_rolls_nothing_back(fleet: Fleet) -> None:
    await fleet.start(2, rollingUpdate={"onFailure": "Rollback"})
    fleet.cluster.api.guarded.add("pod-m0")
    await fleet.want("v1.34.0")
    status = await fleet.phase("Halted", 2, within_s=4000)
    assert "not drained within 3600 s" in (status.failed[0].message or "")
    await fleet.quiet()
    assert not (await fleet.api.get(MACHINE_CONFIGURATION_VERSIONS, "c-v2")).bad
    assert fleet.created == []


@story
async def test_a_machine_without_an_agent_is_blocked_and_why_says_so(fleet: Fleet) -> None:
    await fleet.start(1)
    await fleet.lose_agents()
    await fleet.want("v1.34.0")
    status = await fleet.until(lambda one: one.waiting is not None)
    assert (status.updating, status.waiting and status.waiting.held_by) == ((), "Machine m0")
    (link,) = await why_of(fleet, "m0")
    assert "does not start: no agent has reported from its host" in link.what
    assert link.fixes[-1].command == "kubectl unbounded machine manual-bootstrap m0 --site lab"
    await fleet.start_agent("m0", "c-v1")
    await fleet.phase("Complete", 2)


@story
async def test_an_agent_that_is_silent_for_long_is_named(fleet: Fleet) -> None:
    await fleet.start(1)
    await fleet.lose_agents(reported="1.0.0")
    await fleet.want("v1.34.0")
    await fleet.until(lambda one: "its agent downloads c-v2" in (one.message or ""))
    await fleet.until(lambda one: "its agent is silent" in (one.message or ""), within_s=1900)
    (link,) = await why_of(fleet, "m0")
    assert "the rolling update of configuration c: its agent is silent" in link.what
    assert link.fixes[-1].does == "starts it again"
    (link,) = (await explain(fleet.api, Topic.CONFIGURATION, "c")).links
    assert [fix.command for fix in link.fixes] == ["kubectl unbounded why machine/m0"]


@story
async def test_a_version_that_cannot_be_downloaded_disrupts_no_node(fleet: Fleet) -> None:
    fleet.unfetchable.add("c-v2")
    await fleet.update(2)
    status = await fleet.until(lambda one: "404" in (one.message or ""))
    assert (status.phase, status.updating) == ("InProgress", ("m0",))
    (link,) = await why_of(fleet, "m0")
    assert "the rolling update of configuration c: its agent downloads c-v2 since " in link.what
    assert link.what.endswith(": 404")
    assert link.fixes[0].command == "sudo unbounded-agent status"
    await asyncio.sleep(600)
    assert fleet.created == []
    assert fleet.cluster.most_unavailable == 0


@story
async def test_no_node_is_drained_for_an_update_while_an_operation_has_the_lock(fleet: Fleet) -> None:
    await fleet.start(1)
    active = {
        "uid": "u",
        "name": "op",
        "kind": "HostReboot",
        "executor": "metalman/lab",
        "since": "2030-01-01T00:00:00Z",
    }
    await fleet.api.patch(MACHINES, "m0", {"status": {"activeOperation": active}}, subresource="status")
    await fleet.want("v1.34.0")
    await asyncio.sleep(120)
    machine = await fleet.machine("m0")
    assert machine.status.node_update is not None
    assert (machine.status.node_update.phase, machine.status.disruption) == ("Draining", None)
    await fleet.api.patch(MACHINES, "m0", {"status": {"activeOperation": None}}, subresource="status")
    await fleet.phase("Complete", 2)


@story
async def test_a_canary_soaks_before_the_rest_starts(fleet: Fleet) -> None:
    stages = [{"name": "canary", "size": 1, "soakSeconds": 600}, {"name": "rest", "size": "100%"}]
    await fleet.update(4, maxUnavailable=3, rollingUpdate={"stages": stages})
    status = await fleet.until(lambda one: one.waiting is not None and one.waiting.reason == "Soaking")
    assert (status.stage, status.updated) == ("canary", 1)
    await asyncio.sleep(500)
    assert fleet.created == [("m0", "c-v2")]
    fleet.cluster.down.add("m0")
    await fleet.phase("Halted", 2)
    await asyncio.sleep(1200)
    assert fleet.created == [("m0", "c-v2")]


@story
async def test_a_disruption_budget_limits_the_update(fleet: Fleet) -> None:
    await fleet.start(3, maxUnavailable=3)
    await fleet.cluster.budget("one", 1)
    await fleet.want("v1.34.0")
    await fleet.waits("m1", "WaitingForBudget")
    (link,) = await why_of(fleet, "m1")
    assert "MachineDisruptionBudget one lets 1 of 3 Machines be unavailable: m0 (" in link.what
    assert [fix.command for fix in link.fixes] == ["kubectl unbounded why machine/m0", "kubectl describe mdb one"]
    await fleet.phase("Complete", 2)
    assert fleet.cluster.most_unavailable == 1
    assert (await why_of(fleet, "m1"))[0].what == "Ready: Node m1 joined; nothing blocks it"
    await fleet.quiet()
    assert await fleet.cluster.granted("one") == set()


@story
async def test_a_node_that_a_user_has_cordoned_is_left_alone(fleet: Fleet) -> None:
    await fleet.start(2, maxUnavailable=2)
    await fleet.cluster.cordon("m0")
    await fleet.want("v1.34.0")
    status = await fleet.until(lambda one: one.version == 2 and one.updated == 1 and not one.updating)
    assert fleet.created == [("m1", "c-v2")]
    assert status.waiting is not None
    assert status.waiting.held_by == "Node m0"
    (link,) = await why_of(fleet, "m0")
    assert "to version 2 does not start: Node m0 is cordoned" in link.what
    assert (link.held_by, link.fixes[0].command) == ("Node m0", "kubectl uncordon m0")
    assert await fleet.cluster.is_cordoned("m0")
    await fleet.cluster.cordon("m0", unschedulable=False)
    await fleet.phase("Complete", 2)


@story
async def test_a_version_that_changes_meanwhile_is_taken_instead(fleet: Fleet) -> None:
    await fleet.update(3)
    await fleet.until(lambda one: one.version == 2 and one.updated == 1)
    await fleet.want("v1.35.0")
    await fleet.phase("Complete", 3)
    assert set((await fleet.versions()).values()) == {"c-v3"}
    assert fleet.cluster.most_unavailable == 1


@story
async def test_a_node_that_is_away_uses_the_limit_and_comes_first(fleet: Fleet) -> None:
    await fleet.start(3)
    fleet.cluster.down.add("m2")
    await asyncio.sleep(5)
    await fleet.want("v1.34.0")
    await asyncio.sleep(600)
    status = await fleet.status()
    assert status is not None
    assert status.updating == ("m2",), "its pods cannot leave, and no other Node may be taken away"
    assert fleet.created == []
    fleet.cluster.down.clear()
    await fleet.phase("Complete", 2)


@story
async def test_a_rollback_begins_with_the_failed(fleet: Fleet) -> None:
    await fleet.update(3)
    await fleet.phase("Complete", 2)
    await fleet.quiet()
    update = (await fleet.machine("m2")).status.node_update
    assert update is not None
    failed = {"nodeUpdate": {"phase": "Failed"}}  # it was late, and its Node has the version by now
    await fleet.api.patch(MACHINES, "m2", {"status": failed}, subresource="status")
    bad = {"type": "Bad", "status": "True", "reason": "UpdateFailed", "lastTransitionTime": update.since, "message": ""}
    await fleet.api.patch(
        MACHINE_CONFIGURATION_VERSIONS, "c-v2", {"status": {"conditions": [bad]}}, subresource="status"
    )
    await fleet.phase("RolledBack", 1)
    assert [machine for machine, version in fleet.created if version == "c-v1"] == ["m2", "m0", "m1"]


@story
async def test_raised_failures_end_a_halt_until_as_many_have_failed(fleet: Fleet) -> None:
    await fleet.halt(3)
    await fleet.rolling(maxFailures=2)
    status = await fleet.until(lambda one: one.phase == "Halted" and len(one.failed) == 2)
    assert [one.machine for one in status.failed] == ["m0", "m1"]
    assert fleet.created == [("m0", "c-v2"), ("m1", "c-v2")]
    await fleet.quiet()


@story
async def test_a_failed_node_that_has_the_version_ends_a_halt(fleet: Fleet) -> None:
    await fleet.halt(2)
    fleet.broken.clear()
    await fleet.api.delete(NODES, "m0")  # by its user, who has repaired the host
    await fleet.phase("Complete", 2)
    assert fleet.created == [("m0", "c-v2"), ("m0", "c-v2"), ("m1", "c-v2")]


@story
async def test_a_rollback_leaves_out_a_version_that_never_completed(fleet: Fleet) -> None:
    await fleet.update(3, rollingUpdate={"onFailure": "Rollback"})
    await fleet.until(lambda one: one.version == 2 and one.updated == 1)
    fleet.broken.add("c-v3")
    await fleet.want("v1.35.0")
    await fleet.phase("RolledBack", 1)
    assert set((await fleet.versions()).values()) == {"c-v1"}
    found = {name: await fleet.api.get(MACHINE_CONFIGURATION_VERSIONS, name) for name in ("c-v2", "c-v3")}
    assert all(one.bad for one in found.values())
    (bad,) = (one for one in found["c-v2"].status.conditions if one.type == "Bad")
    assert "its update never completed, and version 3 after it was rolled back" in (bad.message or "")


@story
async def test_an_agent_that_creates_no_node_fails_its_update_after_an_hour(fleet: Fleet) -> None:
    await fleet.start(2)
    fleet.stuck.add("m0")
    await fleet.want("v1.34.0")
    status = await fleet.phase("Halted", 2, within_s=4000)
    assert [one.machine for one in status.failed] == ["m0"]
    assert "its agent has not created the Node again, 3600 s after Node m0 was deleted" in (
        status.failed[0].message or ""
    )
    assert fleet.created == []
    fleet.stuck.clear()
    await fleet.phase("Complete", 2)


@story
async def test_stages_that_leave_a_machine_out_halt_with_its_name(fleet: Fleet) -> None:
    await fleet.start(2, labels={"m0": {"unbounded-cloud.io/site": "lab", "unit": "a"}})
    canary = {"name": "canary", "machineSelector": {"matchLabels": {"unit": "a"}}}
    await fleet.rolling(stages=[canary])
    await fleet.want("v1.34.0")
    status = await fleet.phase("Halted", 2)
    assert status.waiting is not None
    assert (status.waiting.reason, status.waiting.held_by) == (
        "InvalidSpec",
        "spec.updateStrategy.rollingUpdate.stages",
    )
    assert "(m1)" in (status.message or "")
    (link,) = (await explain(fleet.api, Topic.CONFIGURATION, "c")).links
    assert ([fix.command for fix in link.fixes], link.next_step) == (["kubectl edit mc c"], "")
    await asyncio.sleep(600)
    assert fleet.created == []
    await fleet.rolling(stages=[canary, {"name": "rest", "size": "100%"}])
    await fleet.phase("Complete", 2)
    assert fleet.created == [("m0", "c-v2"), ("m1", "c-v2")]


@story
async def test_paused_machines_and_those_in_maintenance_are_left_alone(fleet: Fleet) -> None:
    await fleet.start(3, maxUnavailable=3)
    await fleet.api.patch(MACHINES, "m0", {"metadata": {"annotations": {ANNOTATION_PAUSED: "true"}}})
    await fleet.api.patch(MACHINES, "m1", {"spec": {"maintenance": {"enabled": True}}})
    await fleet.want("v1.34.0")
    status = await fleet.until(lambda one: one.version == 2 and one.updated == 1 and not one.updating)
    assert fleet.created == [("m2", "c-v2")]
    assert (status.message or "").endswith("m0 (and 1 more): it is paused")
    update, pause = await why_of(fleet, "m0")
    assert "to version 2 does not start: it is paused" in update.what
    assert pause.fixes[0].command == "kubectl unbounded machine resume m0"
    await fleet.api.patch(MACHINES, "m0", {"metadata": {"annotations": {ANNOTATION_PAUSED: None}}})
    await fleet.until(lambda one: one.updated == 2)
    await fleet.api.patch(MACHINES, "m1", {"spec": {"maintenance": None}})
    await fleet.phase("Complete", 2)
    await fleet.quiet()


@story
async def test_a_machine_that_names_a_version_moves_to_that_one(fleet: Fleet) -> None:
    await fleet.start(2)
    await fleet.api.patch(MACHINES, "m0", {"spec": {"configurationRef": {"version": 1}}})
    await fleet.want("v1.34.0")
    await fleet.phase("Complete", 2)
    assert await fleet.versions() == {"m0": "c-v1", "m1": "c-v2"}
    await fleet.api.patch(MACHINES, "m0", {"spec": {"configurationRef": {"version": 2}}})
    await fleet.until(lambda one: one.phase == "Complete" and fleet.created[-1] == ("m0", "c-v2"))
    assert fleet.created == [("m1", "c-v2"), ("m0", "c-v2")]


@story
async def test_an_update_pauses_after_its_canary_until_it_is_resumed(fleet: Fleet) -> None:
    stages = [{"name": "canary", "size": 1, "pauseAfter": True}, {"name": "rest", "size": "100%"}]
    await fleet.update(3, rollingUpdate={"stages": stages})
    status = await fleet.phase("Paused", 2)
    assert "paused after stage canary" in (status.message or "")
    await asyncio.sleep(1800)
    assert fleet.created == [("m0", "c-v2")]
    (link,) = (await explain(fleet.api, Topic.CONFIGURATION, "c")).links
    assert [fix.command for fix in link.fixes] == ["kubectl unbounded config resume c"]
    await fleet.rolling(paused=False)
    await fleet.phase("Complete", 2)


@story
async def test_machines_download_before_their_turn(fleet: Fleet) -> None:
    await fleet.start(4, rollingUpdate={"prepareAhead": 2})
    fleet.cluster.api.guarded.add("pod-m0")  # its drain does not end
    await fleet.want("v1.34.0")
    status = await fleet.until(lambda one: one.prepared == 3)
    assert status.updating == ("m0",)
    link, rolling = await why_of(fleet, "m1")
    assert link.what.endswith(", ahead of its turn")
    assert rolling.about == "configuration/c"
    await asyncio.sleep(600)
    assert (await fleet.machine("m3")).status.node_update is None
    fleet.cluster.api.guarded.clear()
    await fleet.phase("Complete", 2)
    assert fleet.cluster.most_unavailable == 1


@pytest.mark.parametrize("seed", range(20))
def test_two_processes_and_their_crashes_do_not_exceed_the_limit(seed: int) -> None:
    @told_in
    @asynccontextmanager
    async def crashing() -> AsyncIterator[Fleet]:
        fleet = Fleet(cluster_of(World(random.Random(seed), kinds=Kinds())))
        async with fleet.crashing(seed):
            yield fleet

    @crashing
    async def told(fleet: Fleet) -> None:
        fleet.broken.add("c-v2")
        await fleet.update(5, maxUnavailable=2, rollingUpdate={"onFailure": "Rollback"})
        await fleet.phase("RolledBack", 1, within_s=7200)
        await fleet.want("v1.35.0")
        last = await fleet.until(lambda one: one.phase == "Complete" and one.version > 2, within_s=7200)
        await fleet.quiet()
        assert fleet.cluster.most_unavailable <= 2
        assert set((await fleet.versions()).values()) == {f"c-v{last.version}"}
        failed = [one for one in fleet.created if one[1] == "c-v2"]
        assert len(failed) <= 2, "a halted update starts nothing"

    told()
