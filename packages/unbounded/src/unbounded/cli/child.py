"""Child processes of `unbounded up`: each ends with its parent, even if the parent is killed.

A child with a heartbeat pipe writes its last line of standard error to the pipe when it fails.
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
LAST_WORDS: Final = b"!"  # starts the last line of standard error on the pipe
LAST_WORDS_LENGTH: Final = 1000  # characters, which a pipe takes in one write
_FRAME: Final = re.compile(r"[\s|+-]*")  # drawn around the lines of a traceback in an exception group


def command(module: str, *arguments: str) -> tuple[str, ...]:
    """Return the command line that runs `main(arguments)` of a module in a child process."""
    return (sys.executable, "-m", __name__, str(os.getpid()), module, *arguments)


async def end(process: Process) -> None:
    """Terminate a process and wait until it has exited; kill it after STOP_S."""
    if process.returncode is not None:
        return
    process.terminate()
    try:
        await asyncio.wait_for(process.wait(), STOP_S)
    except TimeoutError:
        process.kill()
        await process.wait()


# Code that runs in the child process


class _LastLineStream(io.TextIOBase):
    """Standard error that remembers the last line written to it."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._end = ""

    def write(self, text: str) -> int:
        self._end = f"{self._end}{text}"[-8 * LAST_WORDS_LENGTH :]
        return self._out.write(text)

    def flush(self) -> None:
        self._out.flush()

    def fileno(self) -> int:
        return self._out.fileno()

    def isatty(self) -> bool:
        return self._out.isatty()

    @property
    def last_line(self) -> str:
        """The last line that is not empty; of a traceback, the exception."""
        lines = (_FRAME.sub("", line, count=1) for line in reversed(self._end.splitlines()))
        return next((line.strip() for line in lines if line.strip()), "")


def main(arguments: Sequence[str]) -> int:
    parent, module, *rest = arguments
    if sys.platform == "linux":
        # a process that hangs or is stopped reacts to no other signal
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(parent):
        return 0
    if HEARTBEAT_FLAG not in rest:
        return _run(module, rest)
    sys.stderr = stderr = _LastLineStream(sys.stderr)
    status = _run(module, rest)
    if status != 0:
        with contextlib.suppress(OSError):
            words = LAST_WORDS + stderr.last_line[:LAST_WORDS_LENGTH].encode()
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
