"""Files that `start` writes to a host, and the files that they replace."""

from __future__ import annotations

import stat
from dataclasses import dataclass
from pathlib import Path

import msgspec

from unbounded.agent.layout import Layout
from unbounded.agent.steps.original_state import OriginalState, make_folders, missing_folders, remove_empty
from unbounded.kube.durable import remove_durably, sweep, write_durably


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

    def is_present(self, layout: Layout) -> bool:
        """Return whether the file exists with its content and mode."""
        path = layout.at(self.path)
        try:
            return path.read_bytes() == self.content and stat.S_IMODE(path.stat().st_mode) == self.mode
        except (FileNotFoundError, NotADirectoryError):
            return False

    def put(self, layout: Layout) -> None:
        path = layout.at(self.path)
        if self.is_present(layout):
            return
        self._before.record(layout, found_file(path))
        make_folders(path.parent)
        sweep(path)
        write_durably(path, self.content, mode=self.mode)

    def revert(self, layout: Layout) -> None:
        """Restore the former file; without a record of it, remove a file that is certainly the agent's."""
        path = layout.at(self.path)
        found = self._before.read(layout)
        if found is not None:
            restore_file(path, found)
            self._before.forget(layout)
        elif self.is_present(layout):
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
