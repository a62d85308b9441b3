"""Parsers of a BMC's inventory: Redfish resources (DSP2046) in, facts of `Machine.status.hardware` out.

Facts have the names of the API. A property that is missing, null or of another type is unknown, and an unknown fact
is left out. Texts are bounded. `inventory_reader` decides which resources are read, and bounds the lists.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from unbounded.metalman.redfish.bmc_interface import clean

Document = Mapping[str, Any]
Facts = dict[str, Any]

TEXT_CHARS: Final = 128
GIB: Final = 1 << 30
MIB: Final = 1 << 20
LARGEST: Final = 1 << 62  # an int64 of the API holds it

_MAC: Final = re.compile(r"(?:[0-9a-f]{2}:){5}[0-9a-f]{2}")
_HEX: Final = re.compile(r"[0-9a-f]{16,32}")
_ACCELERATORS: Final = ("GPU", "FPGA", "DSP", "Accelerator")
_ACCELERATOR_CLASSES: Final = ("03", "12")  # display controllers and processing accelerators, as an installer has them
_TPM_VERSIONS: Final = {"TPM2_0": "2.0", "TPM1_2": "1.2"}
# Names of the kernel, as the installer reports them.
_ARCHITECTURES: Final = {"x86-64": "x86_64", "ARM-A64": "aarch64"}
_BUSES: Final = {"NVMe": "nvme", "SATA": "ata", "PATA": "ata", "SAS": "sas", "USB": "usb", "eMMC": "mmc"}
_PREFIXES: Final = {"NAA": "0x", "EUI": "eui.", "NGUID": "eui."}


def system(document: Document) -> Facts:
    """Parse a ComputerSystem."""
    processors, memory = mapping(document, "ProcessorSummary"), mapping(document, "MemorySummary")
    gib = memory.get("TotalSystemMemoryGiB")
    return _known(
        system=_known(
            manufacturer=_text(document, "Manufacturer"),
            product=_text(document, "Model"),
            serialNumber=_text(document, "SerialNumber"),
            uuid=(_text(document, "UUID") or "").lower(),
        ),
        firmware=_known(version=_text(document, "BiosVersion")),
        cpus=_count(processors, "LogicalProcessorCount"),
        processor=_known(
            model=_text(processors, "Model"),
            sockets=_count(processors, "Count"),
            cores=_count(processors, "CoreCount"),
        ),
        memoryBytes=_whole(gib, GIB),
        tpm=_known(version=next(_tpm_versions(document), None)),
    )


def processors(documents: Iterable[Document]) -> Facts:
    """Sum up the Processors that are CPUs; others, such as GPUs, are left out."""
    found = [one for one in documents if _present(one) and one.get("ProcessorType", "CPU") in ("CPU", None)]
    names = (_ARCHITECTURES.get(_text(one, "InstructionSet") or "") for one in found)
    return _known(
        cpus=_sum(found, "TotalThreads"),
        processor=_known(
            architecture=next(filter(None, names), None),
            model=next(filter(None, (_text(one, "Model") for one in found)), None),
            sockets=len(found),
            cores=_sum(found, "TotalCores"),
        ),
    )


def is_accelerator(processor: Document) -> bool:
    """Return whether a Processor is a GPU or the like."""
    return _text(processor, "ProcessorType") in _ACCELERATORS and _present(processor)


def accelerator(device: Document, function: Document) -> Facts:
    """Parse a Processor that is an accelerator, or a PCIeDevice, with its PCIeFunction; nothing for another device."""
    code = _hex_digits(function, "ClassCode", 6) or ""
    if not _present(device) or not (is_accelerator(device) or code[:2] in _ACCELERATOR_CLASSES):
        return {}
    return _known(
        name=_text(device, "Id"),
        model=_text(device, "Model"),
        serialNumber=_text(device, "SerialNumber"),
        pciAddress=_pci_address(function),
        vendorID=_hex_digits(function, "VendorId", 4),
        deviceID=_hex_digits(function, "DeviceId", 4),
        health=_health(device),
        **{"class": code[:4]},
    )


def secure_boot(document: Document) -> Facts:
    """Parse a SecureBoot, whose state is that of the last start."""
    state = _text(document, "SecureBootCurrentBoot")
    return {"firmware": {"secureBoot": state == "Enabled"}} if state in ("Enabled", "Disabled") else {}


def memory(documents: Iterable[Document]) -> Facts:
    """Sum up the Memory modules."""
    found = [one for one in documents if _present(one)]
    return _known(memoryBytes=_whole(_sum(found, "CapacityMiB"), MIB))


def drive(document: Document) -> Facts:
    """Parse a Drive; nothing for an empty bay."""
    if not _present(document):
        return {}
    media = document.get("MediaType")
    disk = _known(
        name=_disk_name(document, "Id", "Name"),
        sizeBytes=_count(document, "CapacityBytes"),
        sectorBytes=_count(document, "BlockSizeBytes"),
        bus=_BUSES.get(_text(document, "Protocol") or ""),
        vendor=_text(document, "Manufacturer"),
        model=_text(document, "Model"),
        serialNumber=_text(document, "SerialNumber"),
        wwn=next(_wwns(document), None),
        health=_drive_health(document),
    )
    if "name" not in disk:
        return {}
    return disk | ({"rotational": media == "HDD"} if media in ("HDD", "SSD") else {})


def simple_storage(document: Document) -> list[Facts]:
    """Parse the devices of a SimpleStorage, which BMCs without Storage offer."""
    disks = (
        _known(
            name=_disk_name(device, "Name"),
            sizeBytes=_count(device, "CapacityBytes"),
            vendor=_text(device, "Manufacturer"),
            model=_text(device, "Model"),
            health=_health(device),
        )
        for device in items(document, "Devices")
        if _present(device)
    )
    return [disk for disk in disks if "name" in disk]


def ethernet_interface(document: Document) -> Facts:
    """Parse an EthernetInterface; nothing without a MAC address, which alone identifies a NIC."""
    addresses = (_text(document, key) or "" for key in ("PermanentMACAddress", "MACAddress"))
    macs = (address.lower().replace("-", ":") for address in addresses)
    mac = next((mac for mac in macs if _MAC.fullmatch(mac) and mac.strip("0:")), None)
    if mac is None or not _present(document):
        return {}
    link = document.get("LinkStatus")
    nic = _known(name=_text(document, "Id"), mac=mac, speedMbps=_count(document, "SpeedMbps"))
    return nic | ({"link": link == "LinkUp"} if link in ("LinkUp", "LinkDown", "NoLink") else {})


def firmware(document: Document) -> Facts:
    """Parse a SoftwareInventory of UpdateService; nothing without a version."""
    name, version = _text(document, "Name") or _text(document, "Id"), _text(document, "Version")
    return {"name": name, "version": version} if name and version else {}


def power_supplies(documents: Iterable[Document]) -> list[Facts]:
    """Parse PowerSupplies, of a Power or of a PowerSubsystem."""
    found = [one for one in documents if _present(one)]
    supplies = (
        _known(name=_text(one, "Name") or _text(one, "MemberId") or _text(one, "Id"), health=_health(one))
        for one in found
    )
    return [supply for supply in supplies if "name" in supply]


def links(document: Document, key: str) -> list[str]:
    """Return the paths in a list of links."""
    return list(dict.fromkeys(path for item in items(document, key) if (path := _path(item))))


def link(document: Document, key: str) -> str | None:
    """Return the path of one link."""
    return _path(mapping(document, key))


def joined(first: Facts, second: Facts) -> Facts:
    """Return the facts of `first`, and those of `second` that `first` lacks."""
    both = {**second, **first}
    for key, value in first.items():
        if isinstance(value, dict) and isinstance(second.get(key), dict):
            both[key] = {**second[key], **value}
    return both


def _known(**facts: Any) -> Facts:
    return {name: value for name, value in facts.items() if value not in (None, "", {}, 0)}


def _path(item: Document) -> str | None:
    found = item.get("@odata.id")
    return found if isinstance(found, str) and found else None


def mapping(holder: Document, key: str) -> Document:
    """Return an object in a document; an empty one if it has none."""
    found = holder.get(key)
    return found if isinstance(found, Mapping) else {}


def items(holder: Document, key: str) -> list[Document]:
    """Return the objects in a list, such as the PowerSupplies of a Power."""
    found = holder.get(key)
    return [item for item in found if isinstance(item, Mapping)] if isinstance(found, list) else []


def _text(holder: Document, key: str) -> str | None:
    found = holder.get(key)
    return clean(found)[:TEXT_CHARS].strip() or None if isinstance(found, str) else None


def _disk_name(holder: Document, *keys: str) -> str | None:
    """Return the first of some texts in the characters of a disk's name; no kernel is there to give one."""
    name = next(filter(None, (_text(holder, key) for key in keys)), None)
    return re.sub(r"[^A-Za-z0-9#+.:=@_-]", "_", name) if name else None


