"""Settings of all tests: the number of examples of property tests, and the order of tests.

- `make test` tries as many examples as it has time for, `make quick` fewer, a soak more, and different ones each time.
- Tests that take minutes start first, some in each process.

`tests/support/skips.py` judges skipped tests, `tests/support/reruns.py` those that pass on a rerun only.
`tests/support/selection.py` selects the imported modules, `tests/support/timeouts.py` explains a time limit.
"""

from __future__ import annotations

import gc
from collections.abc import Generator
from typing import Final

import pytest
from hypothesis import settings

pytest_plugins = ["tests.support.skips", "tests.support.reruns", "tests.support.selection", "tests.support.timeouts"]

EXAMPLES: Final = {"quick": 40, "test": 100, "soak": 2000}

for name, count in EXAMPLES.items():
    settings.register_profile(name, settings(), max_examples=count, deadline=None, derandomize=name != "soak")
settings.load_profile("test")


LONG_S: Final = 400.0  # tests with such a limit mostly wait: for a host, for a machine that boots


@pytest.hookimpl(trylast=True)  # when it is known what is left out
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With `--dist worksteal` each process begins with a share of the list, in order."""
    processes = int(getattr(config, "workerinput", {}).get("workercount", 1))
    slow = sorted((one for one in items if _limit_s(one) >= LONG_S), key=_limit_s, reverse=True)
    rest = [one for one in items if _limit_s(one) < LONG_S]
    bounds = [len(rest) * number // processes for number in range(processes + 1)]
    items[:] = [
        one
        for number in range(processes)
        for one in [*slow[number::processes], *rest[bounds[number] : bounds[number + 1]]]
    ]


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Freeze the garbage collector after collection: imported and collected objects stay to the end, and their scans
    take a fifth of the time.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def _limit_s(item: pytest.Item) -> float:
    mark = item.get_closest_marker("timeout")
    return float(mark.args[0]) if mark is not None and mark.args else 0.0
