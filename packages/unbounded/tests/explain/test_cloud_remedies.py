"""Remedies for failed operations on clouds: commands that a user can type, about the cause."""

from __future__ import annotations

from typing import Any, Final

import pytest
from msgspec import to_builtins

from tests.explain.staging import can_be_typed
from tests.operations.building import claim, machine_of, operation_of
from unbounded.api.fields import Cause
from unbounded.api.names import LABEL_SITE
from unbounded.explain.facts import ExplainFacts
from unbounded.explain.fixes import OPERATION, fixes_for
from unbounded.machineops import reasons
from unbounded.machineops.credentials import select_credential
from unbounded.machineops.reasons import credential_cause, secret_cause
from unbounded.operations import reasons as common
from unbounded.operations.executor_protocol import Refusal

MACHINE = machine_of(provider="Acme", providerID="acme://i-1")
EXECUTOR = "machine-ops-controller/lab/Acme"
AGAIN = "kubectl unbounded machine operation create op-again-1 --kind HostReboot --machine m1"


@pytest.mark.parametrize(
    ("reason", "command"),
    [
        (reasons.AUTH_NOT_FOUND, "kubectl apply -f CREDENTIAL.yaml"),
        (reasons.AUTH_AMBIGUOUS, "kubectl get machineoperationcredentials"),
        (reasons.AUTH_SECRET_FORBIDDEN, "kubectl edit machineoperationcredential NAME"),
        (reasons.AUTH_SECRET_NOT_FOUND, "kubectl -n unbounded-kube create secret generic NAME --from-file=KEY=FILE"),
        (reasons.BOOTSTRAP_DATA_FAILED, "kubectl unbounded site init --name lab"),
        (
            reasons.INVALID_PROVIDER_ID,
            """kubectl patch mach m1 --type=merge -p '{"spec": {"providerID": "PROVIDER-ID"}}'""",
        ),
        (
            reasons.PROVIDER_ID_SHARED,
            """kubectl patch mach m1 --type=merge -p '{"spec": {"providerID": "PROVIDER-ID"}}'""",
        ),
        (reasons.PROVIDER_REFUSED, AGAIN),
    ],
)
def test_what_is_at_fault_is_put_right_and_asked_for_again(reason: str, command: str) -> None:
    fixes = fixes_for(reason, MACHINE, operation_of(), ExplainFacts())
    assert fixes[0].command == command
    assert fixes[-1].command == AGAIN
    if "Auth" in reason:
        assert fixes[0].does.endswith("for spec.siteName lab and spec.provider Acme")
    for fix in fixes:
        can_be_typed(fix.command)


def test_an_instance_that_is_off_is_started_in_place_of_a_reboot() -> None:
    (fix,) = fixes_for(reasons.INSTANCE_NOT_RUNNING, MACHINE, operation_of(), ExplainFacts())
    assert fix.command == "kubectl unbounded machine power-on m1"
    can_be_typed(fix.command)


@pytest.mark.parametrize(
    ("parameters", "given", "does"),
    [
        ({"keep": "strict", "imageID": "i"}, "--param imageID=i", "requests it anyway"),
        ({"imageID": "i"}, "--param imageID=i", "when the obstacle in the message is removed"),
    ],
)
def test_what_would_be_lost_is_given_up_or_moved_away(parameters: dict[str, str], given: str, does: str) -> None:
    operation = operation_of("op", "HostReplace", parameters=parameters)
    (fix,) = fixes_for(reasons.WOULD_BE_LOST, MACHINE, operation, ExplainFacts())
    create = "kubectl unbounded machine operation create op-again-1 --kind HostReplace --machine m1"
    assert fix.command == f"{create} {given}"
    assert does in fix.does
    can_be_typed(fix.command)


@pytest.mark.parametrize(
    ("parameters", "accept"),
    [({}, "bootVolume.securityAttributes"), ({"keep": "strict"}, "vnic.privateIp,bootVolume.securityAttributes")],
)
def test_what_would_be_lost_can_be_accepted_by_name(parameters: dict[str, str], accept: str) -> None:
    losses = [
        {"field": "vnic.privateIp", "consequence": "private IP 10.0.0.2"},
        {"field": "bootVolume.securityAttributes", "consequence": "its attributes", "lessensSecurity": True},
    ]
    operation = operation_of("op", "HostReplace", parameters=parameters, status={"losses": losses})
    (fix,) = fixes_for(reasons.WOULD_BE_LOST, MACHINE, operation, ExplainFacts())
    assert f"--param accept={accept}" in fix.command
    can_be_typed(fix.command)


