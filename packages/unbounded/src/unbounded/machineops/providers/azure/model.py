"""Model of a virtual machine: the properties to save for its re-creation, and those that cannot be saved."""

from __future__ import annotations

import base64
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

import msgspec

from unbounded.machineops.provider import Loss
from unbounded.machineops.providers.azure import vm_properties

Document = Mapping[str, Any]
"""A resource as Resource Manager shows it."""

DETACH: Final = "Detach"  # Azure's default
_READ_ONLY: Final = frozenset({"provisioningState", "vmId", "timeCreated", "instanceView"})
# the network interfaces exist already
_OF_MAKING_NICS: Final = frozenset({"networkInterfaceConfigurations", "networkApiVersion"})
_OF_THE_OLD_DISK: Final = frozenset({"name", "vhd", "image", "encryptionSettings", "managedDisk", "createOption"})
_TOP: Final = ("location", "tags", "plan", "zones", "extendedLocation")
_DISK: Final = re.compile(
    r"/subscriptions/[^/]+/resourceGroups/(?P<group>[^/]+)/providers/Microsoft\.Compute/disks/(?P<name>[^/]+)",
    re.IGNORECASE,
)


class VmReplacementState(msgspec.Struct, frozen=True):
    """Replacement state: all that re-creating a virtual machine needs, saved before the first change.

    Args:
        uid: of the operation that saved it.
        vm_id: identifies the old VM among later ones of the same name.
        os_disk: id of the old OS disk.
        body: request that creates the VM, without fields that only Azure sets and without secrets of a login.
        extensions: requests that create them, by name.
        lost: properties that cannot be saved.
        former_disks: ids of OS disks that incomplete earlier replacements may have left.
        refused: extensions that Azure refused to add to the new VM, with its messages.
        unsure: possible loss that could not be checked.
        lacking: extensions that the VM lacked when it was saved; None if not recorded.
    """

    uid: str

    name: str
    group: str
    vm_id: str
    os_disk: str
    body: dict[str, Any]
    extensions: dict[str, dict[str, Any]]
    lost: list[str]
    former_disks: list[str] = []
    refused: dict[str, str] = {}
    unsure: str = ""
    lacking: list[str] | None = None

    def encoded(self) -> bytes:
        return msgspec.json.encode(self)

    @property
    def disks(self) -> list[str]:
        """Names of the data disks."""
        return [last(disk["managedDisk"]["id"]) for disk in self.body["properties"]["storageProfile"]["dataDisks"]]

    @property
    def new_disk_name(self) -> str:
        """Name of the operation's new OS disk, which identifies the new virtual machine."""
        return f"{self.name[:50]}-osdisk-{self.uid.replace('-', '')[:12].lower()}"

    @property
    def new_disk(self) -> str:
        """Id of that disk."""
        subscription = self.os_disk.split("/")[2]
        group = f"/subscriptions/{subscription}/resourceGroups/{self.group}"
        return f"{group}/providers/Microsoft.Compute/disks/{self.new_disk_name}"

    @property
    def nics(self) -> list[str]:
        """Names of the network interfaces."""
        return [last(nic["id"]) for nic in self.body["properties"]["networkProfile"]["networkInterfaces"]]


def decoded(content: bytes) -> VmReplacementState:
    return msgspec.json.decode(content, type=VmReplacementState)


def build_state(vm: Document, os_disk: Document, group: str, uid: str) -> VmReplacementState:
    """Build the state of a virtual machine that was read with its user data.

    Args:
        uid: of the operation that saves it.
    """
    properties = {name: value for name, value in vm["properties"].items() if name not in _READ_ONLY}
    storage = properties["storageProfile"]
    image = {name: value for name, value in storage["imageReference"].items() if name != "exactVersion"}
    profile = {name: value for name, value in properties["osProfile"].items() if name != "requireGuestProvisionSignal"}
    body = {name: vm[name] for name in _TOP if vm.get(name) is not None}
    if vm.get("identity"):
        body["identity"] = _identity(vm["identity"])
    body["properties"] = {
        **properties,
        "osProfile": profile,
        "storageProfile": {
            **storage,
            "imageReference": image,
            "osDisk": _os_disk(storage["osDisk"], os_disk),
            "dataDisks": [_data_disk(disk) for disk in storage.get("dataDisks") or []],
        },
    }
    return VmReplacementState(
        uid=uid,
        name=str(vm["name"]),
        group=group,
        vm_id=str(vm["properties"]["vmId"]),
        os_disk=str(storage["osDisk"]["managedDisk"]["id"]),
        body=body,
        extensions={str(one["name"]): _extension(one) for one in vm.get("resources") or []},
        lost=[each.consequence for each in losses(vm, os_disk)],
        lacking=[],
    )


