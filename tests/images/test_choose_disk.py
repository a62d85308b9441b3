"""States of disks that the installer reports, and its obedience to metalman's answers. It never guesses."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import pytest

from tests.images.content import FOREIGN, MIB, SECTOR, TABLE, gpt, image, packed, put
from tests.images.support import UID, Host, Site, needed, site
from unbounded.metalman.disk_choice import DiskSelection

pytestmark = pytest.mark.slow

OTHER: Final = "99999999-1111-4222-8333-944495559666"


@pytest.fixture
def host(tmp_path: Path) -> Host:
    needed("blkid")
    return Host(tmp_path / "host")


@pytest.fixture
async def where() -> AsyncIterator[Site]:
    needed("nc.openbsd", "scripts/net-tools gets it")
    async with site() as made:
        yield made


async def judged(host: Host, disk: str = "sda") -> str:
    """Return the state of a disk, and of a foreign one its content."""
    code, out = await host.parts(f"judge {disk} {UID}")
    assert code == 0, out
    return out.strip()


async def mark(host: Host, disk: str, uid: str = UID, state: str = "installed", table: str = str(TABLE)) -> None:
    """Leave a mark on a disk, where an install does."""
    text = f'mark_text {uid} rack1-01 {state} "{table}" >"$T/mark" && truncate -s 4096 "$T/mark"'
    put = f'dd if="$T/mark" of="$DEV/{disk}" bs=4096 seek=$MARK_AT conv=notrunc,fsync 2>/dev/null'
    code, out = await host.parts(f"{text} && {put}")
    assert code == 0, out


async def test_a_new_disk_is_blank(host: Host) -> None:
    host.disk("sda")
    assert await judged(host) == "Blank"


async def test_an_erased_disk_of_ones_is_blank(host: Host) -> None:
    put(host.disk("nvme0n1", 4), (0, b"\xff" * 4 * MIB))
    assert await judged(host, "nvme0n1") == "Blank"


@pytest.mark.parametrize("sector", [512, 4096])
async def test_the_state_of_a_disk_does_not_depend_on_its_sectors(host: Host, sector: int) -> None:
    put(host.disk("sda", 64, sector=sector), *FOREIGN["LVM"][0](64 * MIB))
    host.disk("sdb", sector=sector)
    assert (await judged(host)).startswith("Foreign ")
    assert await judged(host, "sdb") == "Blank"


@pytest.mark.parametrize("what", FOREIGN)
async def test_a_disk_with_data_of_others_is_foreign_and_named(host: Host, what: str) -> None:
    pieces, words = FOREIGN[what]
    disk = host.disk("sda", 64)
    put(disk, *pieces(64 * MIB))
    before = disk.read_bytes()
    said = await judged(host)
    assert said.startswith("Foreign "), said
    assert words in said
    assert disk.read_bytes() == before


async def test_partitions_that_the_kernel_knows_are_data(host: Host) -> None:
    host.disk("sda")
    host.partition("sda", "sda1")
    assert await judged(host) == "Foreign partitions"


async def test_a_disk_in_use_is_not_blank(host: Host) -> None:
    host.disk("sda")
    (host.root / "sys/block/sda/holders/dm-0").mkdir()
    assert await judged(host) == "Foreign in use by dm-0"


async def test_what_is_no_disk_to_install_on_is_not_reported(host: Host) -> None:
    host.disk("sda", removable="1")
    host.disk("sdb", ro="1")
    host.disk("sdc", size="0")
    host.disk("nvme0c0n1", hidden="1")
    for name in ("loop0", "ram0", "sr0", "dm-0", "md127", "mmcblk0boot0", "zram0", "nbd0"):
        host.disk(name)
    host.disk("vda")
    assert await host.parts("disks") == (0, "vda\n")


async def test_an_earlier_install_of_this_machine_is_its_own(host: Host) -> None:
    put(host.disk("sdb", 64), (0, gpt(64 * MIB // SECTOR, (2048, 4095))))
    host.partition("sdb", "sdb1")
    await mark(host, "sdb")
    assert await judged(host, "sdb") == "Own"


async def test_an_own_install_that_was_cut_off_is_its_own(host: Host) -> None:
    disk = host.disk("sda")
    put(disk, (2 * MIB, b"half an image"), (16 * MIB - 8192, b"still there"))
    await mark(host, "sda", state="writing", table="")
    assert await judged(host) == "Own"


async def test_layout_that_was_cut_off_is_own_with_its_own_table_alone(host: Host) -> None:
    """Its mark names the table that is to come: the disk may have that already, or none yet."""
    disk = host.disk("sda", 64)
    await mark(host, "sda", state="writing", table=str(TABLE))
    assert await judged(host) == "Own"
    put(disk, (0, gpt(64 * MIB // SECTOR, (4096, 8191))))
    assert await judged(host) == "Own"
    put(disk, (0, gpt(64 * MIB // SECTOR, (4096, 8191), table=uuid.UUID(int=5))))
    assert (await judged(host)).startswith("Foreign an earlier install of this Machine, changed since: ")


async def test_the_install_of_another_machine_is_foreign_and_says_whose(host: Host) -> None:
    put(host.disk("sda", 64), (0, gpt(64 * MIB // SECTOR, (2048, 4095))))
    await mark(host, "sda", OTHER)
    assert await judged(host) == f"Foreign installed for Machine rack1-01 with UID {OTHER}"


async def test_an_own_disk_that_somebody_partitioned_anew_is_foreign(host: Host) -> None:
    disk = host.disk("sda", 64)
    await mark(host, "sda")
    put(disk, (0, gpt(64 * MIB // SECTOR, (2048, 4095), table=uuid.UUID(int=5))))
    assert (await judged(host)).startswith("Foreign an earlier install of this Machine, changed since: ")


@pytest.mark.parametrize("what", ["LVM", "RAID 1.0", "XFS", "a DOS partition table"])
@pytest.mark.parametrize("state", ["installed", "writing"])
async def test_an_own_disk_that_was_given_to_something_else_is_foreign(host: Host, what: str, state: str) -> None:
    disk = host.disk("sda", 64)
    await mark(host, "sda", state=state, table=str(TABLE) if state == "installed" else "")
    put(disk, *FOREIGN[what][0](64 * MIB))
    assert "changed since" in await judged(host)


@pytest.mark.parametrize("at", range(0, 200, 13))
async def test_a_damaged_mark_is_no_mark(host: Host, at: int) -> None:
    disk = host.disk("sda", 64)
    put(disk, (0, gpt(64 * MIB // SECTOR, (2048, 4095))))
    await mark(host, "sda")
    written = disk.read_bytes()[MIB // 2 : MIB // 2 + 4096].rstrip(b"\0")
    assert len(written) > 200
    put(disk, (MIB // 2 + at, bytes([written[at] ^ 1])))
    assert "PTTYPE=gpt" in await judged(host)


# Metalman's answers

WRITE: Final = {"status": "ok", "action": "Write", "disk": "/dev/disk/by-id/ata-DISK_B2"}
CHOOSE: Final = f'''choose_disk {UID} && echo "$ACTION $CHOSEN" || return
[ "$ACTION" != Write ] || take_disk {UID} && echo "$DISK"'''


async def chosen(host: Host, where: Site, more: str = "", **environment: str) -> list[str]:
    """Return the answer's action, path and the disk, or the reason for giving up."""
    script = f'SERVE_URL={where.url}; {more}\nf() {{ {CHOOSE}; }}; f || cat "$T/trouble"'
    _, out = await host.parts(script, TRIES="2", **environment)
    return out.strip().splitlines()


