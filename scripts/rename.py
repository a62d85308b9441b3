"""Apply tables of renames: `python -m scripts.rename scripts/renames/NAME.txt…`.

A table has a row a line; `#` begins a comment, words with blanks stand in quotes:

    move old.module new.module              a module or package of packages, tests, scripts or benchmarks
    movetest tests/a/test_x.py tests/b/test_y.py
    name package.module.Old New             a top-level class, function, constant or type alias
    attr package.module.Class.old new       a method, property, field or enum member; `wire` at the end allows a
                                            field of a Struct, whose JSON name changes with it
    word old new GLOB...                    plain text in the files of these globs

Rows may name modules and classes as they are before or after the table. A row whose old name is gone is skipped, so a
table can be applied again. Collisions are refused before anything is written. At the end ruff sorts and formats, mypy
checks, and what is left to do by hand is printed. The exit status is 1 if mypy complains, 2 if a table is refused.
"""

from __future__ import annotations

import argparse
import fnmatch
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from scripts.renaming.attrs import Attributes, AttrRow, run_mypy
from scripts.renaming.moves import Moves
from scripts.renaming.names import Renames
from scripts.renaming.tree import RenameError, Tree, module_of


@dataclass
class Table:
    """The rows of one or more tables, by kind."""

    moves: dict[str, str] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    attrs: list[tuple[str, str, bool]] = field(default_factory=list)
    words: list[tuple[str, str, list[str]]] = field(default_factory=list)

    def add(self, text: str, origin: str) -> None:
        """Add the rows of a table.

        Raises:
            RenameError: a row has no such form.
        """
        for number, line in enumerate(text.splitlines(), 1):
            match shlex.split(line, comments=True):
                case []:
                    continue
                case ["move", old, new]:
                    self.moves[old] = new
                case ["movetest", old, new] if old.endswith(".py") and new.endswith(".py"):
                    self.moves[module_of(old)] = module_of(new)
                case ["name", old, new] if "." in old and "." not in new:
                    self.names[old] = new
                case ["attr", old, new, *wire] if old.count(".") > 1 and "." not in new and wire in ([], ["wire"]):
                    self.attrs.append((old, new, bool(wire)))
                case ["word", old, new, *globs] if globs:
                    self.words.append((old, new, globs))
                case _:
                    raise RenameError(f"{origin}:{number}: no such row: {line.strip()}")

    def present_names(self, modules: Mapping[str, object]) -> dict[str, str]:
        """Return the `name` rows with each module as it is called in the tree now."""
        present: dict[str, str] = {}
        before = {new: old for old, new in self.moves.items()}
        for old, new in self.names.items():
            module, _, name = old.rpartition(".")
            forms = (module, _moved(module, before), _moved(module, self.moves))
            present[f"{next((one for one in forms if one in modules), module)}.{name}"] = new
        return present

    def final_attrs(self) -> list[AttrRow]:
        """Return the `attr` rows with modules and classes as they are called after the table."""
        names = {_moved(old, self.moves): new for old, new in self.names.items()}
        rows = []
        for old, new, wire in self.attrs:
            owner, _, name = old.rpartition(".")
            owner = _moved(owner, self.moves)
            renamed = names.get(owner)
            owner = f"{owner.rpartition('.')[0]}.{renamed}" if renamed else owner
            rows.append(AttrRow(owner, name, new, wire))
        return rows


@dataclass
class Report:
    """What a run did and left to do."""

    skipped: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    mentions: list[str] = field(default_factory=list)
    reports: list[str] = field(default_factory=list)
    checked: bool = False


