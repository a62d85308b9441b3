"""Renames of methods, properties and fields: the definitions by their class, the uses by what mypy reports."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from scripts.renaming.scopes import Member, Names, Scope
from scripts.renaming.tree import Edit, RenameError, Tree, words_in

ROUNDS: Final = 12
_STRUCTS: Final = frozenset({"msgspec.Struct", "unbounded.api.base.ApiStruct"})
_REPORT: Final = re.compile(r"^(.+?\.py):(\d+):(\d+):(\d+):(\d+): (error|note): (.*)$")
_NO_ATTRIBUTE: Final = re.compile(r'"([^"]+)"(?: of "[^"]*")? has no attribute "(\w+)"')
_KEYWORD: Final = re.compile(r'Unexpected keyword argument "(\w+)"(?: for "([^"]+)"(?: of "([^"]+)")?)?')
_INCOMPATIBLE: Final = re.compile(r"[Ii]ncompatible|protocol member|protocol bound|Need type annotation")


@dataclass(frozen=True)
class AttrRow:
    """One `attr` row."""

    owner: str  # the class, qualified
    old: str
    new: str
    wire: bool = False


@dataclass(eq=False)
class _Class:
    names: Names
    node: ast.ClassDef
    around: Scope
    body: Scope
    bases: tuple[str, ...]

    @property
    def qualified(self) -> str:
        return f"{self.names.file.module}.{self.node.name}"

    def defines(self, name: str) -> bool:
        return name in self.body.names or any(
            member.node.attr == name and isinstance(member.node.ctx, ast.Store) for member in self.own_members()
        )

    def own_members(self) -> Iterator[Member]:
        """Yield the accesses to attributes of `self`, `cls` and `super()` in this class's methods."""
        inner = [one for one in ast.walk(self.node) if isinstance(one, ast.ClassDef) and one is not self.node]
        hidden = {id(each) for one in inner for each in ast.walk(one)}
        for member in self.names.members:
            value = member.node.value
            mine = isinstance(value, ast.Name) and value.id in ("self", "cls")
            mine |= isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == "super"
            if mine and id(member.node) in self._nodes and id(member.node) not in hidden:
                yield member

    def __post_init__(self) -> None:
        self._nodes = {id(one) for one in ast.walk(self.node)}


class Classes:
    """The classes of the files that mention certain words."""

    def __init__(self, tree: Tree, words: Iterable[str]) -> None:
        self._tree = tree
        self._parsed: dict[str, Names] = {}
        self.classes: list[_Class] = []
        self.include(words)

    def include(self, words: Iterable[str]) -> None:
        """Parse the files that mention one of the words."""
        pattern = words_in(words)
        for file in self._tree.python:
            if file.path not in self._parsed and pattern.search(file.content):
                names = self._parsed[file.path] = Names(file)
                for node, around, body in names.classes:
                    bases = tuple(names.qualify(_plain(base), around) for base in node.bases)
                    self.classes.append(_Class(names, node, around, body, bases))

    def canonical(self, name: str) -> str:
        """Return where a class is defined that a module may only re-export."""
        modules = {names.file.module: names for names in self._parsed.values()}
        for _ in range(10):
            module, _, last = name.rpartition(".")
            target = modules[module].top.imports.get(last) if module in modules else None
            if target is None or target == name:
                break
            name = target
        return name

    def with_subclasses(self, owners: Iterable[str]) -> list[_Class]:
        """Return the classes of these names and all that derive from them."""
        known = set(owners)
        while True:
            self.include({name.rsplit(".", 1)[-1] for name in known} or {"\0"})
            more = {
                one.qualified
                for one in self.classes
                if one.qualified not in known and any(self.canonical(base) in known for base in one.bases)
            }
            if not more:
                return [one for one in self.classes if one.qualified in known]
            known |= more

    def ancestors(self, one: _Class) -> list[_Class]:
        """Return the class and its bases as far as they are in the tree."""
        found, todo = [], [one]
        while todo:
            each = todo.pop()
            found.append(each)
            bases = {self.canonical(base) for base in each.bases}
            self.include({base.rsplit(".", 1)[-1] for base in bases if base} or {"\0"})
            todo += [other for other in self.classes if other.qualified in bases and other not in found]
        return found

    def roots(self, one: _Class) -> set[str]:
        """Return the qualified names of all bases."""
        return {self.canonical(base) for each in self.ancestors(one) for base in each.bases}


