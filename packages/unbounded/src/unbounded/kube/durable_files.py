"""Files that survive a loss of power: whole as before, or whole as after, and after once a function has returned.

Content is written beside its place, synced, renamed, and then the folder is synced. Nothing else keeps that promise.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path
from typing import Final

UNFINISHED: Final = ".unfinished-"  # begins the name of what a loss of power may leave behind
_DRAWN: Final = 4  # bytes at the end of such a name


def sync_directory(path: Path) -> None:
    """Make names that were created, renamed or removed in a directory survive a loss of power."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_durably(path: Path, content: bytes, *, mode: int = 0o600) -> None:
    """Put a file in its place; its folder must be there."""
    fresh = path.with_name(UNFINISHED + path.name + secrets.token_hex(_DRAWN))
    try:
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        try:
            os.fchmod(descriptor, mode)  # whatever the umask is
            rest = memoryview(content)
            while rest:
                rest = rest[os.write(descriptor, rest) :]
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.replace(fresh, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(fresh)
        raise
    sync_directory(path.parent)


def place_durably(descriptor: int, path: Path, to: Path) -> None:
    """Give a file that was written elsewhere its name, once its content is on the disk.

    Args:
        descriptor: of the file at `path`.
    """
    os.fsync(descriptor)
    move_durably(path, to)


def move_durably(path: Path, to: Path) -> None:
    """Rename, also over what is there; what is renamed must be synced itself."""
    os.replace(path, to)
    sync_directory(to.parent)
    if path.parent != to.parent:
        sync_directory(path.parent)


def link_durably(path: Path, target: str) -> None:
    """Put a symbolic link in its place, over a link or file that is there."""
    fresh = path.with_name(UNFINISHED + path.name + secrets.token_hex(_DRAWN))
    os.symlink(target, fresh)
    try:
        os.replace(fresh, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(fresh)
        raise
    sync_directory(path.parent)


def sweep(path: Path) -> None:
    """Remove leftovers of writes of this file or link that a loss of power interrupted. No writer may be active."""
    begin = UNFINISHED + path.name
    for name in os.listdir(path.parent):
        drawn = name.removeprefix(begin)
        if drawn != name and len(drawn) == 2 * _DRAWN and all(digit in "0123456789abcdef" for digit in drawn):
            os.unlink(path.with_name(name))


def remove_durably(path: Path) -> bool:
    """Take a file or link away, and what was left of writing it; whether there was one. Its folder must be there."""
    sweep(path)
    try:
        os.unlink(path)
    except FileNotFoundError:
        sync_directory(path.parent)  # who took it away may have been killed before this
        return False
    sync_directory(path.parent)
    return True
