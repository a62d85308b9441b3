"""A launch is held against the rules that Oracle has for it, and against the models of its SDK."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator
from typing import Any, Final, Literal

import msgspec
import oci.core
import pytest

from tests.lab.cloud.oci.models import annotation, fields_of
from unbounded_lab.cloud.oci.details import Details, Launch, PowerAction, Update
from unbounded_lab.cloud.oci.errors import OciProblem
from unbounded_lab.cloud.oci.launching import launch
from unbounded_lab.cloud.oci.lifecycle import InstanceState
from unbounded_lab.cloud.oci.model import AVAILABILITY_DOMAINS, WorkStatus
from unbounded_lab.cloud.oci.seeding import SeededInstance, newest_ubuntu, seed_instance
from unbounded_lab.cloud.oci.tenancy import Tenancy

SHAPE: Final = "VM.Standard3.Flex"
INVALID: Final = (400, "InvalidParameter")
MISSING: Final = (400, "MissingParameter")
NOT_THERE: Final = (404, "NotAuthorizedOrNotFound")
UNRELATED: Final = (400, "RelatedResourceNotAuthorizedOrNotFound")
VNIC: Final = "createVnicDetails"
SOURCE: Final = "sourceDetails"
BODY: Final = "Unable to process JSON input"


def details(tenancy: Tenancy, **changes: Any) -> dict[str, Any]:
    """LaunchInstanceDetails that are accepted, with some changes: `a__b` is the field b of a, None leaves it out."""
    body: dict[str, Any] = {
        "availabilityDomain": AVAILABILITY_DOMAINS[0],
        "compartmentId": tenancy.compartment_id,
        "displayName": "fresh",
        "shape": SHAPE,
        "shapeConfig": {"ocpus": 2.0, "memoryInGBs": 16.0},
        SOURCE: {"sourceType": "image", "imageId": newest_ubuntu(tenancy, SHAPE)},
        VNIC: {"subnetId": tenancy.public_subnet.id},
    }
    for path, value in changes.items():
        *outer, name = path.split("__")
        inner = body
        for each in outer:
            inner = inner.setdefault(each, {})
        inner[name] = value
        if value is None:
            del inner[name]
    return body


def ask(tenancy: Tenancy, token: str | None = None, **changes: Any) -> Any:
    return launch(tenancy, msgspec.json.encode(details(tenancy, **changes)), token, 0.0)[0]


REFUSED: dict[str, tuple[dict[str, Any], tuple[int, str], str]] = {
    # where, and of what
    "another compartment": ({"compartmentId": "ocid1.compartment.oc1..x"}, NOT_THERE, "Authorization failed"),
    "no compartment": ({"compartmentId": None}, MISSING, "compartmentId"),
    "no such domain": ({"availabilityDomain": "AD-9"}, INVALID, "availabilityDomain: AD-9"),
    "no such fault domain": ({"faultDomain": "FAULT-DOMAIN-9"}, INVALID, "faultDomain: FAULT-DOMAIN-9"),
    "no image": ({SOURCE: None}, MISSING, "sourceDetails.imageId"),
    "no image in the source": ({f"{SOURCE}__imageId": None}, MISSING, "sourceDetails.imageId"),
    "no such image": ({f"{SOURCE}__imageId": "ocid1.image.oc1.phx.x"}, NOT_THERE, "Authorization failed"),
    "no kind of source": ({f"{SOURCE}__sourceType": "tape"}, INVALID, "Invalid enum value 'tape'"),
    "another architecture": ({"shape": "VM.Standard.A1.Flex"}, INVALID, "Shape VM.Standard.A1.Flex is not valid for"),
    "a name too long": ({"displayName": "x" * 256}, INVALID, "displayName size must be between 1 and 255"),
    "an empty name": ({"displayName": ""}, INVALID, "displayName size must be between 1 and 255"),
    # the shape
    "no such shape": ({"shape": "VM.Nothing"}, NOT_THERE, "shape VM.Nothing not found"),
    "an empty shape": ({"shape": ""}, INVALID, "shape size must be between 1 and 255"),
    "no shape": ({"shape": None}, MISSING, "shape"),
    "no configuration": ({"shapeConfig": None}, INVALID, "Invalid ShapeConfig: null (Cannot launch flexible instance"),
    "no ocpus": ({"shapeConfig__ocpus": None}, INVALID, "ocpus have to be given"),
    "too few ocpus": ({"shapeConfig__ocpus": 0.5}, INVALID, "at least 1 and at most 32 ocpus"),
    "too many ocpus": ({"shapeConfig__ocpus": 99.0}, INVALID, "at least 1 and at most 32 ocpus"),
    "half a core": ({"shapeConfig": {"vcpus": 3}}, INVALID, "vcpus have to be a multiple of 2"),
    "too little memory for its ocpus": (
        {"shapeConfig__memoryInGBs": 1.0}, INVALID,
        "Invalid ratio of memory in GB to OCPUs. Current ratio: 0.5. Valid ratio range: 1 - 64",
    ),
    "too much memory for its ocpus": (
        {"shapeConfig": {"ocpus": 1.0, "memoryInGBs": 512.0}}, INVALID, "Current ratio: 512.0. Valid ratio range: 1"
    ),
    "too much memory": ({"shapeConfig__memoryInGBs": 513.0}, INVALID, "at most 512 GB"),
    "the ratio of a shape with drives": (
        {"shape": "VM.DenseIO.E4.Flex", "shapeConfig": {"ocpus": 8.0, "memoryInGBs": 64.0}}, INVALID, "range: 16 - 16"
    ),
    "more drives than go with its ocpus": (
        {"shape": "VM.DenseIO.E4.Flex", "shapeConfig": {"ocpus": 8.0, "nvmes": 2}}, INVALID, "has 1 nvmes for 8 ocpus"
    ),
    "drives where there are none": ({"shapeConfig__nvmes": 1}, INVALID, "has no local drives"),
    "a fixed shape": ({"shape": "VM.Standard2.2"}, INVALID, "not a flexible shape"),
    "no such utilisation": ({"shapeConfig__baselineOcpuUtilization": "HALF"}, INVALID, "Invalid enum value 'HALF'"),
    "no such resource management": ({"shapeConfig__resourceManagement": "LAZY"}, INVALID, "Invalid enum value 'LAZY'"),
    "the platform of another processor": ({"platformConfig": {"type": "AMD_VM"}}, INVALID, "platformConfig: AMD_VM"),
    # the boot volume
    "too small a boot volume": ({f"{SOURCE}__bootVolumeSizeInGBs": 49}, INVALID, "bootVolumeSizeInGBs"),
    "too large a boot volume": ({f"{SOURCE}__bootVolumeSizeInGBs": 32769}, INVALID, "bootVolumeSizeInGBs"),
    "volume performance units between two": ({f"{SOURCE}__bootVolumeVpusPerGB": 7}, INVALID, "bootVolumeVpusPerGB"),
    "lower cost, which boot volumes cannot be": ({f"{SOURCE}__bootVolumeVpusPerGB": 0}, INVALID, BODY),
    "too many volume performance units": ({f"{SOURCE}__bootVolumeVpusPerGB": 130}, INVALID, BODY),
    "no such key": ({f"{SOURCE}__kmsKeyId": "ocid1.key.oc1.phx.x"}, NOT_THERE, "Authorization failed"),
    "an empty key": ({f"{SOURCE}__kmsKeyId": ""}, INVALID, "sourceDetails.kmsKeyId size must be between 1 and 255"),
    # metadata and tags
    "too much metadata": (
        {"metadata": {"user_data": "A" * 32_000}}, INVALID,
        "Metadata size is 32016 bytes and cannot be larger than 32000 bytes",
    ),
    "too much metadata with the extended one": (
        {"metadata": {"a": "A" * 16_000}, "extendedMetadata": {"b": {"c": "A" * 16_000}}}, INVALID, "cannot be larger"
    ),
    "user data in plain text": ({"metadata": {"user_data": "#!/bin/sh"}}, INVALID, "user_data has to be encoded"),
    "user data that is cut off": ({"metadata": {"user_data": "b2x"}}, INVALID, "user_data has to be encoded"),
    "metadata that is no text": ({"metadata": {"a": 1}}, INVALID, BODY),
    "too many tags": ({"freeformTags": dict.fromkeys("abcdefghijk", "x")}, INVALID, "at most 10"),
    "a tag too long": ({"freeformTags": {"a": "x" * 257}}, INVALID, "its value 256"),
    "a key too long": ({"freeformTags": {"x" * 101: "a"}}, INVALID, "at most 100 characters"),
    "no such namespace": ({"definedTags": {"No": {"a": "b"}}}, UNRELATED, "not found: TagNamespace No does not exists"),
    "no such tag": (
        {"definedTags": {"Operations": {"Colour": "b"}}}, UNRELATED,
        "TagDefinition Colour in TagNamespace Operations does not exists",
    ),
    "a tag that only the service sets": ({"definedTags": {"Oracle-Tags": {"CreatedBy": "me"}}}, UNRELATED, "Oracle-"),
    "a value too long": ({"definedTags": {"Operations": {"CostCenter": "x" * 257}}}, INVALID, "Operations.CostCenter"),
    "a tag of the VNIC": ({f"{VNIC}__definedTags": {"No": {"a": "b"}}}, UNRELATED, "TagNamespace No"),
    # the network
    "no subnet": ({VNIC: {"assignPublicIp": True}}, MISSING, "subnetId"),
    "no such subnet": ({f"{VNIC}__subnetId": "ocid1.subnet.oc1.phx.x"}, NOT_THERE, "Authorization failed"),
    "a public IP where none may be": (
        {f"{VNIC}__subnetId": "private", f"{VNIC}__assignPublicIp": True}, INVALID, "prohibits public IPs"
    ),
    "no IPv6 here": ({f"{VNIC}__assignIpv6Ip": True}, INVALID, "has no IPv6 network"),
    "an address of another subnet": ({f"{VNIC}__privateIp": "192.168.9.9"}, INVALID, "10.0.0.2 to 10.0.15.254"),
    "the address of the router": ({f"{VNIC}__privateIp": "10.0.0.1"}, INVALID, "10.0.0.1 is no address that subnet"),
    "the last address": ({f"{VNIC}__privateIp": "10.0.15.255"}, INVALID, "10.0.15.255 is no address that subnet"),
    "what is no address": ({f"{VNIC}__privateIp": "ten"}, INVALID, "ten is no address"),
    "an address that is taken": ({f"{VNIC}__privateIp": "10.0.0.2"}, INVALID, "10.0.0.2 is taken in subnet"),
    "a private IP that is not there": ({f"{VNIC}__privateIpId": "ocid1.privateip.x"}, NOT_THERE, "Authorization"),
    "a network of another subnet": ({f"{VNIC}__subnetCidr": "10.9.0.0/24"}, INVALID, "subnetCidr: 10.9.0.0/24"),
    "no VLAN": ({f"{VNIC}__vlanId": "ocid1.vlan.x"}, NOT_THERE, "Authorization failed"),
    "too many security groups": ({f"{VNIC}__nsgIds": ["nsg"] * 6}, INVALID, "nsgIds size must be between 0 and 5"),
    "no such security group": ({f"{VNIC}__nsgIds": ["x"]}, NOT_THERE, "Authorization failed"),
    "a key for a security group": ({f"{VNIC}__nsgIds": ["key"]}, NOT_THERE, "Authorization failed"),
    "what is no host name": ({f"{VNIC}__hostnameLabel": "a b!"}, INVALID, "hostnameLabel: 'a b!' is no host name"),
    "a host name that ends with a dash": ({f"{VNIC}__hostnameLabel": "a-"}, INVALID, "RFC 1123"),
    "a host name too long": ({f"{VNIC}__hostnameLabel": "a" * 64}, INVALID, "RFC 1123"),
    "two host names": ({f"{VNIC}__hostnameLabel": "a", "hostnameLabel": "b"}, INVALID, "have to be the same"),
    "a host name without a record": (
        {f"{VNIC}__hostnameLabel": "a", f"{VNIC}__assignPrivateDnsRecord": False}, INVALID,
        "Hostname a is provided when AssignPrivateDnsRecord is false",
    ),
    "security attributes twice": (
        {"securityAttributes": {"z": {"a": 1}}, f"{VNIC}__securityAttributes": {"z": {"a": 1}}}, INVALID, "not for both"
    ),
    # what it refers to
    "no such reservation": ({"capacityReservationId": "x"}, NOT_THERE, "Authorization failed"),
    "no such placement group": ({"clusterPlacementGroupId": "x"}, NOT_THERE, "Authorization failed"),
    "no such cluster": ({"computeClusterId": "x"}, NOT_THERE, "Authorization failed"),
    "no such host": ({"dedicatedVmHostId": "x"}, NOT_THERE, "Authorization failed"),
    "no such configuration": ({"instanceConfigurationId": "x"}, NOT_THERE, "Authorization failed"),
    "no such host group": (
        {"placementConstraintDetails": {"type": "HOST_GROUP", "computeHostGroupId": "x"}}, NOT_THERE, "Authorization"
    ),
    # what it is made of
    "no such field": ({"colour": "red"}, INVALID, "unknown field `colour`"),
    "a number for a name": ({"displayName": 7}, INVALID, "Expected `str | null`, got `int` - at `$.displayName`"),
    "no such firmware": ({"launchOptions": {"firmware": "BIOS9"}}, INVALID, "Invalid enum value 'BIOS9'"),
    "no such recovery": ({"availabilityConfig": {"recoveryAction": "PRAY"}}, INVALID, "Invalid enum value 'PRAY'"),
    "no such state of a plugin": (
        {"agentConfig": {"pluginsConfig": [{"name": "Bastion", "desiredState": "ON"}]}}, INVALID, "enum value 'ON'"
    ),
    "a plugin without a state": ({"agentConfig": {"pluginsConfig": [{"name": "a"}]}}, MISSING, "desiredState"),
}  # fmt: skip


@pytest.fixture(scope="module")
def tenancy() -> Tenancy:
    """With one instance, which has the address 10.0.0.2."""
    tenancy = Tenancy("rules", now=0.0)
    seed_instance(tenancy, SeededInstance("old", hostname_label="old"), 0.0)
    return tenancy


def meant(tenancy: Tenancy, changes: dict[str, Any]) -> dict[str, Any]:
    """Changes with the OCIDs that a tenancy has in place of names."""
    idents = {"private": tenancy.private_subnet.id, "nsg": tenancy.nsg_id, "key": tenancy.kms_key_id}
    return {
        path: [idents.get(each, each) for each in value] if isinstance(value, list) else idents.get(str(value), value)
        for path, value in changes.items()
    }


@pytest.mark.parametrize("what", REFUSED)
def test_a_launch_that_breaks_a_rule_is_refused_and_makes_nothing(what: str, tenancy: Tenancy) -> None:
    changes, refusal, says = REFUSED[what]
    with pytest.raises(OciProblem) as told:
        ask(tenancy, **meant(tenancy, changes))
    assert (told.value.status, told.value.code) == refusal, told.value.message
    assert says in told.value.message
    assert len(tenancy.live()) == 1
    assert tenancy.strays() == []


@pytest.mark.parametrize("token", ["", "x" * 65])
def test_a_retry_token_has_a_size(token: str, tenancy: Tenancy) -> None:
    with pytest.raises(OciProblem, match="opc-retry-token size must be between 1 and 64") as told:
        ask(tenancy, token)
    assert (told.value.status, told.value.code) == INVALID


@pytest.mark.parametrize(
    "changes",
    [
        {"displayName": "x" * 255, "capacityReservationId": "", "metadata": {"user_data": "b2xk\nb2xk\n"}},
        {"metadata": {"user_data": "A" * 31_980}},
        {"shapeConfig": {"ocpus": 1.0, "memoryInGBs": 64.0}},
        {"shapeConfig": {"vcpus": 4}},
        {"shape": "VM.DenseIO.E4.Flex", "shapeConfig": {"ocpus": 16.0, "nvmes": 2}},
        {"shape": "VM.Standard.E5.Flex", "shapeConfig": {"ocpus": 94.0}},  # more than 12 GB for each would be too much
        {f"{SOURCE}__bootVolumeVpusPerGB": 120, f"{SOURCE}__bootVolumeSizeInGBs": 50, f"{SOURCE}__kmsKeyId": "key"},
        {f"{VNIC}__nsgIds": ["nsg"] * 5, f"{VNIC}__privateIp": "10.0.15.254", f"{VNIC}__hostnameLabel": "a-1"},
        {f"{VNIC}__subnetCidr": "10.0.0.0/20", "hostnameLabel": "b"},
        {"definedTags": {"Operations": {"CostCenter": "42"}}, f"{VNIC}__definedTags": {"Operations": {}}},
    ],
)
def test_what_is_just_allowed_is_made(changes: dict[str, Any]) -> None:
    tenancy = Tenancy("allowed", now=0.0)
    made = ask(tenancy, "x" * 64, **meant(tenancy, changes))
    tenancy.advance(10.0)
    assert made.state is InstanceState.RUNNING


def test_the_boot_volume_is_as_it_was_asked_for() -> None:
    tenancy = Tenancy("boot", now=0.0)
    wanted = {"bootVolumeVpusPerGB": 30, "bootVolumeSizeInGBs": 77, "kmsKeyId": tenancy.kms_key_id}
    changes: dict[str, Any] = {f"{SOURCE}__{name}": value for name, value in wanted.items()}
    ask(tenancy, **changes)
    (shown,) = tenancy.boot_volumes.views_at(0.0)
    assert (shown.body["vpusPerGB"], shown.body["sizeInGBs"], shown.body["kmsKeyId"]) == (30, 77, tenancy.kms_key_id)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({f"{VNIC}__hostnameLabel": "same"}, "Hostname same is already used in subnet"),
        ({f"{VNIC}__privateIp": "10.0.0.9"}, "Private IP 10.0.0.9 is already used in subnet"),
    ],
)
def test_vnic_conflict_terminates_an_accepted_launch(changes: dict[str, Any], says: str) -> None:
    tenancy = Tenancy("taken", now=0.0)
    first, second = ask(tenancy, **changes), ask(tenancy, **changes)
    tenancy.advance(10.0)
    assert (first.state, second.state) == (InstanceState.RUNNING, InstanceState.TERMINATED)
    work = next(each for each in tenancy.work_requests if each.instance_id == second.id)
    assert work.status is WorkStatus.FAILED
    assert f"A problem occurred while preparing the instance's VNIC. ({says}" in (work.error or ("", ""))[1]
    assert tenancy.strays() == []


# The models

NOT_SIMULATED: Final = {
    "LaunchInstanceDetails": {"launchVolumeAttachments"},
    "InstanceSourceViaImageDetails": {"instanceSourceImageFilterDetails"},
    "UpdateInstanceDetails": {
        *("agentConfig", "availabilityConfig", "capacityReservationId", "dedicatedVmHostId", "faultDomain"),
        *("instanceOptions", "isAIEnterpriseEnabled", "launchOptions", "licensingConfigs", "platformConfig"),
        *("securityAttributes", "shape", "shapeConfig", "timeMaintenanceRebootDue"),
    },
}
"""Fields that the SDK has and the lab refuses."""
PLAIN: Final = (str, int, float, bool, Any)


def differences(ours: Any, theirs: Any, path: str = "$") -> Iterator[str]:
    """Yield the places where a type of the lab differs from the SDK's models."""
    ours, theirs = essence(ours), essence(theirs)
    if isinstance(ours, type) and issubclass(ours, Details):
        yield from structure_differences(ours, theirs, path)
    elif typing.get_origin(ours) is Literal:
        allowed = {each.value for kind in kinds(theirs) for each in kind}
        if set(typing.get_args(ours)) != allowed:
            yield f"{path}: {ours} for {sorted(allowed)}"
    elif typing.get_origin(ours) in (tuple, dict):
        theirs_of = typing.get_args(theirs)
        if typing.get_origin(theirs) is not {tuple: list, dict: dict}[typing.get_origin(ours)]:
            yield f"{path}: {ours} for {theirs}"
        else:
            of = typing.get_args(ours)[0 if typing.get_origin(ours) is tuple else 1]
            yield from differences(of, theirs_of[-1], f"{path}[]")
    elif ours not in PLAIN or ours is not theirs:
        yield f"{path}: {ours} for {theirs}"