@dataclass
class Attributes:
    """The `attr` rows of a table, applied to a tree."""

    tree: Tree
    rows: Sequence[AttrRow]
    mypy: Sequence[str]
    skipped: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    checked: bool = False  # mypy has seen the tree as it is now
    _owners: dict[str, set[tuple[str, str]]] = field(default_factory=lambda: defaultdict(set))  # (old, new) by class

    def apply(self) -> list[str]:
        """Rename the definitions, then the uses; return what mypy still says.

        Raises:
            RenameError: a new name is there already, or a field goes on the wire.
        """
        self._define(self.rows, refuse=True)
        if not self._owners:
            return []
        reports: list[str] = []
        self.checked = True
        for _ in range(ROUNDS):
            reports = self._check()
            if not self._follow(reports):
                break
        self._unchecked()
        return [report for report in reports if report.strip()]

    # definitions

    def _define(self, rows: Iterable[AttrRow], *, refuse: bool) -> bool:
        """Rename attributes in the bodies of their classes and of all that derive from them."""
        rows = list(rows)
        if not rows:
            return False
        classes = Classes(self.tree, {row.owner.rsplit(".", 1)[-1] for row in rows})
        faults: list[str] = []
        edits: dict[str, list[Edit]] = defaultdict(list)
        for row in rows:
            family = classes.with_subclasses([classes.canonical(row.owner)])
            first = [one for one in family if one.qualified == classes.canonical(row.owner)]
            if not first or not first[0].defines(row.old):
                done = bool(first) and first[0].defines(row.new)
                if done:  # uses of the old name may have come in with a merge
                    self._owners[first[0].node.name].add((row.old, row.new))
                self.skipped.append(f"attr {row.owner}.{row.old}: {'done' if done else f'neither it nor {row.new}'}")
                continue
            faults += [
                f"{one.qualified}.{row.old}: {row.new} is there already" for one in family if one.defines(row.new)
            ]
            if _is_field(first[0], row.old) and classes.roots(first[0]) & _STRUCTS and not row.wire:
                faults.append(f"{row.owner}.{row.old} goes on the wire: its row has to end with `wire`")
            for one in family:
                self._owners[one.node.name].add((row.old, row.new))
                edits[one.names.file.path] += _definition(one, row.old, row.new)
        if faults and refuse:
            raise RenameError("\n".join(faults))
        changed = [self.tree.files[path].apply(each) for path, each in edits.items() if not faults]
        self.tree.write()
        return any(changed)

    # uses

    def _check(self) -> list[str]:
        command = [*self.mypy, "--show-column-numbers", "--show-error-end", "--no-pretty", "--no-error-summary"]
        done = subprocess.run([*command, "--hide-error-context"], cwd=self.tree.root, capture_output=True, text=True)
        return [*done.stdout.splitlines(), *done.stderr.splitlines()]

    def _follow(self, reports: Iterable[str]) -> bool:
        """Rename what mypy reports; return whether anything changed."""
        edits: dict[str, set[Edit]] = defaultdict(set)
        derived: set[AttrRow] = set()
        parsed: dict[str, Names] = {}
        for report in reports:
            if (found := _REPORT.match(report)) is None or found[1] not in self.tree.files:
                continue
            names = parsed.setdefault(found[1], Names(self.tree.files[found[1]]))
            where = (int(found[2]), int(found[3]) - 1, int(found[4]), int(found[5]))
            message = found[7]
            if missing := _NO_ATTRIBUTE.search(message):
                if new := self._new(missing[2], missing[1]):
                    edits[found[1]] |= set(_member_edits(names, where, missing[2], new))
            elif keyword := _KEYWORD.search(message):
                if new := self._new(keyword[1], keyword[3] or keyword[2] or ""):
                    edits[found[1]] |= set(_keyword_edits(names, where, keyword[1], new))
            elif _INCOMPATIBLE.search(message):
                derived |= set(self._derive(names, message))
        changed = [self.tree.files[path].apply(each) for path, each in edits.items()]
        self.tree.write()
        return self._define(derived, refuse=False) or any(changed)

    def _new(self, old: str, shown: str) -> str:
        """Return the new name of an attribute of a type as mypy shows it; empty if no row says."""
        words = set(re.findall(r"\w+", shown))
        named = {new for name in words & self._owners.keys() for one, new in self._owners[name] if one == old}
        every = named or {new for pairs in self._owners.values() for one, new in pairs if one == old}
        return next(iter(every)) if len(every) == 1 else ""

    def _derive(self, names: Names, message: str) -> Iterator[AttrRow]:
        """Yield rows for classes that stand in for a protocol whose members were renamed."""
        shown = [word for text in re.findall(r'"([^"]*)"', message) for word in re.findall(r"\w+", text)]
        pairs = {pair for word in shown for pair in self._owners.get(word, ())}
        others = {word for word in shown if word[:1].isupper() or word.startswith("_")}
        if not pairs or not others:
            return
        classes = Classes(self.tree, others)
        for word in others:
            same = [one for one in classes.classes if one.node.name == word]
            near = [one for one in same if one.names is names or one.names.file.path == names.file.path]
            target = names.top.imports.get(word)
            near = near or [one for one in same if one.qualified == classes.canonical(target or "")] or same
            for each in [base for one in near[:1] for base in classes.ancestors(one)]:
                for old, new in pairs:
                    if each.defines(old) and not each.defines(new):
                        yield AttrRow(each.qualified, old, new, wire=True)

    def _unchecked(self) -> None:
        """Note the uses that mypy cannot see: names in strings, and fields given to msgspec's `replace`."""
        olds = {old for pairs in self._owners.values() for old, _ in pairs}
        words = words_in(olds).pattern
        by_string = re.compile(rb"(?:getattr|setattr|hasattr|attrgetter|methodcaller)\(.*[\"'](" + words + rb")[\"']")
        by_keyword = re.compile(rb"(?:replace|SimpleNamespace|dict)\(.*?\b(" + words + rb")=")
        for file in self.tree.python:
            for number, line in enumerate(file.content.split(b"\n"), 1):
                if (found := by_string.search(line) or by_keyword.search(line)) is not None:
                    self.notes.append(f"{file.path}:{number}: may mean {found[1].decode()}, which mypy cannot see")


