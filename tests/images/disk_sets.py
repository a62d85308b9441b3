"""Machines with random sets of disks, and the rules of images/README.md for the disk that an install may write.

The rules stand here once more, in other words than metalman's, and know the disks as they were made, not as they were
reported. `tests.metalman.test_disk_choice` does the same for the pure choice.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final

from tests.images.content import FOREIGN, MIB, SECTOR, TABLE, gpt

GB: Final = 1_000_000_000
SIZES: Final = (8 * MIB, 64 * MIB, 5 * GB // MIB * MIB, 6 * GB // MIB * MIB, 6 * GB // MIB * MIB)
WAITS_S: Final = 180  # for a disk that is expected
OTHER_UID: Final = "99999999-1111-4222-8333-944495559666"


class State(StrEnum):
    BLANK = "blank"
    OWN = "own"
    FOREIGN = "foreign"


@dataclass(frozen=True)
class Content:
    """What is on a disk.

    Args:
        words: of a message about it.
        pieces: bytes at offsets, by the size of the disk and the UID of the Machine.
    """

    state: State
    words: str
    pieces: Callable[[int, str], list[tuple[int, bytes]]]


def mark(uid: str, state: str, table: str) -> bytes:
    """Return what an install leaves at byte 524288 (images/README.md)."""
    lines = f"UNBOUNDED-DISK 1\nmachine={uid}\nname=m1\nstate={state}\ntable={table}\n"
    return f"{lines}check={hashlib.sha256(lines.encode()).hexdigest()}\n".encode()


def _table(size: int) -> tuple[int, bytes]:
    return 0, gpt(size // SECTOR, (2048, 4095))


CONTENTS: Final[Mapping[str, Content]] = {
    "nothing": Content(State.BLANK, "", lambda size, uid: []),
    "ones": Content(State.BLANK, "", lambda size, uid: [(0, b"\xff" * MIB), (size - 4096, b"\xff" * 4096)]),
    "own": Content(
        State.OWN, "", lambda size, uid: [_table(size), (MIB // 2, mark(uid, "installed", str(TABLE))), (3 * MIB, b"o")]
    ),
    "own, interrupted": Content(
        State.OWN, "", lambda size, uid: [(MIB // 2, mark(uid, "writing", "")), (2 * MIB, b"half"), (size - 9, b"old")]
    ),
    "own, partitioned since": Content(
        State.FOREIGN,
        "an earlier install of this Machine, changed since",
        lambda size, uid: [_table(size), (MIB // 2, mark(uid, "installed", OTHER_UID))],
    ),
    "of another Machine": Content(
        State.FOREIGN,
        f"installed for Machine m1 with UID {OTHER_UID}",
        lambda size, uid: [_table(size), (MIB // 2, mark(OTHER_UID, "installed", str(TABLE)))],
    ),
    **{
        name: Content(State.FOREIGN, words, lambda size, uid, pieces=pieces: pieces(size))  # type: ignore[misc]
        for name, (pieces, words) in FOREIGN.items()
    },
}
ON_LARGE_SECTORS: Final = ("nothing", "ones", "own, interrupted", "LVM", "XFS", "something at the end")


@dataclass(frozen=True)
class SetDisk:
    """A disk of a set.

    Args:
        name: the kernel's.
        arrives_s: seconds after the start of the installer.
    """

    name: str
    size: int
    content: str
    serial: str = ""
    by_id: tuple[str, ...] = ()
    by_path: str = ""
    model: str = "INTEL SSD"
    sector: int = SECTOR
    arrives_s: int = 0

    @property
    def state(self) -> State:
        return CONTENTS[self.content].state

    @property
    def paths(self) -> set[str]:
        paths = {f"/dev/{self.name}", *(f"/dev/disk/by-id/{link}" for link in self.by_id)}
        return paths | ({f"/dev/disk/by-path/{self.by_path}"} if self.by_path else set())


@dataclass(frozen=True)
class DiskSet:
    """Disks of a machine, and what its Machine and the operation say of them.

    Args:
        hints: spec.pxe.rootDeviceHints, in the words of the API.
        recorded: status.targetDisk.
        erase: serial numbers that the operation permits to be erased.
        swapped: name of a disk that another one replaces, the other one, and after how many answers that name a disk.
    """

    seed: int
    disks: tuple[SetDisk, ...]
    kind: str = "HostReplace"
    target: str = ""
    hints: Mapping[str, Any] | None = None
    recorded: str = ""
    erase: tuple[str, ...] = ()
    swapped: tuple[str, SetDisk, int] | None = None


@dataclass(frozen=True)
class Verdict:
    """What metalman has to answer to a report: a disk, a refusal, or neither yet."""

    disk: SetDisk | None = None
    waits: bool = False


REFUSED: Final = Verdict()
WAITS: Final = Verdict(waits=True)


def verdict(
    disks: Sequence[SetDisk], of: DiskSet, image_bytes: int, *, final: bool, erased: SetDisk | None = None
) -> Verdict:
    """Judge the disks that are there.

    Args:
        image_bytes: 0 before the installer has looked at the image.
        erased: the foreign disk that an earlier answer of this boot permitted to be erased.
    """
    return _Rules(disks, of, image_bytes, REFUSED if final else WAITS, erased).judge()


@dataclass
class _Rules:
    there: Sequence[SetDisk]
    of: DiskSet
    image_bytes: int
    absent: Verdict
    erased: SetDisk | None

    def judge(self) -> Verdict:
        for serial in self.of.erase:
            owners = [one for one in self.there if one.serial == serial]
            if len(owners) != 1:
                return REFUSED if owners else self.absent
        if self.of.target:
            return self._one(self._at(self.of.target))
        if self.of.hints is not None:
            return self._hinted(self.of.hints)
        if self.of.recorded:
            return self._one(self._at(self.of.recorded))
        return self._unnamed()

    def _at(self, path: str) -> list[SetDisk]:
        return [one for one in self.there if path in one.paths]

    def _one(self, candidates: Sequence[SetDisk]) -> Verdict:
        """Require exactly one, onto which the image may be written."""
        if not candidates:
            return self.absent
        if len(candidates) > 1:
            return REFUSED
        (one,) = candidates
        allowed = one.state is not State.FOREIGN or (one.serial in self.of.erase and self.erased in (None, one))
        return Verdict(one) if allowed and one.sector == SECTOR and one.size >= self.image_bytes else REFUSED

    def _hinted(self, hints: Mapping[str, Any]) -> Verdict:
        fitting = [one for one in self.there if _fits(one, hints)]
        last = self._at(self.of.recorded) if self.of.recorded else []
        if self.of.recorded and not last:
            if self.absent is WAITS:
                return WAITS
            if fitting and "serialNumber" not in hints:  # a kind of disks is no consent to another one
                fitting = [one for one in fitting if one.state is State.OWN or one.serial in self.of.erase]
                if not fitting:
                    return REFUSED
        if len(fitting) > 1:
            own = [one for one in fitting if one.state is State.OWN]
            fitting = next((some for some in ([one for one in fitting if one in last], own) if len(some) == 1), fitting)
        return self._one(fitting)

    def _unnamed(self) -> Verdict:
        if not self.there:
            return self.absent
        own = [one for one in self.there if one.state is State.OWN]
        if self.of.erase:
            meant = {one.name: one for one in (*own, *(one for one in self.there if one.serial in self.of.erase))}
            return self._one(list(meant.values()))
        if own:
            return self._one(own)
        usable = [one for one in self.there if one.state is State.BLANK and one.sector == SECTOR and one.size >= 4 * GB]
        if any(one.state is State.FOREIGN for one in self.there) or not usable:
            return REFUSED
        return self._one(usable)


def _fits(one: SetDisk, hints: Mapping[str, Any]) -> bool:
    return (
        hints.get("model", "").lower() in one.model.lower()
        and hints.get("serialNumber", one.serial).lower() == one.serial.lower()
        and one.size >= hints.get("minSizeGigabytes", 0) * 1024**3
    )


# ---- sets at random


def random_set(seed: int) -> DiskSet:
    chance = random.Random(seed)  # a test's disks
    disks = tuple(_disk(chance, number) for number in range(chance.choice([0, 1, 1, 2, 2, 3, 3, 4])))
    gone = replace(_disk(chance, 8), name="sdz", by_id=("wwn-0x9",), by_path="pci-9")
    of = DiskSet(seed, _shuffled(chance, disks), kind=chance.choice(["HostReplace"] * 19 + ["HostInspect"]))
    known = [*of.disks, *of.disks, *of.disks, gone]
    named, last = chance.choice(known), chance.choice(known)
    how = chance.choice(["nothing", "nothing", "target", "hints"])
    if how == "target":
        of = replace(of, target=chance.choice(sorted(named.paths)))
    if how == "hints":
        of = replace(of, hints=_hints(chance, named))
    if how == "hints":
        last = chance.choice([last, gone])
    if chance.random() < 0.4 and last.by_id:
        of = replace(of, recorded=f"/dev/disk/by-id/{chance.choice(last.by_id)}")
    if chance.random() < 0.2:
        serials = [one.serial for one in of.disks if one.serial]
        both = tuple(dict.fromkeys(serials[:2]))  # a number that occurs twice is no valid parameter
        some = [tuple(serials[:1]), tuple(serials[-1:]), both]
        of = replace(of, erase=chance.choice([*some, *some, ("GONE",)]))
    if of.disks and chance.random() < 0.25:
        of = replace(of, swapped=_swap(chance, chance.choice(of.disks)))
    return of


def _disk(chance: random.Random, number: int) -> SetDisk:
    sector = chance.choice([SECTOR] * 9 + [4096])
    contents = ["nothing"] * 4 + ["ones", "own", "own", "own, interrupted"]
    contents += chance.sample(sorted(CONTENTS), 3)
    serial = chance.choice(["", *[f"S{number}"] * 8, "S0"])
    links = [f"wwn-0x500{number}", f"ata-MAKER_{number}"]
    return SetDisk(
        name="",
        size=chance.choice(SIZES),
        content=chance.choice(contents if sector == SECTOR else ON_LARGE_SECTORS),
        serial=serial,
        by_id=tuple(chance.choice([[], links[1:], links, links])),
        by_path=f"pci-{number}",
        model=chance.choice(["INTEL SSD", "SAMSUNG HDD"]),
        sector=sector,
        arrives_s=chance.choice([0] * 12 + [20, 100, 170, 400]),
    )


def _swap(chance: random.Random, one: SetDisk) -> tuple[str, SetDisk, int]:
    """Put another disk at the place of one; some controllers and bridges show all disks by the same identity."""
    other = replace(_disk(chance, 7), name="", by_path=one.by_path, arrives_s=0)
    if chance.random() < 0.5:
        other = replace(other, by_id=one.by_id, serial=one.serial)
    return one.name, other, chance.choice([1, 2])


def _shuffled(chance: random.Random, disks: Sequence[SetDisk]) -> tuple[SetDisk, ...]:
    """Return the disks in another order, with the kernel's names in that order."""
    shuffled = chance.sample(list(disks), len(disks))
    return tuple(replace(one, name=f"sd{letter}") for one, letter in zip(shuffled, "abcdefgh", strict=False))


