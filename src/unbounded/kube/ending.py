"""Code of somebody else may ignore that it is cancelled, or block: where it does so, and the end of its process."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any, Final

from unbounded.kube.logs import Log

CUT_OFF: Final = 3  # exit status
NAMED: Final = 20
STANDS_STILL_S: Final = 10.0
_ASYNCIO: Final = str(Path(asyncio.__file__).parent)
_WAITING: Final = frozenset({"taskgroups.py", "selectors.py"})

log = Log("process")


def end_within(limit_s: float) -> None:
    """Have the process end so many seconds from now, whatever still runs in it; called with its loop running.

    A Lease that its work has is not given back then: nobody knows what that was about to do. It ends with its duration.
    """
    loop = asyncio.get_running_loop()
    timer = threading.Timer(limit_s, _cut_off, (loop, limit_s))
    timer.daemon = True
    timer.start()


def _cut_off(loop: asyncio.AbstractEventLoop, limit_s: float) -> None:
    try:
        for where in still_running(loop)[:NAMED]:
            log.error("does not end", within_s=limit_s, **where)
        log.error("cut off", exit_status=CUT_OFF)
        sys.stderr.flush()
    finally:
        os._exit(CUT_OFF)


def still_running(loop: asyncio.AbstractEventLoop) -> list[dict[str, str]]:
    """What keeps a loop from ending, and where that is: tasks that were told to, and do not only wait for others; and
    threads.
    """
    found = [
        {"task": task.get_name(), "at": at}
        for task in asyncio.all_tasks(loop)
        if task.cancelling() and (at := _place_of(_frames_of(task.get_coro())))
    ]
    running = sys._current_frames()
    found += [
        {"thread": thread.name, "at": at}
        for thread in threading.enumerate()
        if not thread.daemon and (at := _place_of([running[one] for one in (thread.ident,) if one in running]))
    ]
    return found


def tell_of_standstill(loop: asyncio.AbstractEventLoop, after_s: float = STANDS_STILL_S) -> None:
    """Log what the main thread is at whenever its loop does not turn for so long; once for each time."""
    threading.Thread(target=_watch, args=(loop, after_s), name="standstill", daemon=True).start()


def _watch(loop: asyncio.AbstractEventLoop, after_s: float) -> None:
    with suppress(RuntimeError):  # it has been closed
        while True:
            turned = threading.Event()
            loop.call_soon_threadsafe(turned.set)
            if not turned.wait(after_s):
                frame = sys._current_frames().get(threading.main_thread().ident or 0)
                at = "" if frame is None else _place_of([frame])
                log.warning("nothing goes on: the event loop stands still", within_s=after_s, at=at)
                turned.wait()
            time.sleep(after_s)


def _frames_of(coroutine: Any) -> list[FrameType]:
    """From the outermost to where it waits."""
    frames: list[FrameType] = []
    while coroutine is not None:
        frame = getattr(coroutine, "cr_frame", None) or getattr(coroutine, "gi_frame", None)
        frames += [frame] if frame is not None else []
        coroutine = getattr(coroutine, "cr_await", None) or getattr(coroutine, "gi_yieldfrom", None)
    return frames


def _place_of(frames: Sequence[FrameType]) -> str:
    """The innermost place; empty where that only waits: for other tasks, or for whatever comes."""
    if not frames or Path(frames[-1].f_code.co_filename).name in _WAITING:
        return ""
    named = next((frame for frame in reversed(frames) if _ASYNCIO not in frame.f_code.co_filename), frames[-1])
    return f"{named.f_code.co_filename}:{named.f_lineno} {named.f_code.co_qualname}"
