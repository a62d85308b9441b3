"""Stages of a selector operation: order, sizes, limits, soak, pause, halt and retry. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.operations.building import machine_of, operation_of
from unbounded.api.core import Node
from unbounded.api.machine import Machine
from unbounded.api.names import LABEL_SITE
from unbounded.api.operation import MachineOperation, OperationStrategy, TargetStatus
from unbounded.kube.clock import rfc3339
from unbounded.operations import reasons
from unbounded.operations.batch_plan import BatchRejection, BatchStep, child_manifest, plan_batch, snapshot
from unbounded.operations.rollout_plan import RETURN_S, STARTING, RolloutFacts, initial_status, ordered, share

START = datetime(2030, 1, 1, tzinfo=UTC)
CANARY = {"name": "canary", "size": 1, "soakSeconds": 60}
REST = {"name": "rest", "size": "100%"}
KUBERNETES = {
    "version": "1.34.0",
    "nodeRef": {"kind": "Node", "name": "n"},
    "bootstrapTokenRef": {"name": "t", "namespace": "kube-system"},
}


class Rollout:
    """A rollout that a test moves: its children, Nodes and clock; a pass writes what the controller writes."""

    def __init__(
        self, *stages: Mapping[str, Any], count: int = 4, kind: str = "HostReboot", policy: str = "Halt", **spec: Any
    ) -> None:
        strategy = {"stages": list(stages), "onFailure": policy, **spec.pop("strategy", {})}
        selector = {"matchLabels": {LABEL_SITE: "lab"}}
        self.machines = {f"m{n}": machine_of(f"m{n}", kubernetes=KUBERNETES) for n in range(count)}
        self.nodes: dict[str, Node] = {}
        self.now = START
        self.parent = operation_of("all", kind, None, machineSelector=selector, strategy=strategy, **spec)
        targets = snapshot(self.parent, tuple(self.machines.values()))
        assert not isinstance(targets, BatchRejection), targets
        assert self.parent.spec.strategy is not None
        self.set(status={"targets": targets, "rollout": initial_status(self.parent.spec.strategy, targets)})
        self.children: dict[str, MachineOperation] = {}
        for name in self.machines:
            self.node(name, "True", at=START - timedelta(hours=1))

    def set(self, **parts: Mapping[str, Any]) -> None:
        self.parent = _changed(self.parent, **parts)

    def node(self, machine: str, ready: str, *, at: datetime | None = None, heartbeat: datetime | None = None) -> None:
        """Let the Ready condition of a Node change now, or at another time."""
        since = at or self.now
        condition = {
            "type": "Ready",
            "status": ready,
            "lastTransitionTime": rfc3339(since),
            "lastHeartbeatTime": rfc3339(heartbeat or since),
        }
        created = rfc3339(START - timedelta(days=1))
        body = {"metadata": {"name": machine, "creationTimestamp": created}, "status": {"conditions": [condition]}}
        self.nodes[machine] = msgspec.convert(body, Node)

    def step(self, after_s: float = 0.0) -> BatchStep:
        self.now += timedelta(seconds=after_s)
        step = plan_batch(
            self.parent, self.children.values(), RolloutFacts(self.now, dict(self.machines), dict(self.nodes))
        )
        status: dict[str, Any] = {"targets": step.targets}
        if step.rollout is not None:
            status["rollout"] = step.rollout.status
        if step.end is not None:
            status |= {"phase": step.end[0], "reason": step.end[1]}
        self.set(status=status)
        for machine in step.start:
            manifest = child_manifest(self.parent, machine)
            self.children[manifest["metadata"]["name"]] = msgspec.convert(manifest, MachineOperation)
        if step.rollout is not None and step.rollout.pause:
            self.set(spec={"paused": True})
        return step

    def end(self, machine: str, phase: str = "Complete", *, returns: bool = True) -> None:
        """End the running child of a Machine; its Node reports again, unless it does not return."""
        name = next(n for n, c in self.children.items() if c.spec.machine_ref == machine and not c.terminal)
        own = TargetStatus(machine_ref=machine, phase=phase, started_at=rfc3339(self.now - timedelta(seconds=30)))
        status = {"phase": phase, "completed_at": rfc3339(self.now), "targets": (own,)}
        self.children[name] = _changed(self.children[name], status=status)
        if returns:
            self.node(machine, "True")

    def complete(self, *machines: str) -> BatchStep:
        for machine in machines:
            self.end(machine)
        return self.step()

    @property
    def running(self) -> list[str]:
        return sorted(c.spec.machine_ref or "" for c in self.children.values() if not c.terminal)

    @property
    def stages(self) -> dict[str, str]:
        assert self.parent.status.rollout is not None
        return {stage.name: stage.phase for stage in self.parent.status.rollout.stages}

    def target(self, machine: str) -> TargetStatus:
        return next(one for one in self.parent.status.targets if one.machine_ref == machine)


def _changed(operation: MachineOperation, **parts: Mapping[str, Any]) -> MachineOperation:
    changes = {part: msgspec.structs.replace(getattr(operation, part), **fields) for part, fields in parts.items()}
    return msgspec.structs.replace(operation, **changes)


def _reason(step: BatchStep) -> str | None:
    return None if step.wait is None else step.wait.reason


# Stages and order


def test_integers_order_first_then_other_values_then_names() -> None:
    values = {"a": "10", "b": "9", "c": "x", "d": None, "e": "9", "f": "007"}
    machines = [machine_of(name, labels={} if value is None else {"unit": value}) for name, value in values.items()]
    assert [machine.name for machine in ordered(machines[::-1], "unit")] == ["f", "b", "e", "a", "c", "d"]
    assert [machine.name for machine in ordered(machines[::-1], None)] == sorted(values)


@pytest.mark.parametrize(
    ("value", "of", "up", "down"), [(3, 10, 3, 3), ("10%", 15, 2, 1), ("1%", 5, 1, 1), ("100%", 7, 7, 7)]
)
def test_percentages_of_sizes_round_up_and_of_limits_down(value: int | str, of: int, up: int, down: int) -> None:
    assert (share(value, of, up=True), share(value, of, up=False)) == (up, down)


def _staged(machines: list[Machine], *stages: Mapping[str, Any], **strategy: Any) -> dict[str, list[str]] | str:
    selector = {"matchLabels": {LABEL_SITE: "lab"}}
    parent = operation_of("all", machine=None, machineSelector=selector, strategy={"stages": list(stages), **strategy})
    found = snapshot(parent, machines)
    if isinstance(found, BatchRejection):
        assert found.reason == reasons.INVALID_SPEC
        return found.text
    names = {stage["name"] for stage in stages} or {"all"}
    return {name: [t.machine_ref for t in found if t.rollout_stage == name] for name in sorted(names)}


def test_stages_take_their_share_of_all_in_order() -> None:
    machines = [machine_of(f"m{n}", labels={LABEL_SITE: "lab", "unit": str(9 - n)}) for n in range(5)]
    some = {"name": "some", "size": "40%"}
    assert _staged(machines, CANARY, some, REST, orderBy="unit") == {
        "canary": ["m4"],
        "some": ["m3", "m2"],
        "rest": ["m1", "m0"],
    }
    assert _staged(machines[:1], CANARY, some, REST) == {"canary": ["m0"], "some": [], "rest": []}
    assert _staged(machines[:2]) == {"all": ["m0", "m1"]}


def test_a_stage_selects_by_label_what_no_earlier_one_has() -> None:
    machines = [machine_of(f"m{n}", labels={LABEL_SITE: "lab", "rack": str(n // 2)}) for n in range(4)]
    rack = {"name": "rack", "machineSelector": {"matchLabels": {"rack": "0"}}}
    assert _staged(machines, CANARY, rack, REST) == {"canary": ["m0"], "rack": ["m1"], "rest": ["m2", "m3"]}
    none = {"name": "none", "machineSelector": {"matchLabels": {"rack": "7"}}}
    assert "stage none of spec.strategy has no targets" in str(_staged(machines, none, REST))


def test_a_machine_in_no_stage_is_refused_with_its_name() -> None:
    machines = [machine_of(f"m{n}") for n in range(3)]
    assert "no stage of spec.strategy has 2 of the 3 Machines (m1, m2)" in str(_staged(machines, CANARY))


# Starts


def test_canary_has_to_soak_before_the_rest_starts() -> None:
    rollout = Rollout(CANARY, REST)
    assert rollout.step().start == ("m0",)
    assert rollout.stages == {"canary": "InProgress", "rest": "Pending"}
    step = rollout.complete("m0")
    assert (step.start, _reason(step)) == ((), reasons.SOAKING)
    assert step.wait is not None
    assert step.wait.until == rfc3339(START + timedelta(seconds=60))
    assert step.rollout is not None
    assert step.rollout.requeue_s == 60.0
    assert rollout.stages == {"canary": "Soaking", "rest": "Pending"}
    assert rollout.step(59.0).start == ()
    assert rollout.step(1.0).start == ("m1", "m2", "m3")
    assert rollout.stages == {"canary": "Complete", "rest": "InProgress"}
    ended = rollout.complete("m1", "m2", "m3").end
    assert ended == ("Complete", reasons.SUCCEEDED)


def test_limits_of_a_stage_and_of_all_stages_hold_together() -> None:
    quarter = {"name": "a", "size": 4, "maxConcurrent": "50%"}
    beside = {"name": "b", "size": "100%", "startAfter": {"stage": "a", "targets": 1}}
    rollout = Rollout(quarter, beside, count=10, maxConcurrent=3)
    assert rollout.step().start == ("m0", "m1")
    assert rollout.complete("m0").start == ("m2", "m4")
    assert rollout.running == ["m1", "m2", "m4"]
    assert rollout.step().start == ()


def test_number_of_targets_counts_those_that_have_soaked() -> None:
    soaking = {"name": "a", "size": 2, "soakSeconds": 60}
    after = {"name": "b", "size": "100%", "startAfter": {"stage": "a", "targets": 1}}
    rollout = Rollout(soaking, after)
    rollout.step()
    assert rollout.complete("m0").start == ()
    assert rollout.step(60.0).start == ("m2", "m3")
    assert rollout.running == ["m1", "m2", "m3"]


def test_stage_can_wait_for_an_earlier_one_than_the_one_before() -> None:
    stages = (
        {"name": "a", "size": 1},
        {"name": "b", "size": 1},
        {"name": "c", "size": "100%", "startAfter": {"stage": "a", "targets": "All"}},
    )
    rollout = Rollout(*stages)
    rollout.step()
    assert rollout.complete("m0").start == ("m1", "m2", "m3")


def test_failures_below_the_limit_do_not_hold_the_next_stage() -> None:
    rollout = Rollout({"name": "a", "size": 2}, REST, maxFailures=2)
    rollout.step()
    rollout.end("m0", "Failed")
    assert rollout.complete("m1").start == ("m2", "m3")
    assert rollout.complete("m2", "m3").end == ("Failed", reasons.TARGET_FAILED)


def test_released_target_without_a_child_starts_again() -> None:
    rollout = Rollout(REST, count=1)
    target = msgspec.structs.replace(rollout.target("m0"), stage=STARTING)
    rollout.set(status={"targets": (target,)})
    assert rollout.step().start == ("m0",)
    assert rollout.stages == {"rest": "InProgress"}


# Halt, retry, cancel


def test_policy_fail_ends_the_operation_with_the_stage() -> None:
    rollout = Rollout(CANARY, REST, policy="Fail")
    rollout.step()
    rollout.end("m0", "Failed")
    step = rollout.step()
    assert step.end == ("Failed", reasons.TARGET_FAILED)
    assert [rollout.target(name).reason for name in ("m1", "m2", "m3")] == [reasons.NOT_STARTED] * 3


def test_halted_rollout_starts_nothing_until_the_failed_are_retried() -> None:
    rollout = Rollout(CANARY, REST)
    rollout.step()
    rollout.end("m0", "Failed")
    for _ in range(3):
        step = rollout.step(3600.0)
        assert (step.start, step.end, _reason(step)) == ((), None, reasons.HALTED)
        assert "m0" in step.message
    assert rollout.stages == {"canary": "Halted", "rest": "Pending"}
    rollout.set(spec={"retry_failed": 1})
    assert rollout.step().start == ("m0",)
    assert rollout.target("m0").retry == 1
    assert rollout.running == ["m0"]
    assert len(rollout.children) == 2
    assert rollout.step().start == ()
    rollout.complete("m0")
    assert rollout.step(60.0).start == ("m1", "m2", "m3")
    assert rollout.complete("m1", "m2", "m3").end == ("Complete", reasons.SUCCEEDED)


def test_failure_of_the_last_target_halts_and_can_be_retried() -> None:
    rollout = Rollout(REST, count=1)
    rollout.step()
    rollout.end("m0", "Failed")
    assert _reason(rollout.step()) == reasons.HALTED
    rollout.set(spec={"retry_failed": 3})
    assert rollout.step().start == ("m0",)
    rollout.end("m0", "Failed")
    assert _reason(rollout.step()) == reasons.HALTED
    assert rollout.step().start == ()


def test_a_halt_lets_what_runs_come_to_its_end() -> None:
    rollout = Rollout(REST, maxConcurrent=2)
    rollout.step()
    rollout.end("m0", "Failed")
    step = rollout.step()
    assert (step.start, step.cancel) == ((), ())
    assert rollout.running == ["m1"]
    assert rollout.complete("m1").start == ()


def test_deleted_machines_of_failed_targets_end_a_halt() -> None:
    rollout = Rollout(CANARY, REST)
    rollout.step()
    rollout.end("m0", "Failed")
    assert _reason(rollout.step()) == reasons.HALTED
    del rollout.machines["m0"]
    assert rollout.step().start == ("m1", "m2", "m3")
    assert rollout.complete("m1", "m2", "m3").end == ("Failed", reasons.TARGET_FAILED)


def test_cancel_ends_a_halted_rollout() -> None:
    rollout = Rollout(CANARY, REST)
    rollout.step()
    rollout.end("m0", "Failed")
    rollout.step()
    rollout.set(spec={"cancel": True, "retry_failed": 1})
    step = rollout.step()
    assert (step.start, step.end) == ((), ("Failed", reasons.CANCELLED))


# Pause


def test_pause_starts_nothing_and_its_end_goes_on() -> None:
    rollout = Rollout(REST, paused=True)
    step = rollout.step()
    assert (step.start, _reason(step)) == ((), reasons.PAUSED)
    rollout.set(spec={"paused": False})
    assert rollout.step().start == ("m0", "m1", "m2", "m3")


def test_a_pause_without_strategy_starts_nothing() -> None:
    targets = ({"machineRef": "m1", "phase": "Pending"},)
    selector = {"matchLabels": {LABEL_SITE: "lab"}}
    parent = operation_of("all", machine=None, machineSelector=selector, paused=True, status={"targets": targets})
    step = plan_batch(parent, (), RolloutFacts(START))
    assert (step.start, step.end, _reason(step)) == ((), None, reasons.PAUSED)
    assert plan_batch(_changed(parent, spec={"paused": False}), (), RolloutFacts(START)).start == ("m1",)


def test_stage_with_a_pause_after_it_pauses_once() -> None:
    rollout = Rollout({"name": "a", "size": 1, "pauseAfter": True}, {**REST, "pauseAfter": True})
    rollout.step()
    step = rollout.complete("m0")
    assert step.rollout is not None
    assert (step.rollout.pause, step.start) == (True, ())
    assert rollout.parent.spec.paused
    step = rollout.step()
    assert step.rollout is not None
    assert (step.rollout.pause, step.start, _reason(step)) == (False, (), reasons.PAUSED)
    assert "paused after stage a" in step.message
    assert rollout.stages == {"a": "Paused", "rest": "Pending"}
    rollout.set(spec={"paused": False})
    assert rollout.step().start == ("m1", "m2", "m3")
    assert rollout.complete("m1", "m2", "m3").end == ("Complete", reasons.SUCCEEDED)  # no pause after the last


# Soak


def test_node_that_turns_not_ready_in_the_soak_halts() -> None:
    rollout = Rollout(CANARY, REST)
    rollout.step()
    rollout.complete("m0")
    rollout.now += timedelta(seconds=30)
    rollout.node("m0", "Unknown")
    step = rollout.step()
    assert (step.start, _reason(step)) == ((), reasons.HALTED)
    assert (rollout.target("m0").phase, rollout.target("m0").reason) == ("Failed", reasons.NODE_NOT_READY)
    rollout.node("m0", "True")
    assert _reason(rollout.step(600.0)) == reasons.HALTED  # a return does not end it


def test_node_that_was_away_between_two_passes_halts() -> None:
    rollout = Rollout(CANARY, REST)
    rollout.step()
    rollout.complete("m0")
    rollout.now += timedelta(seconds=59)
    rollout.node("m0", "True", at=START + timedelta(seconds=40))
    assert _reason(rollout.step()) == reasons.HALTED


def test_soak_that_ended_without_a_supervisor_needs_a_ready_node() -> None:
    rollout = Rollout(CANARY, REST)
    rollout.step()
    rollout.complete("m0")
    rollout.node("m0", "False", at=START + timedelta(seconds=3000))
    assert _reason(rollout.step(7200.0)) == reasons.HALTED


def test_soak_of_a_restarted_host_begins_when_its_kubelet_reports() -> None:
    rollout = Rollout(CANARY, REST)
    rollout.step()
    rollout.end("m0", returns=False)  # its Node still shows the last report before the restart
    assert _reason(rollout.step()) == reasons.SOAKING
    assert "waits until the Node of m0 is Ready again" in rollout.step(5.0).message
    rollout.node("m0", "Unknown")
    assert rollout.step(90.0).start == ()
    rollout.node("m0", "False")
    assert _reason(rollout.step(60.0)) == reasons.SOAKING
    rollout.node("m0", "True")
    assert _reason(rollout.step()) == reasons.SOAKING
    assert rollout.step(59.0).start == ()
    assert rollout.step(1.0).start == ("m1", "m2", "m3")


def test_node_that_does_not_return_halts() -> None:
    rollout = Rollout(CANARY, REST)
    rollout.step()
    rollout.end("m0", returns=False)
    rollout.node("m0", "Unknown")
    step = rollout.step()
    assert step.rollout is not None
    assert step.rollout.requeue_s == RETURN_S
    assert _reason(rollout.step(RETURN_S - 1.0)) == reasons.SOAKING
    assert _reason(rollout.step(1.0)) == reasons.HALTED


@pytest.mark.parametrize("kind", ["HostPowerOff", "AgentReset"])
def test_operation_that_takes_the_node_away_soaks_by_time_alone(kind: str) -> None:
    rollout = Rollout(CANARY, REST, kind=kind)
    rollout.step()
    rollout.end("m0", returns=False)
    rollout.node("m0", "Unknown")
    rollout.step()
    assert rollout.step(60.0).start == ("m1", "m2", "m3")


def test_machine_without_a_node_soaks_by_time_alone() -> None:
    rollout = Rollout(CANARY, REST)
    rollout.machines = {name: machine_of(name) for name in rollout.machines}
    rollout.nodes.clear()
    rollout.step()
    rollout.end("m0", returns=False)
    rollout.step()
    assert rollout.step(60.0).start == ("m1", "m2", "m3")


def test_node_that_was_deleted_in_the_soak_halts() -> None:
    rollout = Rollout(CANARY, REST)
    rollout.step()
    rollout.complete("m0")
    del rollout.nodes["m0"]
    assert _reason(rollout.step()) == reasons.HALTED


# All schedules

SHARES = st.one_of(st.integers(1, 5), st.sampled_from(["1%", "10%", "34%", "50%", "100%"]))
STAGES = st.lists(
    st.fixed_dictionaries(
        {"size": SHARES, "soakSeconds": st.sampled_from([0, 60]), "pauseAfter": st.booleans()},
        optional={"maxConcurrent": SHARES},
    ),
    max_size=4,
)
DEEDS = st.lists(
    st.sampled_from(["complete", "complete", "complete", "fail", "lose", "wait", "wait", "pause", "resume", "retry"]),
    max_size=60,
)


@pytest.mark.slow
@given(STAGES, DEEDS, st.integers(1, 4), st.integers(1, 2), st.randoms(use_true_random=False))
def test_stages_come_in_order_and_nothing_starts_while_halted_or_paused(
    stages: list[dict[str, Any]], deeds: list[str], at_once: int, failures: int, chance: Any
) -> None:
    named = [{"name": f"s{number}", **stage} for number, stage in enumerate(stages)]
    rollout = Rollout(*named, REST, count=6, maxConcurrent=at_once, maxFailures=failures)
    for deed in [*deeds, *["retry", "resume", "complete", "wait", "complete", "wait"] * 20]:
        _do(rollout, deed, chance)
        paused, open_before = rollout.parent.spec.paused, rollout.running
        step = rollout.step()
        assert len(rollout.running) <= at_once
        if paused or _reason(step) == reasons.HALTED:
            assert not set(rollout.running) - set(open_before)
        for machine in step.start:
            _assert_stages_before_are_over(rollout, machine)
        if rollout.parent.terminal:
            break
    assert rollout.parent.terminal
    names = [(child.spec.machine_ref, name) for name, child in rollout.children.items()]
    assert len(names) == len(set(names))
    retries = {name: rollout.target(name).retry for name in rollout.machines}
    for name in rollout.machines:
        assert sum(machine == name for machine, _ in names) <= retries[name] + 1


def _do(rollout: Rollout, deed: str, chance: Any) -> None:
    if deed in ("complete", "fail") and rollout.running:
        rollout.end(chance.choice(rollout.running), "Complete" if deed == "complete" else "Failed")
    elif deed == "lose":
        rollout.node(chance.choice(list(rollout.machines)), "Unknown")
    elif deed == "wait":
        for machine in rollout.machines:
            if not rollout.nodes[machine].ready:
                rollout.node(machine, "True")
        rollout.now += timedelta(seconds=60)
    elif deed in ("pause", "resume"):
        rollout.set(spec={"paused": deed == "pause"})
    elif deed == "retry":
        rollout.set(spec={"retry_failed": rollout.parent.spec.retry_failed + 1})


def _assert_stages_before_are_over(rollout: Rollout, machine: str) -> None:
    assert rollout.parent.spec.strategy is not None
    strategy: OperationStrategy = rollout.parent.spec.strategy
    names = [stage.name for stage in strategy.stages]
    soaks = {stage.name: stage.soak_seconds for stage in strategy.stages}
    stage = rollout.target(machine).rollout_stage or ""
    for earlier in names[: names.index(stage)]:
        for target in (one for one in rollout.parent.status.targets if one.rollout_stage == earlier):
            assert target.phase in ("Complete", "Failed")
            if soaks[earlier] and target.phase == "Complete":
                assert target.ready_at is not None
                assert rollout.now - datetime.fromisoformat(target.ready_at) >= timedelta(seconds=soaks[earlier])


def test_a_stage_without_targets_does_not_pause() -> None:
    half = {"name": "half", "size": "50%", "pauseAfter": True}
    rollout = Rollout({"name": "canary", "size": 1}, half, REST, count=1)
    step = rollout.step()
    assert step.start == ("m0",)
    assert step.rollout is not None
    assert not step.rollout.pause


def test_a_host_whose_clock_is_ahead_does_not_fail_in_its_soak() -> None:
    rollout = Rollout(CANARY, REST)
    rollout.step()
    rollout.end("m0", returns=False)
    rollout.node("m0", "True", at=rollout.now + timedelta(seconds=30))
    assert _reason(rollout.step()) == reasons.SOAKING
    assert _reason(rollout.step(10.0)) == reasons.SOAKING
    assert rollout.step(80.0).start == ("m1", "m2", "m3")


def test_a_later_stage_without_targets_is_pending_until_its_turn() -> None:
    rollout = Rollout(CANARY, REST, count=1)
    rollout.step()
    assert rollout.stages == {"canary": "InProgress", "rest": "Pending"}
    rollout.complete("m0")
    assert rollout.stages == {"canary": "Soaking", "rest": "Pending"}
    rollout.step(61.0)
    assert rollout.stages == {"canary": "Complete", "rest": "Complete"}