async def test_the_disk_that_metalman_names_is_taken(host: Host, where: Site) -> None:
    for name, serial in {"sda": "A1", "sdb": "B2"}.items():
        host.disk(name, serial=serial)
    where.answers = [(200, WRITE)]
    assert await chosen(host, where) == ["Write /dev/disk/by-id/ata-DISK_B2", "sdb"]
    where.answers = [(200, WRITE | {"disk": "/dev/sda"})]
    assert await chosen(host, where, IMAGE_BYTES="5000") == ["Write /dev/sda", "sda"]
    first, second = where.hardware
    assert (first["final"], first["imageBytes"], second["imageBytes"]) == (False, 0, 5000)
    states = {disk["name"]: (disk["state"], disk["byID"]) for disk in first["hardware"]["disks"]}
    assert states == {"sda": ("Blank", ["ata-DISK_A1"]), "sdb": ("Blank", ["ata-DISK_B2"])}


async def test_a_disk_whose_file_is_in_a_folder_below_dev_is_taken(host: Host, where: Site) -> None:
    host.disk("cciss!c0d0", 4000)
    assert await chosen(host, where) == ["Write /dev/cciss/c0d0", "cciss!c0d0"]
    assert where.hardware[0]["hardware"]["disks"][0]["name"] == "cciss!c0d0"


