"""The installer's whole run over a server on loopback: the disk's content afterwards, and the reports to metalman."""

from __future__ import annotations

import random
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import zstandard

from tests.images.content import FOREIGN, MIB, TABLE, gpt, image, mbr, packed, put
from tests.images.support import UID, Host, Site, needed, site
from unbounded.metalman.disk_choice import DiskSelection

pytestmark = pytest.mark.slow

MARK = slice(MIB // 2, MIB // 2 + 4096)
WRITE = (
    'write_image "$SERVE_URL/{name}" {sha} sda {uid} rack1-01 && finish_image sda {uid} rack1-01 || '
    '{{ cat "$T/trouble"; exit 1; }}'
)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    needed("blkid")
    needed("zstd")
    needed("nc.openbsd", "scripts/net-tools gets it")
    return Host(tmp_path / "host")


@pytest.fixture
async def where() -> AsyncIterator[Site]:
    async with site() as made:
        made.selection = DiskSelection(target="/dev/sda")
        yield made


async def write(
    host: Host, where: Site, name: str = "disk.img.gz", sha: str = "", **environment: str
) -> tuple[int, str]:
    sha = sha or where.files[f"{name}.sha256"].decode()[:64]
    script = f"SERVE_URL={where.url}; {WRITE.format(name=name, sha=sha, uid=UID)}"
    return await host.parts(script, **environment)


def written(disk: Path, plain: bytes) -> None:
    """The disk has the image, and in it the mark."""
    there = disk.read_bytes()[: len(plain)]
    mark = there[MARK].rstrip(b"\0").decode()
    assert f"machine={UID}\nname=rack1-01\nstate=installed\ntable={TABLE}\ncheck=" in mark
    assert there[: MARK.start] + bytes(4096) + there[MARK.stop :] == plain


@pytest.mark.parametrize("how", ["gz", "zst"])
@pytest.mark.parametrize(("mib", "extra"), [(5, 0), (6, 4096), (2, 0), (9, 512)])
async def test_an_image_arrives_byte_for_byte(host: Host, where: Site, how: str, mib: int, extra: int) -> None:
    plain = image(mib, extra=extra)
    where.image(packed(plain, how), f"disk.img.{how}")
    disk = host.disk("sda")
    code, out = await write(host, where, f"disk.img.{how}")
    assert code == 0, out
    written(disk, plain)


async def test_it_is_recognised_as_this_machines_own(host: Host, where: Site) -> None:
    plain = image()
    where.image(packed(plain, "gz"))
    disk = host.disk("sda")
    assert (await write(host, where))[0] == 0
    host.partition("sda", "sda1")
    assert (await host.parts(f"judge sda {UID}"))[1] == "Own\n"
    assert (await write(host, where))[0] == 0
    written(disk, plain)


@pytest.mark.parametrize(
    ("head", "sector", "expected"),
    [
        (gpt(40960, (2048, 4095), (4096, 32767)), 512, "1 2048 2048\n2 4096 28672\n"),
        (gpt(1 << 34, (256, 511), (512, (1 << 33) + 1), sector=4096), 4096, f"1 256 256\n2 512 {(1 << 33) - 510}\n"),
        (mbr(), 512, "1 2048 8192\n"),
        (bytes(4096), 512, ""),
    ],
)
async def test_the_partitions_of_a_table_that_is_held_back_are_known(
    host: Host, head: bytes, sector: int, expected: str
) -> None:
    (host.root / "tmp/head").write_bytes(head.ljust(MIB, b"\0"))
    assert await host.parts(f"head_partitions {sector}") == (0, expected)


async def test_progress_is_told_and_never_falls(host: Host, where: Site) -> None:
    where.image(packed(image(9), "gz"))
    host.disk("sda")
    assert (await write(host, where, CHUNK_BYTES="400000"))[0] == 0
    percents = [report["percent"] for report in where.reports]
    assert len(percents) > 3
    assert percents == sorted(percents)
    assert all(0 < percent <= 99 for percent in percents)


async def test_progress_is_not_told_more_often_than_asked_for(host: Host, where: Site) -> None:
    where.image(packed(image(9), "gz"))
    host.disk("sda")
    assert (await write(host, where, REPORT_EVERY_S="1000"))[0] == 0
    assert len(where.reports) == 1


async def test_answers_that_break_off_are_asked_for_again_where_they_began(host: Host, where: Site) -> None:
    plain = image(9)
    where.image(packed(plain, "gz"))
    where.cuts = 3
    disk = host.disk("sda")
    code, out = await write(host, where)
    assert code == 0, out
    assert where.cuts == 0
    written(disk, plain)


async def test_a_server_that_is_busy_is_waited_for(host: Host, where: Site) -> None:
    plain = image()
    where.image(packed(plain, "gz"))
    where.refusals["disk.img.gz"] = [503, 500, 429, 502]
    disk = host.disk("sda")
    assert (await write(host, where))[0] == 0
    written(disk, plain)


async def test_a_server_that_stays_away_is_given_up(host: Host, where: Site) -> None:
    where.image(packed(image(), "gz"))
    where.refusals["disk.img.gz"] = [503] * 100
    host.disk("sda")
    code, out = await write(host, where, TRIES="5")
    assert code == 1
    assert out.strip() == "the image could not be read at byte 0: HTTP 503: refused by the test"
    assert len(where.refusals["disk.img.gz"]) == 95


async def test_a_boot_that_is_over_is_not_asked_for_again(host: Host, where: Site) -> None:
    where.image(packed(image(), "gz"))
    where.refusals["disk.img.gz"] = [403] * 5
    host.disk("sda")
    code, out = await write(host, where)
    assert (code, out.strip()) == (1, "the image could not be read at byte 0: HTTP 403: refused by the test")
    assert len(where.refusals["disk.img.gz"]) == 4


async def starts_nowhere(host: Host, disk: Path) -> None:
    """Nothing on the disk can start, and it is known as this Machine's."""
    assert disk.read_bytes()[: MARK.start] == bytes(MARK.start)
    assert disk.read_bytes()[-4096:] == bytes(4096)
    assert (await host.parts(f"judge sda {UID}"))[1] == "Own\n"


async def test_what_has_another_digest_does_not_start(host: Host, where: Site) -> None:
    where.image(packed(image(), "gz"))
    disk = host.disk("sda")
    code, out = await write(host, where, sha="0" * 64)
    assert code == 1
    assert f"and not {'0' * 64}" in out
    await starts_nowhere(host, disk)


@pytest.mark.parametrize("how", ["gz", "zst"])
@pytest.mark.parametrize("kept", [0.1, 0.5, 0.99])
async def test_a_truncated_image_does_not_start(host: Host, where: Site, how: str, kept: float) -> None:
    data = packed(image(), how)
    where.image(data[: int(len(data) * kept)], f"disk.img.{how}")
    disk = host.disk("sda")
    code, out = await write(host, where, f"disk.img.{how}")
    assert code == 1
    assert out.startswith("the image could not be unpacked: ")
    await starts_nowhere(host, disk)


async def test_an_image_of_no_kind_is_said_to_be(host: Host, where: Site) -> None:
    where.image(b"MZ\x90\0" * 1000)
    disk = host.disk("sda")
    code, out = await write(host, where)
    assert (code, out.strip()) == (1, "the image is neither gzip nor zstd: it starts with 4d5a9000")
    await starts_nowhere(host, disk)


async def test_an_image_that_is_replaced_meanwhile_is_not_mixed(host: Host, where: Site) -> None:
    where.image(packed(image(9), "gz"))

    def replace(first: int) -> None:
        where.tag = '"two"' if first else '"one"'

    where.on_range = replace
    disk = host.disk("sda")
    code, out = await write(host, where)
    assert (code, out.strip()) == (1, "the image was replaced while it was read")
    await starts_nowhere(host, disk)


async def test_an_image_that_is_larger_than_the_disk_is_refused(host: Host, where: Site) -> None:
    where.image(packed(image(17), "gz"))
    disk = host.disk("sda", 16)
    code, out = await write(host, where)
    assert (code, out.strip()) == (1, f"the image is larger than the disk, which has {16 * MIB} bytes")
    assert disk.stat().st_size == 16 * MIB
    assert disk.read_bytes()[: MARK.start] == bytes(MARK.start)


async def test_an_image_that_just_fits_is_written(host: Host, where: Site) -> None:
    plain = image(16)
    where.image(packed(plain, "gz"))
    disk = host.disk("sda", 16)
    code, out = await write(host, where)
    assert code == 0, out
    written(disk, plain)


@pytest.mark.parametrize(
    ("plain", "why"),
    [
        (bytes(3 * MIB), "it has no boot record"),
        (b"small", "it has no second MiB"),
        (image(2)[:MIB], "it has no second MiB"),
        (image(3)[: MARK.start] + b"x" + image(3)[MARK.start + 1 :], "data at byte 524288"),
    ],
    ids=("no boot record", "small", "one MiB", "used where the mark goes"),
)
async def test_what_is_no_disk_image_does_not_start(host: Host, where: Site, plain: bytes, why: str) -> None:
    where.image(packed(plain, "gz"))
    disk = host.disk("sda")
    code, out = await write(host, where)
    assert code == 1
    assert why in out
    await starts_nowhere(host, disk)


async def test_a_disk_that_forgets_the_end_is_found_out(host: Host, where: Site) -> None:
    where.image(packed(image(), "gz"))
    disk = host.disk("sda")
    forget = f'mv() {{ command mv "$@"; printf x | dd of={disk} bs=1 seek={5 * MIB - 9} conv=notrunc 2>/dev/null; }}; '
    sha = where.files["disk.img.gz.sha256"].decode()[:64]
    script = forget + f"SERVE_URL={where.url}; " + WRITE.format(name="disk.img.gz", sha=sha, uid=UID)
    code, out = await host.parts(script)
    assert (code, out.strip()) == (1, "the disk did not keep the end of the image")
    await starts_nowhere(host, disk)


async def test_what_is_kept_in_memory_does_not_grow_with_the_image(host: Host, where: Site) -> None:
    where.image(packed(image(48), "gz"))
    host.disk("sda", 64)
    script = '( while :; do du -sk "$T" | cut -f 1 >>"$DEV/../sizes"; sleep 0.05; done ) & watcher=$!; '
    sha = where.files["disk.img.gz.sha256"].decode()[:64]
    script += f"SERVE_URL={where.url}; " + WRITE.format(name="disk.img.gz", sha=sha, uid=UID) + "; kill $watcher"
    code, out = await host.parts(script, CHUNK_BYTES="4000000")
    assert code == 0, out
    sizes = [int(size) for size in (host.root / "sizes").read_text().split()]
    assert len(sizes) > 3
    assert max(sizes) < 18_000  # a piece twice, two blocks, the first MiB and its copies


# The installer as a whole; without root, up to the point where it mounts what it wrote.


async def test_a_foreign_disk_is_left_as_it_is_and_metalman_hears_why(host: Host, where: Site) -> None:
    where.image(packed(image(), "gz"))
    disk = host.disk("sda", 64)
    put(disk, *FOREIGN["LVM"][0](64 * MIB))
    before = disk.read_bytes()
    code, _ = await host.install(where)
    assert code == 1
    assert where.failure.startswith("ChoosingDisk: targetDisk /dev/sda holds data of others; ")
    assert "LVM2_member" in where.failure
    assert disk.read_bytes() == before
    assert where.disabled == 0


@pytest.mark.parametrize("missing", ["cloud-init/meta-data", "cloud-init/user-data", "cloud-init/network-config"])
async def test_cloud_init_data_that_cannot_be_had_costs_no_disk(host: Host, where: Site, missing: str) -> None:
    where.image(packed(image(), "gz"))
    where.refusals[missing] = [500] * 100
    disk = host.disk("sda")
    code, _ = await host.install(where, TRIES="3")
    assert code == 1
    assert where.failure == f"Preparing: {missing} could not be had: HTTP 500: refused by the test"
    assert disk.read_bytes() == bytes(16 * MIB)


async def test_an_image_without_a_digest_is_not_written(host: Host, where: Site) -> None:
    where.image(packed(image(), "gz"))
    del where.files["disk.img.gz.sha256"]
    disk = host.disk("sda")
    assert (await host.install(where))[0] == 1
    assert where.failure.startswith("Preparing: nothing says what disk.img.gz should be")
    assert disk.read_bytes() == bytes(16 * MIB)


@pytest.mark.parametrize("form", ["{}", '"{}"', "'{}'", "sha256:{}", '"sha256:{}"  # of the file as it is'])
async def test_the_digest_may_stand_in_the_metadata(host: Host, where: Site, form: str) -> None:
    where.image(packed(image(), "gz"))
    digest = where.files.pop("disk.img.gz.sha256").decode()[:64]
    where.files["metadata.yaml"] = f"dhcpBootImageName: a\ndiskImageSHA256: {form.format(digest)}\n".encode()
    assert (await host.install(where))[0] == 1
    assert where.failure.startswith("ChoosingDisk: targetDisk /dev/sda is no disk here")  # it came so far


async def test_a_boot_without_an_image_says_so(host: Host, where: Site) -> None:
    host.disk("sda")
    assert (await host.install(where))[0] == 1
    assert where.failure == "Preparing: disk.img.gz could not be had: HTTP 404: not here"


async def test_a_wrong_digest_is_tried_once_more_and_then_reported(host: Host, where: Site) -> None:
    where.image(packed(image(), "gz"))
    where.files["disk.img.gz.sha256"] = b"ab" * 32
    disk = host.disk("sda")
    assert (await host.install(where))[0] == 1
    assert where.failure.startswith("Writing: the image's SHA-256 is ")
    again = [report for report in where.reports if "once more" in report["message"]]
    assert len(again) == 1
    await starts_nowhere(host, disk)


async def test_a_failure_is_reported_again_until_it_is_heard(host: Host, where: Site) -> None:
    where.refusals["progress"] = [503] * 4  # the first is that of the start, which is sent once
    host.disk("sda")
    assert (await host.install(where))[0] == 1
    assert len(where.reports) == 1
    assert "404" in where.failure


async def test_messages_are_json_whatever_is_in_them(host: Host, where: Site) -> None:
    code, out = await host.parts(f"""SERVE_URL={where.url}; report X 5 'a "quoted" \\ back	tab é end'""")
    assert code == 0, out
    assert where.reports == [{"stage": "X", "percent": 5, "message": "a 'quoted' / back tab    end", "failed": False}]


async def test_nothing_is_done_without_knowing_whose_machine_it_is(host: Host, where: Site) -> None:
    host.disk("sda")
    host.arguments = {"machine_uid": ""}
    assert (await host.install(where))[0] == 1
    assert "unbounded.machine_uid is missing" in host.said()
    assert where.asked == []


def by_zstd(plain: bytes) -> bytes:
    command = [needed("zstd"), "-q", "-c", f"--stream-size={len(plain)}"]
    return subprocess.run(command, input=plain, capture_output=True, check=True).stdout


@pytest.mark.parametrize("size", [0, 1, 255, 256, 257, 65_791, 65_792, 65_793, 5_000_000])
async def test_the_size_of_a_packed_image_is_what_zstd_says(host: Host, size: int) -> None:
    plain, file = random.Random(size).randbytes(size), host.root / "tmp/head"
    for packed_image in (zstandard.compress(plain), by_zstd(plain)):
        file.write_bytes(packed_image[:18])
        assert zstandard.frame_content_size(packed_image) == size
        assert (await host.parts('unpacked_bytes "$T/head"'))[1] == f"{size}\n"


async def test_the_size_of_an_image_beyond_4_gib_is_known(host: Host) -> None:
    head = (0xFD2FB528).to_bytes(4, "little") + bytes([0b11000000, 0x58]) + (6 << 30).to_bytes(8, "little")
    assert zstandard.frame_content_size(head) == 6 << 30
    (host.root / "tmp/head").write_bytes(head)
    assert (await host.parts('unpacked_bytes "$T/head"'))[1] == f"{6 << 30}\n"


@pytest.mark.parametrize("head", [b"", b"\x1f\x8b" + bytes(16), b"\x28\xb5\x2f", b"\x28\xb5\x2f\xfd\x00\x58"])
async def test_unknown_size_of_an_image_is_not_guessed(host: Host, head: bytes) -> None:
    (host.root / "tmp/head").write_bytes(head)
    assert (await host.parts('unpacked_bytes "$T/head"'))[1] == ""
