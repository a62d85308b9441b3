"""The forced end of a process whose code ignores cancellation or blocks, with a log of where it does so."""

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

FORCED_EXIT_STATUS: Final = 3  # exit status
MAX_LOGGED: Final = 20
STALLED_S: Final = 10.0
_ASYNCIO: Final = str(Path(asyncio.__file__).parent)
_WAITING_FILES: Final = frozenset({"taskgroups.py", "selectors.py"})

log = Log("process")


def exit_within(limit_s: float) -> None:
    """End the process after a limit, whatever still runs in it. The event loop must be running.

    The Lease of unfinished work is not released, as its next write is unknown. It expires after its duration.
    """
    loop = asyncio.get_running_loop()
    timer = threading.Timer(limit_s, _force_exit, (loop, limit_s))
    timer.daemon = True
    timer.start()


def _force_exit(loop: asyncio.AbstractEventLoop, limit_s: float) -> None:
    try:
        for where in unfinished_work(loop)[:MAX_LOGGED]:
            log.error("does not end", within_s=limit_s, **where)
        log.error("cut off", exit_status=FORCED_EXIT_STATUS)
        sys.stderr.flush()
    finally:
        os._exit(FORCED_EXIT_STATUS)


def unfinished_work(loop: asyncio.AbstractEventLoop) -> list[dict[str, str]]:
    """Return the cancelled tasks that do more than wait for others, and the threads, each with its position."""
    found = [
        {"task": task.get_name(), "at": at}
        for task in asyncio.all_tasks(loop)
        if task.cancelling() and (at := _position(_frames(task.get_coro())))
    ]
    running = sys._current_frames()
    found += [
        {"thread": thread.name, "at": at}
        for thread in threading.enumerate()
        if not thread.daemon and (at := _position([running[one] for one in (thread.ident,) if one in running]))
    ]
    return found


def log_loop_stalls(loop: asyncio.AbstractEventLoop, after_s: float = STALLED_S) -> None:
    """Log the position of the main thread when its event loop stalls for `after_s`; once a stall."""
    threading.Thread(target=_watch_loop, args=(loop, after_s), name="standstill", daemon=True).start()


def _watch_loop(loop: asyncio.AbstractEventLoop, after_s: float) -> None:
    with suppress(RuntimeError):  # it has been closed
        while True:
            turned = threading.Event()
            loop.call_soon_threadsafe(turned.set)
            if not turned.wait(after_s):
                frame = sys._current_frames().get(threading.main_thread().ident or 0)
                at = "" if frame is None else _position([frame])
                log.warning("event loop is blocked", within_s=after_s, at=at)
                turned.wait()
            time.sleep(after_s)


def _frames(coroutine: Any) -> list[FrameType]:
    """Return the frames of a coroutine, the outermost first."""
    frames: list[FrameType] = []
    while coroutine is not None:
        frame = getattr(coroutine, "cr_frame", None) or getattr(coroutine, "gi_frame", None)
        frames += [frame] if frame is not None else []
        coroutine = getattr(coroutine, "cr_await", None) or getattr(coroutine, "gi_yieldfrom", None)
    return frames


def _position(frames: Sequence[FrameType]) -> str:
    """Return the innermost position; empty if it only waits for other tasks or for I/O."""
    if not frames or Path(frames[-1].f_code.co_filename).name in _WAITING_FILES:
        return ""
    named = next((frame for frame in reversed(frames) if _ASYNCIO not in frame.f_code.co_filename), frames[-1])
    return f"{named.f_code.co_filename}:{named.f_lineno} {named.f_code.co_qualname}"
