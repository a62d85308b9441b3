"""Hardware and addresses of this host, as its own programs report them: lscpu, lsblk and ip.

Strings of firmware and disks may hold anything: the report has them within the limits of the API. A program that the
host lacks leaves its part out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from unbounded.agent.interfaces import Commands
from unbounded.agent.paths import HostPaths
from unbounded.api.bounds import bounded
from unbounded.api.failures import Rejected, Transient
from unbounded.api.fields import ApiStruct
from unbounded.api.hardware import (
    MAX_HOST_DISKS,
    MAX_HOST_LINKS,
    MAX_HOST_NICS,
    DiskFacts,
    NICFacts,
    ProcessorFacts,
    ReportedHardware,
)
from unbounded.api.machine_status import MAX_ADDRESSES, HostAddress

PROGRAM_S: Final = 10.0
LSCPU: Final = ("lscpu", "--parse=CPU,CORE,SOCKET")
LSCPU_NAMES: Final = ("lscpu", "--json")
LSBLK: Final = (
    *("lsblk", "--json", "--bytes", "--nodeps", "--output"),
    "KNAME,TYPE,SIZE,LOG-SEC,ROTA,RM,RO,TRAN,VENDOR,MODEL,SERIAL,WWN,HCTL",
)
IP: Final = ("ip", "-json", "address", "show")
_PCI: Final = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
# those of no medium of its own, and parts of a memory card that hold no data
_NO_DISK: Final = re.compile(r"(loop|ram|zram|dm-|md|sr|fd|nbd).*|mmcblk\d+(boot|rpmb).*")
_BUSES: Final = {"sata": "ata", "ata": "ata", "sas": "sas", "usb": "usb", "nvme": "nvme", "mmc": "mmc", "spi": "scsi"}
_NAMED_BUSES: Final = {"nvme": "nvme", "vd": "virtio", "mmcblk": "mmc"}
_TRANSPORTS: Final = {"sata": "ata", "ata": "ata", "sas": "sas", "usb": "usb", "fc": "fc", "iscsi": "iscsi"}
# a privacy address changes each day, and the others are not in use
_PASSING: Final = ("temporary", "deprecated", "tentative", "dadfailed")

Struct = TypeVar("Struct", bound=ApiStruct)
Entry = dict[str, Any]


async def read_hardware(paths: HostPaths, commands: Commands) -> ReportedHardware:
    """Return the hardware of this host.

    Raises:
        Transient: a program failed, or printed something else than it documents.
    """
    cpus, processor = _processors(await _output(commands, LSCPU), await _entries(commands, LSCPU_NAMES, "lscpu"))
    links = _links(paths.at("/dev"))
    blocks = paths.at("/sys/block")
    disks = [_disk(one, links, blocks) for one in await _entries(commands, LSBLK, "blockdevices") if _is_disk(one)]
    interfaces = paths.at("/sys/class/net")
    nics = [_nic(one, interfaces) for one in await _entries(commands, IP) if _is_card(interfaces / one["ifname"])]
    return bounded(
        ReportedHardware(
            cpus=cpus,
            processor=processor,
            memory_bytes=_memory(paths.at("/proc/meminfo")),
            nics=tuple(_within_limits(nics))[:MAX_HOST_NICS],
            disks=tuple(_within_limits(disks))[:MAX_HOST_DISKS],
        )
    )


async def read_addresses(paths: HostPaths, commands: Commands, source: str = "") -> tuple[HostAddress, ...]:
    """Return the global addresses of the host's cards, and of bonds, VLANs and bridges on them.

    Interfaces of a node's network have addresses, too, and are left out: they are not the host's.

    Args:
        source: the address of connections to the API server, whose interface counts, whatever it is.

    Raises:
        Transient: `ip` failed, or printed something else than it documents.
    """
    interfaces, found = paths.at("/sys/class/net"), set()
    for entry in await _entries(commands, IP):
        here = [one["local"] for one in entry.get("addr_info", ()) if _is_lasting(one)]
        if here and (source in here or _is_on_card(interfaces / entry["ifname"])):
            found |= {(entry["ifname"], one) for one in here}
    return tuple(HostAddress(interface=name, address=one) for name, one in sorted(found))[:MAX_ADDRESSES]


async def _output(commands: Commands, argv: tuple[str, ...]) -> str:
    """Return what a program prints; empty where the host has no such program."""
    try:
        return (await commands.run(*argv, timeout_s=PROGRAM_S, env={"LC_ALL": "C"})).stdout
    except Rejected:
        return ""


async def _entries(commands: Commands, argv: tuple[str, ...], key: str = "") -> list[Entry]:
    """Return the objects of a program's JSON.

    Args:
        key: of the list in the outermost object; empty where the list itself is outermost.
    """
    output = await _output(commands, argv)
    if not output.strip():
        return []
    try:
        if not key:
            return msgspec.json.decode(output, type=list[Entry])
        return msgspec.json.decode(output, type=dict[str, list[Entry]])[key]
    except (msgspec.DecodeError, KeyError) as error:
        raise Transient(f"{argv[0]} printed unexpected JSON: {error}") from error


def _within_limits(items: Iterable[Struct]) -> Iterator[Struct]:
    """Yield parts within the limits of the API. One that has an impossible value is left out."""
    for one in items:
        with suppress(ValueError):
            yield bounded(one)


def _processors(rows: str, names: list[Entry]) -> tuple[int | None, ProcessorFacts | None]:
    cpus = [line.split(",") for line in rows.splitlines() if line and not line.startswith("#")]
    cores, sockets = ({row[at] for row in cpus if row[at : at + 1] not in ([], [""], ["-"])} for at in (1, 2))
    named = dict(_named(names))
    if not cpus and not named:
        return None, None
    facts = ProcessorFacts(
        architecture=named.get("Architecture"),
        model=named.get("Model name"),
        sockets=len(sockets) or None,
        cores=len(cores) or None,
    )
    return len(cpus) or None, facts


def _named(entries: Iterable[Entry]) -> Iterator[tuple[str, str]]:
    """Yield the fields of `lscpu --json`, which newer versions nest."""
    for one in entries:
        yield str(one.get("field", "")).rstrip(":"), str(one.get("data"))
        yield from _named(one.get("children", ()))


def _memory(meminfo: Path) -> int | None:
    try:
        found = re.search(r"^MemTotal:\s+(\d+) kB$", meminfo.read_text(), re.MULTILINE)
    except OSError:
        return None
    return int(found[1]) * 1024 if found else None


# Disks


def _is_disk(entry: Entry) -> bool:
    """Return whether a block device is a fixed and writable disk."""
    name, is_disk = str(entry["kname"]), entry["type"] == "disk" and _number(entry["size"])
    return bool(is_disk) and not (_NO_DISK.fullmatch(name) or _truth(entry["rm"]) or _truth(entry["ro"]))


def _disk(entry: Entry, links: dict[str, dict[str, list[str]]], blocks: Path) -> DiskFacts:
    name, carrier = str(entry["kname"]).replace("/", "!"), str(entry["tran"] or "")
    named = next((bus for prefix, bus in _NAMED_BUSES.items() if name.startswith(prefix)), None)
    vendor = _text(entry["vendor"])
    return DiskFacts(
        name=name,
        size_bytes=_number(entry["size"]),
        sector_bytes=_number(entry["log-sec"]),
        rotational=_truth(entry["rota"]),
        bus=named or _BUSES.get(carrier) or ("scsi" if entry["hctl"] else None),
        transport=_TRANSPORTS.get(carrier) or (named if named in ("virtio", "mmc") else None),
        vendor=None if vendor is None or vendor.startswith("0x") else vendor,  # a number is that of virtio
        model=_text(entry["model"]),
        serial_number=_text(entry["serial"]) or _line(blocks / name / "serial"),  # where udev does not run
        wwn=_text(entry["wwn"]),
        hctl=_text(entry["hctl"]),
        by_id=tuple(links["by-id"].get(name, ())[:MAX_HOST_LINKS]),
        by_path=tuple(links["by-path"].get(name, ())[:MAX_HOST_LINKS]),
    )


def _links(dev: Path) -> dict[str, dict[str, list[str]]]:
    """Return udev's names of disks, by folder and by the kernel's name."""
    found: dict[str, dict[str, list[str]]] = {"by-id": {}, "by-path": {}}
    root = dev.resolve()
    for kind, names in found.items():
        for link in sorted((dev / "disk" / kind).glob("*")):
            device = link.resolve()
            if device.is_relative_to(root):
                names.setdefault(str(device.relative_to(root)).replace("/", "!"), []).append(link.name)
    return found


def _number(value: object) -> int | None:
    """Return a number that older versions of lsblk print as a string."""
    text = str(value)
    return int(text) if text.isdecimal() else None


def _truth(value: object) -> bool:
    """Return a truth value that older versions of lsblk print as "0" or "1"."""
    return value is True or value == "1"


def _line(file: Path) -> str | None:
    try:
        return file.read_text(errors="replace").strip() or None
    except OSError:
        return None


def _text(value: object) -> str | None:
    return str(value).strip() or None if value is not None else None


# Network cards


def _is_card(interface: Path) -> bool:
    """Return whether an interface is a device of its own, and not a virtual function, which a Pod may take away."""
    return (interface / "device").exists() and not (interface / "device" / "physfn").exists()


def _is_on_card(interface: Path) -> bool:
    """Return whether an interface is a card, or lies on one: a bond, a VLAN, a bridge."""
    if _is_card(interface):
        return True
    lower = (link.name.removeprefix("lower_") for link in interface.glob("lower_*"))
    return any(_is_on_card(interface.parent / name) for name in lower)  # the kernel admits no cycle


def _nic(entry: Entry, interfaces: Path) -> NICFacts:
    folder = interfaces / entry["ifname"]
    pci, is_up = _PCI.findall(str((folder / "device").resolve())), "LOWER_UP" in entry.get("flags", ())
    driver = folder / "device" / "driver"
    return NICFacts(
        name=entry["ifname"],
        mac=entry.get("permaddr") or entry.get("address"),  # a bond gives all of its cards one address
        driver=driver.resolve().name if driver.exists() else None,
        link=is_up,
        speed_mbps=_number(_line(folder / "speed")) or None if is_up else None,  # -1 or 0: unknown
        pci_address=pci[-1] if pci else None,
    )


def _is_lasting(address: Entry) -> bool:
    return address.get("scope") == "global" and not any(address.get(flag) for flag in _PASSING)
