"""Programs of the host: what they print, and that nothing of them is left when they do not end."""

from __future__ import annotations

import asyncio
import os
import tracemalloc
from pathlib import Path

import pytest

from tests.support.waiting import eventually
from unbounded.agent.host.commands import LARGEST, HostCommands
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
    with pytest.raises(Transient, match=r"sh -c .*: not complete within 0\.5 s"):
        await HostCommands().run("sh", "-c", f"sleep 60 & echo $! >{noted}; {leader}", timeout_s=0.5)
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
