"""The coroutines that wait, in the report of a test that its time limit has ended.

pytest-timeout prints the stacks of threads. One that runs an event loop is in `select`, whatever its coroutines await.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Generator, Iterator
from typing import Any

import pytest


def waiting() -> str:
    """Return, for each task of each open event loop, the calls that it is in, outermost first."""
    loops = [one for one in gc.get_objects() if isinstance(one, asyncio.BaseEventLoop) and not one.is_closed()]
    tasks = [(loop, task) for loop in loops for task in asyncio.all_tasks(loop)]
    return "\n".join(
        "\n".join([f"{task.get_name()} of {loop!r}", *(f"  {call}" for call in _calls(task.get_coro()))])
        for loop, task in tasks
    )


def _calls(awaited: Any) -> Iterator[str]:
    while awaited is not None:
        frame = next(
            (found for name in ("cr_frame", "gi_frame", "ag_frame") if (found := getattr(awaited, name, None))), None
        )
        if frame is None:
            yield repr(awaited)
            return
        yield f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_qualname}"
        awaited = getattr(awaited, "cr_await", None) or getattr(awaited, "gi_yieldfrom", None)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if call.excinfo is not None and "Timeout (>" in str(call.excinfo.value):
        report.sections.append(("Waiting coroutines", waiting()))
    return report