def run_mypy(root: Path) -> list[str]:
    """Return the command of the repository's mypy."""
    beside = root / ".venv/bin/python"
    return [str(beside) if beside.exists() else sys.executable, "-m", "mypy"]


def _plain(base: ast.expr) -> ast.expr:
    return base.value if isinstance(base, ast.Subscript) else base


def _is_field(one: _Class, name: str) -> bool:
    return any(
        isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name) and each.target.id == name
        for each in one.node.body
    )


def _definition(one: _Class, old: str, new: str) -> Iterator[Edit]:
    """Yield the edits in the body of a class: the definition, accesses through `self`, slots and its docstring."""
    names = one.names
    yield from names.rename(one.body, old, new)
    for member in one.own_members():
        if member.node.attr == old:
            yield from (
                names.inside(member, old, new) if member.inside else [Edit(member.start, member.end, new.encode())]
            )
    for statement in one.node.body:
        if isinstance(statement, ast.Assign) and getattr(statement.targets[0], "id", "") in (
            "__slots__",
            "__match_args__",
        ):
            for text in ast.walk(statement.value):
                if isinstance(text, ast.Constant) and text.value == old:
                    start, end = names.span(text)
                    yield Edit(start + 1, end - 1, new.encode())
    start, end = names.span(one.node)
    for text in names.docstrings:
        first, last = names.span(text)
        if start <= first and last <= end:
            for found in re.finditer(rb"(?<=`)" + old.encode() + rb"(?!\w)", names.file.content[first:last]):
                yield Edit(first + found.start(), first + found.end(), new.encode())


_Where = tuple[int, int, int, int]  # line, column from 0, last line, last column


def _member_edits(names: Names, where: _Where, old: str, new: str) -> list[Edit]:
    """Return the edits of the attribute at a position that mypy names."""
    line, column, last, end = where
    members = [one for one in names.members if one.node.attr == old and not one.inside]
    exact = [one for one in members if (one.node.lineno, one.node.col_offset) == (line, column)]
    exact = [one for one in exact if (one.node.end_lineno, one.node.end_col_offset) == (last, end)] or exact
    near = exact or [one for one in members if line <= names.line(one.start) <= last]
    if exact or len(near) == 1:
        return [Edit(one.start, one.end, new.encode()) for one in near]
    if near:  # several of one line: mypy comes back for the others
        return [Edit(near[0].start, near[0].end, new.encode())]
    for member in names.members:
        if member.inside and member.node.attr == old and member.start <= names.at(line, column) <= member.end:
            return names.inside(member, old, new)
    spans = [(one.start, one.end) for one in names.members if one.inside and one.node.attr == old]
    for start, end_at in spans:
        if names.line(start) <= line <= names.line(end_at):
            member = next(one for one in names.members if one.start == start and one.inside and one.node.attr == old)
            return names.inside(member, old, new)
    return _keyword_edits(names, where, old, new)


def _keyword_edits(names: Names, where: _Where, old: str, new: str) -> list[Edit]:
    """Return the edit of the keyword in the innermost call or class pattern around a position."""
    position = names.at(where[0], where[1])
    found: list[tuple[int, Edit]] = []
    for node in ast.walk(names.tree):
        if isinstance(node, ast.Call):
            spans = [names.span(one) for one in node.keywords if one.arg == old]
        elif isinstance(node, ast.MatchClass) and old in node.kwd_attrs:
            pattern = node.kwd_patterns[node.kwd_attrs.index(old)]
            before = names.file.content.rfind(old.encode(), 0, names.span(pattern)[0])
            spans = [(before, before + len(old))]
        else:
            continue
        start, end = names.span(node)
        if spans and start <= position < end:
            at = spans[0][0]
            found.append((end - start, Edit(at, at + len(old.encode()), new.encode())))
    return [min(found)[1]] if found else []
