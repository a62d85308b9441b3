"""What a virtual machine is made of: what has to be kept for making it anew, and what cannot be."""

from __future__ import annotations

import base64
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

import msgspec

from unbounded.machineops.provider import Loss
from unbounded.machineops.providers.azure import osdisk, states

Document = Mapping[str, Any]
"""A resource as Resource Manager shows it."""

DETACH: Final = "Detach"  # what Azure does where nothing is said
_READ_ONLY: Final = frozenset({"provisioningState", "vmId", "timeCreated", "instanceView"})
_OF_MAKING_NICS: Final = frozenset({"networkInterfaceConfigurations", "networkApiVersion"})  # they are there
_OF_THE_OLD_DISK: Final = frozenset({"name", "vhd", "image", "encryptionSettings", "managedDisk", "createOption"})
_TOP: Final = ("location", "tags", "plan", "zones", "extendedLocation")
_DISK: Final = re.compile(
    r"/subscriptions/[^/]+/resourceGroups/(?P<group>[^/]+)/providers/Microsoft\.Compute/disks/(?P<name>[^/]+)",
    re.IGNORECASE,
)


class Kept(msgspec.Struct, frozen=True):
    """What making a virtual machine anew rests on, from before anything of it is changed.

    Args:
        uid: of the operation that keeps it.
        vm_id: tells the old one from what comes after it under its name.
        os_disk: the old one's id.
        body: what creates it, without what only Azure sets, and without secrets of a login.
        extensions: by name, what creates them.
        lost: what of it cannot be kept.
        former_disks: ids of OS disks that earlier replacements may have left, which did not come to their end.
        refused: extensions that Azure has refused to add to the new one, with its words.
        unsure: what may be lost, and could not be looked at.
        lacking: which of the extensions it did not have when it was kept; None where that was not noted.
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
        """The names of the data disks."""
        return [last(disk["managedDisk"]["id"]) for disk in self.body["properties"]["storageProfile"]["dataDisks"]]

    @property
    def new_disk_name(self) -> str:
        """Of the OS disk that is made for the operation; by it the new virtual machine is known."""
        return f"{self.name[:50]}-osdisk-{self.uid.replace('-', '')[:12].lower()}"

    @property
    def new_disk(self) -> str:
        """The id of that disk."""
        subscription = self.os_disk.split("/")[2]
        group = f"/subscriptions/{subscription}/resourceGroups/{self.group}"
        return f"{group}/providers/Microsoft.Compute/disks/{self.new_disk_name}"

    @property
    def nics(self) -> list[str]:
        """The names of the network interfaces."""
        return [last(nic["id"]) for nic in self.body["properties"]["networkProfile"]["networkInterfaces"]]


def decoded(content: bytes) -> Kept:
    return msgspec.json.decode(content, type=Kept)


def kept(vm: Document, os_disk: Document, group: str, uid: str) -> Kept:
    """What to keep of a virtual machine, as it is shown with its user data.

    Args:
        uid: of the operation that keeps it.
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
    return Kept(
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


def taken_up(former: Kept, uid: str) -> Kept:
    """What another operation keeps in place of what an earlier one has left, of which nothing else is there."""
    return msgspec.structs.replace(former, uid=uid, former_disks=[*former.former_disks, former.new_disk], refused={})


def with_refused(kept: Kept, extension: str, words: str) -> Kept:
    """The same where an extension is not to be asked for again."""
    return msgspec.structs.replace(kept, refused={**kept.refused, extension: words})


def still_needed(former: Kept, vm: Document) -> Kept:
    """What an earlier replacement has left: of a virtual machine that it has not ended, what that lacked before."""
    is_whole = str(vm["properties"].get("vmId")).lower() == former.vm_id.lower() and provisioning(vm) == "succeeded"
    if not is_whole or former.lacking is None:
        return former
    lacking = {name: body for name, body in former.extensions.items() if name in former.lacking}
    return msgspec.structs.replace(former, extensions=lacking)


def is_of_others(kept: Kept) -> bool:
    """Whether there is something in it that the virtual machine does not show: an earlier replacement has left that."""
    return bool(kept.former_disks or kept.lacking)


def completed(now: Kept, former: Kept) -> Kept:
    """What to keep of a virtual machine that an earlier replacement has left half-way, as it was before that."""
    names = {name.lower() for name in now.extensions}
    absent = {name: body for name, body in former.extensions.items() if name.lower() not in names}
    disks = [disk for disk in (former.os_disk, *former.former_disks) if disk.lower() != now.os_disk.lower()]
    body = _with_former_options(now.body, former.body) if is_detached(now.body) else now.body
    extensions = {**now.extensions, **absent}
    return msgspec.structs.replace(now, body=body, extensions=extensions, lacking=sorted(absent), former_disks=disks)


def as_it_is_now(now: Kept, kept: Kept) -> Kept | None:
    """What to keep in place of what was kept, where the old virtual machine was changed since; None where it was not.

    Args:
        now: made of it as it is shown directly before it is deleted.
    """
    body = _with_former_options(now.body, kept.body)
    former = {"former_disks": kept.former_disks, "unsure": kept.unsure}
    found = msgspec.structs.replace(completed(now, kept), body=body, **former)
    return None if _with_all_options(found) == _with_all_options(kept) else found


def _with_all_options(kept: Kept) -> Kept:
    return msgspec.structs.replace(kept, body=_with_former_options(kept.body, kept.body))


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


def is_made_by(vm: Document, kept: Kept) -> bool:
    """Whether a virtual machine is the new one of a replacement."""
    return str(vm["properties"]["storageProfile"]["osDisk"].get("name")).lower() == kept.new_disk_name.lower()


def is_old(vm: Document, kept: Kept) -> bool:
    """Whether a virtual machine is the one that a replacement is to take away, or what an earlier one has left."""
    os_disk = vm["properties"]["storageProfile"]["osDisk"]
    leftovers = {last(disk).lower() for disk in kept.former_disks}
    same = str(vm["properties"].get("vmId")).lower() == kept.vm_id.lower()
    return same or str(os_disk.get("name")).lower() in leftovers


def obstacles(vm: Document) -> Iterator[str]:
    """Why a virtual machine cannot be made anew."""
    properties = vm["properties"]
    storage, profile = properties.get("storageProfile") or {}, properties.get("osProfile") or {}
    if not storage.get("imageReference") or not profile:
        yield "it was made of a disk and not of an image"
    if "windowsConfiguration" in profile or (storage.get("osDisk") or {}).get("osType") == "Windows":
        yield "it runs Windows, on which there is no agent"
    for disk in _disks(vm):
        if "vhd" in disk:
            yield f"disk {disk.get('name')} is not a managed one"


def arriving(vm: Document) -> list[str]:
    """The names of disks that a virtual machine has in its model, and which are not there yet."""
    return [
        str(disk.get("name") or f"of LUN {disk.get('lun')}")
        for disk in _disks(vm)
        if "vhd" not in disk and not (disk.get("managedDisk") or {}).get("id")
    ]


def _disks(vm: Document) -> list[Document]:
    storage = vm["properties"].get("storageProfile") or {}
    return [storage.get("osDisk") or {}, *(storage.get("dataDisks") or [])]


def losses(vm: Document, os_disk: Document) -> Iterator[Loss]:
    """What the new virtual machine will not have of the old one, beside what is on the OS disk."""
    identity, profile = vm.get("identity") or {}, vm["properties"].get("osProfile") or {}
    if "SystemAssigned" in str(identity.get("type")):
        told = f"the principal {identity.get('principalId')} of its system-assigned identity, and the roles of that"
        yield Loss("identity.principalId", told)
    if _has_password(profile):
        told = f"the password of {profile.get('adminUsername')}, in whose place a random one comes"
        yield Loss("osProfile.adminPassword", told)
    for extension in vm.get("resources") or []:
        told = f"the protected settings of extension {extension['name']}, if it has any"
        yield Loss(f"extensions[{extension['name']}].protectedSettings", told)
    if vm.get("placement"):
        yield Loss("placement", "the policy by which its zone was chosen, which it stays in")
    settings = (vm["properties"].get("storageProfile") or {}).get("osDisk", {}).get("encryptionSettings")
    yield from osdisk.losses(os_disk, encrypted=bool(settings))


def detached(vm: Document) -> dict[str, Any]:
    """The change after which network interfaces and data disks outlive a virtual machine, and its OS disk does not."""
    return _with_options(vm["properties"], dict.fromkeys(_options(vm["properties"]), DETACH) | {"": "Delete"})


def is_detached(vm: Document) -> bool:
    """Whether nothing is deleted with a virtual machine but its OS disk."""
    os_disk, *others = _options(vm["properties"]).values()
    return os_disk == "Delete" and all(option == DETACH for option in others)


def is_detached_as_kept(vm: Document, old: Kept) -> bool:
    """The same, as far as it is about what a virtual machine had when it was kept."""
    kept = _options(old.body["properties"])
    os_disk, *others = (option for name, option in _options(vm["properties"]).items() if name in kept)
    return os_disk == "Delete" and all(option == DETACH for option in others)


def restored(vm: Document, old: Kept) -> dict[str, Any]:
    """The change after which as much is deleted with the new virtual machine as was with the old one."""
    return _with_options(vm["properties"], _options(old.body["properties"]))


def is_restored(vm: Document, old: Kept) -> bool:
    """Whether as much is deleted with a virtual machine as was with the old one."""
    return _options(vm["properties"]) == _options(old.body["properties"])


def put_back(vm: Document, old: Kept) -> dict[str, Any]:
    """The change after which as much is deleted with the old virtual machine as before the replacement."""
    return _with_options(vm["properties"], {**_options(vm["properties"]), **_options(old.body["properties"])})


def is_put_back(vm: Document, old: Kept) -> bool:
    """Whether as much is deleted with the old virtual machine as before; what was attached to it since is no matter."""
    now = _options(vm["properties"])
    return all(now.get(name, option) == option for name, option in _options(old.body["properties"]).items())


def told_options(old: Kept) -> str:
    """What became of the parts of the old virtual machine when it was deleted, in words."""
    options = _options(old.body["properties"])
    return ", ".join(f"{option} of {last(name) or 'its OS disk'}" for name, option in options.items())


def _with_options(properties: Document, options: Mapping[str, str]) -> dict[str, Any]:
    """The change that sets what becomes of each part when its virtual machine is deleted."""
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
    """What becomes of each part when its virtual machine is deleted, that of the OS disk first."""
    storage = properties["storageProfile"]
    disks = {str(disk["managedDisk"]["id"]).lower(): disk for disk in storage.get("dataDisks") or []}
    nics = {
        str(nic["id"]).lower(): nic.get("properties") or {} for nic in properties["networkProfile"]["networkInterfaces"]
    }
    parts = {"": storage["osDisk"], **disks, **nics}
    return {name: part.get("deleteOption") or DETACH for name, part in parts.items()}


def created(old: Kept, user_data: str, password: str) -> dict[str, Any]:
    """What creates the new virtual machine; where it fails and is deleted, what it was given stays.

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
    """Where Azure may choose the size it refuses to be told one."""
    hardware = properties.get("hardwareProfile")
    return {"hardwareProfile": _without(hardware, {"vmSize"})} if hardware and properties.get("flexProfile") else {}


def _without(document: Document, names: Collection[str]) -> dict[str, Any]:
    return {name: value for name, value in document.items() if name not in names}


def disk_place(disk_id: str) -> tuple[str, str]:
    """The resource group and the name of a disk."""
    found = _DISK.fullmatch(disk_id)
    if found is None:
        raise ValueError(f"{disk_id!r} is no id of a disk")
    return found["group"], found["name"]


def last(resource_id: str) -> str:
    """The name at the end of an id."""
    return resource_id.rpartition("/")[2]


def statuses(vm: Document) -> list[Document]:
    """Those of its instance view, with which it has to be shown."""
    return list((vm["properties"].get("instanceView") or {}).get("statuses") or [])


def provisioning(vm: Document) -> str:
    """How far the last change is, in lower case."""
    return str(vm["properties"].get("provisioningState") or states.provisioning(statuses(vm))).lower()


def extensions(vm: Document) -> dict[str, str]:
    """How far each extension of a virtual machine is, in lower case, by its name."""
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
    """Of a deallocated machine neither size, type nor key is shown, but for at the disk itself."""
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
