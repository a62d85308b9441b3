"""The mutation check: schedules, and courses after them, find small changes of the engine. Its score is printed.

It resumes: a mutant of the same source is not run again. The score counts every change, also one without a visible
effect, such as of a value that is only read where another one decides.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import pytest

from tests.operations.mutants import (
    CLOUD_FAULTS,
    CONTROL,
    DRAIN_FAULTS,
    FAULTS,
    MODULES,
    Fault,
    Mutant,
    mutant,
    source_of,
    unchanged,
)
from tests.operations.record_courses import FILE as COURSES
from tests.support.paths import ROOT, environment

RESULTS: Final = ROOT / "build" / "mutants.jsonl"
MUTANTS: Final = 200
SCHEDULES: Final = 100
NAMED: Final = 300  # schedules for a fault with a name: the first ones that find it change with the code
LIMIT_S: Final = 180.0  # of one mutant: a run that does not end is one that was found
AIM: Final = 0.95
_SURVIVED: Final = ("no Lease checks", "no proof of return", "a rolling update goes on while halted")
SURVIVED: Final = [one for one in DRAIN_FAULTS if one.name in _SURVIVED]
"""Mutants of drains that survived all schedules once."""


@pytest.mark.slow
@pytest.mark.parametrize("fault", [*FAULTS, *SURVIVED], ids=lambda fault: fault.name)
def test_schedules_find_each_fault_that_once_survived_them(fault: Fault) -> None:
    assert _run(fault.name, NAMED).startswith("schedule"), f"{NAMED} schedules have not found it"


@pytest.mark.soak
@pytest.mark.parametrize("fault", [one for one in DRAIN_FAULTS if one not in SURVIVED], ids=lambda fault: fault.name)
def test_schedules_of_drains_find_each_fault(fault: Fault) -> None:
    assert _run(fault.name, NAMED).startswith("schedule"), f"{NAMED} schedules have not found it"


@pytest.mark.soak
@pytest.mark.parametrize("fault", CLOUD_FAULTS, ids=lambda fault: fault.name)
def test_storms_of_container_cloud_find_each_fault(fault: Fault) -> None:
    assert _run(fault.name, SCHEDULES).startswith("schedule"), f"{SCHEDULES} storms have not found it"


@pytest.mark.soak
@pytest.mark.timeout(4200)
def test_schedules_find_small_changes_of_the_engine(capsys: pytest.CaptureFixture[str]) -> None:
    assert _found(CONTROL, unchanged()) == "", "schedules fail on the engine as it is"
    mutants = [mutant(seed) for seed in range(MUTANTS)]
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        found = list(threads.map(_found, range(MUTANTS), mutants))
    survivors = [one.name for one, how in zip(mutants, found, strict=True) if not how]
    score, by_courses = 1 - len(survivors) / MUTANTS, sum(how.startswith("course") for how in found)
    with capsys.disabled():
        print(f"\nmutation score: {score:.1%} of {MUTANTS}, {by_courses} of them by courses alone; not found:")
        print(*survivors, sep="\n")
    assert score >= AIM


def _found(seed: int, changed: Mutant) -> str:
    """Return how a mutant was found; empty where it was not."""
    key = hashlib.sha256(f"{_tree()}\0{changed.source}".encode()).hexdigest()
    if (known := _known().get(key)) is not None:
        return known
    how = _run(str(seed))
    RESULTS.parent.mkdir(exist_ok=True)
    with RESULTS.open("a") as file:
        file.write(json.dumps({"key": key, "mutant": changed.name, "found": how}) + "\n")
    return how


def _run(which: str, schedules: int = SCHEDULES) -> str:
    command = (sys.executable, "-m", "tests.operations.mutants", which, str(schedules))
    try:
        ran = subprocess.run(
            command, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return f"no end within {LIMIT_S:g} s"
    return ran.stdout.strip() or ("" if ran.returncode == 0 else f"it does not start: {ran.stderr[-200:]}")


def _known() -> dict[str, str]:
    lines = RESULTS.read_text().splitlines() if RESULTS.exists() else []
    return {one["key"]: one["found"] for one in map(json.loads, lines)}


def _tree() -> str:
    """Return what all results rest on: the engine and its judge."""
    files = [*map(source_of, MODULES), *sorted(Path(__file__).parent.glob("*.py")), COURSES]
    return hashlib.sha256(b"\0".join(file.read_bytes() for file in files)).hexdigest()
