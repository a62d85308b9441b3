"""The text of a layout is checked as a whole before anything of it is done."""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.images.layout_text import ESP_TYPE, encoded, file, identity, layout, mirrored, partition
from tests.images.support import TOP, Host, Site, needed, site

GOOD = mirrored("/dev/disk/by-id/wwn-1", "/dev/disk/by-id/wwn-2", file("/etc/fstab", "# none\n"))


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path / "host")


async def faults(host: Host, *texts: str) -> list[str]:
    """Return what the check prints for each text; without a word a text has to be taken, and only then."""
    names = [f"text{number}" for number in range(len(texts))]
    for name, text in zip(names, texts, strict=True):
        (host.root / "tmp" / name).write_text(text)
    check = f'for each in {" ".join(names)}; do why=$(awk -f "$INSTALLER/layout.awk" "$T/$each"); echo "$? $why"; done'
    code, out = await host.sh(check)
    assert code == 0, out
    found = [line.split(" ", 1) for line in out.splitlines()]
    assert all((code == "0") == (why == "") for code, why in found), found
    return [why for _, why in found]


def changed(old: str, new: str) -> str:
    assert old in GOOD, old
    return GOOD.replace(old, new, 1)


async def test_layout_without_fault_is_taken(host: Host) -> None:
    more = f"\ncmdline {encoded('quiet a=b')}\nscript post {encoded('true')}\nend\n"
    single = layout(
        "disk d1 /dev/nvme0n1 Own",
        partition("d1", 1, 2, 64, ESP_TYPE),
        partition("d1", 128, 66, 64, ESP_TYPE),
        "filesystem vfat d1/1 0DEB-0001 -F,32",
        f"filesystem xfs d1/128 {identity('x')} -",
        "mount d1/128 / -",
        "esp d1/1",
    )
    texts = (GOOD, GOOD.replace("\nend\n", more), GOOD.replace(" 1 1.0 ", " 10 1.2 "), single)
    assert await faults(host, *texts) == [""] * 4


