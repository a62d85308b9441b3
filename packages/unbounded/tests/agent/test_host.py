"""Programs, and mounts below a folder of the host."""

from __future__ import annotations

import asyncio
import os
import tracemalloc
from pathlib import Path

import pytest

from tests.agent.made_up_host import MadeUpCommands
from tests.support.waiting import eventually
from unbounded.agent.host import LARGEST, HostCommands, mounts_below, unmount_below
from unbounded.agent.paths import HostPaths
from unbounded.api.failures import Transient


def _gone(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]
    except (FileNotFoundError, ProcessLookupError):
        return True
    return state == "Z"  # its parent has not read how it ended


@pytest.mark.slow
@pytest.mark.parametrize("leader", ["exit 0", "wait"])
async def test_timeout_kills_child_processes_even_after_their_parent_ended(leader: str, tmp_path: Path) -> None:
    noted = tmp_path / "pid"
    with pytest.raises(Transient, match=r"sh -c .*: not complete within 2 s"):
        await HostCommands().run("sh", "-c", f"sleep 60 & echo $! >{noted}; {leader}", timeout_s=2)
    pid = int(noted.read_text())
    await eventually(lambda: _gone(pid))


@pytest.mark.slow
@pytest.mark.parametrize("turns", range(6))  # of the event loop, in which a program is started
async def test_who_is_cancelled_at_the_start_does_not_wait_for_the_end(turns: int) -> None:
    work = asyncio.create_task(HostCommands().run("sh", "-c", "sleep 60; true"))
    for _ in range(turns):
        await asyncio.sleep(0)
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        async with asyncio.timeout(20):
            await work


async def test_who_is_cancelled_leaves_nothing_running(tmp_path: Path) -> None:
    noted = tmp_path / "pid"
    script = f"echo $$ >{noted}.new; mv {noted}.new {noted}; sleep 60"
    work = asyncio.create_task(HostCommands().run("sh", "-c", script))
    await eventually(noted.exists)
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    pid = int(noted.read_text())
    await eventually(lambda: _gone(pid))


@pytest.mark.slow
async def test_command_output_is_truncated_to_its_end_in_bounded_memory() -> None:
    tracemalloc.start()
    try:
        ran = await HostCommands().run("sh", "-c", "head -c 30000000 /dev/zero; echo the end")
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(ran.stdout) == LARGEST
    assert ran.stdout.endswith("the end\n")
    assert most < 10 * LARGEST


async def test_a_program_gets_its_input_and_need_not_read_it() -> None:
    commands, much = HostCommands(), os.urandom(1 << 19).hex().encode()
    assert (await commands.run("tail", "-c", "20", stdin=much)).stdout == much[-20:].decode()
    assert (await commands.run("true", stdin=much)).ok


def mountinfo(*points: str) -> str:
    return "\n".join(f"36 35 98:0 / {point} rw,noatime master:1 - ext3 /dev/root rw" for point in points)


def test_mounts_come_the_last_first_and_without_those_of_neighbours() -> None:
    text = mountinfo("/", "/m/kube1", "/m/kube1/a\\040b", "/m/kube10", "/m/kube1/a\\040b/c\\134d")
    assert mounts_below(Path("/m/kube1"), text) == ("/m/kube1/a b/c\\d", "/m/kube1/a b", "/m/kube1")
    assert mounts_below(Path("/m/kube2"), text) == ()
    assert mounts_below(Path("/m"), "") == ()


async def test_a_mount_that_is_in_use_loses_its_name_at_once(tmp_path: Path) -> None:
    paths, commands = HostPaths(tmp_path), MadeUpCommands()
    (tmp_path / "proc" / "self").mkdir(parents=True)
    (tmp_path / "proc" / "self" / "mountinfo").write_text(mountinfo("/m/a", "/m/a/b", "/n"))
    busy = {"/m/a/b"}
    commands.answers["umount --lazy"] = lambda _argv: (0, "")
    commands.answers["umount"] = lambda argv: (32, "target is busy") if argv[-1] in busy else (0, "")
    await unmount_below(paths, commands, Path("/m/a"))
    assert commands.lines("umount") == ["umount -- /m/a/b", "umount --lazy -- /m/a/b", "umount -- /m/a"]
    commands.answers["umount --lazy"] = lambda _argv: (32, "not permitted")
    with pytest.raises(Transient, match="not permitted"):
        await unmount_below(paths, commands, Path("/m/a"))
