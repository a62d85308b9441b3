"""Processes beside `unbounded up`: each ends when the process that has started it does, however that ends."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import sys
from asyncio.subprocess import Process
from collections.abc import Sequence
from importlib import import_module
from typing import Final

STOP_S: Final = 10.0
PR_SET_PDEATHSIG: Final = 1  # prctl(2)


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


def main(arguments: Sequence[str]) -> int:
    parent, module, *rest = arguments
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != int(parent):
        return 0
    status: int = import_module(module).main(rest)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
