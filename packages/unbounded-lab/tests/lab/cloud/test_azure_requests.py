"""Requests that Azure refuses are refused by the simulated one, with the status, code and target that Azure has."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, get_args, get_origin

import msgspec
import pytest
from azure.mgmt.compute import models
from scripts.azure_requests import fields_of, is_enum

from tests.lab.cloud.azure_support import model_faults
from unbounded_lab.cloud.azure import model_rules
from unbounded_lab.cloud.azure.errors import ERRORS
from unbounded_lab.cloud.azure.local import GROUP
from unbounded_lab.cloud.azure.login import RESOURCE, Application, LoginEndpoint
from unbounded_lab.cloud.azure.misbehaviours import AzureFaults
from unbounded_lab.cloud.azure.model import MACHINES, NICS, ResourceId
from unbounded_lab.cloud.azure.resource_manager import Azure
from unbounded_lab.cloud.azure.resources import AzureResources
from unbounded_lab.cloud.azure.seeding import VmShape, add_machine, add_nic, model
from unbounded_lab.cloud.azure.service import ROUTES
from unbounded_lab.http import LabReply, LabRequest

Body = dict[str, Any]
Change = Callable[[Body], object]
Answer = tuple[int, str, str | None]

HERE: Final = ResourceId("s", GROUP, MACHINES, "vm-1")
THERE: Final = HERE.sibling(MACHINES, "vm-2")
SHAPE: Final = VmShape(data_disks=1, zones=("1",))
VERSION: Final = "api-version=2026-04-01"
LOGIN: Final = LoginEndpoint("tenant", b"secret")
LOGIN.applications["app"] = Application("app", "secret")
TOKEN: Final = LOGIN.grant(LOGIN.applications["app"], f"{RESOURCE}/.default", 0.0, lifetime_s=60.0)["access_token"]


class Desk:
    """A cloud with `vm-1`, and a network interface for another, called without a socket."""

    def __init__(self, **faults: Any) -> None:
        self.estate = AzureResources("tenant")
        add_machine(self.estate, HERE, SHAPE, 0.0)
        add_nic(self.estate, THERE.sibling(NICS, "vm-2-nic-0"), "westeurope", 0.0)
        self.azure = Azure(self.estate, LOGIN, ROUTES)
        self.azure.set_faults(AzureFaults(rate_limits=False, **faults), 0.0)

    def ask(
        self, method: str, path: str, body: Any = None, query: str = VERSION, headers: Mapping[str, str] = {}
    ) -> LabReply:
        content = b"" if body is None else msgspec.json.encode(body)
        request = LabRequest(method, path, {"authorization": f"Bearer {TOKEN}", **headers}, content, query)
        call = self.azure.call(request)
        reply = self.azure.answer(request, call, 0.0)
        assert model_faults(call.name, reply) == []
        return reply

    def told(self, method: str, path: str, body: Any = None, query: str = VERSION) -> tuple[Answer, str]:
        """Status, code and target of an error, and its message; nothing was done."""
        before = len(self.estate.history.events)
        reply = self.ask(method, path, body, query)
        assert len(self.estate.history.events) == before
        error = msgspec.json.decode(reply.body)["error"]
        return (reply.status, error["code"], error.get("target")), error["message"]


def another() -> Body:
    """Return the body that creates `vm-2`, a plain machine."""
    return model(THERE, VmShape(zones=("1",)))


def at(path: str, value: Any) -> Change:
    """The change that sets what is at a path; None takes it away."""

    def change(body: Body) -> None:
        *outer, last = path.split("/")
        for name in outer:
            body = body.setdefault(name, {})
        body[last] = value
        if value is None:
            del body[last]

    return change


def disks(*given: Body) -> Change:
    return at(
        "properties/storageProfile/dataDisks", [{"createOption": "Empty", "diskSizeGB": 4, **each} for each in given]
    )


def both(*changes: Change) -> Change:
    return lambda body: [change(body) for change in changes]


def _id(kind: str, name: str = "none") -> str:
    return str(HERE.sibling(kind, name))


P, STORAGE, OS = "properties/", "properties/storageProfile/", "properties/osProfile/"
WINDOWS: Final = both(at(f"{OS}linuxConfiguration", None), at(f"{OS}windowsConfiguration", {}))
PASSWORD: Final = at(f"{OS}adminPassword", "Long-enough-1")
WRONG: Final = "InvalidParameter"
IMAGE: Final = {"publisher": "Canonical", "offer": "ubuntu-24_04-lts", "sku": "server", "version": "latest"}
ALMA: Final = {"publisher": "almalinux", "offer": "almalinux-x86_64", "sku": "server", "version": "latest"}
HOME: Final = "/home/azureuser/.ssh/authorized_keys"
PLAN: Final = {"publisher": "almalinux", "product": "almalinux-x86_64", "name": "server"}
GALLERY: Final = "/subscriptions/s/resourceGroups/g/providers/Microsoft.Compute/galleries/g/images/i/versions/1.0.0"
IDENTITY: Final = _id("Microsoft.ManagedIdentity/userAssignedIdentities")

REFUSED: Final[Mapping[str, tuple[Change, Answer, str]]] = {
    "no location": (at("location", None), (400, "LocationRequired", None), ""),
    "an unknown location": (
        at("location", "mars"),
        (400, "LocationNotAvailableForResourceType", None),
        "'mars' is not",
    ),
    "the NIC's is another": (at("location", "eastus2"), (400, "InvalidResourceReference", None), "in the same region"),
    "an unknown member": (at("colour", "red"), (400, "InvalidRequestContent", None), "Path 'colour'"),
    "an unknown property": (
        at(f"{P}colour", "red"),
        (400, "BadRequest", "vm.properties.colour"),
        "find member 'colour'",
    ),
    "a zone that is not": (
        at("zones", ["9"]),
        (400, "InvalidAvailabilityZone", None),
        "The zone(s) '9' for resource 'Microsoft.Compute/virtualMachines/vm-2' is not supported. The supported zones"
        " for location 'westeurope' are '1,2,3'",
    ),
    "51 tags": (at("tags", {str(n): "" for n in range(51)}), (400, "InvalidTags", None), "count - '51'"),
    "a long tag name": (at("tags", {"x" * 513: ""}), (400, "InvalidTagName", None), "'512' characters"),
    "a tag name with a slash": (at("tags", {"a/b": ""}), (400, "InvalidTagNameCharacters", None), "'a/b'"),
    "a long tag value": (at("tags", {"a": "x" * 257}), (400, "InvalidTagValueLength", None), "'256' characters"),
    "no size": (at(f"{P}hardwareProfile", None), (400, WRONG, "vmSize"), "missing (null)"),
    "no such size": (
        at(f"{P}hardwareProfile/vmSize", "Standard_Q99zz_v9"),
        (400, WRONG, "vmSize"),
        "Q99zz_v9 provided",
    ),
    "no NIC": (at(f"{P}networkProfile/networkInterfaces", []), (400, WRONG, "networkProfile"), ""),
    "a NIC that is not": (
        at(f"{P}networkProfile/networkInterfaces", [{"id": _id(NICS)}]),
        (400, "InvalidResourceReference", None),
        "networkInterfaces/none",
    ),
    "no OS": (at(f"{P}osProfile", None), (400, WRONG, "osProfile"), ""),
    "no admin": (at(f"{OS}adminUsername", None), (400, WRONG, "osProfile.adminUsername"), ""),
    "root as admin": (at(f"{OS}adminUsername", "root"), (400, WRONG, "adminUsername"), "not allowed"),
    "a long name": (at(f"{OS}computerName", "x" * 65), (400, WRONG, "computerName"), "exceed 64 characters"),
    "a name with a bang": (at(f"{OS}computerName", "a!"), (400, WRONG, "computerName"), "{ } \\ |"),
    "a long name of Windows": (
        both(WINDOWS, PASSWORD, at(f"{OS}computerName", "x" * 16)),
        (400, WRONG, "computerName"),
        "more than 15",
    ),
    "Windows without a password": (WINDOWS, (400, WRONG, "adminPassword"), "missing"),
    "a weak password": (at(f"{OS}adminPassword", "weak-password"), (400, WRONG, "adminPassword"), "6-72 characters"),
    "a short one of Windows": (
        both(WINDOWS, at(f"{OS}adminPassword", "Short-1")),
        (400, WRONG, "adminPassword"),
        "8-123",
    ),
    "a password that all know": (at(f"{OS}adminPassword", "P@ssw0rd"), (400, WRONG, "adminPassword"), "not allowed"),
    "neither key nor password": (
        at(f"{OS}linuxConfiguration", {"disablePasswordAuthentication": True}),
        (400, WRONG, "linuxConfiguration"),
        "using either SSH",
    ),
    "no password where one logs in with it": (
        at(f"{OS}linuxConfiguration/disablePasswordAuthentication", False),
        (400, WRONG, "adminPassword"),
        "missing",
    ),
    "a key in another place": (
        at(f"{OS}linuxConfiguration/ssh/publicKeys", [{"path": "/root/.ssh/authorized_keys", "keyData": "x"}]),
        (400, WRONG, "linuxConfiguration.ssh.publicKeys.path"),
        "/home/azureuser/.ssh/authorized_keys",
    ),
    "a key that is none": (
        at(f"{OS}linuxConfiguration/ssh/publicKeys", [{"path": HOME, "keyData": "ssh-rsa AAAA me"}]),
        (400, WRONG, "linuxConfiguration.ssh.publicKeys.keyData"),
        "keyData is invalid",
    ),
    "custom data that is none": (at(f"{OS}customData", "!"), (400, WRONG, "customData"), "87380"),
    "custom data that is long": (
        at(f"{OS}customData", base64.b64encode(bytes(65536)).decode()),
        (400, WRONG, "customData"),
        "87380",
    ),
    "user data that is none": (at(f"{P}userData", "!"), (400, WRONG, "userData"), "87380"),
    "a guest signal": (
        at(f"{OS}requireGuestProvisionSignal", True),
        (400, WRONG, "osProfile.requireGuestProvisionSignal"),
        "",
    ),
    "an unknown license": (at(f"{P}licenseType", "FREE_BEER"), (400, WRONG, "licenseType"), "FREE_BEER is invalid"),
    "eviction of no Spot": (
        at(f"{P}evictionPolicy", "Delete"),
        (400, "EvictionPolicyCanBeSetOnlyOnAzureSpotVirtualMachines", "evictionPolicy"),
        "",
    ),
    "half an image": (
        at(f"{STORAGE}imageReference", {"publisher": "Canonical"}),
        (400, WRONG, "imageReference.offer"),
        "imageReference.offer is invalid",
    ),
    "no image": (at(f"{STORAGE}imageReference", None), (400, WRONG, "imageReference"), "missing"),
    "an unknown publisher": (
        at(f"{STORAGE}imageReference/publisher", "nobody"),
        (404, "PlatformImageNotFound", "imageReference"),
        "'nobody:ubuntu-24_04-lts:server:latest'",
    ),
    "an unknown version": (
        at(f"{STORAGE}imageReference/version", "1.2.3"),
        (404, "PlatformImageNotFound", "imageReference"),
        "server:1.2.3",
    ),
    "a gallery's that is not": (
        at(f"{STORAGE}imageReference", {"id": GALLERY}),
        (404, "GalleryImageNotFound", "imageReference"),
        f'"The gallery image {GALLERY} is not available in westeurope region.',
    ),
    "an own image that is not": (
        at(f"{STORAGE}imageReference", {"id": _id("Microsoft.Compute/images")}),
        (404, "NotFound", "imageReference"),
        "The Image /subscriptions/s/",
    ),
    "an image of a plan without it": (
        at(f"{STORAGE}imageReference", ALMA),
        (400, "VMMarketplaceInvalidInput", None),
        "requires Plan information",
    ),
    "a plan of another image": (
        both(at(f"{STORAGE}imageReference", ALMA), at("plan", {**PLAN, "name": "other"})),
        (400, "VMMarketplaceInvalidInput", None),
        "The purchase information does not match.",
    ),
    "a plan for an image that has none": (
        at("plan", PLAN),
        (400, "VMMarketplaceInvalidInput", None),
        "non Marketplace image does not need Plan information",
    ),
    "a small OS disk": (
        at(f"{STORAGE}osDisk/diskSizeGB", 29),
        (409, "OperationNotAllowed", "osDisk.diskSizeGB"),
        "The specified disk size 29 GB is smaller than",
    ),
    "an OS disk's name that is taken": (
        at(f"{STORAGE}osDisk/name", "vm-1_OsDisk_1"),
        (409, "ConflictingUserInput", _id("Microsoft.Compute/disks", "vm-1_OsDisk_1")),
        "already exists",
    ),
    "a disk without a LUN": (
        at(f"{STORAGE}dataDisks", [{"createOption": "Empty"}]),
        (400, WRONG, "dataDisk.lun"),
        "missing",
    ),
    "two of one LUN": (disks({"lun": 3}, {"lun": 3}), (400, WRONG, "dataDisk.lun"), "A disk at LUN 3 already exists."),
    "a high LUN": (disks({"lun": 64}), (400, WRONG, "dataDisk.lun"), "must be between '0' and '63' inclusive"),
    "five disks for four": (
        disks(*({"lun": lun} for lun in range(5))),
        (409, "OperationNotAllowed", "dataDisks"),
        "attached to a VM of this size is 4.",
    ),
    "a disk of no size": (disks({"lun": 7, "diskSizeGB": None}), (400, WRONG, "dataDisk.diskSizeGB"), "missing"),
    "a new disk with an id": (
        disks({"lun": 0, "managedDisk": {"id": "x"}}),
        (400, WRONG, "dataDisk.managedDisk.id"),
        "not allowed",
    ),
    "an identity that is not": (
        at("identity", {"type": "UserAssigned", "userAssignedIdentities": {IDENTITY: {}}}),
        (400, "FailedIdentityOperation", None),
        IDENTITY,
    ),
    "a kind of identity without any": (
        at("identity", {"type": "UserAssigned"}),
        (400, "MissingIdentityIds", None),
        "for 'UserAssigned' identity type",
    ),
    "an identity for nothing": (
        at("identity", {"type": "SystemAssigned", "userAssignedIdentities": {IDENTITY: {}}}),
        (400, "FailedIdentityOperation", None),
        "should not contain: userAssignedIdentities",
    ),
    "nonsense for a kind of identity": (
        at("identity", {"type": "Human"}),
        (400, "InvalidRequestContent", None),
        """Error converting value "Human" to type 'ResourceIdentityType'. Path 'identity.type'""",
    ),
    "a reference that is none": (
        at(f"{P}availabilitySet", {"id": "/nowhere"}),
        (400, "BadRequest", None),
        "Virtual Machine cannot be both",
    ),
    "Spot in an availability set": (
        both(at(f"{P}availabilitySet", {"id": "x"}), at(f"{P}priority", "Spot")),
        (400, "AzureSpotVMNotSupportedInAvailabilitySet", "priority"),
        "",
    ),
    **{
        f"no such {name}": (
            at(f"{P}{path}/id", _id(f"Microsoft.Compute/{kind}")),
            (400, "InvalidResourceReference", None),
            f"{kind}/none referenced by resource",
        )
        for name, path, kind in (
            ("proximityPlacementGroup", "proximityPlacementGroup", "proximityPlacementGroups"),
            ("host", "host", "hostGroups/g/hosts"),
            ("hostGroup", "hostGroup", "hostGroups"),
            (
                "capacityReservationGroup",
                "capacityReservation/capacityReservationGroup",
                "capacityReservationGroups",
            ),
            ("diskEncryptionSet", "storageProfile/osDisk/managedDisk/diskEncryptionSet", "diskEncryptionSets"),
        )
    },
    "a placement that is no id": (
        at(f"{P}proximityPlacementGroup", {"id": "mine"}),
        (400, "BadRequest", None),
        "Id mine is not a valid resource reference.",
    ),
}


def test_what_is_refused_here_is_accepted_without_that() -> None:
    desk = Desk()
    assert desk.ask("PUT", str(THERE), another()).status == 201


@pytest.mark.parametrize("what", REFUSED)
def test_a_creation_that_azure_refuses_is_refused_and_nothing_is_done(what: str) -> None:
    change, answer, words = REFUSED[what]
    body = another()
    change(body)
    told, message = Desk().told("PUT", str(THERE), body)
    assert told == answer, message
    assert words in message


CHANGES: Final = {
    "an unknown property",
    "51 tags",
    "no such size",
    "two of one LUN",
    "a high LUN",
    "five disks for four",
    "a disk of no size",
    "an unknown license",
    "nonsense for a kind of identity",
    "no such proximityPlacementGroup",
    "a NIC that is not",
}


@pytest.mark.parametrize("what", sorted(CHANGES))
def test_a_change_is_held_against_the_same(what: str) -> None:
    change, answer, words = REFUSED[what]
    desk = Desk()
    desk.ask("POST", f"{HERE}/deallocate")
    desk.azure.advance(60.0)
    body: Body = {}
    change(body)
    told, message = desk.told("PATCH", str(HERE), body)
    assert told == answer, message
    assert words in message


def _enums(annotation: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], list[str]]]:
    """Yield the paths of a model's enumerated values, and these; 0 in a path is the first of a list."""
    if is_enum(annotation):
        yield path, [each.value for each in annotation]
        return
    if get_origin(annotation) is list:
        path = (*path, 0)
    if annotation is not models.VirtualMachineInstanceView:  # its fields are read-only
        for each in get_args(annotation):
            yield from _enums(each, path)
        for name, (inner, _) in (fields_of(annotation) or {}).items():
            if name not in ("resources", "systemData"):
                yield from _enums(inner, (*path, name))


