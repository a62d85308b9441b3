"""Processes beside `unbounded up`: each ends when the process that has started it does, however that ends.

One that is told of a pipe writes there, at an end that is no good one, what it said last on standard error.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import io
import os
import re
import signal
import sys
import traceback
from asyncio.subprocess import Process
from collections.abc import Sequence
from importlib import import_module
from typing import Final, TextIO

STOP_S: Final = 10.0
PR_SET_PDEATHSIG: Final = 1  # prctl(2)
HEARTBEAT_FLAG: Final = "--heartbeat-fd"
LAST_WORDS: Final = b"!"  # what follows on the pipe are these
MOST_WORDS: Final = 1000  # characters, which a pipe takes at once
_FRAME: Final = re.compile(r"[\s|+-]*")  # around lines of a traceback that is one of several


def command(module: str, *arguments: str) -> tuple[str, ...]:
    """What runs `main(arguments)` of a module in a process of its own."""
    return (sys.executable, "-m", __name__, str(os.getpid()), module, *arguments)


async def end(process: Process) -> None:
    """Have a process end, and wait for that."""
    if process.returncode is not None:
        return
    process.terminate()
    try:
        await asyncio.wait_for(process.wait(), STOP_S)
    except TimeoutError:
        process.kill()
        await process.wait()


# In the process itself


class _Remembering(io.TextIOBase):
    """Standard error, which keeps the last line that was written there."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._end = ""

    def write(self, text: str) -> int:
        self._end = f"{self._end}{text}"[-8 * MOST_WORDS :]
        return self._out.write(text)

    def flush(self) -> None:
        self._out.flush()

    def fileno(self) -> int:
        return self._out.fileno()

    def isatty(self) -> bool:
        return self._out.isatty()

    @property
    def last_line(self) -> str:
        """The last one in which there is something; of a traceback, what was raised."""
        lines = (_FRAME.sub("", line, count=1) for line in reversed(self._end.splitlines()))
        return next((line.strip() for line in lines if line.strip()), "")


def main(arguments: Sequence[str]) -> int:
    parent, module, *rest = arguments
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # what hangs, or was stopped, heeds no other
    if os.getppid() != int(parent):
        return 0
    if HEARTBEAT_FLAG not in rest:
        return _run(module, rest)
    sys.stderr = said = _Remembering(sys.stderr)
    status = _run(module, rest)
    if status != 0:
        with contextlib.suppress(OSError):
            words = LAST_WORDS + said.last_line[:MOST_WORDS].encode()
            os.write(int(rest[rest.index(HEARTBEAT_FLAG) + 1]), words)
    return status


def _run(module: str, arguments: Sequence[str]) -> int:
    try:
        status: int = import_module(module).main(arguments)
    except SystemExit as error:
        if isinstance(error.code, str):
            print(error.code, file=sys.stderr)
            return 1
        return error.code or 0
    except BaseException:
        traceback.print_exc()
        return 1
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