@pytest.mark.parametrize(
    "reason", [reason for reason in OPERATION if fixes_for(reason, MACHINE, operation_of(), ExplainFacts())]
)
def test_open_operation_gets_no_retry_or_rebind_remedy(reason: str) -> None:
    operation = operation_of("op", "HostReplace", status={"phase": "InProgress", **claim(executor=EXECUTOR)})
    for fix in fixes_for(reason, MACHINE, operation, ExplainFacts()):
        assert "operation create" not in fix.command
        assert "providerID" not in fix.command
    ended = operation_of("op", "HostReplace", status={**claim(executor=EXECUTOR), "phase": "Failed"})
    assert fixes_for(reason, MACHINE, ended, ExplainFacts())


AZ: Final = "unbounded-kube/az"


def failed(cause: Cause | None, phase: str = "Failed", executor: str = EXECUTOR) -> dict[str, Any]:
    """Return the status of an operation with a cause, whose message has no words to match."""
    told = {"phase": phase, "message": "in words", "cause": None if cause is None else to_builtins(cause)}
    return claim(executor=executor) | told


@pytest.mark.parametrize(
    ("reason", "cause", "command"),
    [
        (
            reasons.AUTH_INVALID,
            secret_cause(reasons.SECRET_INCOMPLETE, AZ, "clientID, clientSecret"),
            "kubectl -n unbounded-kube patch secret az --type=merge"
            """ -p '{"stringData": {"clientID": "VALUE", "clientSecret": "VALUE"}}'""",
        ),
        (
            reasons.AUTH_INVALID,
            secret_cause(reasons.SECRET_INVALID, AZ, "clientID", "az"),
            """kubectl -n unbounded-kube patch secret az --type=merge -p '{"stringData": {"clientID": "VALUE"}}'""",
        ),
        (
            reasons.AUTH_INVALID,
            secret_cause(reasons.SECRET_INVALID, AZ),
            """kubectl -n unbounded-kube patch secret az --type=merge -p '{"stringData": {"KEY": "VALUE"}}'""",
        ),
        (
            reasons.AUTH_SECRET_FORBIDDEN,
            credential_cause(reasons.CREDENTIAL_INVALID, "az"),
            "kubectl edit machineoperationcredential az",
        ),
        (
            reasons.AUTH_SECRET_NOT_FOUND,
            secret_cause(reasons.SECRET_MISSING, AZ, "tenantID, clientID", "az"),
            "kubectl -n unbounded-kube create secret generic az --from-file=tenantID=FILE --from-file=clientID=FILE",
        ),
        (
            reasons.AUTH_INVALID,
            credential_cause(reasons.CREDENTIAL_INVALID, "az"),
            "kubectl edit machineoperationcredential az",
        ),
        (
            reasons.AUTH_REFUSED,
            credential_cause(reasons.CREDENTIAL_REFUSED, "az"),
            "kubectl get machineoperationcredential az -o jsonpath='{.spec.auth}'",
        ),
        (
            reasons.AUTH_SECRET_NOT_FOUND,
            secret_cause(reasons.SECRET_MISSING, AZ),
            "kubectl -n unbounded-kube create secret generic az --from-file=KEY=FILE",
        ),
        (
            reasons.BOOTSTRAP_DATA_FAILED,
            Cause(code=reasons.KUBERNETES_MISSING),
            """kubectl patch mach m1 --type=merge -p '{"spec": {"kubernetes": {"version": "VERSION"}}}'""",
        ),
        (
            reasons.BOOTSTRAP_DATA_FAILED,
            Cause(code=reasons.CONFIGURATION_MISSING),
            "kubectl edit mach m1",
        ),
    ],
)
def test_what_the_cause_is_about_is_put_right(reason: str, cause: Cause, command: str) -> None:
    fixes = fixes_for(reason, MACHINE, operation_of(status=failed(cause)), ExplainFacts())
    assert [fix.command for fix in fixes] == [command, AGAIN]
    can_be_typed(command)


def test_a_message_alone_decides_nothing() -> None:
    """Seen: remedies were chosen by words in messages, which change."""
    messages = (
        "Secret unbounded-kube/az lacks clientID, which AzureVM needs; its keys: tenantID",
        "Azure rejected MachineOperationCredential az: AADSTS7000215",
        "RequestDisallowedByPolicy: Resource 'vm-1' was disallowed by policy.",
        "there is no VM x, and no model of it in Secret unbounded-kube/replacement-1",
        "no release of the agent is configured",
    )
    for reason in OPERATION:
        plain = operation_of("op", "HostReplace", status={"phase": "Failed", "message": "in words"})
        for message in messages:
            told = operation_of("op", "HostReplace", status={"phase": "Failed", "message": message})
            assert fixes_for(reason, MACHINE, told, ExplainFacts()) == fixes_for(reason, MACHINE, plain, ExplainFacts())


