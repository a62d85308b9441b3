"""An image's layers, put on each other in a fresh directory, which gets its name when all of it is on the disk."""

from __future__ import annotations

import secrets
import shutil
import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from unbounded.fetch.archive import Archive, Member
from unbounded.fetch.failures import TooLarge, Unusable
from unbounded.fetch.names import Names
from unbounded.fetch.tree import Tree, system_trouble
from unbounded.kube.durable import UNFINISHED, move_durably

WHITEOUT: Final = ".wh."
OPAQUE: Final = ".wh..wh..opq"
OVERHEAD_BYTES: Final = 4096  # of a member beside its content


@dataclass(frozen=True)
class Bounds:
    """Args:
    bytes: of all layers together, decompressed.
    members: of all layers together.
    """

    bytes: int = 32 << 30
    members: int = 200_000

    def without(self, member: Member) -> Bounds:
        """What is left after a member. Raises TooLarge when that is less than nothing."""
        if member.size > self.bytes:  # a sparse file is larger than what the archive holds of it
            raise TooLarge("the image holds more bytes than the limit allows")
        if not self.members:
            raise TooLarge("the image holds more files than the limit allows")
        return Bounds(self.bytes - member.size, self.members - 1)


@dataclass
class Stop:
    """Lets another thread end an unpacking; it raises `Stopped` at its next read."""

    asked: threading.Event = field(default_factory=threading.Event)

    def check(self) -> None:
        if self.asked.is_set():
            raise Stopped


class Stopped(Exception):
    """The unpacking was told to stop; nothing is left of it."""


def unpack(
    layers: Sequence[Path],
    target: Path,
    *,
    only: str = "",
    bounds: Bounds | None = None,
    stop: Stop | None = None,
    told: Callable[[int], None] = lambda _layers: None,
    tree: Callable[[Path], Tree] = Tree,
) -> int:
    """Put layers on each other, the lowest first, and rename the result to `target`; the bytes that it takes. Blocks.

    Args:
        target: must not exist, its folder must.
        only: the directory whose content is wanted, as `disk`; it keeps its name. Everything, when empty.
        told: called with the number of layers that are done.
        tree: what writes; it decides what of owners, modes and links is kept.
    Raises:
        Unusable, TooLarge: an archive is not safe or too large; the message says which layer and member.
        Unavailable: the file system refuses.
        Stopped: as `stop` asked.
    """
    scratch = target.with_name(UNFINISHED + secrets.token_hex(8))
    with system_trouble((target.name,)):
        scratch.mkdir(mode=0o755)
    try:
        with closing(tree(scratch)) as made:
            rest = bounds or Bounds()
            for number, layer in enumerate(layers, 1):
                rest = _apply(layer, made, only, rest, stop or Stop(), f"layer {number}")
                told(number)
            _require(scratch, only)
            size = made.sync()
        with system_trouble((target.name,)):
            move_durably(scratch, target)
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        raise
    return size


def _require(scratch: Path, only: str) -> None:
    if only and (not (scratch / only).is_dir() or (scratch / only).is_symlink()):
        raise Unusable(f"the image has no directory /{only}")


def _apply(layer: Path, tree: Tree, only: str, bounds: Bounds, stop: Stop, what: str) -> Bounds:
    """One layer; what is left of the bounds after it."""
    with system_trouble((layer.name,)), layer.open("rb") as file:
        # Headers and padding count as well; an archive of small files may take some more than its files.
        archive = Archive(file, bounds.bytes + (bounds.members + 2) * OVERHEAD_BYTES, stop.check)
        changes = _Changes(tree, only)
        try:
            for member in archive:
                bounds = bounds.without(member)
                changes.take(member, archive)
        except (Unusable, TooLarge) as error:
            raise type(error)(f"{what}: {error}") from error
    return bounds


class _Changes:
    """What one layer does to the tree below it (OCI image specification, "Applying Changesets")."""

    def __init__(self, tree: Tree, only: str) -> None:
        self._tree = tree
        self._only = tuple(filter(None, only.split("/")))
        self._own: set[Names] = set()  # a whiteout hides what lower layers have, never its own layer's

    def take(self, member: Member, archive: Archive) -> None:
        names = member.names
        if not names:
            return
        folder, name = names[:-1], names[-1]
        if any(above.startswith(WHITEOUT) for above in folder):
            raise Unusable(f"{'/'.join(names)!a}: lies below a whiteout")
        if name == OPAQUE:
            self._tree.remove(folder, self._own, itself=False)
        elif name.startswith(WHITEOUT + WHITEOUT):
            return  # notes of aufs to itself
        elif name.startswith(WHITEOUT):
            hidden = name.removeprefix(WHITEOUT)
            if hidden in ("", ".", ".."):
                raise Unusable(f"{'/'.join(names)!a}: is a whiteout of nothing")
            self._tree.remove((*folder, hidden), self._own)
        elif self._wanted(names):
            self._tree.add(member, archive)
            self._own.update(names[:depth] for depth in range(1, len(names) + 1))

    def _wanted(self, names: Names) -> bool:
        return names[: len(self._only)] == self._only
