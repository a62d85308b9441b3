"""A layout that is cut off anywhere: what is left starts nothing half, and the next installation writes it again."""

from __future__ import annotations

import os
import random
import subprocess

import pytest

from tests.images.support import needed
from tests.images.test_layout_disks import Laid, initrd, laid
from tests.support.seeds import first_seed

__all__ = ["initrd", "laid"]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.root,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(os.geteuid() != 0, reason="loop devices and mounts need root"),
]

POINTS = 50 if "UNBOUNDED_SOAK" in os.environ else 1
LOADER = "EFI/BOOT/BOOTX64.EFI"
COMMANDS = ("dd", "sfdisk", "mke2fs", "mkfs.vfat", "mkswap", "mount", "umount", "tar", "base64", "chmod", "cp", "sync")
COUNTED = """#!/bin/sh
case ${0##*/}:$* in dd:*of=/dev/*) ;; dd:*) exec REAL "$@" ;; esac # which reads
count=$(($(cat ROOT/count) + 1))
echo $count >ROOT/count
[ $count -ne $(cat ROOT/cut) ] || kill -9 0
exec REAL "$@"
"""


def count_commands(laid: Laid) -> None:
    """Let the commands that change something count, and end the whole installation at the number in the file `cut`."""
    root = laid.host.root
    for name in COMMANDS:
        place = laid.host.command(name)
        real = root / f"real/{name}"
        real.parent.mkdir(exist_ok=True)
        place.rename(real)
        place.write_text(COUNTED.replace("ROOT", str(root)).replace("REAL", str(real)))
        place.chmod(0o755)
    cut_at(laid, 0)


def cut_at(laid: Laid, number: int) -> None:
    (laid.host.root / "count").write_text("0")
    (laid.host.root / "cut").write_text(str(number))


async def test_layout_cut_off_anywhere_is_written_by_the_next_installation(laid: Laid) -> None:
    count_commands(laid)
    assert await laid.install(laid.text()) == ""
    total = int((laid.host.root / "count").read_text())
    assert total > 40
    choice = random.Random(first_seed())
    for number in (choice.randint(1, total) for _ in range(POINTS)):
        await starts_nothing_half(laid, number)
        cut_at(laid, 0)
        assert await laid.install(laid.text(states=("Own", "Own"))) == "", number
        assert all(LOADER in laid.esp(part) for part in esps(laid)), number


async def starts_nothing_half(laid: Laid, number: int) -> None:
    for path in (laid.host.root / "esp").rglob("BOOTX64.EFI"):
        path.unlink()  # as making the file system anew does
    cut_at(laid, number)
    await laid.cut(laid.text(states=("Own", "Own")))
    assert int((laid.host.root / "count").read_text()) >= number
    assert await laid.states() == ["Own", "Own"], number
    if any(LOADER in laid.esp(part) for part in esps(laid)):  # then all that it starts is there
        assert content(laid, "/etc/fstab") == "of the profile\n", number
        assert content(laid, "/var/lib/cloud/seed/nocloud/user-data") == "user-data\n", number


def content(laid: Laid, path: str) -> str:
    """Return a file of the installed system."""
    command = [needed("debugfs"), "-R", f"cat {path}", f"{laid.devices[0]}p2"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def esps(laid: Laid) -> tuple[str, str]:
    return f"{laid.devices[0]}p1", f"{laid.devices[1]}p7"
