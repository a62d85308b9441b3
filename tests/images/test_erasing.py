"""The installer's erasure of disks: what is on them afterwards, what is left, and the report to metalman."""

from __future__ import annotations

import os
import random
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.images.content import MIB, put
from tests.images.drives import self_erasing
from tests.images.loops import Attach, loop_devices
from tests.images.support import Host, Site, needed, site
from tests.support.seeds import first_seed
from unbounded.api.machine_status import DiskErasureRecord

pytestmark = pytest.mark.slow

DATA: Final = random.Random(1).randbytes(MIB)
SWIFT: Final = {"ERASE_SAMPLES": "8", "ERASE_REPORT_S": "0.2", "TRIES": "2"}
SILENT: Final = "#!/bin/sh\nexit 0\n"


@pytest.fixture
def host(tmp_path: Path) -> Host:
    needed("blkid")
    needed("nc.openbsd", "scripts/net-tools gets it")
    return Host(tmp_path / "host")


@pytest.fixture
async def where() -> AsyncIterator[Site]:
    async with site() as made:
        yield made


@pytest.fixture
def attach() -> Iterator[Attach]:
    with loop_devices() as loop:
        yield loop


def disk(host: Host, name: str, *, mib: int = 24, device: Path | None = None) -> Path:
    """Return a disk with a serial number of its own, such as S-SDA, full of data."""
    made = host.disk(name, mib, device=device)
    (host.root / "sys/block" / name / "device").mkdir()
    (host.root / "sys/block" / name / "device/serial").write_text(f"S-{name.upper()}\n")
    if device is None:
        put(made, *((at * MIB, DATA) for at in range(mib)))
    return made


def loop(host: Host, attach: Attach, name: str, *options: str, mib: int = 24) -> Path:
    """Return such a disk that is a loop device."""
    file = host.root / f"{name}.img"
    file.write_bytes(DATA * mib)
    disk(host, name, mib=mib, device=Path(attach(file, *options)))
    (host.root / "sys/block" / name / "queue/discard_max_bytes").write_text(f"{1 << 30}\n")
    return file


def zero(file: Path) -> bool:
    return file.read_bytes() == bytes(file.stat().st_size)


def record(where: Site, serial: str) -> DiskErasureRecord:
    return next(one for one in where.erasures if one.serial_number == serial)


async def test_the_named_disk_is_overwritten_and_no_other(host: Host, where: Site) -> None:
    named, other = disk(host, "sda"), disk(host, "sdb")
    where.erases = ("S-SDA",)
    code, out = await host.install(where, **SWIFT)
    assert code == 3, (out, where.reports)
    assert zero(named)
    assert other.read_bytes() == DATA * 24
    done = record(where, "S-SDA")
    assert (done.state, done.method, [one.method for one in done.attempts]) == ("Erased", "Overwrite", ["Overwrite"])
    assert done.attempts[0].failure is None
    ends = "samples of 4096 bytes (each of them was marked before), and the 16777216 bytes at both ends, read as zero"
    assert (done.verification or "").partition(" ")[2] == ends
    assert where.begun == ["S-SDA"]
    assert [one["stage"] for one in where.reports if one["failed"]] == []


async def test_all_disks_are_erased_at_once_and_their_odd_ends_too(host: Host, where: Site) -> None:
    disks = [disk(host, name) for name in ("vda", "vdb", "vdc")]
    with disks[0].open("ab") as file:
        file.write(DATA[:1536])
    size = disks[0].stat().st_size
    (host.root / "sys/block/vda/size").write_text(f"{size // 512}\n")
    where.erases = ("All",)
    code, out = await host.install(where, **SWIFT)
    assert code == 3, (out, where.reports)
    assert all(map(zero, disks))
    assert disks[0].stat().st_size == size


async def test_a_discard_is_believed_where_its_marks_read_as_zero(host: Host, where: Site, attach: Attach) -> None:
    file = loop(host, attach, "sda")
    where.erases = ("S-SDA",)
    code, out = await host.install(where, **SWIFT)
    assert code == 3, (out, where.reports)
    assert zero(file)
    assert file.stat().st_blocks * 512 < MIB  # nothing was written
    assert record(where, "S-SDA").method == "Discard"


