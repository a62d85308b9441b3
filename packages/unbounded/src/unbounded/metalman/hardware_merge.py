"""One `status.hardware` of two inspectors: an installer's report, and what Redfish adds to it. Pure.

An installer saw the parts themselves, so its facts win. Only a BMC knows the health of disks and power supplies and the
firmware of components. These facts outlast a report.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from unbounded.api.fields import ApiStruct
from unbounded.api.hardware import AcceleratorFacts, DiskFacts, HardwareFacts, HardwareSource, HardwareStatus
from unbounded.metalman.bmc_reading import reading_of
from unbounded.metalman.hardware_bounds import bounded
from unbounded.metalman.inspection import disk_identities, facts_digest, inspected
from unbounded.metalman.redfish.inventory_reader import Inventory
from unbounded.operations.record import with_nulls

# Facts of the parts that a reading names when they cannot be read.
_FACTS_OF: Final = {
    "Processors": ("processor", "cpus"),
    "Memory": ("memory_bytes",),
    "Storage": ("disks",),
    "EthernetInterfaces": ("nics",),
    "FirmwareInventory": ("firmware_inventory",),
    "PowerSupplies": ("power_supplies",),
    "PCIeDevices": ("accelerators",),
    "SecureBoot": ("firmware",),
}
_ONLY_REDFISH: Final = ("firmware_inventory", "power_supplies")
_FILLED: Final = ("system", "firmware", "cpus", "processor", "memory_bytes")  # where an installer could not read them


def merged(old: HardwareStatus | None, read: Inventory, at: str) -> HardwareStatus:
    """Return the hardware of a Machine after a reading of its BMC.

    An installer's report stays, and Redfish adds to it. A part that could not be read stays as it was.
    """
    found = bounded(read.facts)
    bmc = reading_of(found, old.bmc if old else None, at, failed=read.failed, is_on=read.is_on)
    facts = _with_failed_parts(found, old, read.failed)
    if old is None or old.source != HardwareSource.INSTALLER:
        return msgspec.structs.replace(inspected(facts, HardwareSource.REDFISH, at), bmc=bmc)
    filled = {name: _filled(getattr(old, name), getattr(facts, name)) for name in _FILLED}
    added = {name: getattr(facts, name) for name in _ONLY_REDFISH}
    disks = old.disks if "Storage" in read.failed else tuple(_with_health(old.disks, facts.disks))
    cards = old.accelerators if "PCIeDevices" in read.failed else tuple(_completed(old.accelerators, facts))
    both = msgspec.structs.replace(old, **filled, **added, disks=disks, accelerators=cards, bmc=bmc)
    return msgspec.structs.replace(both, digest=facts_digest(both))


def reported(old: HardwareStatus | None, report: HardwareStatus) -> HardwareStatus:
    """Return the hardware of a Machine after an installer's report: with what only its BMC knew before."""
    if old is None:
        return report
    known = {name: getattr(old, name) for name in (*_ONLY_REDFISH, "bmc")}
    disks, cards = tuple(_with_health(report.disks, old.disks)), tuple(_completed(report.accelerators, old))
    both = msgspec.structs.replace(report, **known, disks=disks, accelerators=cards)
    return msgspec.structs.replace(both, digest=facts_digest(both))


def _with_failed_parts(facts: HardwareFacts, old: HardwareFacts | None, failed: dict[str, str]) -> HardwareFacts:
    names = [name for part in failed for name in _FACTS_OF[part]] if old is not None else []
    kept = {
        name: _filled(getattr(facts, name), value) if isinstance(value, ApiStruct) else value
        for name in names
        if (value := getattr(old, name))
    }
    return msgspec.structs.replace(facts, **kept)


def _filled(old: Any, new: Any) -> Any:
    """Return a fact of an installer's report, with its unknown values from Redfish."""
    if not isinstance(old, ApiStruct) or not isinstance(new, ApiStruct):
        return new if old is None else old
    unknown = [name for name in old.__struct_fields__ if getattr(old, name) is None]
    return msgspec.structs.replace(old, **{name: getattr(new, name) for name in unknown})


def _with_health(disks: tuple[DiskFacts, ...], drives: tuple[DiskFacts, ...]) -> Iterator[DiskFacts]:
    health = {identity: drive.health for drive in drives for identity in disk_identities(drive)}
    for disk in disks:
        known = next((health[identity] for identity in disk_identities(disk) if identity in health), None)
        yield msgspec.structs.replace(disk, health=known)


def _completed(cards: tuple[AcceleratorFacts, ...], known: HardwareFacts) -> Iterator[AcceleratorFacts]:
    """Yield the accelerators of a report, with what a BMC knows of the card at the same PCI address."""
    listed = {card.pci_address: card for card in known.accelerators if card.pci_address}
    for card in cards:
        health = {"health": None} if card.health else {}
        yield _filled(msgspec.structs.replace(card, **health), listed.get(card.pci_address or ""))


def hardware_change(old: HardwareStatus | None, new: HardwareStatus) -> dict[str, Any] | None:
    """Return `status.hardware` as a merge patch; None if nothing changes."""
    return None if new == old else with_nulls(new)
