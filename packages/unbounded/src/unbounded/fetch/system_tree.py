"""A root file system that is assembled in a directory, with owners, modes and links of its image.

Links are resolved relative to this root: `/bin/x` with `bin -> /usr/bin` is written to usr/bin below it, and no link
leaves it.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from unbounded.fetch.archive import Archive, Member, Names, names_of
from unbounded.fetch.failures import Unavailable, UnusableContent
from unbounded.fetch.tree import MissingDirectory, Tree, system_errors

_MODE: Final = 0o7777
_MOST_OPEN: Final = 64
_MOST_LINKS: Final = 40  # the kernel's limit
_LATEST: Final = 0xFFFFFFFF
_UNKNOWN: Final = frozenset({errno.ENOTSUP, errno.EPERM, errno.EINVAL, errno.ENOSPC, errno.ERANGE})
_DEVICES: Final = "dev"  # the machine gets a /dev of its own; the image's is skipped


class SystemTree(Tree):
    """A root file system into which layers are unpacked, and whose files are read and written. No path outside of it is
    reached.

    Args:
        root: the directory. No other process may write there at the same time, except where files are only read here.
    """

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self._known: dict[Names, int] = {}  # open directories, by their path
        self._bytes = 0

    def close(self) -> None:
        self._forget()
        super().close()

    def _forget(self) -> None:
        for descriptor in self._known.values():
            os.close(descriptor)
        self._known.clear()

    @contextmanager
    def _folder(self, names: Names, *, make: bool) -> Iterator[int]:
        known = self._known.get(names)
        if known is None:
            with super()._folder(self._resolved(names), make=make) as descriptor:
                if len(self._known) >= _MOST_OPEN:
                    self._forget()
                self._known[names] = os.dup(descriptor)
                yield descriptor
        else:
            descriptor = os.dup(known)  # the caller's actions may close the known one
            try:
                yield descriptor
            finally:
                os.close(descriptor)

    def _resolved(self, names: Names) -> Names:
        """Return a path with its links resolved; missing parts stay as they are."""
        at: Names = ()
        rest, links = list(reversed(names)), 0
        while rest:
            name = rest.pop()
            if name == "..":
                at = at[:-1]
                continue
            target = self._link("/".join((*at, name)))
            if target is None:
                at = (*at, name)
                continue
            links += 1
            if links > _MOST_LINKS:
                raise UnusableContent(f"{'/'.join(names)!a}: its links form a loop")
            if target.startswith("/"):
                at = ()
            rest.extend(part for part in reversed(target.split("/")) if part not in ("", "."))
        return at

    def _link(self, path: str) -> str | None:
        try:
            return os.readlink(path, dir_fd=self._root)
        except OSError as error:
            if error.errno in (errno.EINVAL, errno.ENOENT, errno.ENOTDIR):  # no link, or missing
                return None
            raise

    def add(self, member: Member, archive: Archive) -> None:
        """Write a member as Tree.add does, with owner, full mode, and extended attributes where the file system
        supports them.
        """
        if member.kind is None and member.names[:1] == (_DEVICES,):
            return
        self._bytes += member.size
        super().add(member, archive)

    def _clear(self, parent: int, names: Names, keep: set[Names] | None = None) -> None:
        with suppress(FileNotFoundError):
            if not stat.S_ISREG(os.stat(names[-1], dir_fd=parent, follow_symlinks=False).st_mode):
                self._forget()
        super()._clear(parent, names, keep)

    def _target(self, member: Member) -> str:
        if not member.target or "\0" in member.target:
            raise UnusableContent(f"{'/'.join(member.names)!a}: a symbolic link without a target")
        return member.target

    def _finish(self, descriptor: int, member: Member, least: int) -> None:  # noqa: ARG002, root needs no rights
        os.fchown(descriptor, *member.owner)
        os.fchmod(descriptor, member.mode & _MODE)  # after the owner, because chown clears set-user-id
        for name, value in member.attributes:
            try:
                os.setxattr(descriptor, name, value)
            except OSError as error:
                if error.errno not in _UNKNOWN:
                    raise

    def _finish_link(self, parent: int, member: Member) -> None:
        os.chown(member.names[-1], *member.owner, dir_fd=parent, follow_symlinks=False)
        modified = min(max(member.modified, 0.0), _LATEST)
        os.utime(member.names[-1], (modified, modified), dir_fd=parent, follow_symlinks=False)

    # Files that no image has

    def put(self, path: str, content: bytes, *, mode: int = 0o644) -> None:
        """Write a file that root owns, in place of any other; create its parents."""
        names = names_of(path)
        with system_errors(names), self._folder(names[:-1], make=True) as parent:
            self._clear(parent, names)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            descriptor = os.open(names[-1], flags, 0o600, dir_fd=parent)
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
                os.fchmod(file.fileno(), mode)

    def copy(self, source: Path, path: str, *, mode: int = 0o755) -> None:
        """Copy the content of a file of this host, with shared blocks where the file system supports them."""
        names = names_of(path)
        with system_errors(names), self._folder(names[:-1], make=True) as parent:
            self._clear(parent, names)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            descriptor = os.open(names[-1], flags, 0o600, dir_fd=parent)
            with os.fdopen(descriptor, "wb") as target, source.open("rb") as origin:
                _copy(origin.fileno(), target.fileno())
                os.fchmod(target.fileno(), mode)

    def link(self, path: str, target: str) -> None:
        """Write a symbolic link, in place of any other entry."""
        names = names_of(path)
        with system_errors(names), self._folder(names[:-1], make=True) as parent:
            self._clear(parent, names)
            os.symlink(target, names[-1], dir_fd=parent)

    def folder(self, path: str, *, mode: int = 0o755) -> None:
        """Create a directory that root owns; an existing one keeps its content."""
        names = names_of(path)
        with system_errors(names), self._folder(names, make=True) as descriptor:
            os.fchmod(descriptor, mode)

    def read(self, path: str) -> bytes | None:
        """Return a file's content; None where there is no file."""
        names = self._resolved(names_of(path))
        with system_errors(names), suppress(FileNotFoundError, NotADirectoryError, IsADirectoryError):
            descriptor = os.open("/".join(names), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self._root)
            with os.fdopen(descriptor, "rb") as file:
                return file.read()
        return None

    def links(self, path: str) -> dict[str, str]:
        """Return the targets of the symbolic links in a directory, by name; none where there is no directory."""
        found: dict[str, str] = {}
        with suppress(MissingDirectory), self._folder(names_of(path), make=False) as folder:
            for name in os.listdir(folder):
                with suppress(OSError):
                    found[name] = os.readlink(name, dir_fd=folder)
        return found

    def names(self, path: str) -> tuple[str, ...]:
        """Return the names in a directory, sorted; none where there is no such directory."""
        with suppress(MissingDirectory), self._folder(names_of(path), make=False) as folder:
            return tuple(sorted(os.listdir(folder)))
        return ()

    def unlink(self, path: str) -> None:
        """Remove a file or link, if it exists."""
        self.remove(names_of(path), set())

    def has(self, path: str) -> bool:
        """Return whether the path exists; its last component may be a link."""
        names = names_of(path)
        with suppress(FileNotFoundError, NotADirectoryError):
            os.stat("/".join((*self._resolved(names[:-1]), names[-1])), dir_fd=self._root, follow_symlinks=False)
            return True
        return False

    def sync(self) -> int:
        """Return the size of the tree's files. It syncs nothing: the caller syncs the file system once, when the tree
        is complete.
        """
        return self._bytes


def sync_file_system(path: Path) -> None:
    """Sync the file system of this directory. Blocks.

    Raises:
        Unavailable: the disk reported an error.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if ctypes.CDLL(None, use_errno=True).syncfs(descriptor):
            raise Unavailable(f"{path}: {os.strerror(ctypes.get_errno())}")
    finally:
        os.close(descriptor)


def _copy(source: int, target: int) -> None:
    """Copy in the kernel, with shared blocks where possible."""
    with suppress(OSError):
        while os.copy_file_range(source, target, 1 << 30):
            pass
        return
    os.lseek(source, 0, os.SEEK_SET)
    os.lseek(target, 0, os.SEEK_SET)
    os.ftruncate(target, 0)
    while chunk := os.read(source, 1 << 20):
        rest = memoryview(chunk)
        while rest:
            rest = rest[os.write(target, rest) :]
