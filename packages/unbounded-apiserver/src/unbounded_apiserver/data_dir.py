"""The data directory on disk: its lock, and files and directories that survive a loss of power."""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path

from unbounded.kube.durable_files import sync_directory


class DataInUse(Exception):
    """Another process has locked the data directory."""


class DataUnusable(Exception):
    """The data directory cannot be read by this version, cannot be written, or is damaged."""


class Damaged(DataUnusable):
    """A file differs from what was written."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(f"{path} is damaged: {why}")
        self.why = why


def lock_directory(directory: Path) -> int:
    """Take an exclusive lock on a data directory, which is created if missing.

    Returns a descriptor that keeps the lock until it is closed or the process ends.

    Raises:
        DataInUse: another process has the lock.
        DataUnusable: the directory cannot be written.
    """
    try:
        make_directory(directory)
        descriptor = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except (FileExistsError, NotADirectoryError) as error:
        raise DataUnusable(f"{error.filename} is not a directory") from error
    except OSError as error:
        raise DataUnusable(f"{error.filename} cannot be written: {error.strerror}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        holder = os.read(descriptor, 32).decode(errors="replace").strip()
        os.close(descriptor)
        by = f"process {holder}" if holder else "another process"
        raise DataInUse(f"{directory} is in use by {by}; stop it, or choose another data directory") from error
    with suppress(OSError):  # the process ID is for people only; the first write that matters detects a full disk
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    return descriptor


def make_directory(path: Path) -> None:
    """Create a directory that only its owner may use, with its parents; what was created is synced."""
    missing = []
    while not path.exists():
        missing.append(path)
        path = path.parent
    for directory in reversed(missing):
        directory.mkdir(mode=0o700, exist_ok=True)
        sync_directory(directory.parent)
    if missing or path.is_dir():
        return
    raise FileExistsError(None, "not a directory", str(path))


def sync_file(path: Path) -> None:
    """Make the content of a file survive a loss of power."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