def adopted(former: VmReplacementState, uid: str) -> VmReplacementState:
    """Adopt the state of an earlier replacement whose virtual machine does not exist any more."""
    return msgspec.structs.replace(former, uid=uid, former_disks=[*former.former_disks, former.new_disk], refused={})


def with_refused_extension(state: VmReplacementState, extension: str, words: str) -> VmReplacementState:
    """Record that an extension was refused and must not be requested again."""
    return msgspec.structs.replace(state, refused={**state.refused, extension: words})


def reduced_to_missing(former: VmReplacementState, vm: Document) -> VmReplacementState:
    """Reduce the state of an earlier replacement to what this virtual machine lacked before it."""
    is_whole = str(vm["properties"].get("vmId")).lower() == former.vm_id.lower() and provisioning(vm) == "succeeded"
    if not is_whole or former.lacking is None:
        return former
    lacking = {name: body for name, body in former.extensions.items() if name in former.lacking}
    return msgspec.structs.replace(former, extensions=lacking)


def has_former_parts(state: VmReplacementState) -> bool:
    """Return whether the state contains something that the VM does not show, as an earlier replacement left it."""
    return bool(state.former_disks or state.lacking)


def completed_from_former(now: VmReplacementState, former: VmReplacementState) -> VmReplacementState:
    """Complete the state of a half-replaced virtual machine with its properties from before that replacement."""
    names = {name.lower() for name in now.extensions}
    absent = {name: body for name, body in former.extensions.items() if name.lower() not in names}
    disks = [disk for disk in (former.os_disk, *former.former_disks) if disk.lower() != now.os_disk.lower()]
    body = _with_former_options(now.body, former.body) if is_detached(now.body) else now.body
    extensions = {**now.extensions, **absent}
    return msgspec.structs.replace(now, body=body, extensions=extensions, lacking=sorted(absent), former_disks=disks)


def updated_state(now: VmReplacementState, state: VmReplacementState) -> VmReplacementState | None:
    """Update the state after the old virtual machine was changed; return None if it was not.

    Args:
        now: state of the virtual machine directly before its deletion.
    """
    body = _with_former_options(now.body, state.body)
    former = {"former_disks": state.former_disks, "unsure": state.unsure}
    found = msgspec.structs.replace(completed_from_former(now, state), body=body, **former)
    return None if _with_all_options(found) == _with_all_options(state) else found


def _with_all_options(state: VmReplacementState) -> VmReplacementState:
    return msgspec.structs.replace(state, body=_with_former_options(state.body, state.body))


def _with_former_options(body: Document, former: Document) -> dict[str, Any]:
    properties = body["properties"]
    changed = _with_options(properties, {**_options(properties), **_options(former["properties"])})["properties"]
    storage, option = properties["storageProfile"], changed["storageProfile"]["osDisk"]["deleteOption"]
    disks = {
        "osDisk": {**storage["osDisk"], "deleteOption": option},
        "dataDisks": changed["storageProfile"]["dataDisks"],
    }
    network = {**properties["networkProfile"], **changed["networkProfile"]}
    return {**body, "properties": {**properties, "storageProfile": {**storage, **disks}, "networkProfile": network}}


def is_made_by(vm: Document, state: VmReplacementState) -> bool:
    """Return whether a virtual machine is the new one of a replacement."""
    return str(vm["properties"]["storageProfile"]["osDisk"].get("name")).lower() == state.new_disk_name.lower()


def is_old(vm: Document, state: VmReplacementState) -> bool:
    """Return whether a virtual machine is the one to replace, or a remainder of an earlier replacement."""
    os_disk = vm["properties"]["storageProfile"]["osDisk"]
    leftovers = {last(disk).lower() for disk in state.former_disks}
    same = str(vm["properties"].get("vmId")).lower() == state.vm_id.lower()
    return same or str(os_disk.get("name")).lower() in leftovers


def obstacles(vm: Document) -> Iterator[str]:
    """Yield the reasons why a virtual machine cannot be re-created."""
    properties = vm["properties"]
    storage, profile = properties.get("storageProfile") or {}, properties.get("osProfile") or {}
    if not storage.get("imageReference") or not profile:
        yield "it was created from a disk, not from an image"
    if "windowsConfiguration" in profile or (storage.get("osDisk") or {}).get("osType") == "Windows":
        yield "it runs Windows, which the agent does not support"
    for disk in _disks(vm):
        if "vhd" in disk:
            yield f"disk {disk.get('name')} is not a managed disk"