def _nested(path: tuple[Any, ...], value: Any) -> Any:
    for name in reversed(path):
        value = [value] if name == 0 else {name: value}
    return value


def _spelled(path: tuple[Any, ...]) -> str:
    return "".join("[0]" if name == 0 else f".{name}" for name in path).removeprefix(".")


@pytest.mark.slow
def test_no_enumerated_value_can_be_another_than_the_sdk_knows() -> None:
    desk, seen = Desk(), set[str]()
    for path, values in _enums(models.VirtualMachine):
        where = _spelled(path)
        seen.add(where)
        of_compute = path[0] == "properties"
        answer = (400, "BadRequest", f"vm.{where}") if of_compute else (400, "InvalidRequestContent", None)
        for wrong in ("Nonsense", 3):
            told, message = desk.told("PUT", str(THERE), {"location": "westeurope", **_nested(path, wrong)})
            assert told == answer, message
            assert message.startswith("Error converting value" if of_compute else "The request content was invalid")
            assert f"Path '{where}'" in message
        told, message = desk.told("PUT", str(THERE), {"location": "westeurope", **_nested(path, values[-1].upper())})
        assert "converting" not in message
    assert {"properties.storageProfile.dataDisks[0].caching", "identity.type", "properties.evictionPolicy"} <= seen
    assert len(seen) > 40


