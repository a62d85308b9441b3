"""The crash test of drains and budgets: a schedule is one seed, and a judge sees every write.

`make soak` runs 20,000 schedules, and resumes: batches that passed on the same source are not run again.

Replay a failing one with: UNBOUNDED_SEED=1234 .venv/bin/python -m pytest -k one_drain_seed
"""

from __future__ import annotations

import hashlib
import os
from functools import cache
from pathlib import Path

import pytest

from tests.operations.disruption.storm import DrainStorm
from tests.support.bugs import noted
from tests.support.paths import ROOT
from tests.support.seeds import first_seed
from tests.support.virtual_time import run_virtual

SOAK = bool(os.environ.get("UNBOUNDED_SOAK"))
SCHEDULES = 20_000 if SOAK else 2_000
BATCH = 100
FOUND = (
    33,
    200435,
    20261293,
    20262769,
    20267212,
    20267251,
    20274650,
    20317701,
    20347804,
    20415252,
    20511729,
)  # seeds that have found something once


def run_schedule(seed: int) -> None:
    async def story() -> None:
        await DrainStorm(seed).run()

    with noted() as bugs:
        run_virtual(story())
    assert bugs == []


@cache
def _passed() -> Path:
    """Return the file of the first seeds of batches that passed in an earlier soak of the same source."""
    digest = hashlib.sha256()
    for folder in (ROOT / "packages" / "unbounded" / "src", Path(__file__).parent.parent, ROOT / "tests" / "support"):
        for file in sorted(folder.rglob("*.py")):
            digest.update(file.read_bytes())
    return ROOT / "build" / f"drains-{digest.hexdigest()[:16]}"


@pytest.mark.slow
@pytest.mark.parametrize("batch", range(SCHEDULES // BATCH))
def test_random_drain_schedules(batch: int) -> None:
    first = first_seed() + batch * BATCH
    if SOAK and _passed().exists() and str(first) in _passed().read_text().split():
        return
    for seed in range(first, first + BATCH):
        try:
            run_schedule(seed)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
    if SOAK:
        _passed().parent.mkdir(exist_ok=True)
        with _passed().open("a") as file:
            file.write(f"{first}\n")


@pytest.mark.slow
def test_one_drain_seed() -> None:
    """The seed of UNBOUNDED_SEED, or those that have found something once."""
    for seed in [int(os.environ["UNBOUNDED_SEED"])] if "UNBOUNDED_SEED" in os.environ else FOUND:
        run_schedule(seed)