def pending_disks(vm: Document) -> list[str]:
    """Return the names of disks in the model of a virtual machine that are not attached yet."""
    return [
        str(disk.get("name") or f"of LUN {disk.get('lun')}")
        for disk in _disks(vm)
        if "vhd" not in disk and not (disk.get("managedDisk") or {}).get("id")
    ]


def _disks(vm: Document) -> list[Document]:
    storage = vm["properties"].get("storageProfile") or {}
    return [storage.get("osDisk") or {}, *(storage.get("dataDisks") or [])]


def losses(vm: Document, os_disk: Document) -> Iterator[Loss]:
    """Yield what the new virtual machine loses, besides the content of the OS disk."""
    identity, profile = vm.get("identity") or {}, vm["properties"].get("osProfile") or {}
    if "SystemAssigned" in str(identity.get("type")):
        message = f"the principal {identity.get('principalId')} of its system-assigned identity, with its roles"
        yield Loss("identity.principalId", message)
    if _has_password(profile):
        message = f"the password of {profile.get('adminUsername')}, replaced by a random one"
        yield Loss("osProfile.adminPassword", message)
    for extension in vm.get("resources") or []:
        message = f"the protected settings of extension {extension['name']}, if it has any"
        yield Loss(f"extensions[{extension['name']}].protectedSettings", message)
    if vm.get("placement"):
        yield Loss("placement", "the policy that selected its zone; the new VM stays in that zone")
    settings = (vm["properties"].get("storageProfile") or {}).get("osDisk", {}).get("encryptionSettings")
    yield from vm_properties.os_disk_losses(os_disk, encrypted=bool(settings))


def detached(vm: Document) -> dict[str, Any]:
    """Return the update after which network interfaces and data disks outlive a virtual machine, and its OS disk does
    not.
    """
    return _with_options(vm["properties"], dict.fromkeys(_options(vm["properties"]), DETACH) | {"": "Delete"})


def is_detached(vm: Document) -> bool:
    """Return whether deleting a virtual machine deletes nothing but its OS disk."""
    os_disk, *others = _options(vm["properties"]).values()
    return os_disk == "Delete" and all(option == DETACH for option in others)


def is_detached_as_kept(vm: Document, old: VmReplacementState) -> bool:
    """Return whether this holds for the parts that the virtual machine had when it was saved."""
    kept = _options(old.body["properties"])
    os_disk, *others = (option for name, option in _options(vm["properties"]).items() if name in kept)
    return os_disk == "Delete" and all(option == DETACH for option in others)


def restored(vm: Document, old: VmReplacementState) -> dict[str, Any]:
    """Return the update after which the new virtual machine has the old one's delete options."""
    return _with_options(vm["properties"], _options(old.body["properties"]))


def is_restored(vm: Document, old: VmReplacementState) -> bool:
    """Return whether the new virtual machine has the old one's delete options."""
    return _options(vm["properties"]) == _options(old.body["properties"])


def put_back(vm: Document, old: VmReplacementState) -> dict[str, Any]:
    """Return the update after which the old virtual machine has its original delete options."""
    return _with_options(vm["properties"], {**_options(vm["properties"]), **_options(old.body["properties"])})


def is_put_back(vm: Document, old: VmReplacementState) -> bool:
    """Return whether the old virtual machine has its original delete options; parts attached since do not count."""
    now = _options(vm["properties"])
    return all(now.get(name, option) == option for name, option in _options(old.body["properties"]).items())


def describe_options(old: VmReplacementState) -> str:
    """Describe the original delete options of the old virtual machine."""
    options = _options(old.body["properties"])
    return ", ".join(f"{option} of {last(name) or 'its OS disk'}" for name, option in options.items())


def _with_options(properties: Document, options: Mapping[str, str]) -> dict[str, Any]:
    """Return the update that sets the delete option of each part."""
    storage, nics = properties["storageProfile"], properties["networkProfile"]["networkInterfaces"]
    return {
        "properties": {
            "storageProfile": {
                "osDisk": {"createOption": "FromImage", "deleteOption": options[""]},
                "dataDisks": [
                    {**disk, "deleteOption": options.get(str(disk["managedDisk"]["id"]).lower(), DETACH)}
                    for disk in storage.get("dataDisks") or []
                ],
            },
            "networkProfile": {
                "networkInterfaces": [
                    {
                        "id": nic["id"],
                        "properties": {
                            **(nic.get("properties") or {}),
                            "deleteOption": options.get(str(nic["id"]).lower(), DETACH),
                        },
                    }
                    for nic in nics
                ]
            },
        }
    }