def test_an_extension_is_held_against_its_own_model() -> None:
    body = {"location": "westeurope", "properties": {"publisher": 3}}
    told, message = Desk().told("PUT", f"{HERE}/extensions/one", body)
    assert told == (400, "BadRequest", None)
    assert message == "Error converting value 3 to type 'str'. Path 'properties.publisher'."


def test_enumerated_values_are_kept_in_their_usual_case() -> None:
    body = another()
    at(f"{STORAGE}osDisk/caching", "readonly")(body)
    desk = Desk()
    assert desk.ask("PUT", str(THERE), body).status == 201
    assert desk.estate.machine(THERE).os_disk["caching"] == "ReadOnly"


def test_what_is_only_read_is_ignored_in_a_request() -> None:
    body = another() | {"id": 3, "etag": "x", "resources": [{}]}
    at(f"{P}provisioningState", "Odd")(body)
    assert Desk().ask("PUT", str(THERE), body).status == 201


def test_what_a_machine_names_can_be_put_there() -> None:
    desk, body = Desk(), another()
    placement = _id("Microsoft.Compute/proximityPlacementGroups", "near")
    desk.estate.others |= {placement.lower(), GALLERY.lower()}
    at(f"{P}proximityPlacementGroup", {"id": placement})(body)
    at(f"{STORAGE}imageReference", {"id": GALLERY})(body)
    assert desk.ask("PUT", str(THERE), body).status == 201