def _count(holder: Document, key: str) -> int | None:
    return _whole(holder.get(key))


def _sum(documents: Iterable[Document], key: str) -> int:
    """Return the sum of a property; 0 where a document lacks it, as a part of the sum is not the sum."""
    counts = [_count(one, key) for one in documents]
    return 0 if None in counts else sum(count for count in counts if count)


def _whole(amount: object, unit: int = 1) -> int | None:
    """Return a positive number in units of `unit`; some BMCs write whole numbers as fractions."""
    if isinstance(amount, bool) or not isinstance(amount, int | float) or not 0 < amount <= LARGEST // unit:
        return None
    return int(amount * unit)


def _hex_digits(holder: Document, key: str, digits: int) -> str | None:
    """Return a number such as "0x10DE" in the form of the kernel."""
    found = (_text(holder, key) or "").lower().removeprefix("0x")
    return found if re.fullmatch(f"[0-9a-f]{{{digits}}}", found) else None


def _pci_address(function: Document) -> str | None:
    bus, device = _hex_digits(function, "BusNumber", 2), _hex_digits(function, "DeviceNumber", 2)
    number = (_hex_digits(function, "FunctionNumber", 2) or _hex_digits(function, "FunctionNumber", 1) or "0")[-1]
    if bus is None or device is None:
        return None
    return f"{_hex_digits(function, 'SegmentNumber', 4) or '0000'}:{bus}:{device}.{number}"


def _present(document: Document) -> bool:
    return mapping(document, "Status").get("State") != "Absent"


def _health(document: Document) -> str | None:
    return _text(mapping(document, "Status"), "Health")


def _drive_health(document: Document) -> str | None:
    health = _health(document)
    if document.get("FailurePredicted") is not True:
        return health
    return f"{health or 'Unknown'} (failure predicted)"


def _tpm_versions(document: Document) -> Iterator[str]:
    for module in items(document, "TrustedModules"):
        version = _TPM_VERSIONS.get(_text(module, "InterfaceType") or "")
        if version and _present(module):
            yield version


def _wwns(document: Document) -> Iterator[str]:
    """Yield the durable names of a drive, in the spelling of udev."""
    for identifier in items(document, "Identifiers"):
        prefix = _PREFIXES.get(_text(identifier, "DurableNameFormat") or "")
        name = (_text(identifier, "DurableName") or "").lower().removeprefix("0x").removeprefix("eui.")
        name = re.sub(r"[:\-. ]", "", name)
        if prefix and _HEX.fullmatch(name):
            yield prefix + name