async def test_a_discard_that_erases_nothing_is_not_believed(host: Host, where: Site, attach: Attach) -> None:
    file = loop(host, attach, "sda")
    host.command("blkdiscard").unlink()
    host.command("blkdiscard").write_text(SILENT)
    host.command("blkdiscard").chmod(0o755)
    where.erases = ("S-SDA",)
    code, out = await host.install(where, **SWIFT)
    assert code == 3, (out, where.reports)
    assert zero(file)
    discard, overwrite = record(where, "S-SDA").attempts
    assert (discard.method, overwrite.method, overwrite.failure) == ("Discard", "Overwrite", None)
    assert "are not zero" in (discard.failure or "")


async def test_a_discard_that_leaves_the_middle_is_not_believed(host: Host, where: Site, attach: Attach) -> None:
    file = loop(host, attach, "sda", mib=64)
    blkdiscard = host.command("blkdiscard")
    blkdiscard.unlink()
    zeros = 'dd if=/dev/zero of="$1" bs=1048576 count=20 conv=notrunc,fsync'
    blkdiscard.write_text(f"#!/bin/sh\n{{ {zeros}; {zeros} seek=44; }} 2>/dev/null\n")
    blkdiscard.chmod(0o755)
    where.erases = ("S-SDA",)
    code, out = await host.install(where, **SWIFT)
    assert code == 3, (out, where.reports)
    assert zero(file)
    assert [one.method for one in record(where, "S-SDA").attempts] == ["Discard", "Overwrite"]


async def test_a_disk_that_cannot_be_written_is_reported_and_the_others_are_erased(
    host: Host, where: Site, attach: Attach
) -> None:
    stuck, good = loop(host, attach, "sda", "--read-only"), disk(host, "sdb")
    where.erases = ("S-SDA", "S-SDB")
    code, out = await host.install(where, **SWIFT)
    assert code == 1, out
    assert stuck.read_bytes() == DATA * 24
    assert zero(good)
    left = record(where, "S-SDA")
    assert (left.state, [one.method for one in left.attempts]) == ("Failed", ["Discard", "Overwrite"])
    assert "a discard proves nothing" in (left.attempts[0].failure or "")
    assert left.failure == left.attempts[1].failure
    assert (left.failure or "").startswith("writing zeros at MiB 0 failed")
    assert where.failure.startswith("Erasing: disk sda is not erased: writing zeros at MiB 0 failed")
    assert record(where, "S-SDB").state == "Erased"


async def test_a_disk_that_metalman_does_not_permit_stays_as_it_is(host: Host, where: Site) -> None:
    kept, gone = disk(host, "sda"), disk(host, "sdb")
    where.erases, where.keeps = ("S-SDA", "S-SDB"), ("S-SDA",)
    code, _ = await host.install(where, **SWIFT)
    assert code == 1
    assert kept.read_bytes() == DATA * 24
    assert zero(gone)
    assert "disk S-SDA is kept" in where.failure


async def test_a_disk_with_another_serial_number_than_reported_is_not_begun(host: Host, where: Site) -> None:
    kept = disk(host, "sda")
    where.answers = [(200, {"status": "ok", "action": "Erase", "disks": "sda"})]
    where.erases = ("S-OTHER",)
    code, _ = await host.install(where, **SWIFT)
    assert code == 1
    assert kept.read_bytes() == DATA * 24
    assert "disk S-SDA is kept" in where.failure