def test_a_version_of_an_image_can_be_deprecated_and_withdrawn() -> None:
    urn = "Canonical:ubuntu-24_04-lts:server:24.04.202505010"
    body = another()
    at(f"{STORAGE}imageReference/version", urn.rpartition(":")[2])(body)
    image = f"{PUBLISHERS}/Canonical/artifacttypes/vmimage/offers/ubuntu-24_04-lts/skus/server/versions/24.04.202505010"
    assert (Desk().ask("PUT", str(THERE), body).status, Desk().ask("GET", image).status) == (201, 200)
    deprecated, withdrawn = Desk(images_deprecated=(urn,)), Desk(images_withdrawn=(urn,))
    assert deprecated.told("PUT", str(THERE), body)[0] == (404, "ImageVersionDeprecated", "imageReference")
    assert withdrawn.told("PUT", str(THERE), body)[0] == (404, "PlatformImageNotFound", "imageReference")
    assert deprecated.told("GET", image)[0] == (404, "ImageVersionDeprecated", None)
    assert withdrawn.told("GET", image) == ((404, "NotFound", None), "Artifact: VMImage was not found.")


GROUP_ID: Final = f"/subscriptions/s/resourceGroups/{GROUP}"
PUBLISHERS: Final = "/subscriptions/s/providers/Microsoft.Compute/locations/westeurope/publishers"


