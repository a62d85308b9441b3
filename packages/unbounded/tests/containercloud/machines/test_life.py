"""The life of a Machine of cluster.k8s.io: each row of its table, and the status that users see."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from tests.containercloud.machines.views import (
    CLAIM_LABELS,
    IMAGE,
    OPERATION,
    TARGET,
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
from unbounded.api.container_cloud.machine import MachineWaiting
from unbounded.api.container_cloud.network import IpamHost
from unbounded.api.meta import ObjectMeta
from unbounded.containercloud.claims import Claim, ClaimReason, ClaimStep
from unbounded.containercloud.machines.life import ATTEMPTS, install_inputs, plan_life
from unbounded.containercloud.machines.model import (
    ChangeTarget,
    MachineStep,
    MachineView,
    RequestOperation,
    SetMachineFinalizer,
    SetProviderID,
)
from unbounded.containercloud.machines.report import FACTS_S, NEWS_S, OWN_WORK_S, can_wait_s, status_change
from unbounded.containercloud.machines.target_fields import CONTROL_PLANE
from unbounded.containercloud.profiles.plan import ProfileReason, profile_wait
from unbounded.containercloud.waits import MachineWait

WRITTEN: dict[str, Any] = {
    "image": {"image": IMAGE, "digest": "sha256:1", "boot": "op-uid", "at": "2030-01-01T00:00:00Z"}
}
REPORTED: dict[str, Any] = {
    "agent": {"version": "1", "host": {"hostname": "master-0", "osID": "ubuntu", "osCodename": "jammy"}}
}
IPAM = "IpamHost example-ns/example-control-plane"
BOUND: dict[str, Any] = {"configurationRef": {"name": "c"}}
STARTING: dict[str, Any] = {
    "type": "AgentBootstrapped",
    "status": "False",
    "reason": "Running",
    "lastTransitionTime": "2030-01-01T00:00:00Z",
}
RUNNING: dict[str, Any] = {"operation": OPERATION, "attempt": 1}


def at_work(stage: str, **host: Any) -> dict[str, Any]:
    """Return the status of a host whose agent reports its work."""
    return {"agent": {"version": "1", "stage": stage, "host": {"hostname": "master-0", **host}}}


def stage(seen: MachineView) -> str:
    return plan_life(seen).execution.stage


def reason(seen: MachineView) -> str | None:
    found = plan_life(seen).obstacle
    return None if found is None else str(found.reason)


def held(why: ClaimReason) -> Claim:
    return Claim(ClaimStep.HELD, why, f"held: {why}")


def test_a_machine_without_a_host_says_what_it_waits_for() -> None:
    seen = view(machine(), claim=held(ClaimReason.INSUFFICIENT_RESOURCES), host=None, target=None)
    plan = plan_life(seen)
    assert plan.execution.stage == "Claiming"
    status = told(seen, plan).status
    assert (status.error_reason, status.error_message) == ("InsufficientResources", "held: InsufficientResources")
    assert status.provider_status is not None
    assert status.provider_status.status == "Provision"
    assert not status.provider_status.ready


def test_a_claimed_host_is_recorded() -> None:
    execution = plan_life(view(machine(), target=None)).execution
    assert execution.stage == "Planning"
    assert str(execution.host) == "default/master-0"
    assert execution.machine == "master-0.default"


def test_a_host_installed_by_others_is_adopted_as_it_is() -> None:
    host = bare_metal_host("externally provisioned", externallyProvisioned=True)
    claim = Claim(ClaimStep.CLAIMED, ClaimReason.CLAIMED, "", host)
    plan = plan_life(view(machine("Booting"), claim=claim, host=host, target=target(claimed=False)))
    (change,) = [one for one in plan.actions if isinstance(one, ChangeTarget)]
    assert "pxe" not in change.spec
    assert [one for one in plan.actions if isinstance(one, RequestOperation)] == []


ADOPTED: dict[str, Any] = {
    "host": bare_metal_host("externally provisioned", externallyProvisioned=True),
    "claim": Claim(
        ClaimStep.CLAIMED,
        ClaimReason.CLAIMED,
        "",
        bare_metal_host("externally provisioned", externallyProvisioned=True),
    ),
}


@pytest.mark.parametrize(
    ("before", "given", "after"),
    [
        ("Claiming", {}, "Planning"),
        ("Planning", {}, "Booting"),
        ("Booting", {"target": target()}, "Booting"),
        ("Booting", {"node": node()}, "Assigning"),
        ("Assigning", {"target": target()}, "Preparing"),
        ("Preparing", {"target": target()}, "Preparing"),
        ("Preparing", {"node": node(ready=False)}, "Deploying"),
        ("Deploying", {"node": node(ready=False), "after_s": 3600}, "Deploying"),
        ("Deploying", {"node": node()}, "Configuring"),
        ("Configuring", {"node": node()}, "Ready"),
        ("Ready", {"node": None}, "Ready"),
    ],
    ids=[
        "Provision: the host is claimed",
        "Provision ends without an install",
        "Uninitialized: the agent is not heard yet",
        "Uninitialized ends with the Node that is there",
        "Pending ends at once: the Cluster's configuration is not for it",
        "Prepare: the Node does not exist yet",
        "Prepare ends with the Node",
        "Deploy: a Node that stays not Ready is not installed",
        "Deploy ends with the Ready Node",
        "Reconfigure ends with the labels",
        "Ready stays without the Node",
    ],
)
def test_a_stage_of_an_adopted_host_ends_with_its_evidence(before: str, given: dict[str, Any], after: str) -> None:
    plan = plan_life(view(machine(before), **(ADOPTED | given)))
    assert plan.execution.stage == after
    assert [one for one in plan.actions if isinstance(one, RequestOperation)] == []


def test_a_claim_of_an_adopted_host_adds_to_its_own_fields_and_records_them() -> None:
    own: dict[str, Any] = {
        "nodeLabels": {"rack": "r1", "stacklight": "own"},
        "registerWithTaints": ["own=yes:NoSchedule"],
        "bootstrapTokenRef": {"name": "bootstrap-token-owners"},
    }
    there = target(claimed=False, spec={"kubernetes": own})
    (change,) = [
        one
        for one in plan_life(view(machine("Booting"), **ADOPTED, target=there)).actions
        if isinstance(one, ChangeTarget)
    ]
    assert change.spec == {
        "kubernetes": {
            "nodeLabels": {CONTROL_PLANE: "", "stacklight": "enabled"},
            "registerWithTaints": ["own=yes:NoSchedule", f"{CONTROL_PLANE}=:NoSchedule"],
        }
    }
    assert change.labels == {
        "unbounded-cloud.io/cluster": "example-cluster.example-ns",
        "unbounded-cloud.io/role": "control-plane",
    }
    assert json.loads(change.annotations["unbounded-cloud.io/before-claim"]) == {
        "claimant": "example-ns/example-control-plane",
        "nodeLabels": own["nodeLabels"],
        "registerWithTaints": own["registerWithTaints"],
        "token": "bootstrap-token-owners",
    }


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"cluster": None}, "ClusterMissing"),
        ({"release": None}, "ReleaseMissing"),
        ({"profile": profile_wait(ProfileReason.MISSING, "no profile", "BareMetalHostProfile p")}, "ProfileMissing"),
        ({"network": MachineWait("SubnetFull", "Subnet lcm is full", IPAM, "an address is free")}, "SubnetFull"),
        ({"target": target(claimed=False)}, "HostNotPrepared"),
    ],
)
def test_an_install_waits_for_its_plan(given: dict[str, Any], expected: str) -> None:
    seen = view(machine("Planning"), **given)
    assert stage(seen) == "Planning"
    assert reason(seen) == expected
    assert [one for one in plan_life(seen).actions if isinstance(one, RequestOperation)] == []


def test_a_distribution_that_the_release_lacks_is_named() -> None:
    seen = view(machine("Planning", distribution="ubuntu/xenial"))
    obstacle = plan_life(seen).obstacle
    assert obstacle is not None
    assert (
        obstacle.message
        == "distribution: ubuntu/xenial is not among allowedDistributions of ClusterRelease r1: ubuntu/jammy"
    )


def test_a_machine_that_names_no_distribution_is_refused_on_request() -> None:
    assert plan_life(view(machine("Planning"))).execution.stage == "Provisioning"
    obstacle = plan_life(view(machine("Planning"), strict_distribution=True)).obstacle
    assert obstacle is not None
    assert (obstacle.reason, obstacle.error) == ("InvalidConfiguration", "InvalidConfiguration")
    assert obstacle.message.startswith("distribution must be one of ubuntu/jammy")
    named = plan_life(view(machine("Planning", distribution="ubuntu/jammy"), strict_distribution=True))
    assert named.execution.stage == "Provisioning"


@pytest.mark.parametrize(("key", "value"), [("ceph", "1"), ("stacklight", "no")])
def test_labels_of_a_machine_that_is_older_than_its_cluster_are_checked(key: str, value: str) -> None:
    obstacle = plan_life(view(machine("Planning", nodeLabels=[{"key": key, "value": value}]))).obstacle
    assert obstacle is not None
    named = key if key == "ceph" else f"{key}={value}"
    words = f"nodeLabels: {named} is not among allowedNodeLabels of ClusterRelease r1: stacklight=enabled"
    assert obstacle.message == words


def test_the_host_gets_image_labels_and_taint_before_its_install() -> None:
    plan = plan_life(view(machine("Planning"), target=target(claimed=False)))
    (change,) = [one for one in plan.actions if isinstance(one, ChangeTarget)]
    assert change.spec == {
        "pxe": {"image": IMAGE},
        "kubernetes": {
            "nodeLabels": {CONTROL_PLANE: "", "stacklight": "enabled"},
            "registerWithTaints": [f"{CONTROL_PLANE}=:NoSchedule"],
        },
    }
    assert change.labels == CLAIM_LABELS


def test_a_new_machine_stores_its_number_with_the_claim_before_the_host_gets_it() -> None:
    seen = view(machine("Claiming", upgradeIndex=None), target=target(claimed=False), upgrade_index=7)
    plan = plan_life(seen)
    change = status_change(seen, plan)
    assert (change["execution"]["stage"], change["providerStatus"]["upgradeIndex"]) == ("Planning", 7)
    (target_change,) = [one for one in plan.actions if isinstance(one, ChangeTarget)]
    assert target_change.labels["unbounded-cloud.io/upgrade-index"] == "7"


def test_a_number_that_only_the_host_would_have_is_written_at_once() -> None:
    seen = view(machine("Planning", upgradeIndex=None), upgrade_index=7)
    plan = plan_life(seen)
    same = MachineStep(execution=seen.execution, actions=plan.actions)
    assert can_wait_s(seen, same, {"providerStatus": {"upgradeIndex": 7}}) == 0


def test_the_host_gets_image_and_network_in_one_write() -> None:
    lease = {"dhcpLeases": [{"ipv4": "10.0.0.100", "mac": "52:54:00:00:00:01"}]}
    pending = MachineWait("NetworkPending", f"{IPAM} has no addresses yet", IPAM, "it has its addresses")
    early = view(machine("Planning"), target=target(claimed=False), network=pending)
    assert [one for one in plan_life(early).actions if isinstance(one, ChangeTarget)] == []
    known = view(machine("Planning"), target=target(claimed=False), handover=lease)
    plan = plan_life(known)
    (change,) = [one for one in plan.actions if isinstance(one, ChangeTarget)]
    assert change.spec["pxe"] == {"image": IMAGE, **lease}
    assert (plan.execution.stage, reason(known)) == ("Planning", "HostNotPrepared")


def test_a_worker_gets_no_taint() -> None:
    plan = plan_life(view(machine("Planning", manager=False), target=target(claimed=False)))
    (change,) = [one for one in plan.actions if isinstance(one, ChangeTarget)]
    assert change.spec["kubernetes"] == {"nodeLabels": {"stacklight": "enabled"}}


def test_an_install_is_stored_before_it_is_requested() -> None:
    plan = plan_life(view(machine("Planning")))
    assert plan.execution.stage == "Provisioning"
    assert (plan.execution.operation, plan.execution.attempt) == (OPERATION, 1)
    (asked,) = [one for one in plan.actions if isinstance(one, RequestOperation)]
    assert asked.name == OPERATION
    assert asked.spec == {"operationKind": "HostReplace", "machineRef": "master-0.default"}


def test_a_successor_requests_the_stored_install_once() -> None:
    lost = view(machine("Provisioning", execution=RUNNING))
    assert [one.name for one in plan_life(lost).actions if isinstance(one, RequestOperation)] == [OPERATION]
    there = view(machine("Provisioning", execution=RUNNING), operation=operation("InProgress"))
    assert [one for one in plan_life(there).actions if isinstance(one, RequestOperation)] == []
    recent = [{"name": OPERATION, "uid": "op-uid", "kind": "HostReplace", "phase": "Failed", "reason": "InstallFailed"}]
    ended = view(machine("Provisioning", execution=RUNNING), target=target(recentOperations=recent))
    assert [one for one in plan_life(ended).actions if isinstance(one, RequestOperation)] == []
    assert stage(ended) == "Backoff"


@pytest.mark.parametrize(
    ("before", "given", "after"),
    [
        ("Provisioning", {"operation": operation("InProgress")}, "Provisioning"),
        ("Provisioning", {"operation": operation("InProgress"), "target": target(**WRITTEN)}, "Booting"),
        ("Provisioning", {"operation": operation("Failed", "InstallFailed", "no disk")}, "Backoff"),
        ("Provisioning", {"operation": operation("Failed", "Cancelled")}, "Stuck"),
        ("Booting", {"operation": operation("InProgress")}, "Booting"),
        ("Booting", {"operation": operation("InProgress"), "target": target(**REPORTED)}, "Assigning"),
        ("Booting", {"operation": operation("Failed", "DidNotComeBack")}, "Backoff"),
        ("Assigning", {"target": target(**REPORTED)}, "Assigning"),
        ("Assigning", {"target": target(spec=BOUND, **REPORTED)}, "Preparing"),
        ("Assigning", {"target": target(spec=BOUND)}, "Assigning"),
        ("Assigning", {"target": target(spec=BOUND, agent={"version": "1"})}, "Assigning"),
        ("Assigning", {"target": target(spec=BOUND, conditions=[STARTING])}, "Preparing"),
        ("Preparing", {"operation": operation("InProgress")}, "Preparing"),
        ("Preparing", {"operation": operation("InProgress"), "target": target(**at_work("Preparing"))}, "Preparing"),
        ("Preparing", {"operation": operation("InProgress"), "target": target(**at_work("Starting"))}, "Deploying"),
        ("Preparing", {"operation": operation("InProgress"), "target": target(**REPORTED)}, "Preparing"),
        ("Preparing", {"operation": operation("InProgress"), "node": node(ready=False)}, "Deploying"),
        ("Deploying", {"operation": operation("InProgress"), "target": target(**at_work("Starting"))}, "Deploying"),
        ("Deploying", {"operation": operation("InProgress"), "node": node(ready=False)}, "Deploying"),
        ("Deploying", {"operation": operation("InProgress"), "node": node()}, "Deploying"),
        ("Deploying", {"operation": operation("Failed", "NodeNotReady"), "node": node(ready=False)}, "Backoff"),
        ("Deploying", {"operation": operation("Complete"), "node": node()}, "Configuring"),
        ("Configuring", {"node": node(marked=False)}, "Configuring"),
        ("Configuring", {"node": node()}, "Ready"),
        ("Ready", {"node": node()}, "Ready"),
        ("Ready", {"node": node(ready=False)}, "Ready"),
        ("Ready", {"node": node(marked=False)}, "Configuring"),
    ],
    ids=[
        "Provision: the image is being written",
        "Provision ends with the written image",
        "Provision: a failed install is repeated",
        "Provision: a cancelled install stays",
        "Uninitialized: the agent is not heard yet",
        "Uninitialized ends with the agent's report",
        "Uninitialized: a host that does not come back is installed again",
        "Pending: the configuration is not assigned yet",
        "Pending ends with the configuration",
        "Pending: the agent has not reported",
        "Pending: the report on the host is that of an earlier system",
        "Pending ends as an agent of the version before sets the node up",
        "Prepare: the Node does not exist yet",
        "Prepare: the agent downloads",
        "Prepare ends as the agent starts the node",
        "Prepare: an agent of the version before does not report its work",
        "Prepare ends with the Node",
        "Deploy: the Node does not exist yet",
        "Deploy: the Node is not Ready",
        "Deploy: the install has not ended",
        "Deploy: a Node that stays not Ready is installed again",
        "Deploy ends with the Ready Node and the install",
        "Reconfigure: labels are missing",
        "Reconfigure ends with the labels",
        "Ready stays",
        "Ready stays while the Node is not Ready",
        "Ready: changed labels are Reconfigure",
    ],
)
def test_a_stage_ends_with_its_evidence(before: str, given: dict[str, Any], after: str) -> None:
    assert stage(view(machine(before, execution=RUNNING), **given)) == after


def update(phase: str) -> dict[str, Any]:
    return {"nodeUpdate": {"version": "c-v2", "uid": "u", "generation": 1, "phase": phase, "since": at()}}


def maintained(reached: str) -> dict[str, Any]:
    holder = {"kind": "Maintenance", "name": "master-0.default", "uid": "target-uid"}
    return {"disruption": {"holder": holder, "stage": reached, "since": at()}}


@pytest.mark.parametrize(
    ("before", "status", "maintenance", "after"),
    [
        ("Ready", update("Preparing"), False, "Ready"),
        ("Ready", update("Draining"), False, "Updating"),
        ("Updating", update("Replacing"), False, "Updating"),
        ("Updating", update("Failed"), False, "Updating"),
        ("Updating", update("Complete"), False, "Configuring"),
        ("Ready", {}, True, "Ready"),
        ("Ready", maintained("Draining"), True, "Ready"),
        ("Ready", maintained("Drained"), True, "Maintained"),
        ("Maintained", maintained("Drained"), True, "Maintained"),
        ("Maintained", maintained("Returning"), False, "Maintained"),
        ("Maintained", {}, False, "Configuring"),
    ],
    ids=[
        "a download ahead changes nothing",
        "an update is Deploy",
        "Deploy: the Node is replaced",
        "Deploy: a failed update stays",
        "an update ends in Reconfigure",
        "maintenance is requested",
        "maintenance: the Node is being drained",
        "a drained Node is Maintenance",
        "Maintenance stays",
        "Maintenance: the Node is being returned",
        "Maintenance ends in Reconfigure",
    ],
)
def test_updates_and_maintenance_change_the_stage(
    before: str, status: dict[str, Any], maintenance: bool, after: str
) -> None:
    spec: dict[str, Any] = {
        "maintenance": {"enabled": True, "reason": "maintenance of example-ns/example-control-plane"}
    }
    seen = view(machine(before, maintenance=maintenance), node=node(), target=target(spec=spec, **status))
    assert stage(seen) == after


@pytest.mark.parametrize("state", ["available", "registering", ""])
def test_an_install_waits_until_the_status_of_the_host_shows_the_claim(state: str) -> None:
    plan = plan_life(view(machine("Planning"), host=bare_metal_host(state)))
    assert not any(isinstance(one, RequestOperation) for one in plan.actions)
    assert plan.obstacle is not None
    assert (plan.obstacle.reason, plan.obstacle.held_by) == ("HostNotPrepared", "BareMetalHost default/master-0")
    assert plan.obstacle.until == "BareMetalHost default/master-0 is provisioning"
    assert stage(view(machine("Planning"), host=bare_metal_host("provisioning"))) == "Provisioning"


def test_a_host_gets_its_machines_token_and_tokens_of_others_stay() -> None:
    token = {"unbounded-cloud.io/bootstrap-token": "bootstrap-token-abcdef"}
    host = msgspec.structs.replace(bare_metal_host(), metadata=ObjectMeta(name="master-0", annotations=token))
    named = plan_life(view(machine("Planning"), host=host))
    (change,) = [one for one in named.actions if isinstance(one, ChangeTarget)]
    assert change.spec == {"kubernetes": {"bootstrapTokenRef": {"name": "bootstrap-token-abcdef"}}}
    own = msgspec.to_builtins(target().spec.kubernetes) | {"bootstrapTokenRef": {"name": "bootstrap-token-fedcba"}}
    kept = plan_life(view(machine("Planning"), target=target(spec={"kubernetes": own})))
    assert not any(isinstance(one, ChangeTarget) for one in kept.actions)


def test_a_node_that_is_returned_from_maintenance_is_not_ready_yet() -> None:
    returning = target(**maintained("Returning"))
    obstacle = plan_life(view(machine("Maintained"), node=node(), target=returning)).obstacle
    assert obstacle is not None
    assert (obstacle.reason, obstacle.message) == ("ReturningNode", "Node master-0.default is returned to service")


def test_maintenance_is_requested_and_taken_back_but_not_that_of_others() -> None:
    asked = plan_life(view(machine("Ready", maintenance=True), node=node()))
    (change,) = [one for one in asked.actions if isinstance(one, ChangeTarget)]
    ours: dict[str, Any] = {"enabled": True, "reason": "maintenance of example-ns/example-control-plane"}
    assert change.spec == {"maintenance": ours}
    back = plan_life(view(machine("Maintained"), node=node(), target=target(spec={"maintenance": ours})))
    (change,) = [one for one in back.actions if isinstance(one, ChangeTarget)]
    assert change.spec == {"maintenance": {"enabled": False, "reason": None}}
    others = target(spec={"maintenance": {"enabled": True, "reason": "disk"}})
    assert [
        one
        for one in plan_life(view(machine("Ready"), node=node(), target=others)).actions
        if isinstance(one, ChangeTarget)
    ] == []


def test_installs_that_fail_are_repeated_later_and_later_and_then_not_at_all() -> None:
    inputs = install_inputs(view(machine("Backoff")))
    for attempt in range(1, ATTEMPTS):
        pause_s = 60 * 2 ** (attempt - 1)
        known: dict[str, Any] = {"operation": OPERATION, "attempt": attempt, "inputs": inputs, "message": "failed"}
        early = view(machine("Backoff", execution=known), after_s=pause_s - 1)
        plan = plan_life(early)
        assert plan.execution.stage == "Backoff"
        assert plan.requeue_s == 1
        due = plan_life(view(machine("Backoff", execution=known), after_s=pause_s))
        assert due.execution.stage == "Planning"
        again = plan_life(view(machine("Planning", execution=known), after_s=pause_s))
        assert again.execution.attempt == attempt + 1
        assert again.execution.operation != OPERATION
    last = view(machine("Provisioning", execution={"operation": OPERATION, "attempt": ATTEMPTS, "inputs": inputs}),
                operation=operation("Failed", "InstallFailed", "no disk"))  # fmt: skip
    plan = plan_life(last)
    assert plan.execution.stage == "Stuck"
    stuck = view(machine("Stuck", execution={"attempt": ATTEMPTS, "inputs": inputs, "message": "no disk"}), after_s=1e6)
    assert stage(stuck) == "Stuck"
    status = told(stuck, plan_life(stuck)).status
    assert status.error_reason == "CreateError"
    assert "no disk" in (status.error_message or "")


@pytest.mark.parametrize("before", ["Backoff", "Stuck"])
def test_other_inputs_or_a_retry_begin_anew(before: str) -> None:
    inputs = install_inputs(view(machine(before)))
    known: dict[str, Any] = {"operation": OPERATION, "attempt": ATTEMPTS, "inputs": inputs}
    retried = machine(before, execution=known, metadata={"annotations": {"unbounded-cloud.io/retry": "1"}})
    plan = plan_life(view(retried))
    assert (plan.execution.stage, plan.execution.attempt) == ("Planning", 0)
    profile: dict[str, Any] = {"pxe": {"image": IMAGE, "profileRef": {"name": "p"}}}
    assert stage(view(machine(before, execution=known), target=target(spec=profile))) == "Planning"


def test_a_name_that_another_operation_has_fails_the_attempt_and_the_next_has_another() -> None:
    inputs = install_inputs(view(machine("Backoff")))
    known: dict[str, Any] = {"operation": OPERATION, "attempt": 1, "inputs": inputs}
    failed = plan_life(view(machine("Provisioning", execution=known), name_taken=True))
    assert (failed.execution.stage, failed.actions) == ("Backoff", (SetMachineFinalizer(True),))
    assert failed.execution.message is not None
    assert f"NameTaken: MachineOperation {OPERATION} exists" in failed.execution.message
    again = plan_life(view(machine("Planning", execution=known), name_taken=True, after_s=60))
    assert (again.execution.stage, again.execution.attempt) == ("Provisioning", 2)
    assert [one.name for one in again.actions if isinstance(one, RequestOperation)] == [again.execution.operation]
    assert again.execution.operation != OPERATION


def test_cards_that_the_host_reports_are_no_other_inputs_but_those_that_people_name() -> None:
    card: dict[str, Any] = {"name": "eth0", "mac": "52:54:00:00:00:01"}

    def inputs(*cards: dict[str, Any], template: str = "ns/t@1", reported: bool = True) -> str:
        ipam = {"metadata": {"name": "m"}, "spec": {"nicMACmap": cards}, "status": {"l2TemplateRef": template}}
        hardware = {
            "source": "Installer",
            "boot": "b",
            "at": "2030-01-01T00:00:00Z",
            "digest": "a" * 64,
            "nics": [card],
        }
        host = target(hardware=hardware) if reported else target()
        return install_inputs(view(machine("Backoff"), target=host, ipam=msgspec.convert(ipam, IpamHost)))

    assert inputs(card) == inputs(reported=False)
    assert inputs({**card, "name": "eno1"}) != inputs(card)
    assert inputs(card, template="ns/t@2") != inputs(card)


@pytest.mark.parametrize("before", ["Booting", "Assigning", "Preparing", "Deploying"])
def test_a_host_that_joins_too_late_is_an_error_until_it_joins(before: str) -> None:
    running = operation("InProgress")
    early = plan_life(view(machine(before, execution=RUNNING), operation=running, after_s=1799))
    assert early.obstacle is not None
    assert early.obstacle.error is None
    assert early.requeue_s == 1
    late = view(machine(before, execution=RUNNING), operation=running, after_s=1801)
    plan = plan_life(late)
    assert plan.execution.stage == before
    assert told(late, plan).status.error_reason == "JoinClusterTimeoutError"


def test_a_host_that_vanished_is_an_error_and_no_other_takes_its_place() -> None:
    seen = view(machine("Ready"), node=node(), claim=held(ClaimReason.HOST_MISSING), host=None)
    plan = plan_life(seen)
    assert plan.execution == seen.execution
    status = told(seen, plan).status
    assert status.error_reason == "InvalidConfiguration"
    assert [one for one in plan.actions if isinstance(one, ChangeTarget | RequestOperation)] == []


@pytest.mark.parametrize("stage", ["Planning", "Provisioning", "Booting", "Configuring", "Ready", "Stuck"])
@pytest.mark.parametrize("why", [ClaimReason.HOST_TAKEN, ClaimReason.HOST_CHANGED, ClaimReason.HOST_MISSING])
def test_a_host_that_another_machine_has_is_not_touched(why: ClaimReason, stage: str) -> None:
    bare, unmarked = target(claimed=False), node(marked=False)
    seen = view(machine(stage, execution=RUNNING), claim=held(why), target=bare, node=unmarked)
    plan = plan_life(seen)
    assert plan.execution == seen.execution
    assert plan.actions == (SetMachineFinalizer(True),)


def test_the_node_gets_a_provider_id_once() -> None:
    (asked,) = [
        one
        for one in plan_life(view(machine("Configuring"), node=node(marked=False))).actions
        if isinstance(one, SetProviderID)
    ]
    assert asked.provider_id == "metal3://default/master-0/example-control-plane"
    assert [
        one for one in plan_life(view(machine("Ready"), node=node())).actions if isinstance(one, SetProviderID)
    ] == []


def test_a_label_that_is_taken_off_leaves_the_node() -> None:
    gone = machine("Ready", nodeLabels=[])
    (change,) = [one for one in plan_life(view(gone, node=node())).actions if isinstance(one, ChangeTarget)]
    assert change.spec == {"kubernetes": {"nodeLabels": {"stacklight": None}}}


def test_managers_that_are_not_dedicated_lose_their_taint() -> None:
    shared = view(machine("Ready"), node=node(), cluster=cluster(dedicatedControlPlane=False))
    (change,) = [one for one in plan_life(shared).actions if isinstance(one, ChangeTarget)]
    assert change.spec == {"kubernetes": {"registerWithTaints": []}}


# The status


HARDWARE: dict[str, Any] = {
    "source": "Installer",
    "at": "2030-01-01T00:00:00Z",
    "digest": "0" * 64,
    "cpus": 11,
    "memoryBytes": int(15.6 * (1 << 30)),
    "disks": [{"name": name, "sizeBytes": size * 10**9} for name, size in (("vda", 61), ("vdb", 32), ("vdc", 32))],
}
PENDING_REBOOT: dict[str, Any] = {"rebootRequired": True, "rebootPackages": ["linux-base", "linux-image"]}


def test_a_ready_machine_has_the_status_of_the_api_reference() -> None:
    reported: dict[str, Any] = {
        "agent": {"version": "1", "host": {"osID": "ubuntu", "osCodename": "jammy", **PENDING_REBOOT}}
    }
    seen = view(machine("Ready"), node=node(), target=target(hardware=HARDWARE, **reported))
    status = told(seen, plan_life(seen)).status
    provider = status.provider_status
    assert provider is not None
    assert (provider.api_version, provider.kind) == ("baremetal.k8s.io/v1alpha1", "BareMetalMachineProviderStatus")
    assert (provider.status, provider.ready, provider.current_distribution) == ("Ready", True, "ubuntu/jammy")
    assert provider.hardware is not None
    assert (provider.hardware.cpu, provider.hardware.ram) == (11, 16)
    assert [(one.name, one.size) for one in provider.hardware.storage] == [
        ("/dev/vda", 61),
        ("/dev/vdb", 32),
        ("/dev/vdc", 32),
    ]
    assert provider.reboot is not None
    assert (provider.reboot.required, provider.reboot.reason) == (True, "linux-base\nlinux-image")
    assert provider.private_ip == "10.0.0.5"
    assert [(one.type, one.ready) for one in provider.conditions if not one.ready] == [("Reboot", False)]
    assert status.node_ref is not None
    assert (status.node_ref.name, status.node_ref.uid) == ("master-0.default", "node-uid")
    assert {(one.type, one.address) for one in status.addresses} == {
        ("InternalIP", "10.0.0.5"),
        ("Hostname", "master-0.default"),
    }


@pytest.mark.parametrize("exists", [False, True])
def test_the_management_network_gives_the_internal_address(exists: bool) -> None:
    service_map = {"ipam/SVC-k8s-lcm": [{"ifName": "eno1", "ipAddress": "10.0.0.10/24"}]}
    ipam = msgspec.convert({"metadata": {"name": "m"}, "status": {"serviceMap": service_map}}, IpamHost)
    seen = view(machine("Ready"), node=node() if exists else None, ipam=ipam)
    addresses = [(one.type, one.address) for one in told(seen, plan_life(seen)).status.addresses]
    assert addresses[0] == ("InternalIP", "10.0.0.10")
    of_the_node = [("InternalIP", "10.0.0.5"), ("Hostname", "master-0.default")]
    assert addresses[1:] == (of_the_node if exists else [])


def test_the_name_of_the_host_stays_until_its_node_has_addresses() -> None:
    new = node()
    new = replace(new, status=replace(new.status, addresses=()))
    reported: dict[str, Any] = {"agent": {"host": {"hostname": "master-0.default"}}}
    seen = view(machine("Deploying"), node=new, target=target(**reported))
    assert [(one.type, one.address) for one in told(seen, plan_life(seen)).status.addresses] == [
        ("Hostname", "master-0.default")
    ]


def test_addresses_come_from_the_agent_until_the_node_has_its_own() -> None:
    cards = [{"interface": "eno1", "address": one} for one in ("10.0.0.7", "192.0.2.7", "10.0.0.7")]
    reported = at_work("Preparing", address="10.0.0.7", addresses=cards)
    seen = view(machine("Preparing"), target=target(**reported))
    assert [(one.type, one.address) for one in told(seen, plan_life(seen)).status.addresses] == [
        ("InternalIP", "10.0.0.7"),
        ("Hostname", "master-0"),
        ("InternalIP", "192.0.2.7"),
    ]
    later = view(machine("Deploying"), target=target(**reported), node=node(ready=False))
    assert {one.address for one in told(later, plan_life(later)).status.addresses} == {"10.0.0.5", "master-0.default"}


def test_hardware_is_that_of_the_installed_system_as_its_agent_reports_it() -> None:
    disks = [{"name": "vda", "sizeBytes": 61_000_000_000, "byID": ["virtio-1"]}]
    known = {"cpus": 11, "memoryBytes": 16 << 30, "disks": disks}

    def hardware(**reported: Any) -> Any:
        seen = view(machine("Preparing"), target=target(hardware=HARDWARE, **reported))
        return told(seen, plan_life(seen)).provider_status.hardware

    found = hardware(**at_work("Preparing", hardware=known))
    assert (found.cpu, found.ram, [one.by_id for one in found.storage]) == (11, 16, ["virtio-1"])
    earlier = at_work("Running", hardware=known)
    del earlier["agent"]["stage"]
    assert hardware(**earlier) == hardware()
    assert hardware(**at_work("Preparing", hardware={"cpus": 12})) == replace(hardware(), cpu=12)  # it lacks lsblk


@pytest.mark.parametrize(
    ("source", "name", "shown"),
    [("Redfish", "Disk.Bay.0", "Disk.Bay.0"), ("Installer", "cciss!c0d0", "/dev/cciss/c0d0")],
)
def test_a_disk_has_the_name_that_its_inspector_gives_it(source: str, name: str, shown: str) -> None:
    inspected = HARDWARE | {"source": source, "disks": [{"name": name, "sizeBytes": 61_000_000_000}]}
    seen = view(machine("Planning"), target=target(hardware=inspected))
    provider = told(seen, plan_life(seen)).status.provider_status
    assert provider is not None
    assert provider.hardware is not None
    assert [one.name for one in provider.hardware.storage] == [shown]


def test_no_report_of_an_agent_makes_a_status_that_the_server_refuses() -> None:
    cards = [{"interface": "e", "address": f"192.0.2.{number}"} for number in range(40)]
    twice = {"disks": [{"name": "sda"}, {"name": "sda"}]}
    reported = at_work("a stage of later", address="", addresses=cards, hardware=twice)
    seen = view(machine("Preparing"), target=target(**reported))
    status = told(seen, plan_life(seen)).status
    assert status.execution is not None
    assert status.execution.stage == "Deploying"
    assert len(status.addresses) == 32
    assert all(one.address for one in status.addresses)
    assert status.provider_status is not None
    assert status.provider_status.hardware is not None
    assert [one.name for one in status.provider_status.hardware.storage] == ["/dev/sda"]


def test_the_wait_for_the_agent_names_its_work() -> None:
    seen = view(machine("Preparing", execution=RUNNING), target=target(**at_work("Preparing")))
    execution = told(seen, plan_life(seen)).status.execution
    assert execution is not None
    assert execution.waiting is not None
    assert (execution.waiting.reason, execution.waiting.held_by) == ("PreparingNode", f"unbounded-agent/{TARGET}")
    assert execution.message == f"the agent downloads what Node {TARGET} needs, and builds its root file system"


@pytest.mark.parametrize(("stage", "state"), [("Provisioning", "provisioning"), ("Booting", "provisioned")])
def test_a_written_image_counts_before_the_status_of_the_host_says_it(stage: str, state: str) -> None:
    seen = view(machine(stage), host=bare_metal_host("provisioning"))
    instance = told(seen, plan_life(seen)).provider_status.provider_instance_state
    assert instance is not None
    assert (instance.state, instance.ready) == (state, state == "provisioned")


def test_a_node_that_is_not_ready_later_leaves_the_word_and_is_said() -> None:
    seen = view(machine("Ready"), node=node(ready=False))
    provider = told(seen, plan_life(seen)).provider_status
    assert (provider.status, provider.ready) == ("Ready", False)
    (kubelet,) = [one for one in provider.conditions if one.type == "Kubelet"]
    assert (kubelet.ready, kubelet.reason) == (False, "Kubelet")


def test_a_first_status_has_its_false_values() -> None:
    seen = view(machine(), claim=held(ClaimReason.INSUFFICIENT_RESOURCES), host=None, target=None)
    provider = status_change(seen, plan_life(seen))["providerStatus"]
    assert (provider["ready"], provider["maintenance"], provider["delete"]) == (False, False, False)


def test_changes_wait_as_long_as_nobody_waits_for_them() -> None:
    ready = view(machine("Ready"), node=node(), target=target(hardware=HARDWARE))
    before = told(ready, plan_life(ready))

    def waits_s(**given: Any) -> float:
        seen = view(before, **({"node": node(), "target": target(hardware=HARDWARE)} | given))
        plan = plan_life(seen)
        return can_wait_s(seen, plan, status_change(seen, plan))

    reported: dict[str, Any] = {"agent": {"version": "1", "host": {"osID": "ubuntu", **PENDING_REBOOT}}}
    assert waits_s(target=target(hardware=HARDWARE, **reported)) == FACTS_S
    assert waits_s(target=target(hardware=HARDWARE | {"cpus": 12})) == FACTS_S
    assert waits_s(node=node(ready=False)) == NEWS_S
    assert waits_s(node=node(marked=False)) == 0  # another stage


def test_a_node_that_registers_is_written_with_the_next_stage_if_that_follows_soon() -> None:
    started = target(**at_work("Starting"))
    before = view(machine("Deploying", execution=RUNNING), target=started)
    written = told(before, plan_life(before))
    seen = view(written, target=started, node=node(ready=False))
    plan = plan_life(seen)
    change = status_change(seen, plan)
    assert change["nodeRef"]["name"] == TARGET
    assert can_wait_s(seen, plan, change) == NEWS_S
    ready = view(written, target=started, node=node(), operation=operation("Complete"))
    assert can_wait_s(ready, plan_life(ready), status_change(ready, plan_life(ready))) == 0


def test_a_step_of_the_controller_itself_is_written_only_where_it_lasts() -> None:
    pending = MachineWait("NetworkPending", f"{IPAM} has no addresses yet", IPAM, "it has its addresses")
    before = view(machine("Planning"), target=target(claimed=False), network=pending)
    written = told(before, plan_life(before))
    seen = view(written, target=target(claimed=False))
    plan = plan_life(seen)
    assert (plan.obstacle and plan.obstacle.reason) == "HostNotPrepared"
    assert can_wait_s(seen, plan, status_change(seen, plan)) == OWN_WORK_S
    missing = view(written, target=target(claimed=False), cluster=None)
    assert can_wait_s(missing, plan_life(missing), status_change(missing, plan_life(missing))) <= NEWS_S


def test_a_status_without_a_change_is_not_written() -> None:
    seen = view(machine("Provisioning", execution=RUNNING), operation=operation("InProgress", message="booting"))
    after = told(seen, plan_life(seen))
    again = view(after, operation=operation("InProgress", message="booting"), after_s=60)
    assert status_change(again, plan_life(again)) == {}


def test_holder_and_limit_of_an_earlier_wait_leave_the_status() -> None:
    earlier = {"reason": "Installing", "since": at(), "heldBy": "HostReplace r", "until": at(60), "then": "it fails"}
    seen = view(machine("Configuring", execution={"waiting": earlier}), node=node(marked=False))
    execution = told(seen, plan_life(seen)).status.execution
    assert execution is not None
    until = "Node master-0.default has label stacklight=enabled"
    assert execution.waiting == MachineWaiting(reason="MarkingNode", held_by="machina", since=at(), until_event=until)


def test_facts_that_are_gone_leave_the_status() -> None:
    reported: dict[str, Any] = {"agent": {"host": {"rebootRequired": True, "rebootPackages": ["linux-base"]}}}
    seen = view(machine("Ready"), node=node(), target=target(**reported))
    before = told(seen, plan_life(seen))
    later = view(before, node=node(), target=target(agent={"host": {"hostname": "x"}}))
    reboot = told(later, plan_life(later)).provider_status.reboot
    assert reboot is not None
    assert (reboot.required, reboot.reason) == (False, None)
