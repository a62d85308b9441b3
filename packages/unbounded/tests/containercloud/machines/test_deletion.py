"""The deletion of a Machine of cluster.k8s.io: each row of its table, its guards, and what aborts it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.containercloud.machines.views import (
    IMAGE,
    OPERATION,
    at,
    bare_metal_host,
    cluster,
    machine,
    node,
    operation,
    target,
    told,
    view,
)
from unbounded.api.container_cloud.cluster import Cluster
from unbounded.api.container_cloud.machine import ContainerCloudMachine, DeletionPolicy
from unbounded.api.core import Node
from unbounded.api.operation import MachineOperation
from unbounded.containercloud.claims import Claim, ClaimReason, ClaimStep
from unbounded.containercloud.machines.deletion import ABORT_LIMIT_S, is_deleting, plan_deletion, plan_refused
from unbounded.containercloud.machines.life import plan_life
from unbounded.containercloud.machines.model import (
    CancelOperation,
    ChangeTarget,
    DeleteMachineObject,
    DeleteNode,
    MachineStep,
    MachineView,
    ReleaseHost,
    RequestOperation,
    SetMachineFinalizer,
)

REASON = "deletion of example-ns/example-control-plane"
DRAINED: dict[str, Any] = {
    "holder": {"kind": "Maintenance", "name": "m", "uid": "u"},
    "stage": "Drained",
    "since": at(),
}
DRAINING: dict[str, Any] = {
    **DRAINED,
    "stage": "Draining",
    "message": "pod default/web-0 waits for PodDisruptionBudget web",
}
RUNNING: dict[str, Any] = {"operation": OPERATION, "attempt": 1}
DRAINS: dict[str, Any] = {"spec": {"maintenance": {"enabled": True, "reason": REASON}}}


def deleted(stage: str, policy: str = "graceful", **given: Any) -> ContainerCloudMachine:
    return machine(stage, delete=True, deletionPolicy=policy, **given)


def kinds(plan: MachineStep) -> list[str]:
    return [type(one).__name__ for one in plan.actions]


def manager(name: str, *, ready: bool = True, leaving: bool = False) -> ContainerCloudMachine:
    status = {"conditions": [{"type": "Kubelet", "ready": ready}], "delete": leaving}
    return machine("Ready", metadata={"name": name}, status={"providerStatus": status})


TWO = (manager("m2"), manager("m3"))


def begins(seen: MachineView) -> MachineStep:
    plan = plan_deletion(seen)
    assert plan.execution.stage == "Guarding"
    return plan_deletion(msgspec_view(seen, plan))


def msgspec_view(seen: MachineView, plan: MachineStep, **given: Any) -> MachineView:
    """Return the view after a plan was stored."""
    known = {"node": seen.node, "target": seen.target, "host": seen.host, "operation": seen.operation,
             "managers": seen.managers, "cluster": seen.cluster, "claim": seen.claim}  # fmt: skip
    return view(told(seen, plan), **(known | given))


@pytest.mark.parametrize(
    ("policy", "stage"),
    [("graceful", "Draining"), ("unsafe", "PoweringOff"), ("forced", "PoweringOff"), (None, "PoweringOff")],
)
def test_a_deletion_begins_by_its_policy(policy: str | None, stage: str) -> None:
    named: dict[str, Any] = {"deletionPolicy": policy} if policy else {}
    leaving = machine("Ready", delete=True, **named)
    seen = view(leaving, node=node(), managers=TWO)
    assert is_deleting(seen)
    plan = begins(seen)
    assert plan.execution.stage == stage
    assert plan.deleting
    assert plan.phase == ("started" if policy == "graceful" else None)
    assert plan.execution.policy == (policy or "unsafe")


def test_the_default_policy_is_a_setting() -> None:
    seen = view(machine("Guarding", delete=True), node=node(), managers=TWO, default_policy=DeletionPolicy.GRACEFUL)
    assert plan_deletion(seen).execution.stage == "Draining"


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"managers": (manager("m2"),)}, "ManagersMissing"),
        ({"managers": (manager("m2"), manager("m3", ready=False))}, "ManagersMissing"),
        ({"managers": (*TWO, manager("m4", leaving=True))}, "ManagerDeletion"),
        ({"managers": TWO, "cluster": cluster(maintenance=True)}, "ClusterMaintenance"),
    ],
)
@pytest.mark.parametrize("policy", ["graceful", "unsafe"])
def test_guards_hold_a_deletion_up_before_it_starts(policy: str, given: dict[str, Any], reason: str) -> None:
    plan = plan_deletion(view(deleted("Guarding", policy), node=node(), **given))
    assert plan.execution.stage == "Guarding"
    assert plan.obstacle is not None
    assert plan.obstacle.reason == reason
    assert not plan.deleting


def test_no_guard_holds_forced_deletions_those_of_workers_and_those_of_clusters() -> None:
    assert plan_deletion(view(deleted("Guarding", "forced"), node=node())).execution.stage == "PoweringOff"
    assert plan_deletion(view(deleted("Guarding", manager=False), node=node())).execution.stage == "Draining"
    body = msgspec.to_builtins(cluster()) | {"metadata": {"name": "c", "deletionTimestamp": at()}}
    leaving = msgspec.convert(body, Cluster)
    assert plan_deletion(view(deleted("Guarding"), node=node(), cluster=leaving)).execution.stage == "Draining"
    lone = view(deleted("Guarding"), node=node(), min_other_managers=0)
    assert plan_deletion(lone).execution.stage == "Draining"


def test_a_running_install_is_asked_to_stop_and_waited_for() -> None:
    seen = view(deleted("Guarding", "unsafe", execution=RUNNING), managers=TWO, operation=operation("InProgress"))
    plan = plan_deletion(seen)
    assert kinds(plan) == ["CancelOperation"]
    assert plan.execution.stage == "Guarding"
    asked = operation("InProgress", spec={"cancel": True})
    again = plan_deletion(view(deleted("Guarding", "unsafe", execution=RUNNING), managers=TWO, operation=asked))
    assert kinds(again) == []
    ended = view(
        deleted("Guarding", "unsafe", execution=RUNNING), managers=TWO, operation=operation("Failed", "Cancelled")
    )
    assert plan_deletion(ended).execution.stage == "PoweringOff"
    forced = view(deleted("Guarding", "forced", execution=RUNNING), operation=asked, after_s=101)
    assert plan_deletion(forced).execution.stage == "PoweringOff"


def test_a_machine_without_a_host_is_released_at_once() -> None:
    seen = view(deleted("Claiming"), host=None, target=None, managers=TWO)
    plan = begins(seen)
    assert plan.execution.stage == "Releasing"
    assert kinds(plan_deletion(view(told(seen, plan), host=None, target=None))) == ["DeleteMachineObject"]


def test_a_drain_is_requested_once_and_ends_with_the_last_pod() -> None:
    plan = plan_deletion(view(deleted("Draining"), node=node()))
    (change,) = [one for one in plan.actions if isinstance(one, ChangeTarget)]
    assert change.spec == {"maintenance": {"enabled": True, "reason": REASON}}
    assert plan.phase == "started"
    busy = plan_deletion(view(deleted("Draining"), node=node(), target=target(**DRAINS, disruption=DRAINING)))
    assert busy.execution.stage == "Draining"
    assert busy.obstacle is not None
    assert busy.obstacle.message == DRAINING["message"]
    assert kinds(busy) == []
    done = plan_deletion(view(deleted("Draining"), node=node(), target=target(**DRAINS, disruption=DRAINED)))
    assert done.execution.stage == "Resetting"


def test_a_drain_that_takes_too_long_fails_names_the_pod_and_goes_on_later() -> None:
    blocked = target(**DRAINS, disruption=DRAINING)
    seen = view(deleted("Draining"), node=node(), target=blocked, after_s=3601)
    plan = plan_deletion(seen)
    assert plan.phase == "failed"
    status = told(seen, plan).status
    assert status.error_reason == "DeleteError"
    assert "default/web-0" in (status.error_message or "")
    drained = target(**DRAINS, disruption=DRAINED)
    assert (
        plan_deletion(view(deleted("Draining"), node=node(), target=drained, after_s=4000)).execution.stage
        == "Resetting"
    )
    loosened = plan_deletion(view(deleted("Draining", "unsafe"), node=node(), target=blocked, after_s=4000))
    assert loosened.execution.stage == "PoweringOff"


def aborted(stage: str, **given: Any) -> ContainerCloudMachine:
    return machine(stage, deletionPolicy="graceful", status={"providerStatus": {"delete": True}}, **given)


def test_an_aborted_drain_is_given_back_before_the_machine_lives_on() -> None:
    plan = plan_deletion(view(aborted("Draining"), node=node(), target=target(**DRAINS, disruption=DRAINING)))
    assert plan.phase == "aborting"
    assert [one.spec for one in plan.actions if isinstance(one, ChangeTarget)] == [
        {"maintenance": {"enabled": False, "reason": None}}
    ]
    returning = {**DRAINED, "stage": "Returning"}
    waits = plan_deletion(view(aborted("Draining"), node=node(), target=target(disruption=returning)))
    assert (waits.execution.stage, waits.phase, waits.deleting) == ("Draining", "aborting", True)
    done = view(aborted("Draining"), node=node())
    plan = plan_deletion(done)
    assert plan.execution.stage == "Configuring"
    provider = told(done, plan).provider_status
    assert (provider.delete, provider.prepare_deletion_phase) == (False, None)


def test_an_aborted_drain_that_is_not_given_back_has_failed_until_it_is() -> None:
    returning = target(disruption={**DRAINED, "stage": "Returning", "message": "the server does not uncordon it"})
    seen = view(aborted("Draining"), node=node(), target=returning)
    plan = plan_deletion(seen)
    assert plan.phase == "aborting"
    for after_s, phase, error in ((ABORT_LIMIT_S - 1, "aborting", None), (ABORT_LIMIT_S + 1, "failed", "DeleteError")):
        late = view(told(seen, plan), node=node(), target=returning, after_s=after_s)
        shown = told(late, plan_deletion(late))
        assert (shown.provider_status.prepare_deletion_phase, shown.status.error_reason) == (phase, error)
    assert shown.status.error_message is not None
    assert "not back in service 15 min after the abort: the server does not uncordon it" in shown.status.error_message
    back = plan_deletion(view(told(late, plan_deletion(late)), node=node(), after_s=ABORT_LIMIT_S + 2))
    assert back.execution.stage == "Configuring"


@pytest.mark.parametrize("stage", ["PoweringOff", "Removing", "Releasing"])
def test_an_abort_after_the_point_of_no_return_is_named_too_late(stage: str) -> None:
    given: dict[str, Any] = {"node": node(), "target": target(**DRAINS), "host": bare_metal_host()}
    execution = RUNNING if stage == "PoweringOff" else {}
    work = {"operation": operation("InProgress", kind="HostPowerOff")} if stage == "PoweringOff" else {}
    plan = plan_deletion(view(aborted(stage, execution=execution), **given, **work))
    assert plan.deleting
    assert plan.obstacle is not None
    assert plan.obstacle.message.startswith("delete: false came too late, the deletion goes on: ")
    wanted = plan_deletion(view(deleted(stage, execution=execution), **given, **work))
    assert wanted.obstacle is not None
    assert f"delete: false came too late, the deletion goes on: {wanted.obstacle.message}" == plan.obstacle.message


def test_an_abort_before_the_guards_pass_changes_nothing() -> None:
    plan = plan_deletion(view(machine("Guarding"), node=node()))
    assert plan.execution.stage == "Configuring"
    assert not plan.deleting


def test_a_reset_that_is_not_needed_any_more_is_stopped_before_it_is_forgotten() -> None:
    """The report of the agent may vanish after the request, as a new installation clears it."""
    begun = deleted("Resetting", execution=RUNNING)
    plan = plan_deletion(view(begun, operation=operation("Pending", kind="AgentReset")))
    assert (kinds(plan), plan.execution.stage) == (["CancelOperation"], "Resetting")
    absent = plan_deletion(view(begun))
    (asked,) = [one for one in absent.actions if isinstance(one, RequestOperation)]
    assert asked.spec["cancel"] is True
    ended = plan_deletion(view(begun, operation=operation("Failed", kind="AgentReset")))
    assert ended.execution.stage == "PoweringOff"


def test_an_agent_whose_daemon_never_ran_is_not_asked_for_a_reset() -> None:
    starting = target(**DRAINS, disruption=DRAINED, agent={"stage": "Preparing", "host": {"hostname": "master-0"}})
    plan = plan_deletion(view(deleted("Resetting"), target=starting))
    assert (plan.execution.stage, kinds(plan)) == ("PoweringOff", [])


def test_the_reset_is_the_point_of_no_return() -> None:
    reported = target(**DRAINS, disruption=DRAINED, agent={"version": "1"})
    plan = plan_deletion(view(deleted("Resetting"), node=node(), target=reported))
    (asked,) = [one for one in plan.actions if isinstance(one, RequestOperation)]
    assert asked.spec == {"operationKind": "AgentReset", "machineRef": "master-0.default"}
    assert plan.execution.operation == asked.name
    running = aborted("Resetting", execution=RUNNING)
    waiting = operation("Pending", kind="AgentReset")
    early = plan_deletion(view(running, node=node(), target=reported, operation=waiting))
    assert kinds(early) == ["CancelOperation"]
    execution = {"executor": "unbounded-agent", "incarnation": "i", "machineUID": "u", "binding": "b"}
    claimed = operation("InProgress", kind="AgentReset", execution=execution)
    late = plan_deletion(view(running, node=node(), target=reported, operation=claimed))
    assert late.execution.stage == "Resetting"
    assert late.deleting
    assert late.obstacle is not None
    assert "delete: false came too late" in late.obstacle.message
    assert CancelOperation not in map(type, late.actions)
    done = plan_deletion(
        view(running, node=node(), target=reported, operation=operation("Complete", kind="AgentReset"))
    )
    assert done.execution.stage == "PoweringOff"
    assert done.phase == "completed"


def test_an_operation_that_was_recorded_only_is_created_as_cancelled() -> None:
    """A process that is frozen may still be about to create it: the name is taken then."""
    for subject, kind in ((aborted("Resetting", execution=RUNNING), "AgentReset"),
                          (deleted("Guarding", execution=RUNNING), "HostReplace")):  # fmt: skip
        plan = plan_deletion(view(subject, node=node(), managers=TWO))
        (asked,) = [one for one in plan.actions if isinstance(one, RequestOperation)]
        assert (asked.name, asked.kind, asked.spec["cancel"]) == (OPERATION, kind, True)
        assert plan.execution.operation == OPERATION


@pytest.mark.parametrize(
    ("found", "stage"),
    [
        (None, "Provisioning"),
        (operation("InProgress"), "Provisioning"),
        (operation("InProgress", spec={"cancel": True}), "Guarding"),
        (operation("Failed", "Cancelled"), "Planning"),
    ],
)
def test_an_abort_installs_no_host_a_second_time(found: MachineOperation | None, stage: str) -> None:
    plan = plan_deletion(view(machine("Guarding", execution=RUNNING), operation=found))
    assert plan.execution.stage == stage
    assert plan.execution.operation == (None if stage == "Planning" else OPERATION)


def test_an_abort_waits_for_the_node_of_an_installed_host() -> None:
    written = target(image={"image": IMAGE, "digest": "sha256:1", "boot": "b", "at": at()})
    assert plan_deletion(view(machine("Guarding"), target=written)).execution.stage == "Configuring"


def test_an_aborted_deletion_leaves_the_drain_of_maintenance() -> None:
    plan = plan_deletion(view(aborted("Draining", maintenance=True), node=node(), target=target(disruption=DRAINED)))
    assert (plan.execution.stage, kinds(plan)) == ("Configuring", [])


def test_a_reset_that_fails_is_requested_again_later() -> None:
    reported = target(agent={"version": "1"})
    failed = operation("Failed", "ResetFailed", "disk is busy", kind="AgentReset", completedAt=at())
    seen = view(deleted("Resetting", execution=RUNNING), node=node(), target=reported, operation=failed, after_s=10)
    plan = plan_deletion(seen)
    assert (plan.phase, plan.requeue_s) == ("failed", 50)
    later = view(deleted("Resetting", execution=RUNNING), node=node(), target=reported, operation=failed, after_s=61)
    assert plan_deletion(later).execution.operation is None


@pytest.mark.parametrize("policy", ["graceful", "unsafe"])
def test_the_host_is_seen_off_before_its_node_is_deleted(policy: str) -> None:
    plan = plan_deletion(view(deleted("PoweringOff", policy), node=node()))
    (asked,) = [one for one in plan.actions if isinstance(one, RequestOperation)]
    head = {"operationKind": "HostPowerOff", "machineRef": "master-0.default"}
    override = "deletionPolicy unsafe of Machine example-ns/example-control-plane"
    beyond = {} if policy == "graceful" else {"override": override}
    assert asked.spec == head | {"drain": {"mode": "Never"}} | beyond
    failed = operation("Failed", "BMCRefused", "no", kind="HostPowerOff", completedAt=at())
    waits = plan_deletion(view(deleted("PoweringOff", policy, execution=RUNNING), node=node(), operation=failed))
    assert waits.execution.stage == "PoweringOff"
    off = operation("Complete", kind="HostPowerOff")
    done = plan_deletion(view(deleted("PoweringOff", policy, execution=RUNNING), node=node(), operation=off))
    assert done.execution.stage == "Removing"


@pytest.mark.parametrize(
    ("policy", "status", "actions"),
    [
        ("unsafe", DRAINING, ["ChangeTarget", "RequestOperation"]),
        ("forced", DRAINING, ["ChangeTarget", "RequestOperation"]),
        ("unsafe", DRAINED, ["RequestOperation"]),
        ("graceful", DRAINING, ["RequestOperation"]),
    ],
)
def test_a_drain_that_a_looser_policy_has_overtaken_is_given_back(
    policy: str, status: dict[str, Any], actions: list[str]
) -> None:
    seen = view(deleted("PoweringOff", policy), node=node(), target=target(**DRAINS, disruption=status))
    assert kinds(plan_deletion(seen)) == actions


def test_a_forced_deletion_tries_once_and_records_what_it_could_not_prove() -> None:
    plan = plan_deletion(view(deleted("PoweringOff", "forced"), node=node()))
    (asked,) = [one for one in plan.actions if isinstance(one, RequestOperation)]
    assert asked.spec == {
        "operationKind": "HostPowerOff",
        "machineRef": "master-0.default",
        "parameters": {"force": "true"},
        "drain": {"mode": "Never"},
        "override": "deletionPolicy forced of Machine example-ns/example-control-plane",
        "startDeadlineSeconds": 30,
        "deadlineSeconds": 60,
    }
    failed = operation("Failed", "BMCRefused", "no", kind="HostPowerOff")
    plan = plan_deletion(view(deleted("PoweringOff", "forced", execution=RUNNING), node=node(), operation=failed))
    assert plan.execution.stage == "Removing"
    assert plan.execution.unproven == ("HostPowerOff: BMCRefused: no",)
    silent = deleted("PoweringOff", "forced", execution=RUNNING)
    late = plan_deletion(view(silent, operation=operation("InProgress", kind="HostPowerOff"), after_s=101))
    assert (late.execution.stage, kinds(late)) == ("PoweringOff", ["CancelOperation"])
    asked_to_stop = operation("InProgress", kind="HostPowerOff", spec={"cancel": True})
    assert plan_deletion(view(silent, operation=asked_to_stop, after_s=102)).execution.stage == "Removing"


def test_the_host_leaves_the_cluster_before_its_node_is_deleted() -> None:
    plan = plan_deletion(view(deleted("Removing"), node=node(), target=target(**DRAINS)))
    assert [one.spec for one in plan.actions if isinstance(one, ChangeTarget)] == [
        {"kubernetes": None, "maintenance": None}
    ]
    assert DeleteNode not in map(type, plan.actions)
    left = target(spec={"kubernetes": None})
    plan = plan_deletion(view(deleted("Removing"), node=node(), target=left))
    assert kinds(plan) == ["DeleteNode"]
    assert plan_deletion(view(deleted("Removing"), target=left)).execution.stage == "Releasing"


def test_only_a_forced_deletion_goes_on_without_a_node_that_finalizers_keep() -> None:
    body = msgspec.to_builtins(node())
    body["metadata"] |= {"deletionTimestamp": at(), "finalizers": ["example.com/volumes"]}
    kept, left = msgspec.convert(body, Node), target(spec={"kubernetes": None})
    for policy in ("graceful", "unsafe", "forced"):
        plan = plan_deletion(view(deleted("Removing", policy), node=kept, target=left, after_s=10))
        assert (plan.execution.stage, kinds(plan)) == ("Removing", [])
        assert plan.obstacle is not None
        assert plan.obstacle.message == "Node master-0.default is kept by its finalizers: example.com/volumes"
        late = plan_deletion(view(deleted("Removing", policy), node=kept, target=left, after_s=200))
        assert late.execution.stage == ("Releasing" if policy == "forced" else "Removing")
        assert late.execution.unproven == ((plan.obstacle.message,) if policy == "forced" else ())


def test_the_host_is_released_and_then_the_machine_ends() -> None:
    plan = plan_deletion(view(deleted("Releasing")))
    assert [type(one) for one in plan.actions] == [ReleaseHost]
    free = bare_metal_host("deprovisioning", consumerRef=None)
    assert [type(one) for one in plan_deletion(view(deleted("Releasing"), host=free)).actions] == [DeleteMachineObject]
    gone = deleted("Releasing", metadata={"deletionTimestamp": at()})
    assert plan_deletion(view(gone, host=free)).actions == (SetMachineFinalizer(False),)


AS_IS = bare_metal_host("externally provisioned", externallyProvisioned=True)
ADOPTED: dict[str, Any] = {
    "host": AS_IS,
    "claim": Claim(ClaimStep.CLAIMED, ClaimReason.CLAIMED, "", AS_IS),
    "managers": TWO,
}
RECORD = '{"claimant":"example-ns/example-control-plane"}'


@pytest.mark.parametrize(
    ("policy", "stage", "given", "after"),
    [
        ("graceful", "Guarding", {"node": node()}, "Draining"),
        ("graceful", "Guarding", {}, "Releasing"),
        ("graceful", "Draining", {"node": node(), "target": target(**DRAINS, disruption=DRAINING)}, "Draining"),
        ("graceful", "Draining", {"node": node(), "target": target(**DRAINS, disruption=DRAINED)}, "Releasing"),
        ("unsafe", "Draining", {"node": node(), "target": target(**DRAINS, disruption=DRAINING)}, "Releasing"),
        ("unsafe", "Guarding", {"node": node()}, "Releasing"),
        ("forced", "Guarding", {"node": node()}, "Releasing"),
    ],
    ids=[
        "graceful drains the Node",
        "graceful without a Node gives the host back",
        "graceful waits for the drain",
        "graceful does not reset a drained host",
        "a looser policy ends the drain",
        "unsafe gives the host back at once",
        "forced gives the host back at once",
    ],
)
def test_an_adopted_host_is_only_drained_and_given_back(
    policy: str, stage: str, given: dict[str, Any], after: str
) -> None:
    plan = plan_deletion(view(deleted(stage, policy), **(ADOPTED | given)))
    assert plan.execution.stage == after
    assert not [one for one in plan.actions if isinstance(one, RequestOperation | DeleteNode)]


def test_an_adopted_host_that_is_gone_is_not_taken_for_one_of_ours() -> None:
    body = msgspec.to_builtins(target(agent={"version": "1"}))
    body["metadata"]["annotations"] = {"unbounded-cloud.io/before-claim": RECORD}
    there = msgspec.convert(body, type(target()))
    gone = Claim(ClaimStep.HELD, ClaimReason.HOST_MISSING, "BareMetalHost default/master-0 was deleted")
    plan = plan_deletion(view(deleted("Guarding"), target=there, claim=gone, host=None, managers=TWO))
    assert plan.execution.stage == "Releasing"


def test_a_drain_of_an_adopted_host_records_the_claim_first() -> None:
    plan = plan_deletion(view(deleted("Draining"), node=node(), target=target(), **ADOPTED))
    (change,) = [one for one in plan.actions if isinstance(one, ChangeTarget)]
    assert change.spec == {"maintenance": {"enabled": True, "reason": REASON}}
    assert change.annotations.keys() == {"unbounded-cloud.io/before-claim"}


def test_an_abort_installs_no_adopted_host() -> None:
    for stage in ("Guarding", "Draining"):
        plan = plan_deletion(view(machine(stage), target=target(), **ADOPTED))
        assert plan.execution.stage == "Configuring"


@pytest.mark.parametrize("stage", ["Guarding", "Draining", "Resetting", "PoweringOff", "Removing"])
@pytest.mark.parametrize("reason", [ClaimReason.HOST_TAKEN, ClaimReason.HOST_CHANGED])
def test_a_host_that_another_machine_has_is_not_touched(reason: ClaimReason, stage: str) -> None:
    lost = Claim(ClaimStep.HELD, reason, "BareMetalHost default/master-0 is used by Machine b", bare_metal_host())
    reported = target(agent={"version": "1"})
    plan = plan_deletion(view(deleted(stage, "unsafe"), node=node(), target=reported, claim=lost, managers=TWO))
    assert plan.execution.stage == "Releasing"
    assert plan.actions == ()
    taken = bare_metal_host(consumerRef={"kind": "Machine", "namespace": "example-ns", "name": "b"})
    last = plan_deletion(view(deleted("Releasing", "unsafe"), claim=lost, host=taken))
    assert [type(one) for one in last.actions] == [DeleteMachineObject]


def test_kubectl_delete_goes_the_same_way_and_cannot_be_aborted() -> None:
    gone = machine("Ready", deletionPolicy="graceful", metadata={"deletionTimestamp": at()})
    seen = view(gone, node=node(), managers=TWO)
    assert is_deleting(seen)
    plan = begins(seen)
    assert plan.execution.stage == "Draining"
    drains = view(told(seen, plan), node=node(), target=target(**DRAINS, disruption=DRAINING))
    assert plan_deletion(drains).execution.stage == "Draining"


def test_a_life_without_a_deletion_is_no_deletion() -> None:
    seen = view(machine("Ready"), node=node())
    assert not is_deleting(seen)
    assert plan_life(seen).deleting is False


ANSWER = 'admission webhook "guard.example.com" denied the request: no'
BY = "admission webhook guard.example.com"
OPEN = operation("InProgress", kind="HostPowerOff")
LEFT = target(spec={"kubernetes": None})


def refused(seen: MachineView) -> tuple[MachineView, MachineStep]:
    """Return the view after the first action of the plan was refused, and the plan that was stored then."""
    plan = plan_deletion(seen)
    stored = msgspec_view(seen, plan, after_s=0)
    after = plan_refused(stored, plan, plan.actions[0], ANSWER, BY)
    return msgspec_view(stored, after), after


@pytest.mark.parametrize(
    ("stage", "policy", "given", "text", "phase"),
    [
        ("Guarding", "graceful", {"operation": operation("InProgress")}, "cancel HostReplace", None),
        ("Guarding", "unsafe", {}, "create HostReplace", None),
        ("Draining", "graceful", {"node": node()}, "change maintenance of Machine", "failed"),
        ("Resetting", "graceful", {"node": node(), "target": target(agent={"version": "1"})}, "create", "failed"),
        ("PoweringOff", "graceful", {}, "create HostPowerOff", "completed"),
        ("PoweringOff", "unsafe", {}, "create HostPowerOff", None),
        ("PoweringOff", "unsafe", {"target": target(**DRAINS, disruption=DRAINING)}, "change maintenance", None),
        ("Removing", "graceful", {"node": node()}, "change kubernetes and maintenance of Machine", "completed"),
        ("Removing", "unsafe", {"node": node(), "target": LEFT}, "delete Node master-0.default", None),
        ("Releasing", "unsafe", {}, "release BareMetalHost default/master-0", None),
        ("Releasing", "unsafe", {"host": bare_metal_host("available", consumerRef=None)}, "delete this Machine", None),
        ("Releasing", "forced", {"host": bare_metal_host("available", consumerRef=None)}, "delete this Machine", None),
    ],
)
def test_a_refused_write_is_a_wait_with_its_cause_and_is_repeated(
    stage: str, policy: str, given: dict[str, Any], text: str, phase: str | None
) -> None:
    execution = RUNNING if stage == "Guarding" else {}
    seen, after = refused(view(deleted(stage, policy, execution=execution), managers=TWO, **given))
    assert after.obstacle is not None
    assert (after.obstacle.reason, after.obstacle.held_by) == ("WriteRefused", BY)
    assert after.obstacle.message.startswith(f"cannot {text}")
    assert after.obstacle.message.endswith(f": {ANSWER}")
    assert (after.phase, after.actions, after.requeue_s) == (phase, (), 5)
    status = seen.machine.status
    assert status.error_reason == "DeleteError"
    waits = plan_deletion(seen)
    assert (waits.actions, waits.requeue_s, waits.phase) == ((), 5, phase)
    assert told(seen, waits).status == status
    later = msgspec_view(seen, waits, after_s=6)
    again = plan_deletion(later)
    assert [type(one) for one in again.actions][:1]
    assert told(later, again).status == status
    later = msgspec_view(seen, waits, after_s=600)
    third = plan_refused(later, again, again.actions[0], ANSWER, BY)
    assert third.requeue_s == 300
    assert told(later, third).status.execution != status.execution


def test_a_refused_write_is_awaited_until_done_or_the_policy_is_looser() -> None:
    seen, _ = refused(view(deleted("Removing", "unsafe"), node=node(), target=LEFT))
    assert kinds(plan_deletion(seen)) == []
    gone = plan_deletion(msgspec_view(seen, plan_deletion(seen), node=None))
    assert gone.execution.stage == "Releasing"
    loose = msgspec_view(seen, plan_deletion(seen))
    body = msgspec.to_builtins(loose.machine)
    body["spec"]["providerSpec"]["value"]["deletionPolicy"] = "forced"
    forced = msgspec.convert(body, ContainerCloudMachine)
    assert kinds(plan_deletion(view(forced, node=node(), target=LEFT))) == ["DeleteNode"]


def test_a_forced_deletion_records_what_is_refused_and_goes_on() -> None:
    power = view(deleted("PoweringOff", "forced"), node=node(), target=target(**DRAINS, disruption=DRAINING))
    recorded: list[str] = []
    seen = power
    for _ in range(3):  # the drain, the operation, and the same operation as cancelled
        seen, after = refused(seen)
        assert (after.obstacle is None or after.obstacle.reason != "WriteRefused", after.requeue_s) == (True, 0)
        recorded.append(after.execution.unproven[-1])
    name = seen.execution.operation
    assert recorded == [
        f"cannot change maintenance of Machine master-0.default: {ANSWER}",
        f"cannot create HostPowerOff {name}: {ANSWER}",
        f"cannot create HostPowerOff {name} as cancelled: {ANSWER}",
    ]
    plan = plan_deletion(seen)
    assert (plan.execution.stage, plan.execution.operation) == ("Removing", None)
    seen = msgspec_view(seen, plan)
    for _ in range(2):  # the fields of the claim, and the Node
        seen, after = refused(seen)
    assert after.execution.unproven[3:] == (
        f"cannot change kubernetes and maintenance of Machine master-0.default: {ANSWER}",
        f"cannot delete Node master-0.default: {ANSWER}",
    )
    plan = plan_deletion(seen)
    assert plan.execution.stage == "Releasing"
    seen, after = refused(msgspec_view(seen, plan))
    assert after.execution.unproven[5] == f"cannot release BareMetalHost default/master-0: {ANSWER}"
    waits = plan_deletion(seen)  # for the mark on the host
    assert (kinds(waits), waits.execution.stage) == ([], "Releasing")
    assert plan_deletion(msgspec_view(seen, waits, after_s=101)).actions != ()
    marked = msgspec.to_builtins(bare_metal_host())
    at_once = {"status": "True", "reason": "NotReleased", "message": "no", "lastTransitionTime": at()}
    marked["status"]["conditions"] = [{"type": "Dirty"} | at_once]
    done = plan_deletion(msgspec_view(seen, waits, host=msgspec.convert(marked, type(bare_metal_host()))))
    assert kinds(done) == ["DeleteMachineObject"]


def test_a_forced_deletion_does_not_wait_for_an_operation_without_cancel() -> None:
    running = operation("InProgress")
    seen, after = refused(view(deleted("Guarding", "forced", execution=RUNNING), operation=running))
    assert after.execution.unproven == (f"cannot cancel HostReplace {OPERATION}: {ANSWER}",)
    waits = plan_deletion(seen)
    assert (kinds(waits), waits.execution.stage) == ([], "Guarding")
    assert waits.obstacle is not None
    assert "cannot be asked to stop" in waits.obstacle.message
    late = plan_deletion(msgspec_view(seen, waits, after_s=101))
    assert late.execution.stage == "PoweringOff"
