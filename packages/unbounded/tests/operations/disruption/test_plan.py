"""The table of stages, and the choice of pods: values in, values out."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from tests.operations.building import operation_of
from unbounded.api.core import Node, NodeSystemInfo, Pod
from unbounded.api.disruption import (
    HOLD,
    DisruptionHolder,
    DisruptionStage,
    DisruptionStatus,
    DrainBlocker,
    DrainSettings,
)
from unbounded.api.machine import Machine, RecentOperation
from unbounded.api.machine_spec import KubernetesSpec
from unbounded.api.names import ANNOTATION_CORDONED_BY
from unbounded.kube.api import EvictionBlocked, ServerBusy
from unbounded.kube.object_codec import error_from
from unbounded.operations import reasons
from unbounded.operations.claim_gates import Gate
from unbounded.operations.disruption import plan as planning
from unbounded.operations.disruption.drain import DrainRules, DrainStep, EvictionRefusal, plan_drain, refusal, rules_of
from unbounded.operations.disruption.model import Delay, HolderState, HolderView, node_conditions, view_holder
from unbounded.operations.disruption.plan import DisruptionRequest, DisruptionView, plan_disruption
from unbounded.operations.disruption.stages import CORDON, EVICT, PROCEDURE, UNCORDON, Fact
from unbounded.workflow.procedure import Step

EXECUTION = {"executor": "e", "incarnation": "i", "machineUID": "m", "binding": "b"}
NOW = datetime(2030, 1, 1, 12, tzinfo=UTC)
OWNED: dict[str, Any] = {
    "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "r", "controller": True}]
}


def test_the_table_of_stages_has_no_fault() -> None:
    assert PROCEDURE.faults() == []


def _pod(name: str = "web", **changes: Any) -> Pod:
    metadata = {"name": name, "namespace": "default", "uid": f"uid-{name}", **OWNED, **changes.pop("metadata", {})}
    return msgspec.convert({"metadata": metadata, "spec": {"nodeName": "n"}, **changes}, Pod)


def _step(
    *pods: Pod,
    rules: DrainRules | None = None,
    refusals: dict[str, EvictionRefusal] | None = None,
    before: tuple[DrainBlocker, ...] = (),
    lost: bool = False,
) -> DrainStep:
    return plan_drain(pods, rules or DrainRules(), refusals or {}, before, now=NOW, loop_time=100.0, lost=lost)


@pytest.mark.parametrize(
    "pod",
    [
        _pod(metadata={"annotations": {"kubernetes.io/config.mirror": "x"}}),
        _pod(metadata={"ownerReferences": [OWNED["ownerReferences"][0] | {"kind": "DaemonSet"}]}),
        _pod(status={"phase": "Succeeded"}),
        _pod(status={"phase": "Failed"}, metadata={"ownerReferences": []}),
    ],
    ids=["mirror", "DaemonSet", "succeeded", "failed"],
)
def test_pods_that_end_with_the_node_stay(pod: Pod) -> None:
    step = _step(pod)
    assert (step.evict, step.progress.left, step.progress.blockers) == ((), 0, ())


@pytest.mark.parametrize(
    ("pod", "settings", "field"),
    [
        (_pod(metadata={"ownerReferences": []}), {"evictUnmanaged": True}, "drain.evictUnmanaged"),
        (
            _pod(spec={"nodeName": "n", "volumes": [{"name": "v", "emptyDir": {}}]}),
            {},
            "drain.deleteEmptyDirData",
        ),
    ],
    ids=["unmanaged", "emptyDir"],
)
def test_a_pod_that_would_be_lost_blocks_by_name_of_the_field(pod: Pod, settings: dict[str, Any], field: str) -> None:
    strict = DrainRules(evict_unmanaged=False, delete_empty_dir_data=False)
    (blocker,) = _step(pod, rules=strict).progress.blockers
    assert blocker.pod == "default/web"
    assert field in blocker.why
    assert _step(pod, rules=rules_of(msgspec.convert(settings, DrainSettings))).evict == (pod,)


def test_a_refused_pod_blocks_at_once_and_is_retried_after_five_seconds() -> None:
    answer = "The disruption budget web-pdb needs 2 healthy pods and has 2 currently"
    refused = refusal(_pod(), "Cannot evict pod", [answer], 97.0)
    assert refused == EvictionRefusal(answer, "PodDisruptionBudget default/web-pdb", 102.0)
    before = DrainBlocker(pod="default/web", why="x", held_by=refused.held_by, since="2030-01-01T11:00:00Z")
    step = _step(_pod(), refusals={"uid-web": refused}, before=(before,))
    assert (step.evict, step.retry_s) == ((), 2.0)
    assert step.progress.blockers[0].since == "2030-01-01T11:00:00Z"
    due = EvictionRefusal(answer, refused.held_by, 100.0)
    assert _step(_pod(), refusals={"uid-web": due}).evict == (_pod(),)


@pytest.mark.parametrize(("lost", "left"), [(False, 1), (True, 0)])
def test_a_stuck_pod_counts_as_gone_only_where_the_host_was_off(*, lost: bool, left: int) -> None:
    pod = _pod(metadata={"deletionTimestamp": "2030-01-01T11:54:00Z"})
    step = _step(pod, lost=lost)
    assert (step.evict, step.progress.left) == ((), left)
    assert [one.held_by for one in step.progress.blockers] == ["kubelet of Node n"] * left
    young = _pod(metadata={"deletionTimestamp": "2030-01-01T11:59:00Z"})
    assert _step(young, lost=lost).progress.left == 1


def test_skipped_pods_are_selected_by_their_labels() -> None:
    settings = msgspec.convert({"skipPodSelector": {"matchLabels": {"app": "ceph"}}}, DrainSettings)
    skipped, other = _pod("a", metadata={"labels": {"app": "ceph"}}), _pod("b")
    assert _step(skipped, other, rules=rules_of(settings)).evict == (other,)


def test_a_condition_that_another_controller_set_is_not_overwritten() -> None:
    foreign = {"type": "Drained", "status": "True", "reason": "Kured"}
    node = msgspec.convert({"status": {"conditions": [foreign]}}, Node)
    holder = DisruptionHolder(kind="HostReboot", name="op", uid="u")
    status = DisruptionStatus(holder=holder, stage=DisruptionStage.DRAINED, since="2030-01-01T00:00:00Z")
    assert [one.type for one in node_conditions(node, status)] == ["MaintenanceInProgress"]
    assert node_conditions(node, None) == ()


def test_an_eviction_that_a_budget_refuses_is_no_busy_server() -> None:
    body: dict[str, Any] = {"kind": "Status", "code": 429, "reason": "TooManyRequests", "message": "Cannot evict pod"}
    cause = {"details": {"causes": [{"reason": "DisruptionBudget", "message": "The disruption budget web needs"}]}}
    assert isinstance(error_from(msgspec.json.encode(body | cause), code=429, writing=True), EvictionBlocked)
    assert isinstance(error_from(msgspec.json.encode(body), code=429, writing=True), ServerBusy)


def _node(*holds: str, uid: str = "n", cordoned: bool = False) -> Node:
    """The Node of Machine m, which is Ready."""
    annotations = {**dict.fromkeys(holds, ""), **({ANNOTATION_CORDONED_BY: "u"} if cordoned else {})}
    body = {
        "metadata": {"name": "m", "uid": uid, "annotations": annotations},
        "spec": {"unschedulable": cordoned},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]},
    }
    return msgspec.convert(body, Node)


def _view(
    stage: DisruptionStage,
    machine: dict[str, Any] | None = None,
    recorded: dict[str, Any] | None = None,
    **changes: Any,
) -> DisruptionView:
    """A view of Machine m in a stage for operation op, and of its Node, which is Ready and cordoned."""
    record = {
        "holder": {"kind": "HostReboot", "name": "op", "uid": "u"},
        "stage": stage,
        "since": "2030-01-01T11:00:00Z",
        "until": "2030-01-01T11:59:00Z",
        "nodeUID": "n",
        "worked": stage == DisruptionStage.RETURNING,
        **(recorded or {}),
    }
    body = {"metadata": {"name": "m", "uid": "m"}, "status": {"disruption": record, **(machine or {})}}
    view = DisruptionView(
        machine=msgspec.convert(body, Machine),
        node=_node(cordoned=True),
        request=None,
        now=NOW,
        holder=HolderView(HolderState.OPEN),
        ready_s=60.0,
        renewed=True,
    )
    return dataclasses.replace(view, **changes)


@pytest.mark.parametrize(("uid", "stage"), [("other", DisruptionStage.RETURNING), ("u", None)])
def test_a_node_returns_only_once_no_other_operation_works_on_it(uid: str, stage: str | None) -> None:
    slot = {"uid": uid, "name": "reboot", "kind": "HostReboot", "executor": "metalman/lab", "since": "x"}
    ended = HolderView(HolderState.ENDED)
    plan = plan_disruption(_view(DisruptionStage.RETURNING, {"activeOperation": slot}, holder=ended))
    assert (None if plan.status is None else plan.status.stage) == stage


def test_a_drain_whose_pods_cannot_be_listed_times_out() -> None:
    plan = plan_disruption(_view(DisruptionStage.DRAINING))
    assert plan.status is not None
    assert (plan.status.stage, plan.status.reason) == (DisruptionStage.RETURNING, reasons.DRAIN_TIMED_OUT)


def test_long_texts_of_others_fit_into_the_record() -> None:
    held = {f"{HOLD}{'a' * 60}{number}": "" for number in range(700)}
    node = _view(DisruptionStage.CORDONED).node
    assert node is not None
    node = msgspec.structs.replace(node, metadata=msgspec.structs.replace(node.metadata, annotations=held))
    plan = plan_disruption(_view(DisruptionStage.CORDONED, node=node, now=NOW.replace(hour=11, minute=30)))
    assert plan.status is not None
    assert plan.status.reason == reasons.WAITING_FOR_HOLD
    assert len(plan.status.message or "") <= 4096
    stuck = _pod(
        metadata={"deletionTimestamp": "2030-01-01T10:00:00Z", "finalizers": [f"f.io/{'a' * 60}{n}" for n in range(9)]}
    )
    assert [len(one.held_by or "") for one in _step(stuck).progress.blockers] == [512]


@pytest.mark.parametrize("kind", ["AgentReset", "HostErase"])
@pytest.mark.parametrize(("phase", "returns"), [("Complete", False), ("Failed", True)])
def test_nothing_returns_after_a_reset_or_an_erasure(kind: str, phase: str, *, returns: bool) -> None:
    view = _view(DisruptionStage.RETURNING, node=None)
    spec = msgspec.structs.replace(view.machine.spec, kubernetes=KubernetesSpec())
    view = dataclasses.replace(view, machine=msgspec.structs.replace(view.machine, spec=spec))
    operation = operation_of("op", kind, "m", status={"phase": phase, "execution": EXECUTION})
    holder = view_holder(DisruptionHolder(kind=kind, name="op", uid="uid-op"), view.machine, operation)
    plan = plan_disruption(dataclasses.replace(view, holder=holder))
    assert (plan.status is not None) == returns


def test_one_pod_that_is_left_is_one() -> None:
    plan = plan_disruption(_view(DisruptionStage.DRAINING, pods=[_pod()], refusals={}))
    assert plan.status is not None
    assert "(drain.timeoutSeconds): 1 pod is left" in (plan.status.message or "")


def test_an_operation_that_cannot_start_any_more_gives_its_grant_back() -> None:
    view = _view(DisruptionStage.DRAINING)
    meta = msgspec.structs.replace(view.machine.metadata, deletion_timestamp="2030-01-01T12:00:00Z")
    deleted = msgspec.structs.replace(view.machine, metadata=meta)
    operation = operation_of("op", "HostReboot", "m")
    assert view_holder(view.disruption.holder, view.machine, operation).state is HolderState.OPEN
    assert view_holder(view.disruption.holder, deleted, operation).state is HolderState.ENDED


def test_a_holder_has_ended_once_its_machine_has_the_result() -> None:
    view = _view(DisruptionStage.WORKING)
    ended = {"name": "op", "uid": "uid-op", "kind": "HostReboot", "phase": "Complete"}
    status = msgspec.structs.replace(
        view.machine.status, recent_operations=(msgspec.convert(ended, RecentOperation),), active_operation=None
    )
    machine = msgspec.structs.replace(view.machine, status=status)
    before_its_claim = operation_of("op", "HostReboot", "m")  # the watch of operations is late
    holder = view_holder(DisruptionHolder(kind="HostReboot", name="op", uid="uid-op"), machine, before_its_claim)
    assert (holder.state, holder.reboots) == (HolderState.ENDED, True)


@pytest.mark.parametrize("stage", [DisruptionStage.CORDONED, DisruptionStage.DRAINING])
def test_a_holder_that_started_before_its_drain_has_to_prove_its_return(stage: DisruptionStage) -> None:
    plan = plan_disruption(_view(stage, holder=HolderView(HolderState.CLAIMED)))
    assert plan.status is not None
    assert (plan.status.stage, plan.status.worked, plan.status.boot_id) == (DisruptionStage.DRAINED, True, None)
    assert plan.action is None


@pytest.mark.parametrize(
    ("stage", "holder", "after"),
    [
        # the executor writes Working with the lock; one of an earlier version does not, and waits for Drained again
        (DisruptionStage.DRAINED, HolderView(HolderState.CLAIMED), DisruptionStage.DRAINED),
        (DisruptionStage.DRAINED, HolderView(HolderState.CLAIMED, has_acted=True), DisruptionStage.WORKING),
        (DisruptionStage.WORKING, HolderView(HolderState.CLAIMED), DisruptionStage.WORKING),
        (DisruptionStage.WORKING, HolderView(HolderState.OPEN), DisruptionStage.DRAINED),
        (DisruptionStage.WORKING, HolderView(HolderState.ENDED, has_acted=True), DisruptionStage.RETURNING),
    ],
)
def test_a_disruption_is_working_while_its_holder_is(
    stage: DisruptionStage, holder: HolderView, after: DisruptionStage
) -> None:
    now = NOW.replace(hour=11, minute=0, second=10)
    plan = plan_disruption(_view(stage, holder=holder, now=now, ready_s=0.0))
    assert plan.status is not None
    assert plan.status.stage == after


@pytest.mark.parametrize(
    ("pods", "message"),
    [
        ([_pod("a"), _pod("b")], "2 pods are left as HostReboot op starts"),
        (None, "pods may be left as HostReboot op starts"),
        ([], "HostReboot op"),
    ],
)
def test_a_node_of_an_early_start_says_how_many_pods_are_left(pods: list[Pod] | None, message: str) -> None:
    plan = plan_disruption(_view(DisruptionStage.DRAINING, holder=HolderView(HolderState.CLAIMED), pods=pods))
    drained = {one.type: (one.status, one.message) for one in plan.conditions}["Drained"]
    assert drained == ("False" if pods != [] else "True", message)
    assert plan.status is not None
    view = _view(DisruptionStage.WORKING)
    status = msgspec.structs.replace(view.machine.status, disruption=plan.status)
    machine = msgspec.structs.replace(view.machine, status=status)
    ended = HolderView(HolderState.ENDED, has_acted=True)
    returning = plan_disruption(dataclasses.replace(view, machine=machine, holder=ended, ready_s=0.0))
    assert returning.status is not None
    assert returning.status.stage == DisruptionStage.RETURNING
    assert {one.type: (one.status, one.message) for one in returning.conditions}["Drained"] == drained


@pytest.mark.parametrize(("ready_s", "action"), [(0.0, None), (60.0, UNCORDON)])
def test_a_late_drain_leaves_the_proof_due_that_the_holder_before_owes(ready_s: float, action: str | None) -> None:
    view = _view(DisruptionStage.RETURNING, ready_s=ready_s)
    timed_out = msgspec.structs.replace(view.disruption, reason=reasons.DRAIN_TIMED_OUT)
    status = msgspec.structs.replace(view.machine.status, disruption=timed_out)
    plan = plan_disruption(dataclasses.replace(view, machine=msgspec.structs.replace(view.machine, status=status)))
    assert plan.status is not None
    assert (plan.status.stage, plan.status.reason, plan.action) == (timed_out.stage, timed_out.reason, action)


def test_a_node_that_reports_no_boot_id_returns() -> None:
    request = DisruptionRequest(DisruptionHolder(kind="HostReboot", name="op", uid="u"))
    view = _view(DisruptionStage.WAITING, request=request)
    assert view.node is not None
    status = msgspec.structs.replace(view.node.status, node_info=NodeSystemInfo())
    node = msgspec.structs.replace(view.node, status=status)
    granted = plan_disruption(dataclasses.replace(view, node=node)).status
    assert granted is not None
    returning = msgspec.structs.replace(granted, stage=DisruptionStage.RETURNING, worked=True)
    machine = msgspec.structs.replace(
        view.machine, status=msgspec.structs.replace(view.machine.status, disruption=returning)
    )
    ended = HolderView(HolderState.ENDED, has_acted=True, reboots=True)
    assert (
        plan_disruption(dataclasses.replace(view, machine=machine, node=node, holder=ended, request=None)).status
        is None
    )


def test_messages_name_the_node_where_its_name_is_not_that_of_the_machine() -> None:
    node = _view(DisruptionStage.WAITING).node
    assert node is not None
    node = msgspec.structs.replace(node, metadata=msgspec.structs.replace(node.metadata, name="host-7"))
    plan = plan_disruption(_view(DisruptionStage.CORDONED, node=node))
    assert plan.status is not None
    assert "draining Node host-7" in (plan.status.message or "")


@pytest.mark.parametrize(("delay", "stage"), [(None, DisruptionStage.DRAINING), (Delay("Full", "no room", "b"), None)])
def test_a_node_that_returns_is_granted_again_within_the_budgets_alone(delay: Delay | None, stage: str | None) -> None:
    request = DisruptionRequest(DisruptionHolder(kind="HostReboot", name="next", uid="x"))
    ended = HolderView(HolderState.ENDED)
    plan = plan_disruption(_view(DisruptionStage.RETURNING, request=request, holder=ended, delay=delay))
    assert (None if plan.status is None else plan.status.stage) == stage


# Each row of the table, by name

_S = DisruptionStage
ENDED = HolderView(HolderState.ENDED)
ACTED = HolderView(HolderState.ENDED, has_acted=True)
CLAIMED = HolderView(HolderState.CLAIMED)
STARTED = HolderView(HolderState.CLAIMED, has_acted=True)
PAUSED = Gate(reasons.PAUSED, "Machine m is paused", "Machine m")
ASKED = {"request": DisruptionRequest(DisruptionHolder(kind="HostReboot", name="op", uid="u"))}
NEXT = {"request": DisruptionRequest(DisruptionHolder(kind="HostReboot", name="next", uid="x")), "holder": ENDED}
HELD = {"node": _node(f"{HOLD}ceph", cordoned=True)}
OTHER = {"node": _node(uid="other")}
IN_TIME = {"recorded": {"since": "2030-01-01T11:59:00Z", "until": "2030-01-01T13:00:00Z"}}
OFF = {"rules": DrainRules(enabled=False)}
PROCEEDS = {"rules": DrainRules(proceeds=True)}
LEFT = {"pods": [_pod()]}
TIMED_OUT = {"recorded": {"reason": reasons.DRAIN_TIMED_OUT, "worked": False}}
UNUSED = {"recorded": {"reason": reasons.EXECUTOR_SILENT, "worked": False}}
HELD_BACK = {"recorded": {"reason": reasons.PAUSED, "worked": False}}
BARE = {"node": _node()}
REFUSED = BARE | {"refused": "the server refuses the cordon"}
ROWS: dict[tuple[DisruptionStage, Fact], tuple[dict[str, Any], DisruptionStage | None, str | None]] = {
    (_S.WAITING, Fact.NOT_REQUESTED): ({"holder": ENDED}, None, None),
    (_S.WAITING, Fact.DELAYED): (ASKED | {"delay": Delay("Full", "no room", "b")}, _S.WAITING, None),
    (_S.WAITING, Fact.REQUESTED): (ASKED | BARE, _S.DRAINING, CORDON),
    (_S.GRANTED, Fact.NO_NODE): ({"node": None}, _S.DRAINED, None),
    (_S.GRANTED, Fact.NO_DRAIN): (OFF, _S.DRAINED, None),
    (_S.GRANTED, Fact.NODE): (ASKED | BARE, _S.DRAINING, CORDON),
    (_S.GRANTED, Fact.NODE_HELD): (ASKED | {"node": _node(f"{HOLD}ceph")}, _S.CORDONED, CORDON),
    (_S.GRANTED, Fact.NOT_CORDONED): (BARE | IN_TIME, _S.GRANTED, CORDON),
    (_S.GRANTED, Fact.NODE_CHANGED): (OTHER, _S.GRANTED, CORDON),
    (_S.GRANTED, Fact.HELD): (HELD, _S.CORDONED, None),
    (_S.GRANTED, Fact.FREE): ({}, _S.DRAINING, None),
    (_S.GRANTED, Fact.HOLDER_ENDED): ({"holder": ACTED, "ready_s": 0.0}, _S.RETURNING, None),
    (_S.GRANTED, Fact.BACK): ({"holder": ENDED}, None, UNCORDON),
    (_S.GRANTED, Fact.CLAIMED): ({"holder": CLAIMED}, _S.DRAINED, None),
    (_S.GRANTED, Fact.DELAYED): ({"paused": PAUSED}, _S.WAITING, UNCORDON),
    (_S.GRANTED, Fact.LATE): (BARE, _S.RETURNING, None),
    (_S.CORDONED, Fact.HOLDER_ENDED): ({"holder": ACTED, "ready_s": 0.0}, _S.RETURNING, None),
    (_S.CORDONED, Fact.BACK): ({"holder": ENDED}, None, UNCORDON),
    (_S.CORDONED, Fact.CLAIMED): (HELD | {"holder": CLAIMED}, _S.DRAINED, None),
    (_S.CORDONED, Fact.NO_NODE): ({"node": None}, _S.DRAINED, None),
    (_S.CORDONED, Fact.NODE_CHANGED): (OTHER, _S.CORDONED, CORDON),
    (_S.CORDONED, Fact.NOT_CORDONED): (REFUSED, _S.GRANTED, None),
    (_S.CORDONED, Fact.DELAYED): (HELD | {"paused": PAUSED}, _S.WAITING, UNCORDON),
    (_S.CORDONED, Fact.HELD): (HELD | IN_TIME, _S.CORDONED, None),
    (_S.CORDONED, Fact.FREE): (IN_TIME, _S.DRAINING, None),
    (_S.CORDONED, Fact.LATE): (HELD, _S.RETURNING, None),
    (_S.CORDONED, Fact.LATE_PROCEED): (HELD | PROCEEDS, _S.DRAINED, None),
    (_S.DRAINING, Fact.HOLDER_ENDED): ({"holder": ACTED, "ready_s": 0.0}, _S.RETURNING, None),
    (_S.DRAINING, Fact.BACK): (LEFT | {"holder": ENDED}, None, UNCORDON),
    (_S.DRAINING, Fact.CLAIMED): (LEFT | {"holder": CLAIMED}, _S.DRAINED, None),
    (_S.DRAINING, Fact.NO_NODE): (LEFT | {"node": None}, _S.DRAINED, None),
    (_S.DRAINING, Fact.NODE_CHANGED): (LEFT | OTHER, _S.DRAINING, CORDON),
    (_S.DRAINING, Fact.NOT_CORDONED): (LEFT | REFUSED, _S.GRANTED, None),
    (_S.DRAINING, Fact.DELAYED): (LEFT | {"paused": PAUSED}, _S.WAITING, UNCORDON),
    (_S.DRAINING, Fact.HELD): (LEFT | HELD, _S.CORDONED, None),
    (_S.DRAINING, Fact.PODS_LEFT): (LEFT | IN_TIME, _S.DRAINING, EVICT),
    (_S.DRAINING, Fact.EMPTY): ({"pods": []}, _S.DRAINED, None),
    (_S.DRAINING, Fact.LATE): (LEFT, _S.RETURNING, None),
    (_S.DRAINING, Fact.LATE_PROCEED): (LEFT | PROCEEDS, _S.DRAINED, None),
    (_S.DRAINED, Fact.CLAIMED): ({"holder": STARTED}, _S.WORKING, None),
    (_S.DRAINED, Fact.HOLDER_ENDED): ({"holder": ACTED, "ready_s": 0.0}, _S.RETURNING, None),
    (_S.DRAINED, Fact.BACK): ({"holder": ENDED}, None, UNCORDON),
    (_S.DRAINED, Fact.NO_NODE): ({"node": None}, _S.DRAINED, None),
    (_S.DRAINED, Fact.NODE_CHANGED): (OTHER, _S.DRAINING, CORDON),
    (_S.DRAINED, Fact.DELAYED): ({"paused": PAUSED}, _S.RETURNING, None),
    (_S.DRAINED, Fact.NOT_CLAIMED): (IN_TIME, _S.DRAINED, None),
    (_S.DRAINED, Fact.LATE): ({}, _S.RETURNING, None),
    (_S.WORKING, Fact.HOLDER_ENDED): ({"holder": ACTED, "ready_s": 0.0}, _S.RETURNING, None),
    (_S.WORKING, Fact.BACK): ({"holder": ENDED}, None, UNCORDON),
    (_S.WORKING, Fact.CLAIMED): ({"holder": STARTED}, _S.WORKING, None),
    (_S.WORKING, Fact.NOT_CLAIMED): ({}, _S.DRAINED, None),
    (_S.RETURNING, Fact.REQUESTED): (NEXT, _S.DRAINING, CORDON),
    (_S.RETURNING, Fact.HOLDER_OPEN): (TIMED_OUT, _S.RETURNING, UNCORDON),
    (_S.RETURNING, Fact.DELAYED): (HELD_BACK, _S.WAITING, UNCORDON),
    (_S.RETURNING, Fact.LATE): (UNUSED, _S.WAITING, UNCORDON),
    (_S.RETURNING, Fact.AWAY): ({"holder": ENDED, "ready_s": 0.0}, _S.RETURNING, None),
    (_S.RETURNING, Fact.BACK): ({"holder": ENDED}, None, UNCORDON),
}
BEGINS = {Fact.NODE, Fact.NODE_HELD}  # facts of a grant, found in the same step as the request


@pytest.mark.parametrize("row", ROWS, ids="-".join)
def test_each_row_of_the_table_leads_to_its_stage_and_action(row: tuple[DisruptionStage, Fact]) -> None:
    changes, stage, action = ROWS[row]
    begins = row[1] in BEGINS
    view = _view(_S.WAITING if begins else row[0], **changes)
    plan = plan_disruption(view)
    found = planning._begun(view, ASKED["request"].holder) if begins else planning._FIND[row[0]](view)
    assert found.fact is row[1]
    assert (None if plan.status is None else plan.status.stage, plan.action) == (stage, action)


def test_no_row_of_the_table_is_without_a_test() -> None:
    assert {row for row, step in PROCEDURE.table.items() if step != Step(row[0])} <= ROWS.keys()
