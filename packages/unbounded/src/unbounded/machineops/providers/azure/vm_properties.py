"""Properties of a virtual machine as Azure names them: its ID, its power state, and the settings of its OS disk.

The disk of a new virtual machine does not inherit the settings of the old disk as a resource of its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from unbounded.machineops.provider import Instance, Loss, Power, State, said

FORM: Final = "azure:///subscriptions/…/resourceGroups/…/providers/Microsoft.Compute/virtualMachines/…"
_ID: Final = re.compile(
    r"(?:azure:(?://)?)?"
    r"/subscriptions/(?P<subscription>[0-9a-z-]{1,64})"
    r"/resourceGroups/(?P<group>[-\w.()]{1,90})"
    r"/providers/Microsoft\.Compute"
    r"/virtualMachines/(?P<name>[-\w.]{1,64})",
    re.IGNORECASE,
)
_POWER: Final[Mapping[str, Power]] = {
    "running": Power.RUNNING,
    "stopped": Power.STOPPED,
    "deallocated": Power.RELEASED,
    "starting": Power.CHANGING,
    "stopping": Power.CHANGING,
    "deallocating": Power.CHANGING,
}
_UNDER_WAY: Final = frozenset({"creating", "updating", "deleting", "migrating"})
_STATE: Final[Mapping[str, State]] = {
    "succeeded": State.DONE,
    "failed": State.FAILED,
    "canceled": State.FAILED,
}

DEFAULTS: Final[Mapping[str, Any]] = {
    "availabilityPolicy": None,
    "burstingEnabled": False,
    "dataAccessAuthMode": "None",
    "diskAccessId": None,
    "maxShares": 1,
    "networkAccessPolicy": "AllowAll",
    "optimizedForFrequentAttach": False,
    "publicNetworkAccess": "Enabled",
}
"""Azure's defaults for settings that the creation of a virtual machine cannot name."""
PROVISIONED: Final = ("diskIOPSReadWrite", "diskMBpsReadWrite", "diskIOPSReadOnly", "diskMBpsReadOnly")
"""Independent of the size with some types of disks; with the others they follow from it."""
_RESTRICTS_ACCESS: Final = frozenset(
    {"dataAccessAuthMode", "diskAccessId", "networkAccessPolicy", "publicNetworkAccess"}
)
"""Other values than the defaults restrict the access to the disk."""
_OF_ITS_OWN: Final = ("premiumv2", "ultrassd")
_TIERS: Final = {4: 1, 8: 2, 16: 3, 32: 4, 64: 6, 128: 10, 256: 15, 512: 20, 1024: 30, 2048: 40, 4096: 50, 8192: 60}
_TIERS_ABOVE: Final = {16384: 70, 32767: 80}


@dataclass(frozen=True)
class VmId:
    """Id of a virtual machine in Resource Manager. Its parts are case-insensitive."""

    subscription: str
    group: str
    name: str

    def __str__(self) -> str:
        return (
            f"/subscriptions/{self.subscription}/resourceGroups/{self.group}"
            f"/providers/Microsoft.Compute/virtualMachines/{self.name}"
        )


def vm_id(text: str) -> VmId:
    """Split an id into its parts, in their original case.

    Raises:
        ValueError: not an id of a virtual machine; with a message for the user.
    """
    found = _ID.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is not the ID of an Azure virtual machine; expected {FORM}")
    return VmId(found["subscription"], found["group"], found["name"])


def instance(provider_id: str) -> Instance:
    """Parse a providerID; the id is in lower case, as ids are case-insensitive.

    Raises:
        ValueError: not a virtual machine.
    """
    found = vm_id(provider_id)
    return Instance(str(found).lower(), found.subscription.lower(), found.name)


def provisioning(statuses: Iterable[Mapping[str, Any]]) -> str:
    """Return the provisioning state of the last change, in lower case: succeeded, updating …"""
    return _code(statuses, "provisioningstate").partition("/")[0]


def power(statuses: Iterable[Mapping[str, Any]]) -> Power:
    """Return the power of an existing machine. One that never got a host has none; starting it would give it one."""
    statuses = list(statuses)
    if provisioning(statuses) in _UNDER_WAY:
        return Power.CHANGING  # during a restart the power state is running all the time
    return _POWER.get(_code(statuses, "powerstate"), Power.RELEASED)


def os_failed(statuses: Iterable[Mapping[str, Any]]) -> bool:
    """Return whether the operating system of a created machine has not reported to Azure, or has reported a failure."""
    return _code(statuses, "provisioningstate").startswith("failed/osprovisioning")


def describe(statuses: Iterable[Mapping[str, Any]]) -> str:
    """Return the statuses in Azure's words, with the cause of a failure."""
    words = [
        ": ".join(filter(None, (str(one.get("displayStatus") or one.get("code")), str(one.get("message") or ""))))
        for one in statuses
    ]
    return said(", ".join(words)) or "without a status"


def progress(status: str) -> State:
    """Return the progress of a long call from the status of its document."""
    return _STATE.get(status.lower(), State.RUNNING)


def _code(statuses: Iterable[Mapping[str, Any]], kind: str) -> str:
    for one in statuses:
        found, _, state = str(one.get("code") or "").lower().partition("/")
        if found == kind:
            return state
    return ""


def os_disk_losses(disk: Mapping[str, Any], *, encrypted: bool) -> Iterator[Loss]:
    """Yield the settings of an OS disk that its replacement will not have.

    Args:
        encrypted: the virtual machine itself has encryption settings for it.
    """
    properties = disk.get("properties") or {}
    collection = properties.get("encryptionSettingsCollection") or {}
    if encrypted or collection.get("enabled"):
        message = "the encryption settings of its OS disk; the new disk has none"
        yield Loss("osDisk.encryptionSettings", message, lessens_security=True)
    if disk.get("tags"):
        yield Loss("osDisk.tags", "the tags of its OS disk")
    for name, usual in DEFAULTS.items():
        if (value := properties.get(name)) not in (None, usual):
            yield _loss(name, value)
    if (properties.get("creationData") or {}).get("performancePlus"):
        yield _loss("performancePlus", value=True)
    if (tier := properties.get("tier")) and tier != _usual_tier(str(tier), properties.get("diskSizeGB")):
        yield _loss("tier", tier)
    if str((disk.get("sku") or {}).get("name")).lower().startswith(_OF_ITS_OWN):
        yield from (_loss(name, properties[name]) for name in PROVISIONED if properties.get(name) is not None)


def _loss(name: str, value: Any) -> Loss:
    shown = str(value).lower() if isinstance(value, bool) else value
    return Loss(f"osDisk.{name}", f"{name} {shown} of its OS disk", lessens_security=name in _RESTRICTS_ACCESS)


def _usual_tier(tier: str, size_gb: Any) -> str:
    """Return the default tier of a size; only premium disks can have another one."""
    tiers = {**_TIERS, **_TIERS_ABOVE}
    number = next((each for size, each in tiers.items() if isinstance(size_gb, int) and size_gb <= size), 0)
    return f"P{number}" if number and tier.startswith("P") else tier
