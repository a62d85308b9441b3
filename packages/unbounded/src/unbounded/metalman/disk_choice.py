"""The disk that an install writes, chosen from the installer's report before the first byte. Pure.

metalman never guesses: a disk with data of others is chosen only where the operation names it in eraseDisks, and a disk
that the Machine names, or the one of its last install, is never substituted. A refusal has the reason, the remedy, a
list of the disks, and for a disk with data of others the command that permits its erasure.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from unbounded.api.conditions import fit_message
from unbounded.api.fields import api_name
from unbounded.api.hardware import DiskFacts, DiskState
from unbounded.api.machine import Machine
from unbounded.api.machine_spec import RootDeviceHints
from unbounded.api.machine_status import DiskErasure

SMALLEST_BYTES: Final = 4_000_000_000  # of a disk that nothing names: the flash of boards and BMCs is smaller
SECTOR_BYTES: Final = 512  # the unit of the partition table of disk.img
LARGE_SECTOR_BYTES: Final = 4096  # of a 4Kn disk, and of the partition table of disk.img.4k
SECTORS: Final = (SECTOR_BYTES, LARGE_SECTOR_BYTES)
LISTED: Final = 8  # disks in a message
COMMAND_MESSAGE: Final = 1000  # characters of a message that ends with a command, which no status may cut off
# what the disk itself says (WWN, EUI) comes before what udev's rules make of its model and serial number
STABLE_LINKS: Final = ("wwn-", "nvme-eui.", "nvme-uuid.", "scsi-3", "scsi-S", "ata-", "nvme-", "")


@dataclass(frozen=True)
class ChosenDisk:
    """The disk to write, and its most persistent path."""

    disk: DiskFacts
    path: str

    @property
    def erasure(self) -> DiskErasure | None:
        """The data of others that the install destroys; None where there are none."""
        if not is_foreign(self.disk):
            return None
        return DiskErasure(serial_number=self.disk.serial_number or "", contents=self.disk.contents or "")


@dataclass(frozen=True)
class AwaitedDisk:
    """The disk may still appear, and the installer is to report again."""

    message: str


@dataclass(frozen=True)
class DiskRefused:
    """Nothing may be written."""

    message: str


DiskChoice = ChosenDisk | AwaitedDisk | DiskRefused


@dataclass(frozen=True)
class DiskSelection:
    """The disk that a Machine is to be installed on, as far as its spec and its status name one.

    Args:
        target: spec.pxe.targetDisk, a path.
        hints: spec.pxe.rootDeviceHints.
        recorded: status.targetDisk, the path of the disk of the last install.
        erase: serial numbers of the disks whose erasure the operation permits. They name a disk only where nothing
            else does.
        used: the erasure that this boot has used: consent is valid once.
        machine: name of the Machine, for the command that permits an erasure; empty where no such command would work.
    """

    target: str = ""
    hints: RootDeviceHints | None = None
    recorded: str = ""
    erase: tuple[str, ...] = ()
    used: DiskErasure | None = None
    machine: str = ""

    @classmethod
    def of(cls, machine: Machine, erase: tuple[str, ...] = (), used: DiskErasure | None = None) -> DiskSelection:
        """Return the selection of a Machine."""
        pxe = machine.spec.pxe
        recorded = machine.status.target_disk or ""
        if pxe is None:
            return cls(recorded=recorded, erase=erase, used=used)
        name = "" if pxe.redfish is None else machine.name
        return cls(pxe.target_disk or "", pxe.root_device_hints, recorded, erase, used, name)


def choose_disk(
    disks: Sequence[DiskFacts],
    selection: DiskSelection,
    *,
    image_bytes: int = 0,
    sectors: Collection[int] = (SECTOR_BYTES,),
    final: bool = True,
) -> DiskChoice:
    """Choose the disk of an install.

    Args:
        image_bytes: size of the unpacked image; 0 if it is unknown.
        sectors: sector sizes of the disks that there is an image for.
        final: the installer has waited for late disks; a missing one is refused and no longer awaited.
    """
    report = _DiskReport(disks, selection, image_bytes, sectors, final)
    if (obstacle := report.without_consent()) is not None:
        return obstacle
    if selection.target:
        absent = "is no disk here; connect it, or name another"
        return report.named(selection.target, f"targetDisk {selection.target}", absent, "erase it first")
    if selection.hints is not None:
        return report.matching(selection.hints, selection.recorded)
    if selection.recorded:
        words = f"{selection.recorded}, the disk of this Machine's last install,"
        absent = f"is not here: it was swapped or is missing; name another in {_NAMES}"
        return report.named(selection.recorded, words, absent, f"erase it, or name another in {_NAMES}")
    return report.only()


_NAMES: Final = "spec.pxe.targetDisk or spec.pxe.rootDeviceHints"


@dataclass(frozen=True)
class _DiskReport:
    """The disks of a report; its methods are the rules."""

    disks: Sequence[DiskFacts]
    selection: DiskSelection
    image_bytes: int
    sectors: Collection[int]
    final: bool

    def without_consent(self) -> DiskChoice | None:
        """Return the answer where a serial number of eraseDisks does not identify exactly one disk; None otherwise."""
        fault = unidentified_serial(self.selection.erase, self.disks)
        if fault is None:
            return None
        return self._absent(fault.text) if fault.is_absent else self._refused(fault.text)

    def named(self, path: str, words: str, absent: str, foreign: str) -> DiskChoice:
        """Choose the disk with a path, whatever its size."""
        found = [disk for disk in self.disks if has_path(disk, path)]
        if not found:
            return self._absent(f"{words} {absent}")
        if len(found) > 1:
            return self._refused(f"{words} is several disks; name one in {_NAMES} by a path that no other has")
        return self._checked(found[0], words, foreign)

    def matching(self, hints: RootDeviceHints, recorded: str) -> DiskChoice:
        """Choose the disk that the hints describe; among several, that of the last install.

        Hints that fit any disk of a kind are no consent to another disk than that of the last install.
        """
        is_gone = bool(recorded) and not any(has_path(disk, recorded) for disk in self.disks)
        if is_gone and not self.final:
            return AwaitedDisk(f"{recorded}, the disk of this Machine's last install, is not here yet")
        found = [disk for disk in self.disks if matches(disk, hints)]
        if is_gone and found and not identifies(hints):
            found = [disk for disk in found if disk.state == DiskState.OWN or self._is_permitted(disk)]
            if not found:
                return self._refused(
                    f"{recorded}, the disk of this Machine's last install, is not here: it was swapped or is missing; "
                    "to consent to another, name it in spec.pxe.targetDisk, or by serialNumber or wwn in "
                    "spec.pxe.rootDeviceHints"
                )
        if not found:
            unmatched = f"no disk matches spec.pxe.rootDeviceHints ({hints_text(hints)})"
            return self._absent(f"{unmatched}; correct the hints, or connect the disk")
        last = [disk for disk in found if recorded and has_path(disk, recorded)]
        own = [disk for disk in found if disk.state == DiskState.OWN]
        for some in (found, last, own):
            if len(some) == 1:
                return self._checked(some[0], f"disk {some[0].name}, which rootDeviceHints describe,", "erase it first")
        return self._refused("several disks match spec.pxe.rootDeviceHints; add a hint such as serialNumber or wwn")

    def only(self) -> DiskChoice:
        """Choose the only disk that can be meant, where nothing names one."""
        if not self.disks:
            return self._absent("connect a disk, or use an installer that has the driver of its controller")
        own = [disk for disk in self.disks if disk.state == DiskState.OWN]
        if self.selection.erase:
            return self._erased(own)
        blank = [disk for disk in self.disks if disk.state == DiskState.BLANK and not self._unsuitable(disk)]
        if len(own) == 1:
            return self._checked(own[0], f"disk {own[0].name}, this Machine's earlier install,", "")
        if len(own or blank) > 1:
            return self._refused(f"several disks could be meant; name one in {_NAMES}")
        if not blank:
            foreign = [disk for disk in self.disks if is_foreign(disk)]
            return self._refused(f"no disk is blank; erase one, or name an erased one in {_NAMES}", erasable=foreign)
        if any(is_foreign(disk) for disk in self.disks):
            beside = f"disk {blank[0].name} is blank, and beside it are data of others"
            return self._refused(f"{beside}; to write that disk, name it in {_NAMES}", blank[0])
        return _chosen(blank[0])

    def _erased(self, own: Sequence[DiskFacts]) -> DiskChoice:
        """Choose the one disk of eraseDisks, where nothing else names one."""
        erase = self.selection.erase
        if len(erase) > 1:
            return self._refused(
                f"eraseDisks permits several disks, and nothing says which is installed; name it in {_NAMES}"
            )
        (disk,) = self._with_serial(erase[0])
        if any(one is not disk for one in own):
            return self._refused(
                f"disk {disk.name}, which eraseDisks names, or this Machine's earlier install could be meant; "
                f"name one in {_NAMES}",
                disk,
            )
        return self._checked(disk, f"disk {disk.name}, which eraseDisks names,", "erase it first")

    def _checked(self, disk: DiskFacts, words: str, foreign: str) -> DiskChoice:
        if is_foreign(disk):
            if not self._is_permitted(disk):
                return self._refused(f"{words} holds data of others; {foreign}", disk, [disk])
            if self.selection.used not in (None, _chosen(disk).erasure):
                used = "holds other data than eraseDisks was used for in this boot; consent is valid once"
                return self._refused(f"{words} {used}; erase it with another operation", disk, [disk])
        if unfit(disk, self.image_bytes, self.sectors):
            return self._refused(f"{words} cannot be written; name another in {_NAMES}", disk)
        return _chosen(disk)

    def _absent(self, text: str) -> DiskChoice:
        refused = self._refused(text)
        return refused if self.final else AwaitedDisk(refused.message)

    def _unsuitable(self, disk: DiskFacts) -> str:
        """Return why a blank disk is not taken unless something names it; empty for a suitable one."""
        if reason := unfit(disk, self.image_bytes, self.sectors):
            return reason
        small = (disk.size_bytes or 0) < SMALLEST_BYTES
        return f"blank, but smaller than {SMALLEST_BYTES // 1_000_000} MB" if small else ""

    def _is_permitted(self, disk: DiskFacts) -> bool:
        """Return whether eraseDisks names a disk."""
        return disk.serial_number in self.selection.erase

    def _with_serial(self, serial: str) -> list[DiskFacts]:
        return [disk for disk in self.disks if disk.serial_number == serial]

    def _consent(self, disks: Sequence[DiskFacts]) -> str:
        """Return how a user permits the erasure of one of some disks; empty if none can be permitted."""
        serials = [disk.serial_number for disk in disks if disk.serial_number and self._is_erasable(disk)]
        return erase_command(self.selection.machine, serials)

    def _is_erasable(self, disk: DiskFacts) -> bool:
        """Return whether eraseDisks can name a disk, and an image fits."""
        serial = disk.serial_number or ""
        nameable = (
            bool(serial) and serial == serial.strip() and "," not in serial and len(self._with_serial(serial)) == 1
        )
        return nameable and not unfit(disk, self.image_bytes, self.sectors)

    def _refused(self, text: str, first: DiskFacts | None = None, erasable: Sequence[DiskFacts] = ()) -> DiskRefused:
        """Return a refusal with a list of the disks, which begins with the one that it is about.

        Args:
            erasable: disks whose erasure would be a remedy; the message ends with the command.
        """
        if not self.disks:
            return DiskRefused(f"{text}: there is no disk")
        ordered = sorted(self.disks, key=lambda disk: (disk is not first, disk.name))
        listed = "; ".join(map(self._listed, ordered[:LISTED]))
        more = f"; and {len(ordered) - LISTED} more" if len(ordered) > LISTED else ""
        consent = self._consent(erasable)
        message = f"{text}: {listed}{more}"
        return DiskRefused(f"{fit_message(message, COMMAND_MESSAGE - len(consent))}{consent}" if consent else message)

    def _listed(self, disk: DiskFacts) -> str:
        identity = stable_link(disk) or disk.serial_number
        size = f"{(disk.size_bytes or 0) // 1_000_000} MB"
        return f"{disk.name} ({size}{f', {identity}' if identity else ''}): {self._verdict(disk)}"

    def _verdict(self, disk: DiskFacts) -> str:
        if is_foreign(disk):
            return disk.contents or "data of an unknown kind"
        if disk.state == DiskState.OWN:
            return unfit(disk, self.image_bytes, self.sectors) or "this Machine's earlier install"
        return self._unsuitable(disk) or "blank"


@dataclass(frozen=True)
class SerialFault:
    """A serial number of eraseDisks that does not identify exactly one disk."""

    text: str
    is_absent: bool


def unidentified_serial(erase: Sequence[str], disks: Sequence[DiskFacts]) -> SerialFault | None:
    """Return the first serial number that does not identify exactly one disk; None if each does."""
    for serial in erase:
        found = sum(disk.serial_number == serial for disk in disks)
        if found > 1:
            several = f"eraseDisks names {serial}, the serial number of several disks"
            return SerialFault(f"{several}; erase the disk by other means", is_absent=False)
        if not found:
            there = sorted({disk.serial_number for disk in disks if disk.serial_number})
            words = f"the serial numbers here are {', '.join(there[:LISTED])}" if there else "no disk has one"
            text = f"eraseDisks names {serial}, which is no disk here; connect it, or name another: {words}"
            return SerialFault(text, is_absent=True)
    return None


def erase_command(machine: str, serials: Sequence[str]) -> str:
    """Return the words and the command that permits the erasure of one of some disks; empty where there is none."""
    if not serials or not machine:
        return ""
    command = f"kubectl unbounded machine replace {machine} --erase-disk"
    if len(serials) > 1:
        return f"; the command at the end erases one of {', '.join(serials[:LISTED])}\n{command} SERIAL\n"
    between = "=" if serials[0].startswith("-") else " "
    return f"; the command at the end erases it\n{command}{between}{shlex.quote(serials[0])}\n"


def unfit(disk: DiskFacts, image_bytes: int, sectors: Collection[int]) -> str:
    """Return why an image cannot be written to a disk, whatever is on it; empty if it can."""
    if disk.sector_bytes not in SECTORS:
        of = " or ".join(map(str, SECTORS))
        return f"sectors of {disk.sector_bytes or 'unknown'} bytes, and images are made for {of}"
    if disk.sector_bytes not in sectors:
        return f"sectors of {disk.sector_bytes} bytes, and the image has no disk.img.4k.zst"
    if (disk.size_bytes or 0) < image_bytes:
        return f"too small for the image, which has {image_bytes // 1_000_000} MB"
    return ""


def has_path(disk: DiskFacts, path: str) -> bool:
    """Return whether a path is one of a disk's names: the kernel's, by-id or by-path."""
    links = [f"/dev/disk/by-id/{link}" for link in disk.by_id] + [f"/dev/disk/by-path/{link}" for link in disk.by_path]
    return path in (device_file(disk), *links)


def device_file(disk: DiskFacts) -> str:
    """Return the file of a disk, as the kernel names it; a ! in the name is a / of its path."""
    return "/dev/" + disk.name.replace("!", "/")


def stable_link(disk: DiskFacts) -> str:
    """Return the name below /dev/disk/by-id that stays, whatever the version of udev's rules; empty if it has none."""
    return next((link for kind in STABLE_LINKS for link in disk.by_id if link.startswith(kind)), "")


