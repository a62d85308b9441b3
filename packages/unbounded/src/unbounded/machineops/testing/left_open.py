"""Open resources of a process: files, sockets and pipes, tasks and threads."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import stat
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

FOLDERS: Final = ("/proc/self/fd", "/dev/fd")
CLOSES_IN_S: Final = 1.0  # real seconds until the other side of a connection has closed, too
_LOOK_S: Final = 0.005


def files() -> dict[object, str]:
    """Return descriptions of open files by identity; empty if the system does not list them."""
    folder = next((Path(each) for each in FOLDERS if os.path.isdir(each)), None)
    found: dict[object, str] = {}
    for name in os.listdir(folder) if folder is not None else ():
        with suppress(OSError, ValueError):  # such as the descriptor that reads the folder
            status = os.fstat(int(name))
            found["file", name, status.st_dev, status.st_ino] = _words(int(name), status.st_mode)
    return found


def tasks() -> dict[object, str]:
    """Return the running tasks without the current one."""
    ours = asyncio.current_task()
    return {("task", id(task)): f"task {task!r}" for task in asyncio.all_tasks() if task is not ours}


def threads() -> dict[object, str]:
    return {("thread", thread.ident): f"thread {thread.name}" for thread in threading.enumerate()}


async def opened_since(before: dict[object, str]) -> list[str]:
    """Return what is open now and was not before, after a time for closing."""
    end = time.monotonic() + CLOSES_IN_S
    while True:
        there = files() | tasks()
        found = [words for key, words in there.items() if key not in before]
        if not found or time.monotonic() > end:
            return found
        await asyncio.sleep(_LOOK_S)


@contextmanager
def unclosed() -> Iterator[list[str]]:
    """Collect the warnings about objects in the block that are dropped without being closed."""
    gc.collect()  # objects that were dropped before the block
    found: list[str] = []
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always", ResourceWarning)
        try:
            yield found
        finally:
            gc.collect()
            found += [str(one.message) for one in warned if issubclass(one.category, ResourceWarning)]


def _words(number: int, mode: int) -> str:
    if stat.S_ISSOCK(mode):
        with socket.socket(fileno=os.dup(number)) as one:
            return f"socket {_name(one.getsockname())} to {_peer(one)}"
    with suppress(OSError):
        return f"file {os.readlink(f'{FOLDERS[0]}/{number}')}"
    return f"file {number}"


def _peer(one: socket.socket) -> str:
    try:
        return _name(one.getpeername())
    except OSError:
        return "nobody"


def _name(address: object) -> str:
    return f"{address[0]}:{address[1]}" if isinstance(address, tuple) else str(address or "somebody of this host")
