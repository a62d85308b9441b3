"""The crash test of Container Cloud: controllers are cut off at each await, freeze, and lead twice.

`make soak` cuts container-cloud and the disruption controller at every await, and runs more storms.
Replay a storm with: UNBOUNDED_SEED=1234 .venv/bin/python -m pytest -k one_storm_of_container_cloud
"""

from __future__ import annotations

import os
from typing import Final

import pytest

from tests.containercloud.storm import refused_life, run_cut, run_late_reset, run_storm
from tests.support.bugs import noted
from tests.support.seeds import first_seed
from tests.support.virtual_time import run_virtual

SOAK: Final = bool(os.environ.get("UNBOUNDED_SOAK"))
FIRST: Final = 1 if SOAK else 7  # await before the first cut
STRIDE: Final = 1 if SOAK else 101  # awaits between two cuts
SEEDS: Final = 1_000 if SOAK else 12
MOST: Final = 3_000  # awaits of a story, and more


def run_schedule(seed: int) -> None:
    """Run one storm to its verdict; one seed in ten aborts a deletion whose leader is frozen.

    Raises:
        AssertionError: what must never be has been.
    """
    with noted() as bugs:
        run_virtual(run_late_reset(seed) if seed % 10 == 9 else run_storm(seed))
    assert bugs == []


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize(("process", "least"), [("container-cloud", 400), ("disruption", 150)])
def test_a_cut_at_any_await_loses_and_doubles_nothing(process: str, least: int) -> None:
    """Each run of the story has one more await before the cut, until the story ends before it."""
    at = 0
    for at in range(FIRST, MOST, STRIDE):
        with noted() as bugs:
            try:
                is_cut = run_virtual(run_cut(process, at))
            except AssertionError as error:
                raise AssertionError(f"{process} cut at await {at}: {error}") from error
        assert bugs == [], f"{process} cut at await {at}"
        if not is_cut:
            break
    assert least < at < MOST - STRIDE


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_a_cut_at_any_await_of_refused_deletions_loses_and_doubles_nothing() -> None:
    at = 0
    for at in range(FIRST, MOST, STRIDE if SOAK else 3 * STRIDE):
        with noted() as bugs:
            try:
                is_cut = run_virtual(run_cut("container-cloud", at, refused_life))
            except AssertionError as error:
                raise AssertionError(f"cut at await {at}: {error}") from error
        assert bugs == [], f"cut at await {at}"
        if not is_cut:
            break
    assert 400 < at < MOST - 3 * STRIDE


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_two_leaders_that_freeze_lose_and_double_nothing() -> None:
    for seed in range(first_seed(), first_seed() + SEEDS):
        try:
            run_schedule(seed)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error


@pytest.mark.slow
def test_one_storm_of_container_cloud() -> None:
    run_schedule(int(os.environ.get("UNBOUNDED_SEED", "1")))
