"""The lock of a host, between tasks and between processes."""

from __future__ import annotations

import asyncio
import fcntl
import os
import sys
from functools import partial
from pathlib import Path

import pytest

from tests.agent.made_up_start import CONFIG
from tests.support.paths import environment
from tests.support.waiting import eventually
from unbounded.agent import start
from unbounded.agent.lock import holder, holder_pid, host_lock
from unbounded.agent.paths import HostPaths
from unbounded.api.failures import Transient

HOLD = """
import asyncio, sys
from pathlib import Path
from unbounded.agent.paths import HostPaths
from unbounded.agent.lock import host_lock
async def main():
    async with host_lock(HostPaths(Path(sys.argv[1])), "unbounded-agent start"):
        print("held", flush=True)
        await asyncio.sleep(60)
asyncio.run(main())
"""


async def _other_process(root: Path) -> asyncio.subprocess.Process:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        HOLD,
        str(root),
        stdout=asyncio.subprocess.PIPE,
        env=environment(),
    )
    assert process.stdout is not None
    assert await process.stdout.readline() == b"held\n"
    return process


@pytest.mark.slow
async def test_who_waits_in_vain_reads_who_holds_the_host(tmp_path: Path) -> None:
    paths = HostPaths(tmp_path)
    process = await _other_process(tmp_path)
    try:
        with pytest.raises(
            Transient, match=rf"unbounded-agent start \(pid {process.pid}\) holds the lock of this host"
        ):
            async with host_lock(paths, "unbounded-agent reset", within_s=0.3):
                pass
        assert holder(paths) == f"unbounded-agent start (pid {process.pid})"
        assert holder_pid(paths) == process.pid
    finally:
        process.kill()
        await process.wait()


async def test_start_does_nothing_while_the_host_is_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = HostPaths(tmp_path)
    monkeypatch.setattr(start, "host_lock", partial(host_lock, within_s=0.05))
    async with host_lock(paths, "unbounded-agent reset"):
        before = sorted(tmp_path.rglob("*"))
        with pytest.raises(
            Transient, match=rf"unbounded-agent reset \(pid {os.getpid()}\) holds the lock of this host"
        ):
            await start.start(CONFIG, start.StartInputs(paths), lambda _words: None)
        assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.slow
async def test_a_killed_holder_lets_go(tmp_path: Path) -> None:
    process = await _other_process(tmp_path)

    async def take() -> None:
        async with host_lock(HostPaths(tmp_path), "unbounded-agent reset", within_s=60):
            assert holder(HostPaths(tmp_path)) == f"unbounded-agent reset (pid {os.getpid()})"

    waiting = asyncio.create_task(take())
    process.kill()
    await process.wait()
    await waiting
    assert holder(HostPaths(tmp_path)) == ""


async def test_tasks_of_one_process_exclude_each_other(tmp_path: Path) -> None:
    inside: list[str] = []

    async def hold(name: str) -> None:
        async with host_lock(HostPaths(tmp_path), name):
            inside.append(name)
            assert len(inside) == 1
            await asyncio.sleep(0.01)
            inside.remove(name)

    await asyncio.gather(*(hold(f"task {number}") for number in range(3)))


async def test_lock_file_deleted_by_a_reset_does_not_admit_two_holders(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    paths = HostPaths(tmp_path)
    entered = asyncio.Event()

    async def wait() -> None:
        async with host_lock(paths, "waiter"):
            entered.set()
            with pytest.raises(Transient):
                async with host_lock(paths, "third", within_s=0):
                    pass

    async with host_lock(paths, "reset"):
        waiting = asyncio.create_task(wait())
        await eventually(lambda: "waiting for the lock of the host" in caplog.text)
        paths.lock.unlink()
    await waiting
    assert entered.is_set()


async def test_only_root_can_open_the_lock_and_keep_others_from_it(tmp_path: Path) -> None:
    paths = HostPaths(tmp_path)
    paths.run.mkdir(parents=True)
    paths.lock.touch(0o644)  # as earlier versions made it
    async with host_lock(paths, "start"):
        assert oct(paths.lock.stat().st_mode & 0o777) == "0o600"


async def test_concurrent_readers_of_the_lock_are_not_reported_as_its_holder(tmp_path: Path) -> None:
    paths = HostPaths(tmp_path)
    paths.run.mkdir(parents=True)
    paths.lock.write_text("17 unbounded-agent start\n")  # killed
    with paths.lock.open() as asking:
        fcntl.flock(asking, fcntl.LOCK_SH)
        assert holder(paths) == ""
        assert holder_pid(paths) == 0