@pytest.mark.parametrize(("code", "field"), [(reasons.SOURCE_MISSING, "url"), (reasons.DIGEST_MISSING, "sha256")])
def test_missing_agent_release_remedy_names_each_setting(code: str, field: str) -> None:
    operation = operation_of(status=failed(Cause(code=code)))
    fixes = fixes_for(reasons.BOOTSTRAP_DATA_FAILED, MACHINE, operation, ExplainFacts())
    own, install, up, again = (fix.command for fix in fixes)
    assert f'{{"spec": {{"agent": {{"{field}": ' in own
    assert f"kubectl unbounded install --agent-{field} " in install
    assert f"unbounded up --agent-{field} " in up
    assert again == AGAIN


def test_a_machine_of_no_site_is_put_into_one() -> None:
    machine = machine_of(provider="Acme", providerID="acme://i-1")
    del machine.metadata.labels[LABEL_SITE]
    with pytest.raises(Refusal) as refused:
        select_credential((), machine.site, "Acme")
    status = failed(refused.value.cause)
    fixes = fixes_for(refused.value.reason, machine, operation_of(status=status), ExplainFacts())
    label = "kubectl label mach m1 unbounded-cloud.io/site=SITE"
    assert [fix.command for fix in fixes] == [label, AGAIN]
    can_be_typed(label)


GROUP = "/subscriptions/8b1d9ee8-5d2f-4a52-9bf0-1f6f1f4f3c11/resourceGroups/rg-1"
VM = f"azure://{GROUP}/providers/Microsoft.Compute/virtualMachines/vm-1"
POLICY: Final = {
    reasons.POLICY: "No GPUs",
    reasons.POLICY_ID: "/providers/Microsoft.Authorization/policyAssignments/no-gpus",
}


@pytest.mark.parametrize(
    ("provider", "provider_id", "reason", "cause", "command", "does"),
    [
        (
            "AzureVM",
            VM,
            reasons.PROVIDER_REFUSED,
            Cause(code="RequestDisallowedByPolicy", about=POLICY),
            f"az policy assignment list --disable-scope-strict-match --scope {GROUP} --query"
            """ '[?id=='"'"'/providers/Microsoft.Authorization/policyAssignments/no-gpus'"'"']'""",
            "shows the policy (No GPUs): exempt the VM from it, or change it; see docs/azure.md#when-a-replacement",
        ),
        (
            "AzureVM",
            VM,
            reasons.PROVIDER_REFUSED,
            Cause(code="RequestDisallowedByPolicy"),
            f"az policy assignment list --disable-scope-strict-match --scope {GROUP}",
            "shows the policy (its name)",
        ),
        (
            "AzureVM",
            VM,
            reasons.PROVIDER_REFUSED,
            Cause(code="MissingSubscriptionRegistration"),
            "az provider register --namespace Microsoft.Compute --subscription 8b1d9ee8-5d2f-4a52-9bf0-1f6f1f4f3c11",
            "registers the subscription",
        ),
        (
            "AzureVM",
            VM,
            reasons.QUOTA_EXCEEDED,
            None,
            "az vm list-usage --subscription 8b1d9ee8-5d2f-4a52-9bf0-1f6f1f4f3c11 --location LOCATION --output table",
            "request more, or delete resources; see docs/azure.md#when-a-replacement-does-not-go-on",
        ),
        (
            "OCIInstance",
            "ocid1.instance.oc1..x",
            reasons.QUOTA_EXCEEDED,
            None,
            "oci limits value list --compartment-id TENANCY --service-name compute --all --output table",
            "request more, or delete resources; see docs/oci.md#when-a-replacement-does-not-go-on",
        ),
        (
            "OCIInstance",
            "oci://ocid1.instance.oc1..x",
            reasons.PROVIDER_REFUSED,
            Cause(code=reasons.EARLIER_INSTANCE, about={reasons.INSTANCE: "ocid1.instance.oc1..y"}),
            "oci compute instance get --instance-id ocid1.instance.oc1..y",
            "shows the rest of an earlier one",
        ),
        (
            "AzureVM",
            VM,
            reasons.INSTANCE_NOT_FOUND,
            secret_cause(reasons.MODEL_MISSING, "unbounded-kube/replacement-1"),
            "kubectl -n unbounded-kube apply -f SECRET.yaml",
            "restores Secret replacement-1 from a copy",
        ),
    ],
)
def test_cloud_rejection_remedy_queries_the_cloud_during_and_after_the_operation(
    provider: str, provider_id: str, reason: str, cause: Cause | None, command: str, does: str
) -> None:
    machine = machine_of(provider=provider, providerID=provider_id)
    for phase, more in (("InProgress", 0), ("Failed", 1)):
        status = failed(cause, phase, f"machine-ops-controller/lab/{provider}")
        first, *others = fixes_for(reason, machine, operation_of("op", "HostReplace", status=status), ExplainFacts())
        assert first.command == command
        assert does in first.does
        assert len(others) == more
        can_be_typed(command)


