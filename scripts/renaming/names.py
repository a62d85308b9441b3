"""Renames of top-level classes, functions, constants and type aliases, through all re-exports of them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from io import BytesIO
from tokenize import COMMENT, tokenize

from scripts.renaming.scopes import Names, Scope
from scripts.renaming.tree import ROOTS, Edit, RenameError, SourceFile, Tree, words_in

_DOTTED = re.compile(rb"(?<![\w./-])" + ROOTS.encode() + rb"(?:\.\w+)+(?::\w+)?")
_FROM = re.compile(rb"from ([\w.]+) import (\([^)]*\)|[\w, ]+)")


@dataclass(frozen=True)
class _Binding:
    names: Names
    scope: Scope
    old: str
    new: str


class Renames:
    """The `name` rows of a table, by qualified old name, applied to a tree."""

    def __init__(self, tree: Tree, rows: Mapping[str, str]) -> None:
        self.tree = tree
        self.skipped: list[str] = []
        self.done: dict[str, str] = {}
        self.parsed: dict[str, Names] = {}
        self._parse([*rows])
        modules = {names.file.module: names for names in self.parsed.values()}
        self.new: dict[str, str] = {}  # qualified name, also through re-exports, to the new last segment
        for old, new in rows.items():
            module, _, name = old.rpartition(".")
            there = modules[module].top.names if module in modules else set()
            if name in there:
                self.new[old] = new
            else:
                file = tree.modules().get(module)
                done = file is not None and file.may_use(module, new)
                if done:  # uses of the old name may have come in with a merge
                    self.new[old] = self.done[old] = new
                self.skipped.append(f"name {old}: {'done' if done else f'neither it nor {new} is there'}")
        self._follow()
        self.bindings = [*self._bound()]
        self._check(rows)

    def _parse(self, wanted: Iterable[str]) -> None:
        """Parse the files that may refer to one of the names."""
        pairs = [(module, name) for module, _, name in (one.rpartition(".") for one in wanted)]
        for file in self.tree.python:
            if file.path not in self.parsed and any(file.may_use(*pair) for pair in pairs):
                self.parsed[file.path] = Names(file)

    def _follow(self) -> None:
        """Add the re-exports: modules that import a renamed name under its own name."""
        grew = bool(self.new)
        while grew:
            grew = False
            for names in self.parsed.values():
                for one in names.imported:
                    here = f"{names.file.module}.{one.bound}"
                    if one.scope is names.top and one.bound == one.node.name and one.target in self.new:
                        grew |= here not in self.new
                        self.new.setdefault(here, self.new[one.target])
            if grew:
                self._parse(self.new)

    def _bound(self) -> Iterator[_Binding]:
        """Yield each binding that gets a new name: definitions, and imports in whatever scope."""
        for names in self.parsed.values():
            done: set[tuple[Scope, str]] = set()
            for name in sorted(names.top.names):
                if (new := self.new.get(f"{names.file.module}.{name}")) is not None:
                    done.add((names.top, name))
                    yield _Binding(names, names.top, name, new)
            for one in names.imported:
                if one.target in self.new and one.bound == one.node.name and (one.scope, one.bound) not in done:
                    done.add((one.scope, one.bound))
                    yield _Binding(names, one.scope, one.bound, self.new[one.target])

    def _check(self, rows: Mapping[str, str]) -> None:
        """Refuse new names that clash, all at once.

        Raises:
            RenameError: a new name is bound or means something else where the old one is used.
        """
        faults = []
        freed = {(id(one.scope), one.old) for one in self.bindings}
        taken: dict[tuple[int, str], str] = {}
        for one in self.bindings:
            where, key = f"{one.names.file.path}: {one.old} to {one.new}", (id(one.scope), one.new)
            if key in taken:
                faults.append(f"{where}: {taken[key]} becomes that too")
            taken[key] = one.old
            if one.new in one.scope.names and key not in freed:
                faults.append(f"{where}: that name is there already")
            elif key not in freed and (fault := one.names.captured(one.scope, one.old, one.new)):
                faults.append(f"{where}: {fault}")
        for old, new in rows.items():
            if not new.isidentifier():
                faults.append(f"{old}: {new} is no name")
        if faults:
            raise RenameError("\n".join(faults))

    def apply(self) -> list[str]:
        """Rewrite all files; return the mentions of old names that are left."""
        edits: dict[str, list[Edit]] = {path: [] for path in self.tree.files}
        for one in self.bindings:
            edits[one.names.file.path] += one.names.rename(one.scope, one.old, one.new)
            edits[one.names.file.path] += _prose(one)
        for path, names in self.parsed.items():
            edits[path] += [*self._imports(names), *self._members(names), *self._exports(names), *self._scripts(names)]
        words = words_in({name.rsplit(".", 1)[-1] for name in self.new}) if self.new else None
        for path, file in self.tree.files.items():
            if words is not None and words.search(file.content):
                code = [] if file.module else self._code(file, 0, len(file.content))
                file.apply([*edits[path], *self._dotted(file), *code])
        self.tree.write()
        return [*self._left(words)] if words else []

    def _imports(self, names: Names) -> Iterator[Edit]:
        for one in names.imported:
            if (new := self.new.get(one.target)) is None:
                continue
            start, end = names.span(one.node)
            if one.node.asname in (None, one.node.name, new):
                alias = new if one.node.asname is None or one.node.asname == new else f"{new} as {new}"
                yield Edit(start, end, alias.encode())
            else:
                yield Edit(start, start + len(one.node.name.encode()), new.encode())

    def _members(self, names: Names) -> Iterator[Edit]:
        for member in names.members:
            qualified = names.qualify(member.node, member.scope)
            if (new := self.new.get(qualified)) is None:
                continue
            if member.inside:
                yield from names.inside(member, member.node.attr, new)
            else:
                yield Edit(member.start, member.end, new.encode())

    def _exports(self, names: Names) -> Iterator[Edit]:
        for text in names.exported:
            if (new := self.new.get(f"{names.file.module}.{text.value!s}")) is not None:
                start, end = names.span(text)
                yield Edit(start + 1, end - 1, new.encode())

    def _scripts(self, names: Names) -> Iterator[Edit]:
        for node in names.scripts:
            yield from self._code(names.file, *names.span(node))

    def _code(self, file: SourceFile, start: int, end: int) -> Iterator[Edit]:
        """Yield the edits of source code in a string or document: of the names that it imports."""
        text = file.content[start:end]
        for statement in _FROM.finditer(text):
            for name in re.findall(r"\w+", statement[2].decode()):
                if (new := self.new.get(f"{statement[1].decode()}.{name}")) is not None:
                    for found in re.finditer(rb"(?<![\w.])" + name.encode() + rb"(?!\w)", text):
                        yield Edit(start + found.start(), start + found.end(), new.encode())

    def _dotted(self, file: SourceFile) -> Iterator[Edit]:
        """Yield the edits of qualified names in strings, comments and documents; also `module:name`."""
        for found in _DOTTED.finditer(file.content):
            parts = re.split(rb"[.:]", found[0])
            for count in range(len(parts), 2, -1):
                new = self.new.get(b".".join(parts[:count]).decode())
                if new is not None:
                    start = found.start() + sum(len(part) + 1 for part in parts[: count - 1])
                    yield Edit(start, start + len(parts[count - 1]), new.encode())
                    break

    def _left(self, words: re.Pattern[bytes]) -> Iterator[str]:
        for file in self.tree.files.values():
            if not file.module:
                for number, line in enumerate(file.content.split(b"\n"), 1):
                    for found in words.finditer(line):
                        if is_spelling(found[0].decode()) or line[: found.start()].endswith(b"`"):
                            yield f"{file.path}:{number}: {str(found[0], 'utf-8')}"


def is_spelling(name: str) -> bool:
    """Return whether a name cannot be an everyday word: it has an inner capital or an underscore."""
    inner = name.strip("_")[1:]
    return "_" in inner or (inner != inner.lower() and inner != inner.upper())


def _prose(one: _Binding) -> Iterator[Edit]:
    """Yield the edits of docstrings and comments in a file that binds the name; everyday words only in backquotes."""
    content, old = one.names.file.content, one.old.encode()
    free = rb"(?<![\w.])" if is_spelling(one.old) else rb"(?<=`)"
    pattern = re.compile(free + re.escape(old) + rb"(?!\w)")
    spans = None
    for found in pattern.finditer(content):
        spans = spans or _prose_spans(one.names)
        if any(start <= found.start() < end for start, end in spans):
            yield Edit(*found.span(), one.new.encode())


def _prose_spans(names: Names) -> list[tuple[int, int]]:
    """Return the spans of docstrings and comments; a `#` inside a string is no comment."""
    spans = [names.span(text) for text in names.docstrings]
    for token in tokenize(BytesIO(names.file.content).readline):
        if token.type == COMMENT:
            column = len(token.line[: token.start[1]].encode())
            start = names.at(token.start[0], column)
            spans.append((start, start + len(token.string.encode())))
    return spans