def matches(disk: DiskFacts, hints: RootDeviceHints) -> bool:
    """Return whether a disk has all properties that hints name, as Ironic compares them: without regard to case."""
    return all(
        test(disk, expected)
        for hint, test in _HINTS.items()
        if (expected := getattr(hints, hint)) is not None
    )  # fmt: skip


def identifies(hints: RootDeviceHints) -> bool:
    """Return whether hints name one disk, and not a place or a kind of disks."""
    return bool(hints.serial_number or hints.wwn or (hints.device_name or "").startswith("/dev/disk/by-id/"))


def hints_text(hints: RootDeviceHints) -> str:
    """Return hints as text: `model=INTEL, minSizeGigabytes=400`."""
    given = {api_name(hint): getattr(hints, hint) for hint in _HINTS}
    return ", ".join(f"{name}={value}" for name, value in given.items() if value is not None)


def _equal(actual: str | None, expected: str) -> bool:
    return actual is not None and actual.strip().lower() == expected.strip().lower()


def _contains(actual: str | None, expected: str) -> bool:
    return actual is not None and expected.strip().lower() in actual.lower()


_HINTS: Final[Mapping[str, Callable[..., bool]]] = {
    "device_name": has_path,
    "hctl": lambda disk, expected: _equal(disk.hctl, expected),
    "model": lambda disk, expected: _contains(disk.model, expected),
    "vendor": lambda disk, expected: _contains(disk.vendor, expected),
    "serial_number": lambda disk, expected: _equal(disk.serial_number, expected),
    "min_size_gigabytes": lambda disk, expected: (disk.size_bytes or 0) >= expected << 30,
    "wwn": lambda disk, expected: _equal(disk.wwn, expected),
    "rotational": lambda disk, expected: disk.rotational == expected,
}


def is_foreign(disk: DiskFacts) -> bool:
    """Return whether a disk has data of others, as far as its report does not exclude it."""
    return disk.state not in (DiskState.BLANK, DiskState.OWN)


def _chosen(disk: DiskFacts) -> ChosenDisk:
    link = stable_link(disk)
    return ChosenDisk(disk, f"/dev/disk/by-id/{link}" if link else device_file(disk))
