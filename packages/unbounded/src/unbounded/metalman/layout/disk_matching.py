"""The disk of each device of a profile, from an installer's report.

Devices with byName take their disks first, the others the smallest disk that fits, in their order. A disk of the last
install stays that of its device. Disks with data of others are written with consent only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from unbounded.api.hardware import DiskFacts, DiskState
from unbounded.api.machine_status import DiskErasure
from unbounded.api.profile import DeviceSelector, DiskType, Partition
from unbounded.api.profile_check import ProfileFault, size_bytes
from unbounded.metalman import disk_choice
from unbounded.metalman.layout.geometry import needed_bytes
from unbounded.metalman.layout.model import NoDisk, size_text

SECTORS: Final = (512, 4096)
_BY_ID: Final = "/dev/disk/by-id/"
_WWN_LINKS: Final = ("wwn-", "nvme-eui.", "nvme-uuid.")


@dataclass(frozen=True)
class DiskConsent:
    """Knowledge of a Machine's disks beside the report: those of the last install, and the permitted erasures.

    Args:
        recorded: paths of the disks of the last install, by the device that they had.
        erase: serial numbers of the disks whose erasure the operation permits.
        used: the erasures that this boot has used: consent is valid once.
        machine: name of the Machine, for the command that permits an erasure; empty where no such command would work.
    """

    recorded: tuple[str, ...] = ()
    erase: tuple[str, ...] = ()
    used: tuple[DiskErasure, ...] = ()
    machine: str = ""


@dataclass(frozen=True)
class RequestedDisk:
    """The disk that a device asks for.

    Args:
        at: index of the device.
        needed: bytes of its partitions.
    """

    at: int
    selector: DeviceSelector
    needed: int

    @classmethod
    def of(cls, at: int, selector: DeviceSelector, partitions: Sequence[Partition]) -> RequestedDisk:
        return cls(at, selector, needed_bytes(partitions))

    @property
    def place(self) -> str:
        return f"spec.devices[{self.at}]"


def match_disks(
    requested: Sequence[RequestedDisk], disks: Sequence[DiskFacts], consent: DiskConsent
) -> list[DiskFacts]:
    """Return the disk of each device.

    Raises:
        NoDisk: a device has none, or one that may not be written.
        ProfileFault: an entry can have no disk at all.
    """
    if (fault := disk_choice.unidentified_serial(consent.erase, disks)) is not None:
        raise NoDisk(fault.text, may_come=fault.is_absent)
    matcher = _Matcher(disks, consent)
    for one in requested:
        _check_limits(one)
        if one.selector.by_name is not None:
            matcher.take_named(one)
    for one in requested:
        if one.selector.by_name is None:
            matcher.take_recorded(one)
    for one in requested:
        if one.at not in matcher.taken:
            matcher.take_smallest(one)
    for one in requested:
        matcher.check_consent(one)
    return [matcher.taken[one.at] for one in requested]


def path_of(disk: DiskFacts, selector: DeviceSelector) -> str:
    """Return the path by which the installer finds a disk: of the first kind in workBy that the disk has."""
    for kind in (selector.work_by or "").split(","):
        links = {
            "by_id": [link for link in disk.by_id if not link.startswith(_WWN_LINKS)],
            "by_wwn": [link for link in disk.by_id if link.startswith(_WWN_LINKS)],
        }.get(kind.strip(), [])
        if links:
            return _BY_ID + min(links)
        if kind.strip() == "by_path" and disk.by_path:
            return f"/dev/disk/by-path/{min(disk.by_path)}"
        if kind.strip() == "by_name":
            return disk_choice.device_file(disk)
    return _BY_ID + link if (link := disk_choice.stable_link(disk)) else disk_choice.device_file(disk)


def erasure_of(disk: DiskFacts) -> DiskErasure:
    return DiskErasure(serial_number=disk.serial_number or "", contents=disk.contents or "")


class _Matcher:
    """The disks that are taken so far, by device."""

    def __init__(self, disks: Sequence[DiskFacts], consent: DiskConsent) -> None:
        self._disks = disks
        self._consent = consent
        self._owner: dict[int, int] = {}  # device by the id of its disk
        self._ranks = {id(disk): self._rank(disk) for disk in disks}
        self.taken: dict[int, DiskFacts] = {}

    def take_named(self, requested: RequestedDisk) -> None:
        """Take the disk that byName names, whatever its size."""
        name = requested.selector.by_name or ""
        path = name if name.startswith("/") else f"/dev/{name}"
        found = [disk for disk in self._disks if disk_choice.has_path(disk, path)]
        if not found:
            raise self._absent(requested, f"byName {name} is no disk here; connect it, or name another")
        if len(found) > 1:
            raise NoDisk(f"{requested.place}.device.byName: {name} is several disks; use a path that no other has")
        if reason := self._unfit(found[0], requested):
            raise NoDisk(f"{requested.place}.device: byName {name} does not fit: {_listed(found[0])}: {reason}")
        self._take(requested, found[0])

    def take_recorded(self, requested: RequestedDisk) -> None:
        """Take the disk of the last install, if it is here and still fits."""
        recorded = self._recorded(requested)
        for disk in self._disks if recorded else ():
            if disk_choice.has_path(disk, recorded) and not self._unfit(disk, requested):
                self._take(requested, disk)

    def take_smallest(self, requested: RequestedDisk) -> None:
        """Take the smallest disk that fits."""
        fit = [disk for disk in self._disks if not self._unsuitable(disk, requested)]
        recorded = self._recorded(requested)
        if recorded and not any(disk_choice.has_path(disk, recorded) for disk in self._disks):
            fit = self._consented(requested, recorded, fit)
        if not fit:
            raise self._absent(requested, f"no disk fits ({_demands(requested.selector)})")
        self._take(requested, min(fit, key=lambda disk: self._ranks[id(disk)]))

    def check_consent(self, requested: RequestedDisk) -> None:
        """Check that the disk of a device may be written."""
        disk = self.taken[requested.at]
        if not disk_choice.is_foreign(disk):
            return
        contents = disk.contents or "data of an unknown kind"
        holds = f"{requested.place}: {_listed(disk)} holds data of others: {contents}"
        if not self._is_permitted(disk) and not _wipes(requested.selector):
            remedy = "erase it first, or name it in device.byName by id or WWN with wipe: true"
            raise NoDisk(f"{holds}; {remedy}{disk_choice.erase_command(self._consent.machine, self._nameable(disk))}")
        if not self._nameable(disk):
            raise NoDisk(f"{holds}; it has no serial number of its own to check before it is written: erase it first")
        if self._consent.used and erasure_of(disk) not in self._consent.used:
            raise NoDisk(
                f"{requested.place}: {_listed(disk)} holds other data than what this boot may erase: {contents}; "
                "consent is valid once: erase it with another operation"
            )

    def _take(self, requested: RequestedDisk, disk: DiskFacts) -> None:
        self.taken[requested.at] = disk
        self._owner[id(disk)] = requested.at

    def _recorded(self, requested: RequestedDisk) -> str:
        return self._consent.recorded[requested.at] if requested.at < len(self._consent.recorded) else ""

    def _consented(self, requested: RequestedDisk, recorded: str, fit: list[DiskFacts]) -> list[DiskFacts]:
        """Return the disks that may take the place of a disk of the last install that is gone."""
        text = f"{requested.place}: {recorded}, its disk of this Machine's last install, is not here"
        there = [disk for disk in fit if disk.state == DiskState.OWN or self._is_permitted(disk)]
        if there:
            return there
        remedy = "it was swapped or is missing; to consent to another, name it in device.byName, or in eraseDisks"
        raise NoDisk(f"{text}: {remedy}{self._list(fit)}", may_come=True)

    def _rank(self, disk: DiskFacts) -> tuple[int, int, str, str]:
        """Return the order of disks that fit: by size, then what is on them, then a name that stays."""
        states = {DiskState.OWN: 0, DiskState.BLANK: 1}
        rank = states.get(DiskState(disk.state), 3) if disk.state is not None else 3
        return (
            disk.size_bytes or 0,
            2 if rank == 3 and self._is_permitted(disk) else rank,
            disk_choice.stable_link(disk),
            disk.name,
        )

    def _unsuitable(self, disk: DiskFacts, requested: RequestedDisk) -> str:
        """Return why a disk is not taken without being named; empty if it may be."""
        if reason := self._unfit(disk, requested):
            return reason
        named = disk.state == DiskState.OWN or self._is_permitted(disk)
        if (disk.size_bytes or 0) < disk_choice.SMALLEST_BYTES and not named:
            return f"smaller than {disk_choice.SMALLEST_BYTES // 1_000_000} MB, which byName has to name"
        return ""

    def _unfit(self, disk: DiskFacts, requested: RequestedDisk) -> str:
        """Return why a disk cannot be that of a device; empty if it can."""
        selector = requested.selector
        if id(disk) in self._owner:
            return f"taken by devices[{self._owner[id(disk)]}]"
        if disk.sector_bytes not in SECTORS:
            return f"sectors of {disk.sector_bytes or 'unknown'} bytes"
        size = disk.size_bytes or 0
        if selector.min_size is not None and size < size_bytes(selector.min_size):
            return f"smaller than minSize {selector.min_size}"
        if selector.max_size is not None and size > size_bytes(selector.max_size):
            return f"larger than maxSize {selector.max_size}"
        if selector.type is not None and selector.type != _type_of(disk):
            return f"type {_type_of(disk) or 'unknown'}, not {selector.type}"
        if size < requested.needed:
            return f"smaller than its partitions, which need {size_text(requested.needed)}"
        return ""

    def _absent(self, requested: RequestedDisk, text: str) -> NoDisk:
        reasons = [(disk, self._unsuitable(disk, requested)) for disk in self._disks]
        shown = [f"{_listed(disk)}: {reason or 'another disk'}" for disk, reason in reasons]
        more = [f"and {len(shown) - disk_choice.LISTED} more"] if len(shown) > disk_choice.LISTED else []
        listed = "; ".join((*shown[: disk_choice.LISTED], *more)) or "there is no disk"
        return NoDisk(f"{requested.place}.device: {text}: {listed}", may_come=True)

    def _list(self, disks: Sequence[DiskFacts]) -> str:
        return f": {'; '.join(map(_listed, disks[: disk_choice.LISTED]))}" if disks else ""

    def _is_permitted(self, disk: DiskFacts) -> bool:
        return bool(disk.serial_number) and disk.serial_number in self._consent.erase

    def _nameable(self, disk: DiskFacts) -> tuple[str, ...]:
        """Return the serial number of a disk as eraseDisks can have it; none if it cannot."""
        serial = disk.serial_number or ""
        alone = sum(one.serial_number == serial for one in self._disks) == 1
        return (serial,) if serial and serial == serial.strip() and "," not in serial and alone else ()


def _check_limits(requested: RequestedDisk) -> None:
    selector = requested.selector
    if selector.min_size is None or selector.max_size is None:
        return
    if size_bytes(selector.min_size) > size_bytes(selector.max_size):
        raise ProfileFault(f"devices[{requested.at}].device.maxSize", "it is less than minSize")


def _wipes(selector: DeviceSelector) -> bool:
    """Return whether an entry consents to the loss of data: it names the disk itself, and wipes."""
    detail = selector.wipe_device.erase_metadata if selector.wipe_device is not None else None
    return (selector.by_name or "").startswith(_BY_ID) and (selector.wipe or (detail is not None and detail.enabled))


def _type_of(disk: DiskFacts) -> str:
    if disk.bus == DiskType.NVME or disk.name.startswith("nvme"):
        return DiskType.NVME
    return "" if disk.rotational is None else DiskType.HDD if disk.rotational else DiskType.SSD


def _demands(selector: DeviceSelector) -> str:
    demands = (("minSize", selector.min_size), ("maxSize", selector.max_size), ("type", selector.type))
    return ", ".join(f"{name} {value}" for name, value in demands if value is not None) or "any disk"


def _listed(disk: DiskFacts) -> str:
    identity = disk_choice.stable_link(disk) or disk.serial_number
    return f"{disk.name} ({size_text(disk.size_bytes or 0)}{f', {identity}' if identity else ''})"