@pytest.mark.parametrize(("fact", "before", "after"), [("device/serial", "S-SDA", "S-SDB"), ("diskseq", "7", "9")])
async def test_another_disk_that_gets_the_name_of_one_that_is_erased_is_not_touched(
    host: Host, where: Site, attach: Attach, fact: str, before: str, after: str
) -> None:
    """The disk is pulled while it is discarded."""
    loop(host, attach, "sda")
    other = disk(host, "sdb")
    told = host.root / "sys/block/sda" / fact
    told.write_text(f"{before}\n")
    blkdiscard = host.command("blkdiscard")
    blkdiscard.unlink()
    blkdiscard.write_text(f"#!/bin/sh\nmv -f {other} $1; echo {after} >{told}; exit 1\n")
    blkdiscard.chmod(0o755)
    where.erases = ("S-SDA",)
    code, _ = await host.install(where, **SWIFT)
    assert code == 1
    assert (host.root / "dev/sda").read_bytes() == DATA * 24
    left = record(where, "S-SDA")
    assert (left.state, left.failure) == (
        "Failed",
        "sda is another disk now than the one that was to be erased",
    )


@pytest.mark.parametrize("disks", ["", "sda;reboot", "../sda", "sda\nsdb$(reboot)"])
async def test_names_of_disks_are_plain(host: Host, where: Site, disks: str) -> None:
    kept = disk(host, "sda")
    where.answers = [(200, {"status": "ok", "action": "Erase", "disks": disks})]
    code, _ = await host.install(where, **SWIFT)
    assert code == 1
    assert "no answer to the hardware report that this installer knows" in where.failure
    assert kept.read_bytes() == DATA * 24


async def test_an_erased_disk_is_not_erased_again(host: Host, where: Site) -> None:
    first, second = disk(host, "sda"), disk(host, "sdb")
    where.erases, where.keeps = ("S-SDA", "S-SDB"), ("S-SDB",)
    assert (await host.install(where, **SWIFT))[0] == 1
    assert zero(first)
    where.keeps = ()
    before = os.stat(first).st_mtime_ns
    code, out = await host.install(where, **SWIFT)
    assert code == 3, (out, where.reports)
    assert os.stat(first).st_mtime_ns == before
    assert zero(second)


MIB_OF_DRIVE: Final = 24
NVME: Final = "sys/block/nvme0n1/device/transport"


def nvme(host: Host, **settings: str) -> tuple[Path, Path]:
    """Return a disk of a local NVMe drive, and the file with the calls of its tool."""
    made = disk(host, "nvme0n1", mib=MIB_OF_DRIVE)
    (host.root / NVME).write_text("pcie\n")
    return made, self_erasing(host, made, MIB_OF_DRIVE, **settings)


def ata(host: Host, **settings: str) -> tuple[Path, Path]:
    """Return a disk of an ATA drive, and the file with the calls of its tool."""
    made = disk(host, "sda", mib=MIB_OF_DRIVE)
    real = host.root / "sys/devices/pci0000:00/0000:00:17.0/ata1/host0/target0:0:0/0:0:0:0"
    real.parent.mkdir(parents=True)
    (host.root / "sys/block/sda/device").rename(real)
    (host.root / "sys/block/sda/device").symlink_to(real)
    return made, self_erasing(host, made, MIB_OF_DRIVE, **settings)


async def tried(host: Host, where: Site) -> dict[str, str | None]:
    """Erase all disks; return the methods that were tried on the only one, and their failures."""
    where.erases = ("All",)
    code, out = await host.install(where, **SWIFT)
    assert code == 3, (out, where.reports)
    (done,) = where.erasures
    assert done.method == done.attempts[-1].method
    return {one.method: one.failure for one in done.attempts}


@pytest.mark.parametrize(("can", "how"), [("0x3", "2"), ("0xa0000002", "2"), ("0x1", "4")])
async def test_an_nvme_drive_sanitizes_itself(host: Host, where: Site, can: str, how: str) -> None:
    made, calls = nvme(host, SANICAP=can)
    assert await tried(host, where) == {"Sanitize": None}
    assert zero(made)
    assert [line for line in calls.read_text().splitlines() if " sanitize " in line] == [
        f"nvme sanitize {made} --sanact={how}"
    ]


