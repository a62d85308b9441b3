"""An image's layers, applied in order in a new directory, which gets its name once all of it is synced."""

from __future__ import annotations

import secrets
import shutil
import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from unbounded.fetch.archive import Archive, Member, Names
from unbounded.fetch.failures import TooLarge, UnusableContent
from unbounded.fetch.tree import Tree, system_errors
from unbounded.kube.durable_files import UNFINISHED, move_durably

WHITEOUT: Final = ".wh."
OPAQUE: Final = ".wh..wh..opq"
OVERHEAD_BYTES: Final = 4096  # of a member in addition to its content


@dataclass(frozen=True)
class UnpackLimits:
    """Limits of an image.

    Args:
        bytes: of all layers together, decompressed.
        members: of all layers together.
    """

    bytes: int = 32 << 30
    members: int = 200_000

    def without(self, member: Member) -> UnpackLimits:
        """Return the limits that remain after a member. Raises TooLarge when they are exceeded."""
        if member.size > self.bytes:  # a sparse file is larger than its content in the archive
            raise TooLarge("the image contains more bytes than the limit allows")
        if not self.members:
            raise TooLarge("the image contains more files than the limit allows")
        return UnpackLimits(self.bytes - member.size, self.members - 1)


@dataclass
class StopSignal:
    """Cancels an unpacking from another thread; the unpacking raises `Stopped` at its next read."""

    event: threading.Event = field(default_factory=threading.Event)

    def check(self) -> None:
        if self.event.is_set():
            raise Stopped


class Stopped(Exception):
    """The unpacking was cancelled; no file of it remains."""


def unpack(
    layers: Sequence[Path],
    target: Path,
    *,
    only: str = "",
    bounds: UnpackLimits | None = None,
    stop: StopSignal | None = None,
    on_bytes: Callable[[int], None] = lambda _layers: None,
    tree: Callable[[Path], Tree] = Tree,
) -> int:
    """Apply layers in order, the lowest first, and rename the result to `target`; return its size in bytes. Blocks.

    Args:
        target: must not exist, its parent must.
        only: the one directory to unpack, such as `disk`, which keeps its name; empty for the whole image.
        on_bytes: called with the number of completed layers.
        tree: writer; it decides which owners, modes and links are kept.
    Raises:
        UnusableContent, TooLarge: an archive is not safe or too large; the message names layer and member.
        Unavailable: the file system refuses.
        Stopped: `stop` was called.
    """
    scratch = target.with_name(UNFINISHED + secrets.token_hex(8))
    with system_errors((target.name,)):
        scratch.mkdir(mode=0o755)
    try:
        with closing(tree(scratch)) as made:
            rest = bounds or UnpackLimits()
            for number, layer in enumerate(layers, 1):
                rest = _apply(layer, made, only, rest, stop or StopSignal(), f"layer {number}")
                on_bytes(number)
            _require(scratch, only)
            size = made.sync()
        with system_errors((target.name,)):
            move_durably(scratch, target)
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        raise
    return size


def _require(scratch: Path, only: str) -> None:
    if only and (not (scratch / only).is_dir() or (scratch / only).is_symlink()):
        raise UnusableContent(f"the image has no directory /{only}")


def _apply(layer: Path, tree: Tree, only: str, bounds: UnpackLimits, stop: StopSignal, what: str) -> UnpackLimits:
    """Apply one layer; return the limits that remain."""
    with system_errors((layer.name,)), layer.open("rb") as file:
        # Headers and padding count as well; an archive of small files may be larger than its files.
        archive = Archive(file, bounds.bytes + (bounds.members + 2) * OVERHEAD_BYTES, stop.check)
        changes = _Changes(tree, only)
        try:
            for member in archive:
                bounds = bounds.without(member)
                changes.take(member, archive)
        except (UnusableContent, TooLarge) as error:
            raise type(error)(f"{what}: {error}") from error
    return bounds


class _Changes:
    """Changes of one layer to the tree below it (OCI image specification, "Applying Changesets")."""

    def __init__(self, tree: Tree, only: str) -> None:
        self._tree = tree
        self._only = tuple(filter(None, only.split("/")))
        self._own: set[Names] = set()  # a whiteout hides entries of lower layers, never of its own layer

    def take(self, member: Member, archive: Archive) -> None:
        names = member.names
        if not names:
            return
        folder, name = names[:-1], names[-1]
        if any(above.startswith(WHITEOUT) for above in folder):
            raise UnusableContent(f"{'/'.join(names)!a}: is below a whiteout")
        if name == OPAQUE:
            self._tree.remove(folder, self._own, itself=False)
        elif name.startswith(WHITEOUT + WHITEOUT):
            return  # internal files of aufs
        elif name.startswith(WHITEOUT):
            hidden = name.removeprefix(WHITEOUT)
            if hidden in ("", ".", ".."):
                raise UnusableContent(f"{'/'.join(names)!a}: is a whiteout without a name")
            self._tree.remove((*folder, hidden), self._own)
        elif self._is_selected(names):
            self._tree.add(member, archive)
            self._own.update(names[:depth] for depth in range(1, len(names) + 1))

    def _is_selected(self, names: Names) -> bool:
        return names[: len(self._only)] == self._only