def renamed(of: DiskSet, recorded: str) -> DiskSet:
    """Return a later install of a machine whose kernel finds its disks in another order, all at once."""
    disks = tuple(replace(one, arrives_s=0) for one in _shuffled(random.Random(of.seed + 1), of.disks))
    return replace(of, disks=disks, recorded=recorded, erase=(), swapped=None)


def _hints(chance: random.Random, named: SetDisk) -> Mapping[str, Any]:
    possible: list[tuple[str, Any]] = [("model", "intel"), ("model", "SSD"), ("minSizeGigabytes", 1)]
    if named.serial:
        possible += [("serialNumber", named.serial)] * 3
    return dict(chance.sample(possible, chance.choice([1, 2])))


# ---- what a few sets have to have


def _at_start(of: DiskSet) -> list[SetDisk]:
    return [one for one in of.disks if one.arrives_s == 0]


def _meant(of: DiskSet, at_s: int) -> SetDisk | None:
    there = [one for one in of.disks if one.arrives_s <= at_s]
    return verdict(there, of, 0, final=at_s >= WAITS_S).disk


def _is_unnamed(of: DiskSet) -> bool:
    return not (of.target or of.hints or of.recorded or of.erase)


def _beside_data(of: DiskSet) -> bool:
    states = [one.state for one in _at_start(of)]
    blank = [one for one in _at_start(of) if one.state is State.BLANK and one.sector == SECTOR and one.size > 4 * GB]
    return _is_unnamed(of) and len(blank) == 1 and State.FOREIGN in states and State.OWN not in states