async def test_the_order_of_an_answers_members_and_words_in_its_texts_do_not_matter(host: Host) -> None:
    text = '{ "message": "a \\"disk\\": \\"/dev/sdb\\"", "disk": "/dev/sda", "action":"Write" }'
    (host.root / "tmp/body").write_text(text)
    code, out = await host.parts('for key in action disk message error; do echo "$(answered $key)"; done')
    assert (code, out) == (0, 'Write\n/dev/sda\na "disk": "/dev/sdb"\n\n')


@pytest.mark.parametrize(
    "disk",
    ["/dev/sda; reboot", "/dev/$(id)", "/dev/", "sda", "", "/etc/passwd", "/dev/sd a", '/dev/sda"', "/dev/*", None],
)
async def test_an_answer_without_a_path_of_a_device_is_not_followed(host: Host, where: Site, disk: str | None) -> None:
    host.disk("sda")
    where.answers = [(200, {"status": "ok", "action": "Write", "disk": disk})]
    (said,) = await chosen(host, where)
    assert said.startswith('metalman gave no answer to the hardware report that this installer knows: {"status":"ok"')


@pytest.mark.parametrize("path", ["/dev/disk/by-id/ata-GONE", "/dev/sdz", "/dev/../dev/null", "/dev/disk", "/dev/sda1"])
async def test_a_disk_that_is_not_here_is_not_substituted(host: Host, where: Site, path: str) -> None:
    host.disk("sda", serial="A1")
    where.answers = [(200, WRITE | {"disk": path})]
    assert (await chosen(host, where))[1:] == [f"metalman chose {path}, which is no disk here"]


@pytest.mark.parametrize("action", ["Erase", "", None])
async def test_an_action_of_a_later_metalman_is_not_guessed(host: Host, where: Site, action: str | None) -> None:
    host.disk("sda")
    where.answers = [(200, WRITE | {"action": action})]
    (said,) = await chosen(host, where)
    assert said.startswith("metalman gave no answer to the hardware report that this installer knows: ")


async def test_a_foreign_disk_is_not_taken_even_if_metalman_says_so(host: Host, where: Site) -> None:
    put(host.disk("sda", 64), *FOREIGN["LVM"][0](64 * MIB))
    where.answers = [(200, WRITE | {"disk": "/dev/sda"})]
    _, said = await chosen(host, where)
    assert said.startswith(
        "metalman chose /dev/sda, which was reported as Foreign and now is: Foreign TYPE=LVM2_member"
    )


def foreign(host: Host, name: str, serial: str) -> Path:
    """Make a foreign disk with a serial number, as a virtio disk has it."""
    disk = host.disk(name, 64)
    put(disk, *FOREIGN["LVM"][0](64 * MIB))
    (host.root / f"sys/block/{name}/serial").write_text(f"{serial}\n")
    return disk


@pytest.mark.parametrize("serial", ["A1", "A 1", 'A"1\\', "A*"])
async def test_a_foreign_disk_is_taken_only_with_the_permission_for_its_serial_number(
    host: Host, where: Site, serial: str
) -> None:
    disk = foreign(host, "sda", serial)
    before = disk.read_bytes()
    write = WRITE | {"disk": "/dev/sda"}
    where.answers = [(200, write | {"erase": serial})]
    assert await chosen(host, where) == ["Write /dev/sda", "sda"]
    assert where.hardware[0]["hardware"]["disks"][0]["serialNumber"] == serial
    for other in ("", "A", f"{serial}1", serial.lower(), "*", "B2", None, True):
        where.answers = [(200, write | {"erase": other})]
        _, said = await chosen(host, where)
        assert said.startswith(
            "metalman chose /dev/sda, which was reported as Foreign and now is: Foreign TYPE=LVM2"
        ), other
    assert disk.read_bytes() == before


@pytest.mark.parametrize("change", ["contents", "serial number"])
async def test_permission_to_erase_is_for_what_was_reported(host: Host, where: Site, change: str) -> None:
    disk = foreign(host, "sda", "A1")
    other = host.root / "other"
    other.write_bytes(b"")
    put(other, *FOREIGN["XFS"][0](64 * MIB))
    command = f"cat {other} >{disk}" if change == "contents" else 'echo B2 >"$SYS/block/sda/serial"'
    where.answers = [(200, WRITE | {"disk": "/dev/sda", "erase": "A1"})]
    _, said = await chosen(host, where, f"disk_at() {{ {command}; echo sda; }}")
    assert said.startswith("metalman chose /dev/sda, which was reported as Foreign and now is: Foreign ")


