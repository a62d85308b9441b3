"""Watched processes, with real ones: their last output, and the end of one that hangs."""

from __future__ import annotations

import asyncio
import os

import pytest

from tests.support.paths import environment
from unbounded.cli import child
from unbounded.cli.child import ProcessEnd, run_watched


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