def _options(properties: Document) -> dict[str, str]:
    """Return the delete option of each part, that of the OS disk first."""
    storage = properties["storageProfile"]
    disks = {str(disk["managedDisk"]["id"]).lower(): disk for disk in storage.get("dataDisks") or []}
    nics = {
        str(nic["id"]).lower(): nic.get("properties") or {} for nic in properties["networkProfile"]["networkInterfaces"]
    }
    parts = {"": storage["osDisk"], **disks, **nics}
    return {name: part.get("deleteOption") or DETACH for name, part in parts.items()}


def created(old: VmReplacementState, user_data: str, password: str) -> dict[str, Any]:
    """Return the request that creates the new virtual machine. Its parts survive a failed creation and its deletion.

    Args:
        password: for a login that had one.
    """
    outliving = detached(old.body)["properties"]
    properties = old.body["properties"]
    profile = {**properties["osProfile"], "customData": base64.b64encode(user_data.encode()).decode()}
    if _has_password(profile):
        profile["adminPassword"] = password
    given = properties["storageProfile"]
    os_disk = {**given["osDisk"], **outliving["storageProfile"]["osDisk"], "name": old.new_disk_name}
    storage = {**given, "osDisk": os_disk, "dataDisks": outliving["storageProfile"]["dataDisks"]}
    return {
        **old.body,
        "properties": {
            **properties,
            "osProfile": profile,
            "storageProfile": storage,
            "networkProfile": {
                **_without(properties["networkProfile"], _OF_MAKING_NICS),
                **outliving["networkProfile"],
            },
            **_size(properties),
        },
    }


def _size(properties: Document) -> dict[str, Any]:
    """Return the size, unless Azure chooses it and refuses a request that names one."""
    hardware = properties.get("hardwareProfile")
    return {"hardwareProfile": _without(hardware, {"vmSize"})} if hardware and properties.get("flexProfile") else {}


def _without(document: Document, names: Collection[str]) -> dict[str, Any]:
    return {name: value for name, value in document.items() if name not in names}


def disk_place(disk_id: str) -> tuple[str, str]:
    """Return the resource group and the name of a disk."""
    found = _DISK.fullmatch(disk_id)
    if found is None:
        raise ValueError(f"{disk_id!r} is not the ID of a disk")
    return found["group"], found["name"]


def last(resource_id: str) -> str:
    """Return the name at the end of an id."""
    return resource_id.rpartition("/")[2]


def statuses(vm: Document) -> list[Document]:
    """Return the statuses of the instance view, which must be part of the document."""
    return list((vm["properties"].get("instanceView") or {}).get("statuses") or [])


def provisioning(vm: Document) -> str:
    """Return the provisioning state of the last change, in lower case."""
    return str(vm["properties"].get("provisioningState") or vm_properties.provisioning(statuses(vm))).lower()


def extensions(vm: Document) -> dict[str, str]:
    """Return the provisioning state of each extension, in lower case, by its name."""
    return {
        str(one["name"]): str((one.get("properties") or {}).get("provisioningState")).lower()
        for one in vm.get("resources") or []
    }


def _has_password(profile: Document) -> bool:
    return not (profile.get("linuxConfiguration") or {}).get("disablePasswordAuthentication")


def _identity(identity: Document) -> dict[str, Any]:
    users = identity.get("userAssignedIdentities")
    return {"type": identity["type"], **({"userAssignedIdentities": {name: {} for name in users}} if users else {})}


def _os_disk(shown: Document, disk: Document) -> dict[str, Any]:
    """Return the OS disk with size, type and key from its own resource: Azure hides them in a deallocated VM."""
    managed = {name: value for name, value in shown["managedDisk"].items() if name != "id"}
    if sku := (disk.get("sku") or {}).get("name"):
        managed.setdefault("storageAccountType", sku)
    if key := ((disk.get("properties") or {}).get("encryption") or {}).get("diskEncryptionSetId"):
        managed.setdefault("diskEncryptionSet", {"id": key})
    body = {name: value for name, value in shown.items() if name not in _OF_THE_OLD_DISK}
    if size := (disk.get("properties") or {}).get("diskSizeGB"):
        body.setdefault("diskSizeGB", size)
    return {**body, "managedDisk": managed}


def _data_disk(shown: Document) -> dict[str, Any]:
    names = ("lun", "caching", "writeAcceleratorEnabled", "deleteOption", "storageFaultDomainAlignment")
    disk = {name: shown[name] for name in names if shown.get(name) is not None}
    return {**disk, "createOption": "Attach", "managedDisk": {"id": shown["managedDisk"]["id"]}}


def _extension(shown: Document) -> dict[str, Any]:
    body = {name: shown[name] for name in ("location", "tags") if shown.get(name)}
    properties = {
        name: value for name, value in shown["properties"].items() if name not in ("provisioningState", "instanceView")
    }
    return {**body, "properties": properties}