async def test_a_disk_that_changed_since_it_was_reported_is_not_taken(host: Host, where: Site) -> None:
    disk = host.disk("sda")
    change = f"disk_at() {{ printf x | dd of={disk} bs=1 seek=5000 conv=notrunc 2>/dev/null; echo sda; }}"
    where.answers = [(200, WRITE | {"disk": "/dev/sda"})]
    said = (
        "metalman chose /dev/sda, which was reported as Blank and now is: Foreign data of an unknown kind at its start"
    )
    assert await chosen(host, where, change) == ["Write /dev/sda", said]


async def test_a_disk_of_another_size_than_reported_is_not_taken(host: Host, where: Site) -> None:
    """A blank disk took the place of another, with all of its names."""
    host.disk("sda", mib=16)
    change = 'disk_at() { echo 8192 >"$SYS/block/sda/size"; echo sda; }'
    where.answers = [(200, WRITE | {"disk": "/dev/sda"})]
    said = "metalman chose /dev/sda, which was reported with 16777216 bytes and now has 4194304"
    assert await chosen(host, where, change) == ["Write /dev/sda", said]


async def test_disk_with_other_sectors_than_reported_is_not_taken(host: Host, where: Site) -> None:
    host.disk("sda")
    change = 'disk_at() { echo 4096 >"$SYS/block/sda/queue/logical_block_size"; echo sda; }'
    where.answers = [(200, WRITE | {"disk": "/dev/sda"})]
    said = "metalman chose /dev/sda, which was reported with sectors of 512 bytes and now has sectors of 4096"
    assert await chosen(host, where, change) == ["Write /dev/sda", said]


async def test_a_disk_that_came_after_the_report_is_not_taken(host: Host, where: Site) -> None:
    host.disk("sda")
    where.answers = [(200, WRITE | {"disk": "/dev/sdb"})]
    later = Host(host.root / "later")
    later.disk("sdb")
    plug = f'disk_at() {{ cp -a {later.root}/sys {later.root}/dev "$SYS/.."; echo sdb; }}'
    _, said = await chosen(host, where, plug)
    assert said == "metalman chose /dev/sdb, which was reported as no disk and now is: Blank"


@pytest.mark.parametrize("words", ["several disks: sda (16 MB): blank", 'it has "quotes", \\ and\nlines', "é"])
async def test_a_refusal_is_metalmans_own_words(host: Host, where: Site, words: str) -> None:
    host.disk("sda")
    where.answers = [(409, {"error": words})]
    assert "\n".join(await chosen(host, where)) == words.replace("\n", " ")


@pytest.mark.parametrize("code", [404, 405])
async def test_a_metalman_that_takes_no_report_is_older(host: Host, where: Site, code: int) -> None:
    host.disk("sda")
    where.answers = [(code, {})]
    (said,) = await chosen(host, where)
    assert said.startswith(f"metalman takes no report of the hardware (HTTP {code}): it is older than this installer")


@pytest.mark.parametrize("code", [400, 413, 500, 503])
async def test_a_report_that_is_not_taken_is_a_reason(host: Host, where: Site, code: int) -> None:
    host.disk("sda")
    where.answers = [(code, {"error": "disks[0].bus: must be a string"})] * 2
    (said,) = await chosen(host, where)
    assert said.startswith(f"metalman did not take the report of the hardware: HTTP {code}: ")
    assert len(where.hardware) == (1 if code < 500 else 2)


async def test_metalman_that_is_busy_is_asked_again(host: Host, where: Site) -> None:
    host.disk("sda")
    where.answers = [(503, {}), (200, WRITE | {"disk": "/dev/sda"})]
    assert await chosen(host, where) == ["Write /dev/sda", "sda"]


async def test_an_awaited_disk_that_comes_is_taken(host: Host, where: Site) -> None:
    host.disk("sda", serial="A1")
    waits = {"status": "ok", "action": "Wait", "message": "/dev/disk/by-id/ata-DISK_B2 is not here yet"}
    where.answers = [*[(200, waits)] * 3, (200, WRITE)]
    later = Host(host.root / "later")
    later.disk("sdb", serial="B2")
    plug = f'sleep() {{ cp -fa {later.root}/sys {later.root}/dev "$SYS/.."; }}'
    assert await chosen(host, where, plug) == ["Write /dev/disk/by-id/ata-DISK_B2", "sdb"]
    assert [len(report["hardware"]["disks"]) for report in where.hardware] == [1, 2, 2, 2]
    assert [report["message"] for report in where.reports] == [f"waits: {waits['message']}"]  # once


