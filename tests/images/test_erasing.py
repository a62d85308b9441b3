"""The installer's erasure of disks: what is on them afterwards, what is left, and the report to metalman."""

from __future__ import annotations

import os
import random
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.images.content import MIB, put
from tests.images.loops import Attach, loop_devices
from tests.images.support import Host, Site, needed, site
from unbounded.api.erasure import DiskErasureRecord

pytestmark = pytest.mark.slow

DATA: Final = random.Random(1).randbytes(MIB)
SWIFT: Final = {"ERASE_SAMPLES": "24", "ERASE_REPORT_S": "0.2", "TRIES": "2"}
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