@pytest.mark.parametrize(
    ("about", "named"), [({reasons.PROVIDER_ID: "oci://instance.b"}, "oci://instance.b"), ({}, "PROVIDER-ID")]
)
def test_what_replaced_an_instance_is_named_to_bind_the_machine_to(about: dict[str, str], named: str) -> None:
    machine = machine_of(provider="OCIInstance", providerID="oci://ocid1.instance.a")
    operation = operation_of("op", "HostReplace", status=failed(Cause(code=reasons.INSTANCE_REPLACED, about=about)))
    first, *_ = fixes_for(reasons.INSTANCE_NOT_FOUND, machine, operation, ExplainFacts())
    assert f'"providerID": "{named}"' in first.command
    can_be_typed(first.command)


@pytest.mark.parametrize(
    ("provider", "provider_id", "look"),
    [
        ("AzureVM", VM, [f"az vm get-instance-view --ids {VM.removeprefix('azure://')}"]),
        ("OCIInstance", "oci://ocid1.instance.x", ["oci compute instance get --instance-id ocid1.instance.x"]),
        ("Acme", "acme://i-1", []),
    ],
)
def test_unknown_outcome_remedy_observes_before_a_retry(provider: str, provider_id: str, look: list[str]) -> None:
    machine = machine_of(provider=provider, providerID=provider_id)
    status = {**claim(executor=f"machine-ops-controller/lab/{provider}"), "phase": "Failed"}
    fixes = fixes_for(common.OUTCOME_UNKNOWN, machine, operation_of(status=status), ExplainFacts())
    assert [fix.command for fix in fixes] == [*look, AGAIN]
    under_way = operation_of(status={**status, "phase": "InProgress"})
    assert [fix.command for fix in fixes_for(common.OUTCOME_UNKNOWN, machine, under_way, ExplainFacts())] == look


def test_busy_cloud_remedy_retries_after_the_operation_ended() -> None:
    status = {**claim(executor=EXECUTOR), "phase": "Failed", "message": "too many requests"}
    assert [
        fix.command for fix in fixes_for(common.NO_ANSWER, MACHINE, operation_of(status=status), ExplainFacts())
    ] == [AGAIN]
    under_way = operation_of(status={**status, "phase": "InProgress"})
    assert fixes_for(common.NO_ANSWER, MACHINE, under_way, ExplainFacts()) == ()
    others = operation_of(status={**claim(executor="metalman/lab"), "phase": "Failed"})
    assert fixes_for(common.NO_ANSWER, MACHINE, others, ExplainFacts()) == ()


def test_deleted_cloud_machine_remedy_recreates_the_machine_and_retries() -> None:
    status = {**claim(executor=EXECUTOR), "phase": "Failed"}
    fixes = fixes_for("MachineNotFound", None, operation_of("op", "HostReplace", status=status), ExplainFacts())
    create = "kubectl unbounded machine operation create op-again-1 --kind HostReplace --machine m1"
    assert [fix.command for fix in fixes] == ["kubectl apply -f MACHINE.yaml", create]
    can_be_typed(fixes[0].command)


def test_what_was_kept_and_is_gone_is_put_back_or_done_without() -> None:
    status = {**claim(executor=EXECUTOR), "phase": "Failed"}
    ended = operation_of("op", "HostReplace", status=status)
    under_way = operation_of("op", "HostReplace", status={**status, "phase": "InProgress"})
    back, once_more, bound = (fix.command for fix in fixes_for(reasons.STATE_IS_GONE, MACHINE, ended, ExplainFacts()))
    assert "op-again-1" in once_more
    assert "providerID" in bound
    assert [fix.command for fix in fixes_for(reasons.STATE_IS_GONE, MACHINE, under_way, ExplainFacts())] == [back]
    can_be_typed(back)


def test_changed_target_remedy_suggests_no_replacement() -> None:
    machine = machine_of(provider="AzureVM", providerID=VM)
    ended = operation_of("op", "HostReplace", status={"phase": "Failed"})
    look, bind = (fix.command for fix in fixes_for(common.TARGET_CHANGED, machine, ended, ExplainFacts()))
    assert look == "kubectl get mach m1 -o yaml"
    assert "PROVIDER-ID" in bind
