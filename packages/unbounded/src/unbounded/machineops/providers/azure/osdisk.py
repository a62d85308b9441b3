"""Settings of an OS disk as a resource of its own, which the disk of the new virtual machine does not inherit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from unbounded.machineops.provider import Loss

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


def losses(disk: Mapping[str, Any], *, encrypted: bool) -> Iterator[Loss]:
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
            yield _told(name, value)
    if (properties.get("creationData") or {}).get("performancePlus"):
        yield _told("performancePlus", value=True)
    if (tier := properties.get("tier")) and tier != _usual_tier(str(tier), properties.get("diskSizeGB")):
        yield _told("tier", tier)
    if str((disk.get("sku") or {}).get("name")).lower().startswith(_OF_ITS_OWN):
        yield from (_told(name, properties[name]) for name in PROVISIONED if properties.get(name) is not None)


def _told(name: str, value: Any) -> Loss:
    shown = str(value).lower() if isinstance(value, bool) else value
    return Loss(f"osDisk.{name}", f"{name} {shown} of its OS disk", lessens_security=name in _RESTRICTS_ACCESS)


def _usual_tier(tier: str, size_gb: Any) -> str:
    """Return the default tier of a size; only premium disks can have another one."""
    tiers = {**_TIERS, **_TIERS_ABOVE}
    number = next((each for size, each in tiers.items() if isinstance(size_gb, int) and size_gb <= size), 0)
    return f"P{number}" if number and tier.startswith("P") else tier
