"""Reading of a BMC's inventory: the resources of one system, one request after the other, and never more than a limit.

A part that cannot be read is left out and named. After a failure of the BMC itself no further request is sent.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from unbounded.api.failures import Failure, Transient
from unbounded.api.hardware import HardwareFacts
from unbounded.metalman.redfish import bmc_interface, documents, inventory
from unbounded.metalman.redfish.endpoint import SERVICE_ROOT
from unbounded.metalman.redfish.inventory import Document, Facts
from unbounded.metalman.redfish.quirks import NOT_INSTALLED

MAX_REQUESTS: Final = 320
# members of a collection that are read; the API's limits where it has a list of them
MAX_PROCESSORS: Final = 32
MAX_MEMORY: Final = 64
MAX_STORAGES: Final = 16
MAX_DISKS: Final = 128
MAX_NICS: Final = 64
MAX_FIRMWARE: Final = 64
MAX_CHASSIS: Final = 4
MAX_POWER_SUPPLIES: Final = 16
MAX_PCIE_DEVICES: Final = 32

FIRMWARE: Final = f"{SERVICE_ROOT}/UpdateService/FirmwareInventory"
_OF_THE_BMC: Final = (
    bmc_interface.BmcUnreachable,
    bmc_interface.BmcBusy,
    bmc_interface.PasswordRejected,
    bmc_interface.CertificateUntrusted,
)

Get = Callable[[str], Awaitable[Document]]


@dataclass(frozen=True, slots=True)
class Inventory:
    """Facts of one reading.

    Args:
        failed: why a part could not be read, by its name.
        cut_short: the BMC failed in between, so that a retry can complete the facts.
        is_on: the host runs, as far as the BMC says; many list drives and NICs only then.
    """

    facts: HardwareFacts
    failed: dict[str, str] = field(default_factory=dict)
    cut_short: bool = False
    is_on: bool = True


class InventoryInterrupted(Exception):  # no error: something more urgent wants the BMC
    """The caller did not let the reading continue."""


class InventoryReader:
    """One reading. `get` returns the document at a path, and raises the failures of a BMC."""

    def __init__(self, get: Get) -> None:
        self._get = get
        self._requests = 0
        self._cards: list[Document] = []  # Processors that are accelerators
        self._stopped_by: Failure | None = None

    async def read(self, path: str) -> Inventory:
        """Read a system and its parts.

        Raises:
            Failure: the system itself cannot be read.
        """
        document = await self._document(path)
        facts = inventory.system(document)
        failed: dict[str, str] = {}
        for name, part in PARTS.items():
            try:
                facts = inventory.joined(facts, await part(self, document, facts))
            except Failure as error:
                failed[name] = str(error)
        is_on = document.get("PowerState") in ("On", None)
        return Inventory(msgspec.convert(facts, HardwareFacts), failed, self._stopped_by is not None, is_on)

    async def _processors(self, system: Document, _facts: Facts) -> Facts:
        found = await self._members(inventory.link(system, "Processors"), MAX_PROCESSORS)
        self._cards = [one for one in found if inventory.is_accelerator(one)]
        return inventory.processors(found)

    async def _memory(self, system: Document, facts: Facts) -> Facts:
        """Read the modules only if the system has no sum of them: a server has up to 64."""
        if "memoryBytes" in facts:
            return {}
        return inventory.memory(await self._members(inventory.link(system, "Memory"), MAX_MEMORY))

    async def _disks(self, system: Document, _facts: Facts) -> Facts:
        storages = await self._members(inventory.link(system, "Storage"), MAX_STORAGES)
        drives = dict.fromkeys(path for storage in storages for path in inventory.links(storage, "Drives"))
        disks = [inventory.drive(one) for one in await self._documents(list(drives)[:MAX_DISKS])]
        if not drives:
            simple = await self._members(inventory.link(system, "SimpleStorage"), MAX_STORAGES)
            disks = [disk for storage in simple for disk in inventory.simple_storage(storage)][:MAX_DISKS]
        return {"disks": [disk for disk in disks if disk]}

    async def _nics(self, system: Document, _facts: Facts) -> Facts:
        found = await self._members(inventory.link(system, "EthernetInterfaces"), MAX_NICS)
        return {"nics": [nic for nic in map(inventory.ethernet_interface, found) if nic]}

    async def _firmware(self, _system: Document, _facts: Facts) -> Facts:
        found = [inventory.firmware(one) for one in await self._members(FIRMWARE, MAX_FIRMWARE)]
        return {"firmwareInventory": [one for at, one in enumerate(found) if one and one not in found[:at]]}

    async def _power_supplies(self, system: Document, _facts: Facts) -> Facts:
        paths = inventory.links(inventory.mapping(system, "Links"), "Chassis")[:MAX_CHASSIS]
        supplies = [one for chassis in await self._documents(paths) for one in await self._supplies(chassis)]
        return {"powerSupplies": inventory.power_supplies(supplies)[:MAX_POWER_SUPPLIES]}

    async def _accelerators(self, system: Document, _facts: Facts) -> Facts:
        """Read the PCIe functions of GPUs; where no Processor is one, those of all PCIe devices."""
        cards = self._cards
        if not cards:
            cards = await self._documents(inventory.links(system, "PCIeDevices")[:MAX_PCIE_DEVICES])
        found = [inventory.accelerator(card, await self._function(card)) for card in cards]
        return {"accelerators": [one for one in found if one]}

    async def _function(self, card: Document) -> Document:
        """Read the first PCIe function of a device or of a Processor."""
        related = inventory.mapping(card, "Links")
        paths = inventory.links(related, "PCIeFunctions")
        if not paths and (device := inventory.link(related, "PCIeDevice")) is not None:
            card = next(iter(await self._documents([device])), {})
            paths = inventory.links(inventory.mapping(card, "Links"), "PCIeFunctions")
        found = await self._documents(paths[:1]) or await self._members(inventory.link(card, "PCIeFunctions"), 1)
        return found[0] if found else {}

    async def _secure_boot(self, system: Document, _facts: Facts) -> Facts:
        found = await self._documents([inventory.link(system, "SecureBoot")])
        return inventory.secure_boot(found[0]) if found else {}

    async def _supplies(self, chassis: Document) -> Sequence[Document]:
        """Read the power supplies of a chassis; Power has all of them in one resource."""
        power = inventory.link(chassis, "Power")
        found = [one for each in await self._documents([power]) for one in inventory.items(each, "PowerSupplies")]
        subsystem = inventory.link(chassis, "PowerSubsystem")
        if found or subsystem is None:
            return found
        (collection,) = [inventory.link(each, "PowerSupplies") for each in await self._documents([subsystem])] or [None]
        return await self._members(collection, MAX_POWER_SUPPLIES)

    async def _members(self, collection: str | None, limit: int) -> list[Document]:
        """Read the members of a collection; none if the BMC has no such collection."""
        found = [documents.members(one) for one in await self._documents([collection])]
        members = [path for one in found for name, path in one.items() if not name.startswith(NOT_INSTALLED)]
        return await self._documents(members[:limit])

    async def _documents(self, paths: Sequence[str | None]) -> list[Document]:
        """Read some resources; one that the BMC names and does not have is left out."""
        found = []
        for path in filter(None, paths):
            try:
                found.append(await self._document(path))
            except bmc_interface.Unsupported:
                continue
        return found

    async def _document(self, path: str) -> Document:
        if self._stopped_by is not None:
            raise self._stopped_by
        if self._requests >= MAX_REQUESTS:
            raise Transient(f"not read: the inventory has more than {MAX_REQUESTS} resources")
        self._requests += 1
        try:
            return await self._get(path)
        except _OF_THE_BMC as error:
            self._stopped_by = error
            raise


Part = Callable[[InventoryReader, Document, Facts], Awaitable[Facts]]
# By the name of the resource; each part is read with those before it known.
PARTS: Final[dict[str, Part]] = {
    "Processors": InventoryReader._processors,
    "Memory": InventoryReader._memory,
    "Storage": InventoryReader._disks,
    "EthernetInterfaces": InventoryReader._nics,
    "FirmwareInventory": InventoryReader._firmware,
    "PowerSupplies": InventoryReader._power_supplies,
    "SecureBoot": InventoryReader._secure_boot,
    "PCIeDevices": InventoryReader._accelerators,
}
