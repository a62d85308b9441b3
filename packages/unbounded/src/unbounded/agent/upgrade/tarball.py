"""Permitted content of a release's archive: one directory `unbounded-agent/`, or the single executable of that name."""

from __future__ import annotations

import dataclasses
import stat
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from unbounded.agent.layout import BINARY
from unbounded.fetch.archive import Archive, Member, MemberKind, Names
from unbounded.fetch.failures import TooLarge, UnusableContent
from unbounded.fetch.tree import Tree
from unbounded.fetch.unpack import StopSignal


@dataclass(frozen=True)
class TarballLimits:
    """Limits in bytes; the content of an archive may be twice the archive's own limit."""

    archive: int = 256 << 20
    executable: int = 256 << 20
    members: int = 20_000

    @property
    def unpacked(self) -> int:
        return 2 * self.archive


LIMITS: Final = TarballLimits()


def unpack_release(
    archive: Path, target: Path, *, limits: TarballLimits = LIMITS, stop: StopSignal | None = None
) -> None:
    """Unpack a release into an empty directory, with its executable at the top. Blocks.

    Raises:
        UnusableContent: it is no release, or not safe to unpack.
        TooLarge: its content exceeds a limit.
        Unavailable: the file system refuses.
    """
    with archive.open("rb") as file, closing(Tree(target)) as tree:
        reader = Archive(file, limits.unpacked, (stop or StopSignal()).check)
        shape = _Shape(limits)
        for member in reader:
            inside = shape.take(member)
            if inside is not None:
                tree.add(inside, reader)
        shape.end()


@dataclass
class _Shape:
    """Checks members while they are unpacked."""

    limits: TarballLimits
    single: bool = False
    executable: bool = False
    seen: set[Names] = field(default_factory=set)

    def take(self, member: Member) -> Member | None:
        """Return the member with its path in the slot; None for the release's own directory."""
        names = member.names
        if not names:
            return None
        if names[0] != BINARY:
            raise UnusableContent(f"it contains {'/'.join(names)!a} beside {BINARY}, where nothing else is allowed")
        if names in self.seen and member.kind is not MemberKind.FOLDER:
            raise UnusableContent(f"it contains {'/'.join(names)!a} twice")
        if len(self.seen) >= self.limits.members:
            raise TooLarge(f"it contains more than {self.limits.members} files")
        if self.single or (self.seen and len(names) == 1 and member.kind is not MemberKind.FOLDER):
            raise UnusableContent(f"it must contain only the directory {BINARY}/ or the single file {BINARY}")
        self.seen.add(names)
        return self._at_top(member) if len(names) == 1 else self._below(member)

    def _at_top(self, member: Member) -> Member | None:
        if member.kind is MemberKind.FOLDER:
            return None
        if member.kind is not MemberKind.FILE:
            raise UnusableContent(f"{BINARY} is neither a file nor a directory")
        self.single = True
        self._check_executable(member)
        return member

    def _below(self, member: Member) -> Member:
        names = member.names[1:]
        if member.kind is MemberKind.HARDLINK:
            raise UnusableContent(f"{'/'.join(member.names)!a} is a hard link")
        if names == (BINARY,):
            if member.kind is not MemberKind.FILE:
                raise UnusableContent(f"{BINARY}/{BINARY} is not a file")
            self._check_executable(member)
        return dataclasses.replace(member, names=names)

    def _check_executable(self, member: Member) -> None:
        if member.size > self.limits.executable:
            raise TooLarge(f"{BINARY} has {member.size} bytes; the limit is {self.limits.executable}")
        if not member.size:
            raise UnusableContent(f"{BINARY} is empty")
        if not member.mode & stat.S_IXUSR:
            raise UnusableContent(f"{BINARY} is not executable")
        self.executable = True

    def end(self) -> None:
        if not self.executable:
            raise UnusableContent(f"it contains neither {BINARY}/{BINARY} nor a single file {BINARY}")