def _named_with_data(of: DiskSet) -> bool:
    named = [one for one in _at_start(of) if of.target in one.paths and one.size > 4 * GB and one.sector == SECTOR]
    return not of.erase and any(one.state is State.FOREIGN for one in named)


def _kind_without_consent(of: DiskSet) -> bool:
    is_gone = of.recorded and not any(of.recorded in one.paths for one in of.disks)
    is_kind = of.hints is not None and "serialNumber" not in of.hints
    return bool(is_gone and is_kind and not of.erase) and _meant(replace(of, recorded=""), WAITS_S) is not None


def _swapped_before_the_write(of: DiskSet) -> bool:
    meant = _meant(of, 0)
    if of.swapped is None or meant is None or of.hints is not None:
        return False
    name, other, after = of.swapped
    return name == meant.name and after == 2 and other.by_id == meant.by_id and other.state is State.FOREIGN


def _swapped_for_other_sectors(of: DiskSet) -> bool:
    meant = _meant(of, 0)
    if of.swapped is None or meant is None or of.hints is None:  # with hints the image is served after the report only
        return False
    name, other, after = of.swapped
    return name == meant.name and after == 2 and other.by_id == meant.by_id and other.sector != meant.sector


def _expected_and_late(of: DiskSet) -> bool:
    late = _meant(of, WAITS_S)
    return late is not None and 0 < late.arrives_s < WAITS_S and bool(of.recorded) and of.swapped is None


def _erased_with_consent(of: DiskSet) -> bool:
    meant = _meant(of, 0)
    return meant is not None and meant.state is State.FOREIGN and meant.size > 4 * GB and of.swapped is None


KINDS: Final[Mapping[str, Callable[[DiskSet], bool]]] = {
    "a blank disk beside data of others": _beside_data,
    "a named disk with data of others": _named_with_data,
    "hints of a kind, and the last disk is gone": _kind_without_consent,
    "a disk that is swapped before the first byte": _swapped_before_the_write,
    "a disk that one with other sectors replaces": _swapped_for_other_sectors,
    "the last disk is late": _expected_and_late,
    "a disk that may be erased": _erased_with_consent,
}


def first_set(kind: str, seed: int) -> DiskSet:
    """Return the first set of a kind, from a seed on."""
    return next(
        of for of in map(random_set, range(seed, seed + 100_000)) if of.kind == "HostReplace" and KINDS[kind](of)
    )
