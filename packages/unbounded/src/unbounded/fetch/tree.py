"""A new directory into which members are unpacked, through descriptors of directories and never through a link."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from unbounded.fetch.archive import Archive, Member, MemberKind, Names, link_of, names_of
from unbounded.fetch.failures import Unavailable, UnusableContent

_FOLDER_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE_FLAGS: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_PERMISSIONS: Final = 0o777  # without set-user-id: files belong to the user that fetches them, and others may read them
_LATEST: Final = 0xFFFFFFFF  # latest mtime; an archive may have any


class MissingDirectory(Exception):
    """A directory on the path is missing, or is none."""


class Tree:
    """A directory into which layers are unpacked.

    Args:
        root: an empty directory to which no other process writes.
    """

    def __init__(self, root: Path) -> None:
        self._root = os.open(root, _FOLDER_FLAGS)

    def close(self) -> None:
        os.close(self._root)

    @contextmanager
    def _folder(self, names: Names, *, make: bool) -> Iterator[int]:
        """Open a directory. Raises MissingDirectory where it is missing and `make` is false."""
        descriptor = os.dup(self._root)
        try:
            for depth, name in enumerate(names, 1):
                below = self._step(descriptor, name, names[:depth], make=make)
                os.close(descriptor)
                descriptor = below
            yield descriptor
        finally:
            os.close(descriptor)

    def _step(self, descriptor: int, name: str, path: Names, *, make: bool) -> int:
        try:
            if make:
                return _opened(name, descriptor)
            return os.open(name, _FOLDER_FLAGS, dir_fd=descriptor)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ELOOP, errno.ENOTDIR):
                raise
            if not make:
                raise MissingDirectory from error
            raise UnusableContent(f"{_path(path)}: is not a directory, but entries are below it") from error

    def add(self, member: Member, archive: Archive) -> None:
        """Write a member in place of any other entry; an existing directory keeps its content.

        Raises:
            UnusableContent: it leaves the tree, or is neither file, directory nor link.
            Unavailable: the file system refuses.
        """
        if not member.names:
            return
        with system_errors(member.names), self._folder(member.names[:-1], make=True) as parent:
            match member.kind:
                case MemberKind.FOLDER:
                    self._add_folder(parent, member)
                case MemberKind.FILE:
                    self._add_file(parent, member, archive)
                case MemberKind.SYMLINK:
                    self._add_symbolic_link(parent, member)
                case MemberKind.HARDLINK:
                    self._add_hard_link(parent, member)
                case None:
                    raise UnusableContent(f"{_path(member.names)}: devices and other special files are not supported")

    def _add_symbolic_link(self, parent: int, member: Member) -> None:
        target = self._target(member)
        try:
            os.symlink(target, member.names[-1], dir_fd=parent)
        except FileExistsError:
            self._clear(parent, member.names)
            os.symlink(target, member.names[-1], dir_fd=parent)
        self._finish_link(parent, member)

    def _target(self, member: Member) -> str:
        """Return the target of a symbolic link to write."""
        return link_of(member.target, member.names)

    def _finish(self, descriptor: int, member: Member, least: int) -> None:
        """Set the mode of a file or directory; `least` are the bits that unpacking itself needs."""
        os.fchmod(descriptor, member.mode & _PERMISSIONS | least)

    def _finish_link(self, parent: int, member: Member) -> None:
        """Do nothing: a link has no mode."""

    def _add_folder(self, parent: int, member: Member) -> None:
        name = member.names[-1]
        existing = _lstat(parent, name)
        if existing is None or not stat.S_ISDIR(existing.st_mode):
            self._clear(parent, member.names)
            os.mkdir(name, 0o755, dir_fd=parent)
        descriptor = os.open(name, _FOLDER_FLAGS, dir_fd=parent)
        try:
            self._finish(descriptor, member, stat.S_IRWXU)
        finally:
            os.close(descriptor)

    def _add_file(self, parent: int, member: Member, archive: Archive) -> None:
        descriptor = self._fresh_file(parent, member.names)
        whole = ((0, member.size),)
        try:
            for offset, length in member.pieces:
                if member.pieces != whole:
                    os.lseek(descriptor, offset, os.SEEK_SET)
                for chunk in archive.content(length):
                    rest = memoryview(chunk)
                    while rest:
                        rest = rest[os.write(descriptor, rest) :]
            if member.pieces != whole:
                os.ftruncate(descriptor, member.size)
            self._finish(descriptor, member, stat.S_IRUSR | stat.S_IWUSR)
            modified = min(max(member.modified, 0.0), _LATEST)
            os.utime(descriptor, (modified, modified))
        finally:
            os.close(descriptor)

    def _fresh_file(self, parent: int, names: Names) -> int:
        try:
            return os.open(names[-1], _FILE_FLAGS, 0o600, dir_fd=parent)
        except FileExistsError:  # rare, so there is no check before
            self._clear(parent, names)
            return os.open(names[-1], _FILE_FLAGS, 0o600, dir_fd=parent)

    def _add_hard_link(self, parent: int, member: Member) -> None:
        source = names_of(member.target)
        where = f"{_path(member.names)}: the hard link to {_path(source)}"
        if not source or source == member.names:
            raise UnusableContent(f"{where} has no target")
        try:
            with self._folder(source[:-1], make=False) as folder:
                _linkable(folder, source[-1])
                if len(member.names) < len(source) and member.names == source[: len(member.names)]:
                    raise UnusableContent(f"{where} would replace a directory above its target")
                self._clear(parent, member.names)
                os.link(source[-1], member.names[-1], src_dir_fd=folder, dst_dir_fd=parent, follow_symlinks=False)
        except MissingDirectory:
            raise UnusableContent(f"{where} names no file of this image") from None

    def remove(self, names: Names, keep: set[Names], *, itself: bool = True) -> None:
        """Remove the entry at a path, or (without `itself`) all below it, except those in `keep`."""
        with system_errors(names), suppress(MissingDirectory):
            if not itself:
                with self._folder(names, make=False) as folder:
                    self._empty(folder, names, keep)
            elif names:
                with self._folder(names[:-1], make=False) as folder:
                    self._clear(folder, names, keep)

    def _clear(self, parent: int, names: Names, keep: set[Names] | None = None) -> None:
        existing = _lstat(parent, names[-1])
        if existing is None:
            return
        is_kept = keep is not None and names in keep
        if not stat.S_ISDIR(existing.st_mode):
            if not is_kept:
                os.unlink(names[-1], dir_fd=parent)
            return
        descriptor = os.open(names[-1], _FOLDER_FLAGS, dir_fd=parent)
        try:
            self._empty(descriptor, names, keep or set())
        finally:
            os.close(descriptor)
        if not is_kept:
            os.rmdir(names[-1], dir_fd=parent)

    def _empty(self, folder: int, names: Names, keep: set[Names]) -> None:
        for name in os.listdir(folder):
            self._clear(folder, (*names, name), keep)

    def sync(self) -> int:
        """Sync the tree to the disk; return the size of its files."""
        with system_errors(()):
            return _sync(self._root)


def _opened(name: str, parent: int) -> int:
    """Open a directory; create it where missing."""
    try:
        return os.open(name, _FOLDER_FLAGS, dir_fd=parent)
    except FileNotFoundError:
        with suppress(FileExistsError):  # another tree of the same root has just created it
            os.mkdir(name, 0o755, dir_fd=parent)
        return os.open(name, _FOLDER_FLAGS, dir_fd=parent)


def _sync(folder: int) -> int:
    total = 0
    for name in os.listdir(folder):
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
        if stat.S_ISLNK(status.st_mode):
            continue
        is_folder = stat.S_ISDIR(status.st_mode)
        flags = _FOLDER_FLAGS if is_folder else os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(name, flags, dir_fd=folder)
        try:
            total += _sync(descriptor) if is_folder else status.st_blocks * 512 // status.st_nlink
            if not is_folder:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
    os.fsync(folder)
    return total


def _linkable(folder: int, name: str) -> None:
    """Reject all but regular files: a second name of a symbolic link would resolve it from a directory that was not
    checked.
    """
    status = _lstat(folder, name)
    if status is None or not stat.S_ISREG(status.st_mode):
        raise MissingDirectory


def _lstat(folder: int, name: str) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _path(names: Names) -> str:
    return ascii("/".join(names))


@contextmanager
def system_errors(names: Names) -> Iterator[None]:
    """Translate an error of the file system into a failure with a remedy."""
    try:
        yield
    except OSError as error:
        hint = "the disk is full; free some space" if error.errno in (errno.ENOSPC, errno.EDQUOT) else error.strerror
        raise Unavailable(f"unpacking {_path(names)}: {hint}") from error
