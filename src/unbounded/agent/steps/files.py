"""Files that `start` puts onto a host, and what stood in their place."""

from __future__ import annotations

import stat
from dataclasses import dataclass
from pathlib import Path

import msgspec

from unbounded.agent.layout import Layout
from unbounded.agent.steps.before import Before, make_folders, missing_folders, remove_empty
from unbounded.kube.durable import remove_durably, sweep, write_durably


class FoundFile(msgspec.Struct, frozen=True, kw_only=True):
    """What stood in a place.

    Args:
        content: None where there was no file.
        folders: above it, that there were not.
    """

    content: bytes | None = None
    mode: int = 0o644
    folders: tuple[str, ...] = ()


@dataclass(frozen=True)
class OwnFile:
    """A file that is the agent's while it is there.

    Args:
        name: under which is kept what it replaced.
        path: on the host.
    """

    name: str
    path: str
    content: bytes
    mode: int = 0o644

    def stands(self, layout: Layout) -> bool:
        """It is there as it should be."""
        path = layout.at(self.path)
        try:
            return path.read_bytes() == self.content and stat.S_IMODE(path.stat().st_mode) == self.mode
        except (FileNotFoundError, NotADirectoryError):
            return False

    def put(self, layout: Layout) -> None:
        path = layout.at(self.path)
        if self.stands(layout):
            return
        self._before.keep(layout, found_file(path))
        make_folders(path.parent)
        sweep(path)
        write_durably(path, self.content, mode=self.mode)

    def take_back(self, layout: Layout) -> None:
        """Put back what stood there; where that is not known, take away what is surely ours."""
        path = layout.at(self.path)
        found = self._before.read(layout)
        if found is not None:
            put_back(path, found)
            self._before.forget(layout)
        elif self.stands(layout):
            remove_durably(path)

    @property
    def _before(self) -> Before[FoundFile]:
        return Before(self.name, FoundFile)


def found_file(path: Path) -> FoundFile:
    """What stands in a place now."""
    folders = tuple(str(folder) for folder in missing_folders(path.parent))
    try:
        content: bytes | None = path.read_bytes()
        mode = stat.S_IMODE(path.stat().st_mode)
    except FileNotFoundError:
        content, mode = None, 0o644
    return FoundFile(content=content, mode=mode, folders=folders)


def put_back(path: Path, found: FoundFile) -> None:
    """Make a place what it was."""
    if found.content is not None:
        make_folders(path.parent)
        sweep(path)
        write_durably(path, found.content, mode=found.mode)
    elif path.parent.is_dir():
        remove_durably(path)
    remove_empty(tuple(Path(folder) for folder in found.folders))
