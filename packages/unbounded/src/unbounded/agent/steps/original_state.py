"""State that a step found before it changed the host, and the files that `start` writes and replaces.

A record is written once, durably, and kept until the step is undone.
"""

from __future__ import annotations

import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Generic, TypeVar

import msgspec

from unbounded.agent.paths import HostPaths
from unbounded.api.failures import Rejected
from unbounded.kube.durable_files import remove_durably, sweep, sync_directory, write_durably

T = TypeVar("T", bound=msgspec.Struct)

FORMAT: Final = 1


class _StoredState(msgspec.Struct, frozen=True):
    format: int
    found: msgspec.Raw


@dataclass(frozen=True)
class OriginalState(Generic[T]):
    """Record of one step's original state.

    Args:
        name: of its file, without `.json`.
        type: of the record.
    """

    name: str
    type: type[T]

    def path(self, paths: HostPaths) -> Path:
        return paths.changes / f"{self.name}.json"

    def read(self, paths: HostPaths) -> T | None:
        """Return the original state; None where nothing was changed yet, or all was undone.

        Raises:
            Rejected: a later agent has written it, or it is damaged.
        """
        path = self.path(paths)
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return None
        try:
            state = msgspec.json.decode(content, type=_StoredState)
            if state.format > FORMAT:
                raise Rejected(
                    f"{path} has format {state.format}, but this agent supports {FORMAT}: use the agent that wrote it"
                )
            return msgspec.json.decode(state.found, type=self.type)
        except msgspec.DecodeError as error:
            raise Rejected(f"cannot read {path}: {error}") from error

    def record(self, paths: HostPaths, found: T) -> T:
        """Write the original state, unless an earlier run has: only the first run observes it."""
        earlier = self.read(paths)
        if earlier is not None:
            return earlier
        self.replace(paths, found)
        return found

    def replace(self, paths: HostPaths, found: T) -> None:
        """Write this state, and replace an earlier record."""
        make_folders(paths.changes, mode=0o700)
        content = msgspec.json.encode(_StoredState(FORMAT, msgspec.Raw(msgspec.json.encode(found))))
        write_durably(self.path(paths), content)

    def forget(self, paths: HostPaths) -> None:
        if paths.changes.is_dir():
            remove_durably(self.path(paths))


def missing_folders(path: Path) -> tuple[Path, ...]:
    """Return the folders that do not exist, from the outermost to `path` itself."""
    missing = []
    while not path.is_dir():
        missing.append(path)
        path = path.parent
    return tuple(reversed(missing))


def make_folders(path: Path, *, mode: int = 0o755) -> None:
    """Create a folder, with `mode` if it is new, and its parents, so that they survive a loss of power."""
    for folder in missing_folders(path):
        folder.mkdir(mode=mode if folder == path else 0o755, exist_ok=True)
        sync_directory(folder.parent)


def remove_empty(folders: tuple[Path, ...]) -> None:
    """Remove the empty ones, innermost first."""
    for folder in sorted(folders, key=lambda one: len(one.parts), reverse=True):
        try:
            folder.rmdir()
        except OSError:  # missing, or in use
            continue
        sync_directory(folder.parent)


class FoundFile(msgspec.Struct, frozen=True, kw_only=True):
    """State of a path before `start`.

    Args:
        content: None where there was no file.
        folders: parents that did not exist.
    """

    content: bytes | None = None
    mode: int = 0o644
    folders: tuple[str, ...] = ()


@dataclass(frozen=True)
class OwnFile:
    """A file that belongs to the agent while it exists.

    Args:
        name: of the record of the file that it replaces.
        path: on the host.
    """

    name: str
    path: str
    content: bytes
    mode: int = 0o644

    def is_present(self, paths: HostPaths) -> bool:
        """Return whether the file exists with its content and mode."""
        path = paths.at(self.path)
        try:
            return path.read_bytes() == self.content and stat.S_IMODE(path.stat().st_mode) == self.mode
        except (FileNotFoundError, NotADirectoryError):
            return False

    def put(self, paths: HostPaths) -> None:
        path = paths.at(self.path)
        if self.is_present(paths):
            return
        self._before.record(paths, found_file(path))
        make_folders(path.parent)
        sweep(path)
        write_durably(path, self.content, mode=self.mode)

    def revert(self, paths: HostPaths) -> None:
        """Restore the former file; without a record of it, remove a file that is certainly the agent's."""
        path = paths.at(self.path)
        found = self._before.read(paths)
        if found is not None:
            restore_file(path, found)
            self._before.forget(paths)
        elif self.is_present(paths):
            remove_durably(path)

    @property
    def _before(self) -> OriginalState[FoundFile]:
        return OriginalState(self.name, FoundFile)


def found_file(path: Path) -> FoundFile:
    """Return the present state of a path."""
    folders = tuple(str(folder) for folder in missing_folders(path.parent))
    try:
        content: bytes | None = path.read_bytes()
        mode = stat.S_IMODE(path.stat().st_mode)
    except FileNotFoundError:
        content, mode = None, 0o644
    return FoundFile(content=content, mode=mode, folders=folders)


def restore_file(path: Path, found: FoundFile) -> None:
    """Restore the state of a path."""
    if found.content is not None:
        make_folders(path.parent)
        sweep(path)
        write_durably(path, found.content, mode=found.mode)
    elif path.parent.is_dir():
        remove_durably(path)
    remove_empty(tuple(Path(folder) for folder in found.folders))