def apply(root: Path, table: Table, mypy: Sequence[str]) -> tuple[Tree, Report]:
    """Apply a table to a repository.

    Raises:
        RenameError: rows clash with one another or with the tree.
    """
    tree, report = Tree.read(root), Report()
    faults: list[str] = []
    parts: list[Moves | Renames] = []
    for make in (lambda: Moves(tree, table.moves), lambda: Renames(tree, table.present_names(tree.modules()))):
        try:
            parts.append(make())
        except RenameError as error:
            faults.append(str(error))
    if faults:
        raise RenameError("\n".join(faults))
    moves, renames = parts
    assert isinstance(moves, Moves)
    assert isinstance(renames, Renames)
    report.mentions = renames.apply()
    moves.apply()
    done = {_moved(old, table.moves): new for old, new in renames.done.items()}
    if done and moves.modules:  # what a merge brought in imported the names from the old modules
        Renames(tree, done).apply()
    report.notes = moves.notes
    attributes = Attributes(tree, table.final_attrs(), mypy)
    report.reports = attributes.apply()
    report.notes += attributes.notes
    report.checked = attributes.checked and not table.words
    report.skipped = [*moves.skipped, *renames.skipped, *attributes.skipped]
    _words(tree, table.words)
    return tree, report


def _words(tree: Tree, rows: Sequence[tuple[str, str, list[str]]]) -> None:
    for old, new, globs in rows:
        pattern = re.compile(rb"(?<!\w)" + re.escape(old.encode()) + rb"(?!\w)")
        for path, file in tree.files.items():
            if any(fnmatch.fnmatch(path, glob) for glob in globs):
                fresh = pattern.sub(new.encode().replace(b"\\", rb"\\"), file.content)
                file.changed |= fresh != file.content
                file.content = fresh
    tree.write()


def _moved(name: str, moves: Mapping[str, str]) -> str:
    head, tail = name, ""
    while head:
        if head in moves:
            return moves[head] + tail
        head, _, last = head.rpartition(".")
        tail = f".{last}{tail}"
    return name


def _tidy(root: Path, touched: Sequence[str]) -> None:
    """Sort the imports and format the files that changed."""
    ruff = next(
        (one for one in (root / ".venv/bin/ruff", Path(sys.executable).with_name("ruff")) if one.exists()), None
    )
    if ruff is None or not touched:
        return
    subprocess.run([ruff, "check", "--fix", "-q", "--exit-zero", "--output-format", "concise", *touched], cwd=root)
    subprocess.run([ruff, "format", "-q", *touched], cwd=root)


def main(arguments: Sequence[str] | None = None) -> int:
    """Apply the tables that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="+", type=Path)
    parser.add_argument(
        "-v", action="store_true", dest="verbose", help="also list skipped rows and mentions in documents"
    )
    parser.add_argument("--root", type=Path, default=Path.cwd())
    parser.add_argument("--no-mypy", action="store_true", help="leave out the check at the end")
    options = parser.parse_args(arguments)
    mypy = run_mypy(options.root)
    table = Table()
    try:
        for path in options.tables:
            table.add(path.read_text(), str(path))
        tree, report = apply(options.root, table, mypy)
    except RenameError as error:
        print(f"refused:\n{error}")
        return 2
    python = sorted(path for path in tree.touched if path.endswith(".py") and (options.root / path).exists())
    _tidy(options.root, python)
    if tree.touched and not options.no_mypy and not report.checked:
        done = subprocess.run([*mypy, "--no-error-summary"], cwd=options.root, capture_output=True, text=True)
        report.reports = [*done.stdout.splitlines(), *done.stderr.splitlines()]
    _print(report, verbose=options.verbose)
    print(
        f"{len(tree.touched)} files changed, {len(report.skipped)} rows skipped, {len(report.mentions)} mentions left"
    )
    return 1 if report.reports else 0


def _print(report: Report, *, verbose: bool) -> None:
    for line in report.skipped:
        if verbose or not line.endswith(": done"):
            print(f"skipped: {line}")
    for line in report.notes:
        print(f"note: {line}")
    for line in report.mentions if verbose else ():
        print(f"mentioned: {line}")
    for line in report.reports:
        print(line)


if __name__ == "__main__":
    sys.exit(main())
