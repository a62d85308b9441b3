"""Disks that metalman takes, and disks that no install changes. It never guesses."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any, Final

import pytest
from msgspec.structs import replace

from tests.support.seeds import first_seed
from unbounded.api.hardware import DiskFacts, DiskState
from unbounded.api.machine_spec import RootDeviceHints
from unbounded.api.machine_status import DiskErasure
from unbounded.metalman.disk_choice import (
    SECTORS,
    AwaitedDisk,
    ChosenDisk,
    DiskChoice,
    DiskRefused,
    DiskSelection,
    choose_disk,
)

BLANK, OWN, FOREIGN = DiskState.BLANK, DiskState.OWN, DiskState.FOREIGN
GB: Final = 1_000_000_000


def disk(name: str, state: str = BLANK, gb: float = 480, serial: str = "", **more: Any) -> DiskFacts:
    links = (f"ata-DISK_{serial}", f"wwn-0x5000{serial.lower()}") if serial else ()
    facts: dict[str, Any] = {
        "name": name,
        "state": state,
        "size_bytes": int(gb * GB),
        "sector_bytes": 512,
        "serial_number": serial or None,
        "by_id": links,
        "contents": "ext4 LABEL=data" if state == FOREIGN else None,
    }
    return DiskFacts(**facts | more)


def path(serial: str) -> str:
    return f"/dev/disk/by-id/ata-DISK_{serial}"


A, B, C = disk("sda", serial="A1"), disk("sdb", serial="B2"), disk("sdc", serial="C3")
OWN_A, FOREIGN_A = replace(A, state=OWN), replace(A, state=FOREIGN, contents="LVM")
FOREIGN_B = replace(B, state=FOREIGN, contents="partitions PTTYPE=gpt")
SMALL, LARGE_SECTORS = disk("sdd", gb=2, serial="D4"), disk("sde", serial="E5", sector_bytes=4096)
INTEL = replace(A, model="INTEL SSDSC2KB48", vendor="ATA", wwn="0x55CD2E", hctl="1:0:0:0", rotational=False)


@dataclass(frozen=True)
class Case:
    disks: tuple[DiskFacts, ...]
    expected: str  # the disk's name, or the beginning of the refusal
    target: str = ""
    recorded: str = ""
    hints: dict[str, Any] = field(default_factory=dict)
    image_bytes: int = 0
    erase: tuple[str, ...] = ()
    used: DiskErasure | None = None

    def choose(self, *, final: bool = True) -> DiskChoice:
        hints = RootDeviceHints(**self.hints) if self.hints else None
        selection = DiskSelection(self.target, hints, self.recorded, self.erase, self.used, "m1")
        return choose_disk(self.disks, selection, image_bytes=self.image_bytes, final=final)


SEVERAL = "several disks could be meant; name one in spec.pxe.targetDisk or spec.pxe.rootDeviceHints: "
CASES: Final = {
    "the only blank disk": Case((A,), "sda"),
    "two blank disks": Case((A, B), SEVERAL + "sda (480000 MB, wwn-0x5000a1): blank; sdb ("),
    "no disk": Case((), "connect a disk, or use an installer that has the driver of its controller: there is no disk"),
    "only foreign": Case((FOREIGN_A,), "no disk is blank; erase one"),
    "blank beside foreign": Case((A, FOREIGN_B), "disk sda is blank, and beside it are data of others"),
    "own beside foreign": Case((OWN_A, FOREIGN_B), "sda"),
    "own beside blank": Case((B, OWN_A), "sda"),
    "two own": Case((OWN_A, replace(B, state=OWN)), SEVERAL),
    "own that is too small now": Case((OWN_A, B), "disk sda, this Machine's earlier install, c", image_bytes=2**60),
    "a state that is not reported": Case((replace(A, state=None),), "no disk is blank"),
    "small": Case((SMALL,), "no disk is blank; erase one"),
    "small beside blank": Case((SMALL, A), "sda"),
    "small and named": Case((SMALL, A), "sdd", target=path("D4")),
    "small and recorded": Case((SMALL, A), "sdd", recorded=path("D4")),
    "small and described": Case((SMALL, A), "sdd", hints={"serial_number": "D4"}),
    "4Kn": Case((LARGE_SECTORS,), "no disk is blank"),
    "4Kn beside blank": Case((LARGE_SECTORS, A), "sda"),
    "4Kn and named": Case((LARGE_SECTORS, A), f"targetDisk {path('E5')} cannot be written", path("E5")),
    "unknown sectors": Case((replace(A, sector_bytes=None),), "no disk is blank"),
    "too small for the image": Case((A,), "no disk is blank", image_bytes=481 * GB),
    "named by the kernel's name": Case((A, B), "sdb", "/dev/sdb"),
    "named in a folder": Case((A, disk("cciss!c0d0", serial="B2")), "cciss!c0d0", "/dev/cciss/c0d0"),
    "named by path": Case((A, replace(B, by_path=("pci-0",))), "sdb", "/dev/disk/by-path/pci-0"),
    "named and foreign": Case((B, FOREIGN_A), f"targetDisk {path('A1')} holds data of others; erase it", path("A1")),
    "named and missing": Case((A,), "targetDisk /dev/sdz is no disk here; ", "/dev/sdz"),
    "named before recorded": Case((A, B), "sda", path("A1"), path("B2")),
    "a name of two disks": Case((A, replace(B, by_id=A.by_id)), f"targetDisk {path('A1')} is several", path("A1")),
    "recorded among several": Case((A, B), "sdb", recorded=path("B2")),
    "recorded and missing": Case(
        (A,),
        f"{path('B2')}, the disk of this Machine's last install, is not here: it was swapped or is missing; name "
        "another in spec.pxe.targetDisk or spec.pxe.rootDeviceHints: sda",
        recorded=path("B2"),
    ),
    "recorded and foreign": Case(
        (A, FOREIGN_B),
        f"{path('B2')}, the disk of this Machine's last install, holds data of others; erase it, or",
        recorded=path("B2"),
    ),
    "described by model": Case((B, INTEL), "sda", hints={"model": "ssdsc2kb"}),
    "described by all": Case(
        (B, INTEL),
        "sda",
        hints={
            "device_name": "/dev/sda",
            "hctl": "1:0:0:0",
            "model": "INTEL",
            "vendor": "ata",
            "serial_number": "a1",
            "min_size_gigabytes": 447,
            "wwn": "0x55cd2e",
            "rotational": False,
        },
    ),
    "one hint of two": Case((B, INTEL), "no disk matches", hints={"model": "INTEL", "rotational": True}),
    "a hint in GiB": Case(
        (INTEL,),
        "no disk matches spec.pxe.rootDeviceHints (minSizeGigabytes=448); correct the hints, or connect the disk",
        hints={"min_size_gigabytes": 448},
    ),
    "a part of a serial number": Case((A,), "no disk matches", hints={"serial_number": "A"}),
    "described and foreign": Case(
        (FOREIGN_A, B),
        "disk sda, which rootDeviceHints describe, holds data of others; erase it first: sda (480000 MB, "
        "wwn-0x5000a1): LVM; sdb",
        hints={"serial_number": "A1"},
    ),
    "several described": Case((A, B), "several disks match spec.pxe.rootDeviceHints", hints={"min_size_gigabytes": 1}),
    "several described, one recorded": Case((A, B), "sdb", "", path("B2"), {"min_size_gigabytes": 1}),
    "several described, one own": Case((OWN_A, B), "sda", hints={"min_size_gigabytes": 1}),
    "the recorded one of several is foreign": Case(
        (A, FOREIGN_B), "disk sdb, which rootDeviceHints describe, holds", "", path("B2"), {"min_size_gigabytes": 1}
    ),
    "hints of a kind permit no other than the recorded one": Case(
        (A,),
        f"{path('B2')}, the disk of this Machine's last install, is not here: it was swapped or is missing; to ",
        "",
        path("B2"),
        {"min_size_gigabytes": 1},
    ),
    "the disk of the last install with another path": Case(
        (OWN_A, C), "sda", "", path("B2"), {"min_size_gigabytes": 1}
    ),
    "hints permit another than the recorded one": Case((A,), "sda", "", path("B2"), {"serial_number": "A1"}),
    "consent for the only disk": Case((FOREIGN_A,), "sda", erase=("A1",)),
    "consent beside a blank disk": Case((A, FOREIGN_B), "sdb", erase=("B2",)),
    "consent beside other data": Case((FOREIGN_A, FOREIGN_B), "sdb", erase=("B2",)),
    "consent for a named disk": Case((FOREIGN_A, FOREIGN_B), "sda", path("A1"), erase=("A1", "B2")),
    "consent for a described disk": Case((A, FOREIGN_B), "sdb", hints={"serial_number": "B2"}, erase=("B2",)),
    "consent for the recorded disk": Case((A, FOREIGN_B), "sdb", recorded=path("B2"), erase=("B2",)),
    "consent for another than the named disk": Case((FOREIGN_A, FOREIGN_B), "targetDisk", path("A1"), erase=("B2",)),
    "consent changes no name": Case((A, FOREIGN_B), "sda", path("A1"), erase=("B2",)),
    "consent changes no record": Case((A, FOREIGN_B), "sda", recorded=path("A1"), erase=("B2",)),
    "consent beside an own disk": Case((OWN_A, FOREIGN_B), "disk sdb, which eraseDisks names, or", erase=("B2",)),
    "consent for several disks": Case((FOREIGN_A, FOREIGN_B), "eraseDisks permits several", erase=("A1", "B2")),
    "consent for a blank disk": Case((A, B), "sdb", erase=("B2",)),
    "consent after a power cut": Case((OWN_A, FOREIGN_B), "sda", erase=("A1",)),
    "consent in other letters": Case((FOREIGN_A,), "eraseDisks names a1, which is no disk here", erase=("a1",)),
    "consent for a prefix": Case((FOREIGN_A,), "eraseDisks names A, which is no disk here", erase=("A",)),
    "consent for a missing disk": Case((A, B), "eraseDisks names Z9, which is no disk here; connect it, or name "
                                       "another: the serial numbers here are A1, B2", path("A1"), erase=("Z9",)),
    "consent for two disks at once": Case(
        (FOREIGN_A, replace(FOREIGN_B, serial_number="A1")), "eraseDisks names A1, the serial number of several disks",
        erase=("A1",),
    ),
    "consent for a disk that is too small": Case(
        (FOREIGN_A,), "disk sda, which eraseDisks names, cannot be written", image_bytes=481 * GB, erase=("A1",)
    ),
    "consent is valid for the same data": Case(
        (FOREIGN_A,), "sda", erase=("A1",), used=DiskErasure(serial_number="A1", contents="LVM")
    ),
    "consent is not valid for later data": Case(
        (FOREIGN_A,), "disk sda, which eraseDisks names, holds other data than", erase=("A1",),
        used=DiskErasure(serial_number="A1", contents="ZFS"),
    ),
    "consent is not valid for a second disk": Case(
        (FOREIGN_A, FOREIGN_B), "targetDisk", path("B2"), erase=("A1", "B2"),
        used=DiskErasure(serial_number="A1", contents="LVM"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_the_disk_of_an_install(name: str) -> None:
    case = CASES[name]
    choice = case.choose()
    if isinstance(choice, ChosenDisk):
        assert choice.disk.name == case.expected
    else:
        assert isinstance(choice, DiskRefused)
        assert choice.message.startswith(case.expected)


@pytest.mark.parametrize(
    "name", ["no disk", "named and missing", "recorded and missing", "one hint of two", "a hint in GiB"]
)
def test_a_missing_disk_is_awaited_at_first(name: str) -> None:
    choice, final = CASES[name].choose(final=False), CASES[name].choose()
    assert isinstance(choice, AwaitedDisk)
    assert isinstance(final, DiskRefused)
    assert choice.message == final.message


def test_the_recorded_disk_is_awaited_before_hints_permit_another() -> None:
    choice = CASES["hints permit another than the recorded one"].choose(final=False)
    assert choice == AwaitedDisk(f"{path('B2')}, the disk of this Machine's last install, is not here yet")


def test_a_refusal_begins_its_list_with_its_disk_and_shows_what_is_on_it() -> None:
    many = tuple(disk(f"sd{letter}", FOREIGN, serial=letter * 2) for letter in "bcdefghijkl")
    choice = choose_disk((*many, replace(A, name="sdz", state=FOREIGN, contents="ZFS")), DiskSelection(path("A1")))
    assert isinstance(choice, DiskRefused)
    assert ": sdz (480000 MB, wwn-0x5000a1): ZFS; sdb (" in choice.message
    assert choice.message.endswith("ext4 LABEL=data; and 4 more")


def test_disk_with_large_sectors_is_chosen_where_the_image_has_one_for_it() -> None:
    choice = choose_disk((LARGE_SECTORS,), DiskSelection(), sectors=SECTORS)
    assert isinstance(choice, ChosenDisk)
    assert choice.disk == LARGE_SECTORS
    refused = choose_disk((LARGE_SECTORS,), DiskSelection())
    assert isinstance(refused, DiskRefused)
    assert refused.message.endswith(": sectors of 4096 bytes, and the image has no disk.img.4k.zst")
    both = choose_disk((A, LARGE_SECTORS), DiskSelection(), sectors=SECTORS)
    assert isinstance(both, DiskRefused)
    assert both.message.startswith("several disks could be meant")
    other = choose_disk((replace(LARGE_SECTORS, sector_bytes=520),), DiskSelection(), sectors=SECTORS)
    assert isinstance(other, DiskRefused)
    assert other.message.endswith(": sectors of 520 bytes, and images are made for 512 or 4096")


ERASE: Final = "kubectl unbounded machine replace m1 --erase-disk"


@pytest.mark.parametrize(
    ("disks", "target", "end"),
    [
        (
            (FOREIGN_A, B),
            "/dev/sda",
            f": LVM; sdb (480000 MB, wwn-0x5000b2): blank; the command at the end erases it\n{ERASE} A1\n",
        ),
        ((FOREIGN_A, LARGE_SECTORS), "", f"; the command at the end erases it\n{ERASE} A1\n"),
        ((FOREIGN_A, FOREIGN_B), "", f"; the command at the end erases one of A1, B2\n{ERASE} SERIAL\n"),
        (
            (replace(FOREIGN_A, serial_number="A 1'"),),
            "",
            f"""; the command at the end erases it\n{ERASE} 'A 1'"'"''\n""",
        ),
        ((replace(FOREIGN_A, serial_number="-1"),), "", f"; the command at the end erases it\n{ERASE}=-1\n"),
        ((replace(FOREIGN_A, serial_number=None),), "", "LVM"),
        ((replace(FOREIGN_A, serial_number="A,1"),), "", "LVM"),
        ((replace(FOREIGN_A, serial_number="B2"), B), "/dev/sda", "blank"),
        ((replace(FOREIGN_A, sector_bytes=4096),), "", "LVM"),
        ((A, FOREIGN_B), "", "partitions PTTYPE=gpt"),
    ],
)
def test_a_refusal_of_foreign_data_ends_with_the_command_that_permits_erasure(
    disks: tuple[DiskFacts, ...], target: str, end: str
) -> None:
    choice = choose_disk(disks, DiskSelection(target, machine="m1"))
    assert isinstance(choice, DiskRefused)
    assert choice.message.endswith(end)
    without = choose_disk(disks, DiskSelection(target))
    assert isinstance(without, DiskRefused)
    assert "kubectl" not in without.message


def test_no_list_of_disks_cuts_off_the_command() -> None:
    many = tuple(disk(f"sd{letter}", FOREIGN, serial=letter * 2, contents="x" * 500) for letter in "abcdefg")
    choice = choose_disk(many, DiskSelection("/dev/sdb", machine="m1"))
    assert isinstance(choice, DiskRefused)
    assert choice.message.endswith(f"; the command at the end erases it\n{ERASE} bb\n")
    assert len(choice.message) <= 1000


@pytest.mark.parametrize(
    ("links", "best"),
    [
        (("ata-DISK_A1", "wwn-0x5000c500a1b2c3d4"), "/dev/disk/by-id/wwn-0x5000c500a1b2c3d4"),
        (("nvme-MAKER_MODEL_S1", "nvme-eui.0025385b71b0c1d2"), "/dev/disk/by-id/nvme-eui.0025385b71b0c1d2"),
        (("scsi-0QEMU_HARDDISK_B2", "scsi-SQEMU_HARDDISK_B2"), "/dev/disk/by-id/scsi-SQEMU_HARDDISK_B2"),
        (("virtio-disk0",), "/dev/disk/by-id/virtio-disk0"),
        ((), "/dev/sda"),
    ],
)
def test_a_disk_is_chosen_by_the_name_that_stays(links: tuple[str, ...], best: str) -> None:
    choice = choose_disk((disk("sda", by_id=links),), DiskSelection())
    assert isinstance(choice, ChosenDisk)
    assert choice.path == best


def test_a_disk_without_such_a_name_is_chosen_by_its_file() -> None:
    choice = choose_disk((disk("cciss!c0d0"),), DiskSelection())
    assert isinstance(choice, ChosenDisk)
    assert choice.path == "/dev/cciss/c0d0"


# ---- permutations: sets of disks at random, judged by rules that are stated here once more


@dataclass(frozen=True)
class DiskSet:
    """Disks of a machine in the order of their arrival, and what names one of them."""

    disks: tuple[DiskFacts, ...]
    selection: DiskSelection
    image_bytes: int

    def choose(self, disks: tuple[DiskFacts, ...], *, final: bool) -> DiskChoice:
        return choose_disk(disks, self.selection, image_bytes=self.image_bytes, final=final)


def random_disk(chance: random.Random, number: int) -> DiskFacts:
    facts = disk(
        f"sd{'abcdef'[number]}",
        chance.choice([BLANK, BLANK, OWN, FOREIGN]),
        chance.choice([1, 2, 32, 480, 480, 960]),
        chance.choice(["", f"S{number}", f"S{number}"]),
        model=chance.choice(["INTEL SSD", "SAMSUNG HDD"]),
        rotational=chance.choice([True, False]),
        sector_bytes=chance.choice([512, 512, 512, 512, 4096]),
    )
    serial = facts.serial_number and chance.choice([facts.serial_number] * 9 + ["S0"])  # another path, or a bad maker
    return replace(facts, by_path=(f"pci-{number}",), serial_number=serial)


def random_set(seed: int) -> DiskSet:
    chance = random.Random(seed)  # a test's disks
    disks = tuple(random_disk(chance, number) for number in range(chance.choice([0, 1, 1, 2, 3, 4, 6])))
    gone = random_disk(chance, 5)  # of another machine, or taken away
    known = [*disks, replace(gone, by_path=("pci-9",), name="sdz", by_id=("wwn-0x9",))]
    one, last = chance.choice(known), chance.choice(known)
    target = chance.choice([f"/dev/{one.name}", f"/dev/disk/by-path/{one.by_path[0]}", *map(by_id, one.by_id)])
    hints = RootDeviceHints(
        model=chance.choice([None, "intel", "SSD"]),
        rotational=chance.choice([None, True, False]),
        serial_number=chance.choice([None, None, one.serial_number]),
        min_size_gigabytes=chance.choice([None, 100, 500]),
    )
    named = chance.choice(["nothing", "target", "hints"])
    recorded = chance.choice(["", "", by_id(last.by_id[0]) if last.by_id else f"/dev/{last.name}"])
    serials = [one.serial_number for one in disks if one.serial_number]
    erase = chance.choice([(), (), tuple(serials), tuple(serials[:1]), tuple(serials[-1:]), ("S0",), ("S",), ("s1",)])
    hinted = hints if named == "hints" else None
    selection = DiskSelection(target if named == "target" else "", hinted, recorded, erase, machine="m1")
    chance.shuffle(arrivals := list(disks))
    return DiskSet(tuple(arrivals), selection, chance.choice([0, 3 * GB, 100 * GB]))


def by_id(link: str) -> str:
    return f"/dev/disk/by-id/{link}"


def paths_of(one: DiskFacts) -> set[str]:
    by_path = {f"/dev/disk/by-path/{link}" for link in one.by_path}
    return {f"/dev/{one.name}"} | by_path | {by_id(link) for link in one.by_id}


def described(one: DiskFacts, hints: RootDeviceHints) -> bool:
    if hints.model is not None and hints.model.upper() not in (one.model or "").upper():
        return False
    if hints.serial_number is not None and hints.serial_number != one.serial_number:
        return False
    if hints.min_size_gigabytes is not None and (one.size_bytes or 0) < hints.min_size_gigabytes * 1024**3:
        return False
    return hints.rotational is None or one.rotational is hints.rotational


def meant(disks: DiskSet) -> list[DiskFacts]:
    """Return the disks that the rules of docs/bare-metal.md leave; an install needs exactly one."""
    named, hints = disks.selection, disks.selection.hints
    if any(len(with_serial(disks.disks, serial)) != 1 for serial in named.erase):
        return []
    last = [one for one in disks.disks if named.recorded in paths_of(one)]
    if named.target:
        return [one for one in disks.disks if named.target in paths_of(one)]
    own = [one for one in disks.disks if one.state == OWN]
    if hints is not None:
        fitting = [one for one in disks.disks if described(one, hints)]
        if (
            named.recorded and not last and hints.serial_number is None
        ):  # it was swapped, and nobody consents to another
            fitting = [one for one in fitting if one in own or one.serial_number in named.erase]
        narrowed = [one for one in fitting if one in last] or [one for one in fitting if one in own]
        return fitting if len(fitting) < 2 else narrowed or fitting
    if named.recorded:
        return last
    if named.erase:
        return [one for one in disks.disks if one.serial_number in named.erase or one.state == OWN]
    if own:
        return own
    if any(one.state == FOREIGN for one in disks.disks):
        return []
    large = [one for one in disks.disks if (one.size_bytes or 0) >= 4 * GB]
    return [one for one in large if one.sector_bytes == 512 and (one.size_bytes or 0) >= disks.image_bytes]


def with_serial(disks: tuple[DiskFacts, ...], serial: str) -> list[DiskFacts]:
    return [one for one in disks if one.serial_number == serial]


def may_be_written(one: DiskFacts, image_bytes: int, erase: tuple[str, ...] = ()) -> bool:
    permitted = one.state != FOREIGN or one.serial_number in erase
    return permitted and one.sector_bytes == 512 and (one.size_bytes or 0) >= image_bytes


REMEDIES: Final = ("erase", "name one in spec.pxe.", "name another", "name it in spec.pxe.", "connect", "add a hint")


@pytest.mark.parametrize("seed", range(first_seed(), first_seed() + 1000, 100))
def test_no_set_of_disks_leads_to_a_wrong_write(seed: int) -> None:
    outcomes = [judge(random_set(one)) for one in range(seed, seed + 100)]
    assert {ChosenDisk, DiskRefused} <= set(outcomes)


def judge(disks: DiskSet) -> type[DiskChoice]:
    """Check the choice from a set: in each order, and while disks arrive."""
    choice = disks.choose(disks.disks, final=True)
    left = meant(disks)
    if len(left) == 1 and may_be_written(left[0], disks.image_bytes, disks.selection.erase):
        assert isinstance(choice, ChosenDisk), choice
        assert choice.disk == left[0]
        assert choice.path in paths_of(left[0])
        assert (choice.erasure is not None) == (left[0].state == FOREIGN)
    else:
        assert isinstance(choice, DiskRefused), choice
        check_refusal(choice.message, disks)
    assert disks.choose(disks.disks[::-1], final=True) == choice
    for arrived in range(len(disks.disks) + 1):
        check_arrival(disks, disks.disks[:arrived], choice)
    return type(choice)


def check_refusal(message: str, disks: DiskSet) -> None:
    assert any(remedy in message for remedy in REMEDIES), message
    for one in disks.disks:
        assert f"{one.name} (" in message
        assert one.state != FOREIGN or "ext4 LABEL=data" in message
    assert disks.disks or message.endswith(": there is no disk")


def check_arrival(disks: DiskSet, arrived: tuple[DiskFacts, ...], last: DiskChoice) -> None:
    """Check the answer before all disks are there: never a foreign disk, never in place of a named one."""
    choice = disks.choose(arrived, final=False)
    if isinstance(choice, ChosenDisk):
        erase = disks.selection.erase
        assert may_be_written(choice.disk, disks.image_bytes, erase)
        assert choice.disk.state != FOREIGN or with_serial(arrived, choice.disk.serial_number or "") == [choice.disk]
        named = disks.selection
        if any(len(with_serial(disks.disks, serial)) != 1 for serial in erase):
            return  # a second one with that serial number comes later
        assert not named.target or choice == last
        assert not named.hints or described(choice.disk, named.hints)
        assert not (named.recorded and named.hints is None) or choice == last
    else:
        assert any(remedy in choice.message for remedy in (*REMEDIES, "is not here yet"))
        assert arrived or isinstance(choice, AwaitedDisk)