@pytest.mark.parametrize(
    ("settings", "failure"),
    [
        ({"SANICAP": "0"}, "the drive has neither a block erase nor a crypto erase (sanicap 0)"),
        ({"SANITIZE": "refused"}, "nvme sanitize: NVMe status: Invalid Command Opcode(0x1)"),
        ({"SSTAT": "0x3"}, "the drive reports that its sanitize failed"),
        ({"SANITIZE": "lies"}, "are not zero"),
    ],
)
async def test_an_nvme_drive_without_a_sanitize_is_formatted(
    host: Host, where: Site, settings: dict[str, str], failure: str
) -> None:
    made, calls = nvme(host, **settings)
    methods = await tried(host, where)
    assert (list(methods), methods["Format"]) == (["Sanitize", "Format"], None)
    assert failure in (methods["Sanitize"] or "")
    assert zero(made)
    assert f"nvme format {made} --ses=1 --force --timeout=7200000\n" in calls.read_text()


async def test_a_drive_with_a_namespace_of_another_host_erases_only_its_disk_here(host: Host, where: Site) -> None:
    made, calls = nvme(host, NAMESPACES="1,2")
    methods = await tried(host, where)
    reason = "the drive has 2 namespaces, and would erase those of others"
    assert (methods["Sanitize"], methods["Format"], methods["Overwrite"]) == (reason, reason, None)
    assert zero(made)
    assert "sanitize" not in calls.read_text()
    assert "format" not in calls.read_text()


async def test_a_drive_that_cannot_manage_namespaces_sanitizes_itself(host: Host, where: Site) -> None:
    made, _ = nvme(host, NAMESPACES="unmanaged")
    assert await tried(host, where) == {"Sanitize": None}
    assert zero(made)


async def test_a_sanitize_that_a_power_cut_interrupted_is_awaited(host: Host, where: Site) -> None:
    made, calls = nvme(host)
    (host.root / "sanitize").write_text("0x2\n")
    assert await tried(host, where) == {"Sanitize": None}
    assert "nvme sanitize " not in calls.read_text()
    assert zero(made)


async def test_a_drive_that_refuses_its_own_commands_is_overwritten(host: Host, where: Site) -> None:
    made, _ = nvme(host, SANITIZE="refused", FORMAT="refused")
    methods = await tried(host, where)
    assert methods["Format"] == "nvme format: NVMe status: Access Denied(0x286)"
    assert (list(methods), methods["Overwrite"]) == (["Sanitize", "Format", "Overwrite"], None)
    assert zero(made)


async def test_a_drive_of_a_san_gets_no_command_that_erases_more_than_the_disk(host: Host, where: Site) -> None:
    made, calls = nvme(host)
    (host.root / NVME).write_text("tcp\n")
    where.erases = ("S-NVME0N1",)
    code, out = await host.install(where, **SWIFT)
    assert code == 3, (out, where.reports)
    assert [one.method for one in where.erasures[0].attempts] == ["Overwrite"]
    assert zero(made)
    assert calls.read_text() == ""


@pytest.mark.parametrize(
    ("security", "how"),
    [("supported", "--security-erase"), ("supported enhanced", "--security-erase-enhanced")],
)
async def test_an_ata_drive_erases_itself(host: Host, where: Site, security: str, how: str) -> None:
    made, calls = ata(host, SECURITY=security)
    assert await tried(host, where) == {"SecureErase": None}
    assert zero(made)
    assert calls.read_text().splitlines() == [
        f"hdparm -I {made}",
        f"hdparm --user-master u --security-set-pass unbounded {made}",
        f"hdparm --user-master u {how} unbounded {made}",
        f"hdparm -N {made}",
        f"hdparm --dco-identify {made}",
        f"hdparm -I {made}",
    ]


WHOLE: Final = "2048/2048, HPA is disabled"
CUT: Final = "2048/4161, HPA is enabled"