def structure_differences(ours: type[Details], theirs: Any, path: str) -> Iterator[str]:
    known = {each.encode_name: each for each in msgspec.structs.fields(ours)}
    models = [each for each in kinds(theirs) if fields_of(each) is not None and is_known(each, known)]
    shown: dict[str, list[Any]] = {}
    for model in models:
        for name, (kind, is_needed) in (fields_of(model) or {}).items():
            if name not in NOT_SIMULATED.get(model.__name__, ()):
                shown.setdefault(name, []).append(kind)
            if is_needed and len(models) == 1 and name in known and not known[name].required:
                yield f"{path}.{name}: is required"
    yield from (f"{path}.{name}: only one side has it" for name in sorted(known.keys() ^ shown.keys()))
    for name in sorted(known.keys() & shown.keys()):
        yield from differences(known[name].type, typing.Union[tuple(shown[name])], f"{path}.{name}")  # noqa: UP007


def is_known(model: Any, known: dict[str, Any]) -> bool:
    """Return whether the lab has this one of the SDK's discriminated models."""
    return all(
        kind.told.value in typing.get_args(known[name].type)
        for name, (kind, _) in (fields_of(model) or {}).items()
        if "told" in getattr(kind, "__members__", ())
    )


def kinds(of: Any) -> tuple[Any, ...]:
    return typing.get_args(of) if typing.get_origin(of) in (typing.Union, types.UnionType) else (of,)


def essence(of: Any) -> Any:
    """An annotation without None and without what bounds it."""
    if typing.get_origin(of) is typing.Annotated:
        return essence(typing.get_args(of)[0])
    left = [each for each in kinds(of) if each is not type(None)]
    return essence(left[0]) if len(left) == 1 and left[0] is not of else of


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [(Launch, "LaunchInstanceDetails"), (Update, "UpdateInstanceDetails"), (PowerAction, "InstancePowerActionDetails")],
)
def test_a_request_may_hold_what_the_sdk_has(ours: type[Details], theirs: str) -> None:
    assert list(differences(ours, annotation(theirs, oci.core.models))) == []


def test_another_enumeration_is_a_difference() -> None:
    class Other(Details, frozen=True, kw_only=True):
        desired_state: Literal["ENABLED", "ON"]
        name: int | None = None

    assert list(differences(Other, oci.core.models.InstanceAgentPluginConfigDetails)) == [
        "$.name: is required",
        "$.desiredState: typing.Literal['ENABLED', 'ON'] for ['DISABLED', 'ENABLED']",
        "$.name: <class 'int'> for <class 'str'>",
    ]