@pytest.mark.parametrize(
    ("path", "query", "answer", "words"),
    [
        ("/nowhere", "", (404, "NotFound", None), "/nowhere"),
        ("/subscriptions/other/resourceGroups/g", "api-version=2024-11-01", (404, "SubscriptionNotFound", None), ""),
        ("/subscriptions/s/resourceGroups/other", "api-version=2024-11-01", (404, "ResourceGroupNotFound", None), ""),
        (GROUP_ID, "", (400, "MissingApiVersionParameter", None), ""),
        (GROUP_ID, "api-version=2015-01-01", (400, "InvalidApiVersionParameter", None), "versions are '2024-11-01'"),
        (str(HERE), "api-version=banana", (400, "InvalidApiVersionParameter", None), "api-version 'banana' is invalid"),
        (
            str(HERE),
            "api-version=2015-06-15",
            (400, "NoRegisteredProviderFound", None),
            "for location 'westeurope' and API version '2015-06-15' for type 'virtualMachines'. The supported"
            " api-versions are '2026-04-01'",
        ),
        (str(HERE), f"{VERSION}&$expand=banana", (400, "InvalidParameter", "$expand"), "URL is not valid"),
        (f"{GROUP_ID}/providers/{MACHINES}", f"{VERSION}&$expand=userData", (400, "InvalidParameter", "$expand"), ""),
        (f"{GROUP_ID}/providers/{NICS}", VERSION, (400, "NoRegisteredProviderFound", None), "2024-05-01"),
    ],
)
def test_invalid_path_or_query_is_rejected(path: str, query: str, answer: Answer, words: str) -> None:
    desk = Desk()
    told, message = desk.told("GET", path, query=query)
    assert told == answer
    assert words in message
    headers = desk.ask("GET", path, query=query).headers
    assert headers["x-ms-request-id"] == headers["x-ms-correlation-request-id"]


def test_a_deletion_takes_no_notice_of_an_etag() -> None:
    """The API has If-Match for PUT and PATCH of a virtual machine, and not for DELETE."""
    desk = Desk()
    assert desk.ask("DELETE", str(HERE), headers={"if-match": '"0"'}).status == 202
    desk.azure.advance(60.0)
    assert desk.estate.machines.get(HERE.key) is None


def test_each_rule_has_a_request_that_breaks_it() -> None:
    targets = {(answer[1], (answer[2] or "").partition(".")[0]) for _, answer, _ in REFUSED.values()}
    for rule in model_rules.RULES:
        code = ERRORS[rule.error].code or rule.error
        assert (code, (rule.target or "").partition(".")[0]) in targets, rule.says
