"""One lock for a host: held by start, by reset, and by the daemon while it changes slots or its own binary."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

from unbounded.agent.layout import Layout
from unbounded.api.failures import Transient
from unbounded.kube.logs import Log

log = Log("agent")

WITHIN_S: Final = 30.0
_LOOK_AGAIN_S: Final = 0.25
_HOLDER_BYTES: Final = 200
_MODE: Final = 0o600  # who can open a file can lock it, for reading too


@contextlib.asynccontextmanager
async def host_lock(layout: Layout, who: str, *, within_s: float = WITHIN_S) -> AsyncIterator[None]:
    """Hold the host while inside. It is not reentrant: a second call in the same process waits like any other.

    A process that dies lets go of it, however it dies.

    Args:
        who: what the others read, such as `unbounded-agent start`.
    Raises:
        Transient: somebody else has it and kept it that long; the message names them.
    """
    layout.run.mkdir(mode=0o755, parents=True, exist_ok=True)
    descriptor = await _locked(layout.lock, within_s)
    try:
        os.pwrite(descriptor, f"{os.getpid()} {who}\n".encode()[:_HOLDER_BYTES], 0)
        yield
    finally:
        with contextlib.suppress(OSError):
            os.ftruncate(descriptor, 0)
        os.close(descriptor)


def holder(layout: Layout) -> str:
    """Who has the lock, as `unbounded-agent start (pid 17)`; empty when nobody has. Only root may ask."""
    said = _held(layout)
    return _named(said) if said else ""


def holder_pid(layout: Layout) -> int:
    """The process that has the lock; 0 when nobody has."""
    pid = _held(layout).partition(" ")[0]
    return int(pid) if pid.isdecimal() else 0


def _held(layout: Layout) -> str:
    """What the holder wrote. Who died left its words: they count only while the lock is taken. It is tried together
    with others who ask, and only where there are words: who wants it is not kept from it by questions."""
    try:
        descriptor = os.open(layout.lock, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return ""
    try:
        said = _said(descriptor)
        return "" if not said or _take(descriptor, fcntl.LOCK_SH) else said
    finally:
        os.close(descriptor)


async def _locked(path: Path, within_s: float) -> int:
    """A descriptor of the file that has this path now, locked."""
    loop = asyncio.get_running_loop()
    until = loop.time() + within_s
    told = False
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _MODE)
        os.fchmod(descriptor, _MODE)  # of one that an earlier version made
        if _take(descriptor) and _still_at(descriptor, path):
            os.ftruncate(descriptor, 0)
            return descriptor
        said = _said(descriptor)
        os.close(descriptor)
        if loop.time() >= until:
            raise Transient(f"the host is held by {_named(said)}; {path} was not free within {within_s:g} s")
        if not told:
            log.info("waiting for the host", held_by=_named(said))
            told = True
        await asyncio.sleep(_LOOK_AGAIN_S)


def _said(descriptor: int) -> str:
    return os.pread(descriptor, _HOLDER_BYTES, 0).decode(errors="replace").strip()


def _named(said: str) -> str:
    pid, _, who = said.partition(" ")
    return f"{who} (pid {pid})" if who else "another process"


def _take(descriptor: int, kind: int = fcntl.LOCK_EX) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _still_at(descriptor: int, path: Path) -> bool:
    """A reset takes the file away: who waited for that one has to lock the next one."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False
