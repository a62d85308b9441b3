"""Mounts below a folder, and their removal."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.agent.made_up_host import MadeUpCommands
from unbounded.agent.host.mounts import mounts_below, unmount_below
from unbounded.agent.layout import Layout
from unbounded.api.failures import Transient


def mountinfo(*points: str) -> str:
    return "\n".join(f"36 35 98:0 / {point} rw,noatime master:1 - ext3 /dev/root rw" for point in points)


def test_mounts_come_the_last_first_and_without_those_of_neighbours() -> None:
    text = mountinfo("/", "/m/kube1", "/m/kube1/a\\040b", "/m/kube10", "/m/kube1/a\\040b/c\\134d")
    assert mounts_below(Path("/m/kube1"), text) == ("/m/kube1/a b/c\\d", "/m/kube1/a b", "/m/kube1")
    assert mounts_below(Path("/m/kube2"), text) == ()
    assert mounts_below(Path("/m"), "") == ()


async def test_a_mount_that_is_in_use_loses_its_name_at_once(tmp_path: Path) -> None:
    layout, commands = Layout(tmp_path), MadeUpCommands()
    (tmp_path / "proc" / "self").mkdir(parents=True)
    (tmp_path / "proc" / "self" / "mountinfo").write_text(mountinfo("/m/a", "/m/a/b", "/n"))
    busy = {"/m/a/b"}
    commands.answers["umount --lazy"] = lambda _argv: (0, "")
    commands.answers["umount"] = lambda argv: (32, "target is busy") if argv[-1] in busy else (0, "")
    await unmount_below(layout, commands, Path("/m/a"))
    assert commands.lines("umount") == ["umount -- /m/a/b", "umount --lazy -- /m/a/b", "umount -- /m/a"]
    commands.answers["umount --lazy"] = lambda _argv: (32, "not permitted")
    with pytest.raises(Transient, match="not permitted"):
        await unmount_below(layout, commands, Path("/m/a"))