@pytest.mark.parametrize(
    ("sectors", "overlay", "words"),
    [
        (WHOLE, "", "it hides no sectors (HPA)"),
        (CUT, "", "it hides 2113 more sectors (HPA), which are not verified"),
        ("4161/1(1?), HPA setting seems invalid", "", "whether it hides sectors (HPA) is not known"),
        ("", "", "whether it hides sectors (HPA) is not known"),
        (WHOLE, "2048", "it hides no sectors (HPA); nor others (DCO)"),
        (WHOLE, "2056", "it hides no sectors (HPA); and 8 others (DCO), which are not verified"),
        (
            CUT,
            "4170",
            "it hides 2113 more sectors (HPA), which are not verified; and 9 others (DCO), which are not verified",
        ),
        (WHOLE, "frozen", "it hides no sectors (HPA); whether it hides others (DCO) is not known"),
        ("", "2048", "whether it hides sectors (HPA) is not known; whether it hides others (DCO) is not known"),
    ],
)
async def test_the_sectors_that_an_ata_drive_hides_are_counted(
    host: Host, sectors: str, overlay: str, words: str
) -> None:
    ata(host, SECURITY="supported", SECTORS=sectors, DCO=overlay)
    code, out = await host.parts("erase_name=sda; erase_dev=$(device sda); hidden_sectors")
    assert (code, out) == (0, f"; {words}")


async def test_the_report_says_which_sectors_an_ata_drive_hides(host: Host, where: Site) -> None:
    ata(host, SECURITY="supported", SECTORS=CUT)
    await tried(host, where)
    hidden = "it hides 2113 more sectors (HPA), which are not verified"
    assert (where.erasures[0].verification or "").endswith(f"read as zero; {hidden}")


async def test_an_erasure_that_a_power_cut_interrupted_has_its_password_already(host: Host, where: Site) -> None:
    made, calls = ata(host, SECURITY="supported enabled locked")
    assert await tried(host, where) == {"SecureErase": None}
    assert "--security-set-pass" not in calls.read_text()
    assert zero(made)


@pytest.mark.parametrize(
    ("settings", "failure"),
    [
        ({"SECURITY": ""}, "the drive has no ATA security: "),
        ({"SECURITY": "supported frozen"}, "the drive is frozen: the firmware locked its security commands"),
        ({"SECURITY": "supported", "ERASES": "refused"}, "hdparm --security-erase: SECURITY_ERASE: Input/output error"),
    ],
)
async def test_an_ata_drive_that_does_not_erase_itself_is_overwritten(
    host: Host, where: Site, settings: dict[str, str], failure: str
) -> None:
    made, calls = ata(host, **settings)
    methods = await tried(host, where)
    assert (list(methods), methods["Overwrite"]) == (["SecureErase", "Overwrite"], None)
    assert (methods["SecureErase"] or "").startswith(failure.strip(": ")), methods
    assert zero(made)
    assert ("--security-disable unbounded" in calls.read_text()) == ("ERASES" in settings)  # it is left without one


CUTS: Final = 50 if os.environ.get("UNBOUNDED_SOAK") else 2


@pytest.mark.parametrize("number", range(CUTS))
async def test_after_a_power_cut_the_report_is_true_and_erasing_resumes(host: Host, where: Site, number: int) -> None:
    chance = random.Random(first_seed() + number)
    disks = {f"S-{name.upper()}": disk(host, name) for name in ("sda", "sdb", "sdc")}
    where.erases = ("S-SDA", "S-SDB")
    host.within = (needed("timeout"), "--signal=KILL", f"{chance.uniform(0.5, 8):.2f}")
    await host.install(where, **SWIFT)
    states = {one.serial_number: one.state for one in where.erasures}
    for serial, file in disks.items():
        if states.get(serial, "Untouched") == "Untouched":
            assert file.read_bytes() == DATA * 24, (serial, states)
        if states.get(serial) == "Erased":
            assert zero(file), (serial, states)
    host.within = ()
    code, out = await host.install(where, **SWIFT)
    assert code == 3, (out, where.reports)
    assert zero(disks["S-SDA"])
    assert zero(disks["S-SDB"])
    assert disks["S-SDC"].read_bytes() == DATA * 24
