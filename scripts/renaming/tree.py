"""The repository's text files, their module names, and edits at byte positions."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Final

from scripts import packages

_PACKAGES: Final = tuple(str(folder.relative_to(packages.ROOT)) for folder in map(packages.folder, packages.PACKAGES))
SOURCES: Final = (  # roots of modules, the longest match first
    *(f"{folder}/src" for folder in _PACKAGES),
    *_PACKAGES,
    "src",
    "examples/provider-plugin/src",
    "",
)
ROOTS: Final = r"(?:unbounded(?:_apiserver|_lab)?|tests|scripts|benchmarks)"
_IMPORTS: Final = re.compile(r"(?:from[ \t]+([\w.]+)[ \t]+import|import[ \t]+([\w.]+))")
_LEFT_ALONE: Final = (
    "scripts/renames/",
    "scripts/renaming/",
    "scripts/rename.py",
    "requirements.lock",
    "tests/renaming/",
)


class RenameError(Exception):
    """A table cannot be applied; nothing of the phase was written."""


@dataclass(frozen=True, order=True)
class Edit:
    """Replace the bytes `start:end` of a file."""

    start: int
    end: int
    text: bytes


@dataclass
class SourceFile:
    """One text file; `content` is replaced by `apply` and written by `Tree.write`."""

    path: str
    content: bytes
    changed: bool = False
    _parts: tuple[bytes | None, frozenset[str], frozenset[str]] = (None, frozenset(), frozenset())

    @cached_property
    def module(self) -> str:
        """The dotted module name; empty for files that are not Python."""
        if not self.path.endswith(".py"):
            return ""
        root = next(root for root in SOURCES if not root or self.path.startswith(root + "/"))
        return module_of(self.path[len(root) + 1 if root else 0 :])

    def may_use(self, module: str, name: str) -> bool:
        """Return whether the file may refer to a name of a module, by its words and imports as they are now."""
        words, imported = self._seen()
        if name not in words:
            return False
        package, _, last = module.rpartition(".")
        relative = "." in imported and last in words
        return self.module == module or module in imported or (package in imported and last in words) or relative

    def _seen(self) -> tuple[frozenset[str], frozenset[str]]:
        if self._parts[0] is not self.content:
            text = self.content.decode(errors="replace")
            imported = {dotted or plain for dotted, plain in _IMPORTS.findall(text)}
            imported |= {"." for module in imported if module.startswith(".")}
            self._parts = (self.content, frozenset(re.findall(r"\w+", text)), frozenset(imported))
        return self._parts[1:]

    @property
    def is_package(self) -> bool:
        return self.path.endswith("/__init__.py")

    def apply(self, edits: Iterable[Edit]) -> bool:
        """Apply edits; of those that overlap, the longer one counts. Return whether the content changed."""
        chosen: list[Edit] = []
        for edit in sorted(set(edits), key=lambda edit: (edit.start, -edit.end)):
            if not chosen or edit.start >= chosen[-1].end:
                chosen.append(edit)
        parts, at = [], 0
        for edit in chosen:
            parts += [self.content[at : edit.start], edit.text]
            at = edit.end
        fresh = b"".join([*parts, self.content[at:]])
        changed = fresh != self.content
        self.content = fresh
        self.changed |= changed
        return changed


@dataclass
class Tree:
    """All text files of a repository that git knows or would add."""

    root: Path
    files: dict[str, SourceFile] = field(default_factory=dict)
    touched: set[str] = field(default_factory=set)

    @classmethod
    def read(cls, root: Path) -> Tree:
        """Read the files of a repository."""
        tree = cls(root)
        listed = git(root, "ls-files", "-co", "--exclude-standard", "-z")
        for path in sorted(set(listed.split("\0"))):
            if not path or path.startswith(_LEFT_ALONE) or not (root / path).is_file() or (root / path).is_symlink():
                continue
            content = (root / path).read_bytes()
            if b"\0" not in content[:4096]:
                tree.files[path] = SourceFile(path, content)
        return tree

    @property
    def python(self) -> list[SourceFile]:
        return [file for file in self.files.values() if file.module]

    def modules(self) -> dict[str, SourceFile]:
        """Modules by their dotted name."""
        return {file.module: file for file in self.python}

    def write(self) -> None:
        """Write the files that changed."""
        for file in self.files.values():
            if file.changed:
                (self.root / file.path).write_bytes(file.content)
                self.touched.add(file.path)
                file.changed = False


def module_of(path: str) -> str:
    """Return the module of a path below its root."""
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def words_in(names: Iterable[str]) -> re.Pattern[bytes]:
    """Return a pattern that finds any of the names as a whole word."""
    return re.compile(rb"(?<!\w)(?:" + b"|".join(re.escape(name.encode()) for name in sorted(names)) + rb")(?!\w)")


def git(root: Path, *arguments: str) -> str:
    """Run git in the repository and return its output."""
    return subprocess.run(["git", *arguments], cwd=root, check=True, capture_output=True, text=True).stdout
