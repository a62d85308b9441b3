"""Blue and green: the slots of the agent's releases, and the links that select one.

A release is assembled outside of the slots, synced, and then renamed into the free slot, to which no link points. A
link changes atomically. So a loss of power at any moment leaves links that point to complete releases.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

import msgspec

from unbounded.agent.paths import BINARY, HostPaths
from unbounded.api.failures import Rejected, Transient
from unbounded.kube.durable_files import UNFINISHED, link_durably, sync_directory, write_durably

ABOUT: Final = "release.json"  # in each slot
_LIBRARIES: Final = "_internal"  # next to the executable of a release that is a directory


class Colour(StrEnum):
    BLUE = "blue"
    GREEN = "green"

    @property
    def other(self) -> Colour:
        return Colour.GREEN if self is Colour.BLUE else Colour.BLUE


class ReleaseInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Description of a slot's content; no decision depends on it.

    Args:
        sha256: of its archive; empty for a release that `start` copied.
    """

    format: int = 1
    version: str = ""
    sha256: str = ""


@dataclass(frozen=True)
class ReleaseLinks:
    """Targets of the links; None for a link that is missing or points elsewhere."""

    current: Colour | None
    last_good: Colour | None

    @property
    def on_trial(self) -> bool:
        """True where the release in use has not been proven."""
        return self.last_good is not None and self.current != self.last_good


