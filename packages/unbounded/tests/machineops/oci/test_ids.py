"""Identifiers of Oracle's cloud, as users write them and as it answers them."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from tests.support.virtual_time import run_virtual
from unbounded.machineops import reasons
from unbounded.machineops.provider import (
    Job,
    Loss,
    NotDone,
    OperationKind,
    Power,
    Refusal,
    SecretStr,
    Throttled,
    Transient,
    Uncertain,
)
from unbounded.machineops.providers.oci import errors, instances, launch, logins
from unbounded.machineops.providers.oci.errors import OciErrorResponse, OciNotFound, TokenUsed
from unbounded.machineops.providers.oci.instances import power
from unbounded.machineops.providers.oci.replacement_plan import (
    TERMINATING_OLD,
    OciObservation,
    OciReplacementState,
    next_step,
)
from unbounded.machineops.providers.oci.replacement_plan import describe as words_of
from unbounded.machineops.providers.oci.work_requests import CallTimes
from unbounded_lab.cloud.oci.authentication import fingerprint, private_pem, rsa_key

OCID = "ocid1.instance.oc1.phx.anyhqljsc4nqk4qqed4w5ruo57ow5jkyqhubgy2l5g5os4m2nelybcfwmjzq"
KEY = rsa_key("test of logins")
SECRET = {
    "tenancyOCID": "ocid1.tenancy.oc1..aaaa",
    "userOCID": "ocid1.user.oc1..aaaa",
    "region": "us-phoenix-1",
    "fingerprint": fingerprint(KEY.public_key()),
    "privateKey": private_pem(KEY),
}


def test_a_provider_id_names_an_instance_however_it_is_written() -> None:
    instance = instances.instance(f"oci://{OCID}")
    assert instance == instances.instance(f" oci://{OCID.upper()}\n")
    assert (instance.id, instance.scope, instance.name) == (OCID, "oc1.phx", "instance …fwmjzq")
    assert instances.instance(instances.provider_id(OCID)) == instance
    assert instances.instance("oci://ocid1.instance.oc1.eu-madrid-1.anwx").scope == "oc1.eu-madrid-1"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (OCID, f"is the OCID alone; write oci://{OCID}"),
        ("oci://", "is not oci://ocid1.instance.<realm>.<region>.<unique id>"),
        ("oci://ocid1.volume.oc1.phx.abc", "is not oci://ocid1.instance."),
        ("oci://ocid1.instance.oc1..abc", "is not oci://ocid1.instance."),
        (f"oci://{OCID}/../x", "is not oci://ocid1.instance."),
        ("oci://ocid1.instance.oc1.phx." + "a" * 300, "is not oci://ocid1.instance."),
        ("azure:///subscriptions/1", "is not oci://ocid1.instance."),
    ],
)
def test_what_names_no_instance_is_told_what_would(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        instances.instance(text)


def test_lifecycle_states_are_powers() -> None:
    assert {state: power(state) for state in ("RUNNING", "STOPPED", "TERMINATED")} == {
        "RUNNING": Power.RUNNING,
        "STOPPED": Power.STOPPED,
        "TERMINATED": Power.GONE,
    }
    assert {power(state) for state in ("STARTING", "STOPPING", "TERMINATING", "MOVING", "NEW")} == {Power.CHANGING}


@pytest.mark.parametrize(
    ("answered", "changes", "kind", "words"),
    [
        (
            OciErrorResponse(401, "NotAuthenticated", "x"),
            True,
            Refusal,
            "OCI rejected MachineOperationCredential site (",
        ),
        (
            OciErrorResponse(403, "NotAuthorized", "x"),
            False,
            Refusal,
            "MachineOperationCredential site has no permission",
        ),
        (
            OciErrorResponse(404, "NotAuthorizedOrNotFound", "x"),
            True,
            OciNotFound,
            "MachineOperationCredential site has no permission",
        ),
        (OciErrorResponse(409, "IncorrectState", "x"), True, errors.WrongState, "call: 409 IncorrectState: x"),
        (OciErrorResponse(409, "Conflict", "x"), True, Transient, "call: 409 Conflict: x"),
        (OciErrorResponse(409, "InvalidatedRetryToken", "x"), True, TokenUsed, "409 InvalidatedRetryToken"),
        (OciErrorResponse(412, "NoEtagMatch", "x"), True, Transient, "412"),
        (OciErrorResponse(400, "InvalidParameter", "a\nb\x00"), True, Refusal, "call: 400 InvalidParameter: a b"),
        (
            OciErrorResponse(400, "RelatedResourceNotAuthorizedOrNotFound", "x"),
            True,
            Refusal,
            "site has no permission for it; call: 400",
        ),
        (OciErrorResponse(400, "LimitExceeded", "x"), True, NotDone, "LimitExceeded"),
        (OciErrorResponse(400, "QuotaExceeded", "x"), True, NotDone, "QuotaExceeded"),
        (OciErrorResponse(500, "InternalError", "Out of host capacity."), True, NotDone, "Out of host capacity"),
        (OciErrorResponse(500, "OutOfHostCapacity", "x"), True, NotDone, "OutOfHostCapacity"),
        (OciErrorResponse(500, "InternalServerError", "x"), True, Uncertain, "500"),
        (OciErrorResponse(500, "InternalServerError", "x"), False, Transient, "500"),
        (OciErrorResponse(503, "ServiceUnavailable", "x"), True, Uncertain, "503"),
        (OciErrorResponse(504, "InternalError", "Gateway Timeout"), True, Uncertain, "504"),
    ],
)
def test_each_error_is_a_failure_of_ours(answered: OciErrorResponse, changes: bool, kind: type, words: str) -> None:
    failure = errors.failure(answered, call="call", changes=changes, scope="s", credential="site")
    assert type(failure) is kind
    assert words in str(failure)


@pytest.mark.parametrize(("retry_after", "after_s"), [("7", 7.0), ("", 10.0), ("Sun, 22 Nov 2026 20:59:17 GMT", 10.0)])
def test_throttling_is_of_the_tenancy(retry_after: str, after_s: float) -> None:
    answered = OciErrorResponse(429, "TooManyRequests", "x", retry_after)
    failure = errors.failure(answered, call="call", changes=True, scope="tenancy phx", credential="site")
    assert isinstance(failure, Throttled)
    assert (failure.after_s, failure.scope) == (after_s, "tenancy phx")


def test_reasons_of_a_launch_that_finds_no_room() -> None:
    ends = {}
    for code in ("OutOfHostCapacity", "LimitExceeded"):
        failure = errors.failure(OciErrorResponse(400, code, ""), call="c", changes=True, scope="s", credential="site")
        assert isinstance(failure, NotDone)
        ends[code] = failure.reason
    assert ends == {"OutOfHostCapacity": reasons.NO_CAPACITY, "LimitExceeded": reasons.QUOTA_EXCEEDED}


OLD = {
    "id": "ocid1.instance.oc1.phx.xyz",
    "compartmentId": "c",
    "availabilityDomain": "AD-1",
    "shape": "VM.Standard3.Flex",
}


@pytest.mark.parametrize(
    ("subnet", "assign", "words"),
    [
        ({"id": "s", "prohibitPublicIpOnVnic": True}, "true", "subnet s forbids public IPs"),
        ({"id": "s", "prohibitInternetIngress": True}, "true", "subnet s forbids public IPs"),
        ({"id": "s", "prohibitInternetIngress": True, "prohibitPublicIpOnVnic": True}, "false", ""),
        ({"id": "s"}, "true", ""),
    ],
)
def test_a_subnet_has_to_allow_what_is_asked_for(subnet: dict[str, Any], assign: str, words: str) -> None:
    instance = instances.instance("oci://ocid1.instance.oc1.phx.xyz")
    job = Job("op", "uid", OperationKind.HOST_REPLACE, "m1", "machine-uid", instance, {"assignPublicIP": assign})
    if not words:
        launch.check(OLD, [], subnet, job)
        return
    with pytest.raises(Refusal, match=words):
        launch.check(OLD, [], subnet, job)


IMAGE = {"id": "image", "launchOptions": {"networkType": "PARAVIRTUALIZED", "firmware": "UEFI_64"}}
JOB = Job("op", "uid", OperationKind.HOST_REPLACE, "m1", "machine-uid", instances.instance(f"oci://{OLD['id']}"), {})


def test_launch_options_that_are_not_those_of_the_image_are_lost() -> None:
    vnics = [{"isPrimary": True, "privateIp": "10.0.0.2"}]
    options = {"networkType": "VFIO", "firmware": "UEFI_64", "isConsistentVolumeNamingEnabled": False}
    lost = launch.losses(OLD | {"launchOptions": options}, vnics, IMAGE, {})
    assert lost == [
        Loss("vnic.privateIp", "private IP 10.0.0.2"),
        Loss("launchOptions.networkType", "networkType VFIO"),
    ]


def test_what_no_launch_can_ask_for_again_is_lost_and_told() -> None:
    primary = {
        "isPrimary": True,
        "privateIp": "10.0.0.2",
        "publicIp": "203.0.113.4",
        "ipv6Addresses": ["fd00::2"],
        "hostnameLabel": "worker",
        "routeTableId": "ocid1.routetable.oc1.phx.own",
    }
    lost = [
        *("private IP 10.0.0.2", "public IP 203.0.113.4", "IPv6 address fd00::2", "host name worker"),
        *("the route table of its VNIC", "VNIC second"),
    ]

    def told(old: dict[str, Any], vnics: list[dict[str, Any]], volume: dict[str, Any]) -> list[str]:
        return [each.consequence for each in launch.losses(old, vnics, IMAGE, volume)]

    assert told(OLD, [{"id": "second"}, primary], {}) == lost
    for name, words in launch.LOST.items():
        assert told(OLD | {name: {"type": "x"}}, [primary], {}) == [*lost[:-1], words]
    for tuned in ({"isAutoTuneEnabled": True}, {"autotunePolicies": [{"autotuneType": "DETACHED_VOLUME"}]}):
        assert told(OLD, [primary], tuned) == [*lost[:-1], "the auto-tuning of its boot volume"]


def test_what_a_launch_can_ask_for_again_is_kept() -> None:
    own: dict[str, Any] = {name: {"it": "is"} for name in ("agentConfig", "availabilityConfig", "instanceOptions")}
    own |= {"faultDomain": "FD", "displayName": "m1", "dedicatedVmHostId": "host", "isAIEnterpriseEnabled": True}
    body = launch.details(OLD | own, {"subnetId": "s"}, IMAGE, {}, job=JOB, user_data="")
    assert {name: body.get(name) for name in own} == own


@pytest.mark.parametrize(
    ("old", "terminating", "new", "step", "under_way"),
    [
        ("TERMINATED", False, "RUNNING", None, False),
        ("", True, "RUNNING", None, False),
        ("", False, "RUNNING", TERMINATING_OLD, True),  # it may not be seen any more
        ("STOPPED", True, "RUNNING", TERMINATING_OLD, False),
        ("TERMINATED", True, "STOPPED", TERMINATING_OLD, True),
        ("TERMINATED", True, "TERMINATED", TERMINATING_OLD, False),
        ("", True, "", TERMINATING_OLD, True),
    ],
)
def test_replacement_ends_with_new_instance_running_and_old_one_gone(
    old: str, terminating: bool, new: str, step: str | None, under_way: bool
) -> None:
    seen = OciObservation(bound="new", old=old, new_id="new", new=new)
    found = next_step(seen, OciReplacementState("old", {}, terminating=terminating), "")
    assert (found.step, found.under_way) == (step, under_way)


def test_the_vnic_keeps_its_name_and_tags() -> None:
    tags = {"freeformTags": {"team": "blue"}, "definedTags": {"Net": {"zone": "a"}, "Oracle-Tags": {"CreatedBy": "me"}}}
    security = {"securityAttributes": {"Oracle-ZPR": {"Critical": {"value": "a", "mode": "enforce"}}}}
    body = launch.details(
        OLD, {"subnetId": "s", "displayName": "front"} | tags | security, IMAGE, {}, job=JOB, user_data=""
    )
    vnic = body["createVnicDetails"]
    assert vnic["displayName"] == "front"
    assert vnic["freeformTags"] == {"team": "blue"}
    assert vnic["definedTags"] == {"Net": {"zone": "a"}}
    assert vnic["securityAttributes"] == security["securityAttributes"]


def test_changes_of_an_instance_since_its_launch_details_are_detected() -> None:
    old = OLD | {"metadata": {"site": "a"}, "freeformTags": {"team": "blue"}, "shapeConfig": {"ocpus": 2.0}}
    body = launch.details(old, {"subnetId": "s"}, IMAGE, {}, job=JOB, user_data="#cloud-config")
    assert launch.changes(old, body, JOB) == []
    changed = old | {"metadata": {"site": "b"}, "shapeConfig": {"ocpus": 4.0}, "ipxeScript": "boot"}
    assert launch.changes(changed, body, JOB) == ["ipxeScript", "shapeConfig", "metadata"]


def _login(**changes: str) -> logins.OciApiKey:
    return logins.api_key({name: SecretStr(value) for name, value in (SECRET | changes).items()})


@pytest.mark.slow
def test_a_secret_is_an_api_key_with_or_without_a_passphrase() -> None:
    assert _login().passphrase is None
    assert _login(fingerprint=SECRET["fingerprint"].upper()).fingerprint == SECRET["fingerprint"]
    locked = _login(privateKey=private_pem(KEY, "sesame"), privateKeyPassphrase="sesame")
    assert locked.passphrase == SecretStr("sesame")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"tenancyOCID": "acme"}, "tenancyOCID must be the OCID of a tenancy"),
        ({"userOCID": "ocid1.tenancy.oc1..a"}, "userOCID must be the OCID of a user"),
        ({"region": "Phoenix"}, "region must be the name of a region"),
        ({"fingerprint": "12:34"}, "fingerprint must be 16 bytes"),
        ({"fingerprint": ":".join(["00"] * 16)}, "fingerprint is not that of privateKey"),
        ({"privateKey": "hunter2"}, "privateKey must be an RSA key in PEM form"),
        ({"privateKey": private_pem(KEY, "sesame")}, "privateKey needs privateKeyPassphrase"),
        (
            {"privateKey": private_pem(KEY, "sesame"), "privateKeyPassphrase": "hunter2"},
            "that privateKeyPassphrase decr",
        ),
        ({"privateKeyPassphrase": "hunter2"}, "privateKey is not encrypted: omit privateKeyPassphrase"),
    ],
)
def test_invalid_login_secret_names_the_key_but_not_the_value(changes: dict[str, str], words: str) -> None:
    with pytest.raises(ValueError, match=words) as raised:
        _login(**changes)
    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize(
    ("environ", "principal"),
    [
        ({}, logins.Principal.INSTANCE),
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, logins.Principal.INSTANCE),
        ({"OCI_RESOURCE_PRINCIPAL_VERSION": "2.2"}, logins.Principal.RESOURCE),
        (
            {"OCI_RESOURCE_PRINCIPAL_VERSION": "2.2", "KUBERNETES_SERVICE_HOST": "10.0.0.1"},
            logins.Principal.WORKLOAD,
        ),
        (
            {
                "OCI_RESOURCE_PRINCIPAL_VERSION": "2.2",
                "OCI_RESOURCE_PRINCIPAL_RPST": "/token",
                "KUBERNETES_SERVICE_HOST": "10.0.0.1",
            },
            logins.Principal.RESOURCE,
        ),
    ],
)
def test_a_process_learns_as_whom_it_speaks(environ: dict[str, str], principal: logins.Principal) -> None:
    assert logins.principal(environ) is principal


def test_successors_are_found_in_their_order_and_once() -> None:
    bodies = [
        {"id": each, "freeformTags": {launch.TAG_OLD: f"oci://{before}"}}
        for each, before in (("c", "b"), ("b", "a"), ("x", "y"), ("a", "c"))
    ]
    assert [each["id"] for each in launch.successors("a", bodies)] == ["b", "c"]


def test_a_further_launch_is_waited_for_as_long_as_the_first_one() -> None:
    async def story() -> list[float]:
        clock, ages = CallTimes(), []
        for _ in range(2):
            clock.launches("uid")
            await asyncio.sleep(50.0)
            ages.append(clock.launched_s("uid"))
        return ages

    assert run_virtual(story()) == [50.0, 50.0]


LONG_LOST = tuple(f"{each}, whatever it was" for each in (*launch.LOST.values(), *launch.LOST_OF_VOLUME.values()))


def _ocid(kind: str) -> str:
    return f"ocid1.{kind}.oc1.phx.{'a' * 60}"  # as long as the service makes them


@pytest.mark.parametrize("old", ["STOPPED", "RUNNING"])
@pytest.mark.parametrize("new", ["", "STOPPED"])
def test_message_has_instances_and_remedy_before_the_truncation(old: str, new: str) -> None:
    tags = {launch.TAG_UID: "6f1c0d7e-6f0e-4f6c-9d6e-0a4f2a3b4c5d"}
    body = {"freeformTags": tags, "displayName": "worker-0123456789", "compartmentId": _ocid("compartment")}
    ident, left = _ocid("instance"), (_ocid("bootvolume"),) * 2
    kept = OciReplacementState(ident, body, left, left, LONG_LOST, failed="no host " * 64)
    seen = OciObservation(ident, old, _ocid("new") if new else "", new, left, left, orphans=left, hidden=left)
    told = words_of(seen, kept)
    important = [f"the old instance {ident} is {old}", f"is {new}" if new else "no replacement exists"]
    if old == "STOPPED" and not new:
        important += [
            "what is launched has freeform tag",
            "HostPowerOn starts the old one again once no such",
        ]
    for each in important:  # a Machine shows 512 characters of its last operations
        assert 0 <= told.find(each) < 512 - len(each), (each, told)
    assert len(told) < 4096 - 512  # with what comes before it