async def test_disk_that_never_comes_is_reported_as_final_after_three_minutes(host: Host, where: Site) -> None:
    host.disk("sda")
    clock = host.root / "uptime"
    clock.write_text("0.00 0.00\n")
    ticks = """hardware() { echo '{"disks":[]}'; }
sleep() { read -r up _ <"$UPTIME"; echo "$((${up%.*} + $1)).00 0" >"$UPTIME"; }"""
    where.answers = [(200, {"status": "ok", "action": "Wait", "message": "not yet"})] * 36 + [
        (409, {"error": "absent"})
    ]
    assert await chosen(host, where, ticks, PAUSE_S="", UPTIME=str(clock)) == ["absent"]
    assert [report["final"] for report in where.hardware] == [False] * 36 + [True]
    assert clock.read_text() == "180.00 0\n"


async def test_a_wait_after_the_final_report_is_no_wait_for_ever(host: Host, where: Site) -> None:
    host.disk("sda")
    where.answers = [(200, {"status": "ok", "action": "Wait", "message": "not yet"})] * 9
    (said,) = await chosen(host, where, "DISKS_SINCE=-1000")
    assert said.startswith("metalman gave no answer to the hardware report that this installer knows: ")
    assert [report["final"] for report in where.hardware] == [False, True]


# The installer as a whole


@pytest.mark.parametrize("served", [True, False], ids=["an image", "no image"])
async def test_an_inspection_reports_and_leaves_everything_as_it_is(host: Host, where: Site, served: bool) -> None:
    if served:
        where.image(packed(image(), "gz"))
    disk = host.disk("sda")
    where.answers = [(200, {"status": "ok", "action": "PowerOff"})]
    where.refusals = {f"cloud-init/{name}": [404] * 9 for name in ("meta-data", "user-data")}
    code, out = await host.install(where)
    assert (code, out) == (3, "")
    assert [report["imageBytes"] for report in where.hardware] == [0]
    assert disk.read_bytes() == bytes(16 * MIB)
    assert not any(report["failed"] for report in where.reports)
    assert "POST pxe/disable" not in where.asked
    asked = {one for one in where.asked if "cloud-init" in one}
    assert asked <= {"GET cloud-init/user-data"}  # the refusal tells the installer that it may wait for LLDP


async def test_an_image_that_is_served_after_the_report_is_reported_with_its_size(host: Host, where: Site) -> None:
    """With rootDeviceHints metalman serves it only to a host that has reported."""
    where.image(packed(image(), "zst"), "disk.img.zst")
    for name in ("disk.img.zst", "disk.img.gz"):
        where.refusals[name] = [404]
    host.disk("sda")
    where.answers = [(200, WRITE | {"disk": "/dev/sda"}), (409, {"error": "too small for it"})]
    assert (await host.install(where))[0] == 1
    assert where.failure == "ChoosingDisk: too small for it"
    assert [report["imageBytes"] for report in where.hardware] == [0, 5 * MIB]


async def test_a_refusal_is_what_metalman_hears_as_the_failure(host: Host, where: Site) -> None:
    where.image(packed(image(), "gz"))
    disk = host.disk("sda")
    where.answers = [(409, {"error": 'no disk is blank; "erase" one'})]
    assert (await host.install(where))[0] == 1
    assert where.failure == "ChoosingDisk: no disk is blank; 'erase' one"
    assert disk.read_bytes() == bytes(16 * MIB)


async def test_a_choice_that_changes_while_the_installer_prepares_is_followed(host: Host, where: Site) -> None:
    where.image(packed(image(), "gz"))
    first, second = (host.disk(name, serial=serial) for name, serial in {"sda": "A1", "sdb": "B2"}.items())
    where.answers = [(200, WRITE | {"disk": "/dev/disk/by-id/ata-DISK_A1"})]
    where.selection = DiskSelection(target="/dev/disk/by-id/ata-DISK_B2")  # the user has just named it
    await host.install(where)
    assert {one["disk"] for one in where.reports if one["stage"] == "Writing"} == {"/dev/disk/by-id/ata-DISK_B2"}
    assert first.read_bytes() == bytes(first.stat().st_size)
    assert second.read_bytes() != bytes(second.stat().st_size)
