"""Commands that run for a while, at a terminal or with a log: progress, signals, and the report of a failure.

A failure ends the command with a message and an exit status. For machina, it also maps to a reason of condition
Provisioning.
"""

from __future__ import annotations

import asyncio
import errno
import signal
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Final, TextIO

from unbounded.agent import INTERRUPTED
from unbounded.api.conditions import ConditionReason
from unbounded.api.failures import Failure, Rejected
from unbounded.fetch.failures import NotPublished
from unbounded.kube.logs import Log, chain

log = Log("agent")

FAILED: Final = 1
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
_PAUSE_S: Final = {True: 0.5, False: 10.0}  # between two messages about one thing: at a terminal, and in a log


def run_to_end(main: Callable[[], Coroutine[Any, Any, int]]) -> int:
    """Run a command and return its exit status. SIGTERM and SIGINT cancel it; its clean-up completes first."""
    try:
        return asyncio.run(_interruptible(main))
    except Failure as error:
        if (cause := cause_of(error)) is not None and not sys.stderr.isatty():
            print(f"unbounded-cause: {cause}", file=sys.stderr)  # for machina, which follows an install over SSH
        print(f"error: {error}", file=sys.stderr)
        log.debug("failed", causes=chain(error))
        return FAILED


async def _interruptible(main: Callable[[], Coroutine[Any, Any, int]]) -> int:
    loop = asyncio.get_running_loop()
    work = asyncio.create_task(main())
    received: list[signal.Signals] = []

    def stop(by: signal.Signals) -> None:
        received.append(by)
        work.cancel()

    for one in _SIGNALS:
        loop.add_signal_handler(one, stop, one)
    try:
        return await work
    except asyncio.CancelledError:
        if not received:
            raise
        print(f"interrupted by {received[0].name}; run the same command again to continue", file=sys.stderr)
        return INTERRUPTED
    finally:
        for one in _SIGNALS:
            loop.remove_signal_handler(one)


class ProgressOutput:
    """Progress output: a line that is updated at a terminal, else lines of the log.

    A call passes "what: how far" or "what: which: how far". Messages about one thing are rate-limited.
    """

    def __init__(self, stream: TextIO | None = None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream or sys.stderr
        self._clock = clock
        self._printed_at: dict[str, float] = {}

    def __call__(self, words: str) -> None:
        about, _, _how_far = words.rpartition(": ")
        person = self._stream.isatty()
        now = self._clock()
        if about and now - self._printed_at.get(about, -1e9) < _PAUSE_S[person]:
            return
        self._printed_at[about] = now
        if person:
            print(f"  {words}", file=self._stream, flush=True)
        else:
            log.info("progress", what=words)


_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


class PreflightFailed(Rejected):
    """The host cannot become a node; nothing was changed."""


class NoImage(Rejected):
    """No source names the node's root file system."""


def cause_of(error: BaseException) -> ConditionReason | None:
    """Return the reason for an error or for one of its causes; None where no reason fits."""
    return next((reason for one in _chain(error) if (reason := _reason(one)) is not None), None)


def _reason(error: BaseException) -> ConditionReason | None:
    match error:
        case OSError() if error.errno in _FULL:
            return ConditionReason.DISK_FULL
        case NotPublished():
            return ConditionReason.ARTIFACT_NOT_FOUND
        case PreflightFailed():
            return ConditionReason.PREFLIGHT_FAILED
        case NoImage():
            return ConditionReason.IMAGE_MISSING
        case _:
            return None


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    following: BaseException | None = error
    while following is not None and id(following) not in seen:
        seen.add(id(following))
        yield following
        following = following.__cause__ or following.__context__