FAULTS = {
    "another version": (changed("layout 1", "layout 2"), "line 1: this is no layout of version 1"),
    "an unknown verb": (changed("esp d2/1", "encrypt d2/1"), "this installer does not know encrypt"),
    "cut off": (GOOD.removesuffix("end\n"), 'it is cut off: it does not end with a line "end"'),
    "cut off in its middle": (GOOD[: len(GOOD) // 2].rpartition("\n")[0] + "\n", "it is cut off"),
    "more behind the end": (GOOD + "end\n", "there is more behind the end"),
    "two spaces": (changed("esp d1/1", "esp  d1/1"), "it has other characters than words have"),
    "a quote": (changed("d1-1", 'd1"1'), "it has other characters than words have"),
    "a word too many": (changed("esp d1/1", "esp d1/1 -"), "esp has 2 words, and not 1"),
    "an unknown state": (changed("Blank", "Empty"), "this is no disk"),
    "a disk outside of /dev": (changed("/dev/disk/by-id/wwn-1", "/etc/disk"), "this is no disk"),
    "a path that leads up": (changed("by-id/wwn-1", "../wwn-1"), "this is no disk"),
    "the same disk twice": (changed("wwn-2", "wwn-1"), "there are two of path /dev/disk/by-id/wwn-1"),
    "a partition of no disk": (changed("partition d1 1", "partition d9 1"), "no earlier line has the disk d9"),
    "a partition twice": (changed("partition d1 2", "partition d1 1"), "there are two of partition d1/1"),
    "partition 129": (changed("partition d1 2", "partition d1 129"), "partition 129 has no place"),
    "a partition without a start": (changed(" 4096 ", " 0 "), "partition 1 has no place"),
    "RAID of one partition": (changed(" d1/2 d2/2", " d1/2"), "a raid has two devices at least"),
    "RAID 5": (changed(" 1 1.0 ", " 5 1.0 "), "this is no raid"),
    "metadata 0.90": (changed(" 1 1.0 ", " 1 0.90 "), "this is no raid"),
    "RAID of a partition twice": (changed(" d1/2 d2/2", " d1/2 d1/2"), "d1/2 is used twice"),
    "a partition of two owners": (changed("group data d1/3", "group data d1/2"), "d1/2 is used twice"),
    "LVM on what is not there": (changed("group system raid:root", "group system raid:top"), "makes raid:top"),
    "a volume behind the rest": (
        changed("volume data data", "volume system more 1048576 linear\nvolume data data"),
        "an earlier volume takes the rest of the group system",
    ),
    "a volume of no group": (changed("volume data data", "volume date data"), "no earlier line has the group date"),
    "an unknown file system": (changed("xfs", "btrfs"), "no file system btrfs is known"),
    "a file system on a RAID that LVM has": (changed("ext4 volume:system/root", "ext4 raid:root"), "raid:root is used"),
    "an identity of another kind": (changed("0DEB-0001", identity("x")), "this is no identity of vfat"),
    "options that name a disk": (changed("-F,32", "-F,/dev/sda"), "options name no files"),
    "a first mount below /": (
        changed("mount volume:system/root / errors=remount-ro\n", ""),
        "the first mount is that of /",
    ),
    "a mount of swap": (changed("mount volume:data/data", "mount volume:system/swap"), "no earlier line makes a file"),
    "a mount that leads up": (changed("/var/lib/data", "/var/../.."), "this is no path"),
    "a mount twice": (changed("/boot/efi", "/var/lib/data"), "there are two of mount /var/lib/data"),
    "/boot with vfat": (changed("/boot/efi", "/boot"), "/boot is a file system with links"),
    "an esp without vfat": (changed("esp d2/1", "esp d2/2"), "an esp is a partition with vfat"),
    "no esp": (changed("esp d1/1\nesp d2/1\n", ""), "there is no esp"),
    "a file outside": (changed("/etc/fstab", "/../etc/fstab"), "this is no file"),
    "a file of no base64": (changed(encoded("# none\n"), "abc"), "this is no file"),
    "an unknown script": (changed("esp d2/1", f"esp d2/1\nscript mid {encoded('x')}"), "this is no script"),
    "a disk without partitions": (
        changed("disk d2", "disk d3 /dev/disk/by-id/wwn-3 Blank\ndisk d2"),
        "the disk d3 has no partition",
    ),
}


async def test_layout_with_a_fault_is_refused_with_the_reason(host: Host) -> None:
    found = await faults(host, *(text for text, _ in FAULTS.values()))
    unlike = {what: text for what, text in zip(FAULTS, found, strict=True) if FAULTS[what][1] not in text}
    assert unlike == {}


async def test_every_layout_that_is_cut_off_is_refused(host: Host) -> None:
    lines = GOOD.splitlines(keepends=True)
    assert "" not in await faults(host, *("".join(lines[:count]) for count in range(1, len(lines))))


@pytest.fixture
async def where() -> AsyncIterator[Site]:
    needed("nc.openbsd", "scripts/net-tools gets it")
    async with site() as made:
        yield made


async def fetched(host: Host, where: Site, text: str, digest: str = "") -> tuple[int, str]:
    where.files["layout"] = text.encode()
    digest = digest or hashlib.sha256(text.encode()).hexdigest()
    script = f'SERVE_URL={where.url}; rm -f "$T/trouble"; fetch_layout {digest} || {{ cat "$T/trouble"; exit 1; }}'
    return await host.parts(script)


async def test_layout_is_waited_for_and_compared_with_its_digest(host: Host, where: Site) -> None:
    where.refusals["layout"] = [503, 503]
    assert await fetched(host, where, GOOD) == (0, "")
    code, why = await fetched(host, where, GOOD, "0" * 64)
    assert code == 1
    assert why.strip().endswith(f"and metalman announced {'0' * 64}")


async def test_kernel_parameters_that_grub_would_read_otherwise_are_refused(host: Host, where: Site) -> None:
    for words in ('dyndbg="file x +p"', "a;b", "$root", "a\nb", "#"):
        code, why = await fetched(host, where, changed("end\n", f"cmdline {encoded(words)}\nend\n"))
        assert code == 1
        assert "GRUB reads a character of these kernel parameters as its own" in why


async def test_names_of_removed_volumes_do_not_block_a_group(host: Host) -> None:
    """LVM makes no group while /dev has its folder."""
    gone, used = host.root / "dev/system", host.root / "dev/used"
    for folder in (gone, used):
        folder.mkdir()
        (folder / "root").symlink_to(host.root / "dev/mapper/away")
    (used / "by-id").mkdir()
    code, out = await host.parts('forget_volumes "$DEV/system"; forget_volumes "$DEV/used"; forget_volumes "$DEV/none"')
    assert (code, out) == (0, "")
    assert not gone.exists()
    assert [each.name for each in used.iterdir()] == ["by-id"]


async def test_failure_of_lvm_is_told_with_its_reason(host: Host) -> None:
    lvm = host.command("lvm")
    advice = "  Run `vgcreate --help' for more information."
    lvm.write_text(f"#!/bin/sh\ncat <<'END'\n  /dev/system: already exists\n{advice}\nEND\nexit 3\n")
    lvm.chmod(0o755)
    code, _ = await host.parts('run lvm vgcreate; head -n 1 "$T/trouble"')
    assert code == 0
    assert (host.root / "tmp/trouble").read_text().startswith("lvm vgcreate failed:   /dev/system: already exists")


@pytest.mark.parametrize(
    ("named", "taken"),
    [
        (f"UUID={identity('root')}\n", f"ROOT=UUID={identity('root')}\n"),
        ("UUID=\n", ""),
        ("UUID=$(reboot)\n", ""),
        ("UUID=0a init=/bin/sh\n", ""),
        ("/dev/sda1\n", ""),
        ("LABEL=root\n", ""),
        ("", ""),
        (None, ""),
    ],
)
def test_a_signed_system_takes_a_root_file_system_and_no_other_word(
    tmp_path: Path, named: str | None, taken: str
) -> None:
    script = (TOP / "images/host-debian12/root/etc/initramfs-tools/scripts/init-top/unbounded-root").read_text()
    if named is not None:
        (tmp_path / "root.cred").write_text(named)
    for place, ours in (("/.extra/credentials/root.cred", "root.cred"), ("/conf/param.conf", "param.conf")):
        assert place in script
        script = script.replace(place, str(tmp_path / ours))
    subprocess.run([needed("busybox"), "sh", "-c", script], check=True)
    assert ("".join(path.read_text() for path in tmp_path.glob("param.conf"))) == taken
