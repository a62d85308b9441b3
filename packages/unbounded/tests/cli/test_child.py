"""Watched child processes: their last output, the end of one that hangs, and what does not count as hanging."""

from __future__ import annotations

import asyncio
import os

import pytest

from tests.support.paths import environment
from unbounded.cli import child
from unbounded.cli.child import (
    CHECK_S,
    MOST_S,
    SILENT_S,
    START_S,
    ProcessEnd,
    ProcessState,
    Watchdog,
    read_process_state,
    run_watched,
)


async def _lives(how: str, serves: list[str], hangs: list[str]) -> ProcessEnd:
    async with asyncio.timeout(30):
        return await run_watched(
            "tests.cli.ailing", how, environment=environment(), serves=lambda: serves.append(how), hangs=hangs.append
        )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "status", "last_words"),
    [
        ("refuses", 2, "machine-ops-controller: error: provider Acme lacks what it needs"),
        ("raises", 1, "ValueError: no such zone: eu-9"),
        ("exits", 1, "this cannot be meant: --site"),
        ("ends", 0, ""),
    ],
)
async def test_what_it_says_last_is_known(how: str, status: int, last_words: str) -> None:
    hangs: list[str] = []
    assert await _lives(how, [], hangs) == ProcessEnd(status, "", last_words)
    assert hangs == []


@pytest.mark.slow
async def test_one_whose_loop_turns_serves_once_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "CHECK_S", 0.1)
    for how, serves in (("starts", []), ("serves", ["serves"])):
        served: list[str] = []
        assert (await _lives(how, served, [])).status == 0
        assert served == serves


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "why"), [("stops", "a signal has stopped it"), ("loops", "its event loop has been blocked for")]
)
async def test_one_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch, how: str, why: str) -> None:
    monkeypatch.setattr(child, "SILENT_S", 0.4)
    monkeypatch.setattr(child, "MOST_S", 0.4)  # on a busy machine it is given little
    monkeypatch.setattr(child, "CHECK_S", 0.1)
    monkeypatch.setattr(child, "STOP_S", 0.2)
    served: list[str] = []
    hangs: list[str] = []
    ended = await _lives(how, served, hangs)
    assert served == []
    assert hangs == [ended.hung]
    assert ended.hung.startswith(why)
    assert ended.status in (-9, -15)  # the first signal does for a loop that has no handler of its own


@pytest.mark.slow
async def test_a_pipe_to_it_is_closed_whatever_becomes_of_it() -> None:
    open_files = []
    for how in ("ends", "raises", "ends"):
        await _lives(how, [], [])
        open_files.append(len(os.listdir("/proc/self/fd")))
    assert open_files[1:] == open_files[:1] * 2  # before the first one, asyncio has none to watch children by


IDLE = ProcessState("S", 1.0)


def _noticed_after(dog: Watchdog, *, state: str = "S", cpu_share: float = 0.0, elapsed_s: float = CHECK_S) -> float:
    """Seconds of silence after which it is taken to hang, which it is some day."""
    for look in range(1, 10_000):
        if dog.record_silence(elapsed_s, ProcessState(state, 1.0 + cpu_share * look * elapsed_s)):
            return look * elapsed_s
    raise AssertionError("it is never noticed")


def _alive() -> Watchdog:
    dog = Watchdog()
    dog.record_heartbeat(IDLE)
    return dog


@pytest.mark.parametrize(
    ("state", "cpu_share", "noticed_s"),
    [
        ("T", 0.0, SILENT_S),  # SIGSTOP
        ("S", 0.0, SILENT_S),  # a lock that is never released
        ("R", 1.0, SILENT_S),  # a loop without an end, on a CPU of its own
        ("R", 0.25, 42.0),  # the same beside three others: a quarter of a CPU for so long is no want of one
        ("R", 0.01, MOST_S),  # hardly ever given one: busy, for all that can be seen
        ("D", 0.0, MOST_S),  # its memory is on a slow disk
    ],
)
def test_watchdog_distinguishes_hanging_from_starved_processes(state: str, cpu_share: float, noticed_s: float) -> None:
    assert _noticed_after(_alive(), state=state, cpu_share=cpu_share) == noticed_s


def test_watchdog_tolerates_long_imports_but_detects_stopped_processes() -> None:
    assert _noticed_after(Watchdog(), state="R", cpu_share=1.0) == START_S
    assert _noticed_after(Watchdog(), state="T") == SILENT_S


def test_heartbeat_resets_the_silence_and_the_cpu_baseline() -> None:
    dog = _alive()
    for _ in range(9):
        assert not dog.record_silence(CHECK_S, ProcessState("R", 30.0))
    dog.record_heartbeat(ProcessState("R", 30.0))
    assert _noticed_after(dog, state="R") == MOST_S


def test_the_hours_of_a_closed_laptop_are_no_silence() -> None:
    dog = _alive()
    assert not dog.record_silence(8 * 3600.0, IDLE)
    assert dog.silent_s <= 2 * CHECK_S
    assert not dog.record_silence(CHECK_S, IDLE)


def test_where_the_kernel_does_not_tell_it_has_the_most_time() -> None:
    dog = Watchdog()
    dog.record_heartbeat(None)
    silent_s = 0.0
    while not dog.record_silence(CHECK_S, None):
        silent_s += CHECK_S
    assert silent_s + CHECK_S == MOST_S


def test_the_kernel_tells_of_this_process_and_of_none_that_is_gone() -> None:
    vital = read_process_state(os.getpid())
    assert vital is not None
    assert vital.state in "RS"
    assert vital.cpu_s > 0
    assert read_process_state(2**22 + 1) is None