class ReleaseSlots:
    """Slots and links of this host. Methods block for as long as the disk takes; they wait for nothing else."""

    def __init__(self, paths: HostPaths) -> None:
        self._paths = paths

    def executable(self, colour: Colour) -> Path:
        return self._paths.release(colour) / BINARY

    def selection(self) -> ReleaseLinks:
        return ReleaseLinks(self._target(self._paths.current), self._target(self._paths.last_good))

    def _target(self, link: Path) -> Colour | None:
        try:
            target = os.path.normpath(link.parent / os.readlink(link))
        except OSError:
            return None
        return next((colour for colour in Colour if target in self._names_of(colour)), None)

    def _names_of(self, colour: Colour) -> tuple[str, str]:
        """Return the executable's path for this process, and its path on the host: a link may be absolute."""
        here = self.executable(colour)
        return str(here), f"/{here.relative_to(self._paths.root)}"

    def colour_of(self, executable: Path) -> Colour | None:
        """Return the slot of a file; None for a file outside of both."""
        place = executable.resolve()
        return next((one for one in Colour if place.is_relative_to(self._paths.release(one).resolve())), None)

    def works(self, colour: Colour | None) -> bool:
        """Return whether a slot has an executable that can be started."""
        return colour is not None and os.access(self.executable(colour), os.X_OK)

    def about(self, colour: Colour) -> ReleaseInfo:
        with contextlib.suppress(OSError, msgspec.DecodeError):
            return msgspec.json.decode((self._paths.release(colour) / ABOUT).read_bytes(), type=ReleaseInfo)
        return ReleaseInfo()

    def describe(self, colour: Colour, about: ReleaseInfo) -> None:
        """Write the description of a slot's content."""
        write_durably(self._paths.release(colour) / ABOUT, msgspec.json.encode(about), mode=0o644)

    # Content of a slot

    def free(self) -> Colour:
        """Return the free slot: neither in use nor the last good one.

        Raises:
            Transient: a release is on trial, which needs both slots.
        """
        selection = self.selection()
        used = {selection.current, selection.last_good}
        for colour in (Colour.BLUE, Colour.GREEN):
            if colour not in used:
                return colour
        text = f"{selection.current} is on trial and {selection.last_good} is the last good release: no slot is free"
        raise Transient(text)

    @contextlib.contextmanager
    def scratch(self) -> Iterator[Path]:
        """Yield an empty directory on the slots' file system, for `place`; remove it at the end."""
        self._paths.releases.mkdir(mode=0o755, parents=True, exist_ok=True)
        for left in self._paths.releases.glob(f"{UNFINISHED}*"):
            shutil.rmtree(left, ignore_errors=True)
        fresh = self._paths.releases / (UNFINISHED + secrets.token_hex(6))
        fresh.mkdir(mode=0o755)
        try:
            yield fresh
        finally:
            shutil.rmtree(fresh, ignore_errors=True)

    def place(self, made: Path, about: ReleaseInfo) -> Colour:
        """Move the content of a `scratch` directory into the free slot; return the slot.

        Raises:
            Rejected: it has no executable.
            Transient: no slot is free.
        """
        check_release(made)
        write_durably(made / ABOUT, msgspec.json.encode(about), mode=0o644)
        _sync_tree(made)
        colour = self.free()
        self.clear(colour)
        os.rename(made, self._paths.release(colour))
        sync_directory(self._paths.releases)
        return colour

    def clear(self, colour: Colour) -> None:
        """Empty a slot to which no link points.

        Raises:
            Transient: it is in use, or the last good one.
        """
        selection = self.selection()
        if colour in (selection.current, selection.last_good):
            raise Transient(f"{colour} is in use or the last good release, and stays")
        slot = self._paths.release(colour)
        if not os.path.lexists(slot):
            return
        # a rename first, so that a slot never holds half a release
        leaving = slot.with_name(UNFINISHED + secrets.token_hex(6))
        os.rename(slot, leaving)
        sync_directory(self._paths.releases)
        shutil.rmtree(leaving, ignore_errors=True)

    # Selection

    def first(self, colour: Colour) -> None:
        """Activate a release where no working one is in use, so that there is nothing to roll back to."""
        with self._locked():
            self._link(self._paths.last_good, colour)
            self._link(self._paths.current, colour)

    def name_command(self) -> None:
        """Create the link to the release in use in the users' path."""
        link_durably(self._paths.command, self._paths.current.name)

    def switch(self, colour: Colour) -> None:
        """Put a release on trial; the one in use stays as the last good one.

        Raises:
            Rejected: the release cannot be started.
            Transient: another one is on trial, or there is no release to roll back to.
        """
        with self._locked():
            selection = self.selection()
            if selection.current == colour:
                return
            if selection.on_trial or not self.works(selection.last_good):
                raise Transient(f"the last good release {selection.last_good} is not the one in use: no trial now")
            if not self.works(colour):
                raise Rejected(f"{colour}: it contains no executable release")
            self._link(self._paths.current, colour)

    def prove(self, colour: Colour) -> None:
        """Make the release on trial the last good one.

        Raises:
            Transient: it is not in use, as it was rolled back.
        """
        with self._locked():
            if self.selection().current != colour:
                raise Transient(f"{colour} is not in use any more: it was rolled back")
            self._link(self._paths.last_good, colour)

    def roll_back(self, refused: Colour) -> None:
        """Roll back from a rejected release to the last good one; do nothing where the rejected one is not in use."""
        with self._locked():
            selection = self.selection()
            if selection.current == refused and selection.on_trial and selection.last_good is not None:
                self._link(self._paths.current, selection.last_good)

    def _link(self, link: Path, colour: Colour) -> None:
        self._paths.bin.mkdir(mode=0o755, parents=True, exist_ok=True)
        link_durably(link, os.path.relpath(self.executable(colour), link.parent))

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the lock that the recovery script also takes while it changes a link."""
        self._paths.run.mkdir(mode=0o755, parents=True, exist_ok=True)
        descriptor = os.open(self._paths.release_lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


def check_release(tree: Path) -> None:
    """Raise Rejected for a directory that has no executable of the right name."""
    try:
        mode = (tree / BINARY).lstat().st_mode
    except OSError:
        raise Rejected(f"it does not contain {BINARY}") from None
    if not stat.S_ISREG(mode):
        raise Rejected(f"its {BINARY} is not a file")
    if not mode & stat.S_IXUSR:
        raise Rejected(f"its {BINARY} is not executable")


def copy_running(executable: Path, target: Path) -> None:
    """Copy the release of a running executable, with its libraries if it has any, into an empty directory."""
    source = executable.resolve()
    shutil.copy2(source, target / BINARY)
    if (source.parent / _LIBRARIES).is_dir():
        shutil.copytree(source.parent / _LIBRARIES, target / _LIBRARIES, symlinks=True)


def content_digest(executable: Path) -> str:
    """Return a digest of a release's names, links and file contents."""
    source = executable.resolve()
    digest = hashlib.sha256(_content(source))
    libraries = source.parent / _LIBRARIES
    for path in sorted(libraries.rglob("*")) if libraries.is_dir() else ():
        digest.update(f"\n{path.relative_to(libraries)}\n".encode(errors="surrogateescape"))
        if path.is_symlink():
            digest.update(os.fsencode(os.readlink(path)))
        elif path.is_file():
            digest.update(_content(path))
    return digest.hexdigest()


def _content(path: Path) -> bytes:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()


def _sync_tree(tree: Path) -> None:
    """Sync every file and directory of a tree, the tree itself last."""
    for folder, _folders, files in os.walk(tree, topdown=False):
        for name in files:
            path = Path(folder, name)
            if not path.is_symlink():
                descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
                try:
                    os.fsync(descriptor)
                finally:
                    os.close(descriptor)
        sync_directory(Path(folder))
