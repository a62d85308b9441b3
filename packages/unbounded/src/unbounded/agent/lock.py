"""The lock of a host, held by start, by reset, and by the daemon while it changes slots or its own binary."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

from unbounded.agent.paths import HostPaths
from unbounded.api.failures import Transient
from unbounded.kube.logs import Log

log = Log("agent")

WITHIN_S: Final = 30.0
_POLL_S: Final = 0.25
_HOLDER_BYTES: Final = 200
_MODE: Final = 0o600  # a process that can open the file can lock it, even if only for reading


@contextlib.asynccontextmanager
async def host_lock(paths: HostPaths, who: str, *, within_s: float = WITHIN_S) -> AsyncIterator[None]:
    """Hold the host's lock while inside. It is not reentrant: a second call in the same process waits too.

    The kernel releases the lock when the process dies.

    Args:
        who: the holder's name in messages of waiting processes, such as `unbounded-agent start`.
    Raises:
        Transient: another process held it that long; the message names the process.
    """
    paths.run.mkdir(mode=0o755, parents=True, exist_ok=True)
    descriptor = await _locked(paths.lock, within_s)
    try:
        os.pwrite(descriptor, f"{os.getpid()} {who}\n".encode()[:_HOLDER_BYTES], 0)
        yield
    finally:
        with contextlib.suppress(OSError):
            os.ftruncate(descriptor, 0)
        os.close(descriptor)


def holder(paths: HostPaths) -> str:
    """Return the holder of the lock, as `unbounded-agent start (pid 17)`; empty for none. Requires root."""
    text = _present_holder(paths)
    return _holder_name(text) if text else ""


def holder_pid(paths: HostPaths) -> int:
    """Return the pid of the process that holds the lock; 0 for none."""
    pid = _present_holder(paths).partition(" ")[0]
    return int(pid) if pid.isdecimal() else 0


def _present_holder(paths: HostPaths) -> str:
    """Return the text that the holder wrote, if the lock is held. A process that died leaves its text behind.

    The check takes a shared lock, and only where there is a text. So several readers do not block each other, and they
    do not block a process that acquires a free lock.
    """
    try:
        descriptor = os.open(paths.lock, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return ""
    try:
        message = _holder_text(descriptor)
        return "" if not message or _try_lock(descriptor, fcntl.LOCK_SH) else message
    finally:
        os.close(descriptor)


async def _locked(path: Path, within_s: float) -> int:
    """Return a locked descriptor of the file that has this path now."""
    loop = asyncio.get_running_loop()
    until = loop.time() + within_s
    is_reported = False
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _MODE)
        os.fchmod(descriptor, _MODE)  # for a file that an earlier version created
        if _try_lock(descriptor) and _still_at(descriptor, path):
            os.ftruncate(descriptor, 0)
            return descriptor
        message = _holder_text(descriptor)
        os.close(descriptor)
        if loop.time() >= until:
            raise Transient(
                f"{_holder_name(message)} holds the lock of this host; {path} was not released within {within_s:g} s"
            )
        if not is_reported:
            log.info("waiting for the lock of the host", held_by=_holder_name(message))
            is_reported = True
        await asyncio.sleep(_POLL_S)


def _holder_text(descriptor: int) -> str:
    return os.pread(descriptor, _HOLDER_BYTES, 0).decode(errors="replace").strip()


def _holder_name(message: str) -> str:
    pid, _, who = message.partition(" ")
    return f"{who} (pid {pid})" if who else "another process"


def _try_lock(descriptor: int, kind: int = fcntl.LOCK_EX) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _still_at(descriptor: int, path: Path) -> bool:
    """Return whether the descriptor is still the file at this path. A reset removes the file: a process that waited for
    that one has to lock the next one.
    """
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False
