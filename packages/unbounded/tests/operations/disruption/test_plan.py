"""The table of stages, and the choice of pods: values in, values out."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from unbounded.api.core import Node, Pod
from unbounded.api.disruption import DisruptionHolder, DisruptionStage, DisruptionStatus, DrainBlocker, DrainSettings
from unbounded.kube.api import EvictionBlocked, ServerBusy
from unbounded.kube.wire import error_from
from unbounded.operations.disruption.drain import DrainRules, DrainStep, EvictionRefusal, plan_drain, refusal, rules_of
from unbounded.operations.disruption.holders import node_conditions
from unbounded.operations.disruption.stages import PROCEDURE

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


def test_a_refused_pod_is_due_again_after_five_seconds_and_blocks_since_the_first_refusal() -> None:
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
