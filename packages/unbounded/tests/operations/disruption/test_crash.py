"""The crash test of drains and budgets: a schedule is one seed, and a judge sees every write.

Replay a failing one with: UNBOUNDED_SEED=1234 .venv/bin/python -m pytest -k one_drain_seed
"""

from __future__ import annotations

import os

import pytest

from tests.operations.disruption.storm import DrainStorm
from tests.support.bugs import noted
from tests.support.seeds import first_seed
from tests.support.virtual_time import run_virtual

SCHEDULES = 20_000 if os.environ.get("UNBOUNDED_SOAK") else 100
BATCH = 100


def run_schedule(seed: int) -> None:
    async def story() -> None:
        await DrainStorm(seed).run()

    with noted() as bugs:
        run_virtual(story())
    assert bugs == []


@pytest.mark.slow
@pytest.mark.parametrize("batch", range(SCHEDULES // BATCH))
def test_random_drain_schedules(batch: int) -> None:
    first = first_seed() + batch * BATCH
    for seed in range(first, first + BATCH):
        try:
            run_schedule(seed)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error


@pytest.mark.slow
def test_one_drain_seed() -> None:
    """The seed of UNBOUNDED_SEED, or one."""
    run_schedule(int(os.environ.get("UNBOUNDED_SEED", "1")))
