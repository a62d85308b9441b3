"""Moves of modules and packages: their files, the imports of them, and whatever names them dotted or as a path."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath

from scripts.renaming.scopes import ImportedName, Names
from scripts.renaming.tree import ROOTS, SOURCES, Edit, RenameError, SourceFile, Tree, git, words_in

_DOTTED = re.compile(rb"(?<![\w./-])" + ROOTS.encode() + rb"(?:\.\w+)+")
_PATH = re.compile(rb"(?<![\w./-])[\w.-]+(?:/[\w.-]+)+")


class Moves:
    """The moves of a table, applied to a tree."""

    def __init__(self, tree: Tree, rows: Mapping[str, str]) -> None:
        self.tree = tree
        self.notes: list[str] = []
        self.skipped: list[str] = []
        modules = tree.modules()
        self.modules: dict[str, str] = {}
        for old, new in rows.items():
            if old in modules or new in modules:  # imports of the old one may have come in with a merge
                self.modules[old] = new
            if old in modules:
                continue
            state = "done" if new in modules else f"neither it nor {new} is there"
            self.skipped.append(f"move {old}: {state}")
        self.files = self._files(modules)
        self._check()

    def _files(self, modules: Mapping[str, SourceFile]) -> dict[str, str]:
        """Return the old and new paths of all files that move, also those of a package that are not Python."""
        moved: dict[str, str] = {}
        for old, new in sorted(self.modules.items(), key=lambda row: len(row[0])):
            if old not in modules:
                continue
            file = modules[old]
            root = next(root for root in SOURCES if not root or file.path.startswith(root + "/"))
            base = f"{root}/" * bool(root)
            if not file.is_package:
                moved[file.path] = f"{base}{new.replace('.', '/')}.py"
                continue
            before, after = f"{base}{old.replace('.', '/')}/", f"{base}{new.replace('.', '/')}/"
            moved |= {path: after + path[len(before) :] for path in self.tree.files if path.startswith(before)}
        return moved

    def _check(self) -> None:
        faults = [f"move: {old} and another one become {new}" for old, new in _doubles(self.files)]
        for old, new in self.files.items():
            beside = new.removesuffix(".py") + "/__init__.py"
            faults += [
                f"move: {old} to {new}: {there} is there already"
                for there in ((new, beside) if new.endswith(".py") else (new,))
                if there in self.tree.files and there not in self.files
            ]
        if faults:
            raise RenameError("\n".join(faults))

    def apply(self) -> None:
        """Rewrite all mentions, then move the files."""
        if not self.modules:
            return
        segments = words_in({name.rsplit(".", 1)[-1] for name in self.modules})
        for file in self.tree.files.values():
            if segments.search(file.content) or (file.path in self.files and b"import" in file.content):
                edits = [*self._mentions(file)]
                if file.module and self._concerns(file):
                    edits += self._imports(file)
                file.apply(edits)
        self.tree.write()
        self._move()

    def target(self, dotted: str) -> str:
        """Return where a dotted name is after the moves."""
        head, tail = dotted, ""
        while head:
            if head in self.modules:
                return self.modules[head] + tail
            head, _, last = head.rpartition(".")
            tail = f".{last}{tail}"
        return dotted

    # mentions

    def _mentions(self, file: SourceFile) -> Iterator[Edit]:
        """Yield the edits of dotted names and of paths, wherever in a file they stand."""
        for found in _DOTTED.finditer(file.content):
            dotted = found[0].decode()
            if (fresh := self.target(dotted)) != dotted:
                yield Edit(*found.span(), fresh.encode())
        for found in _PATH.finditer(file.content):
            if fresh := self._path(found[0].decode()):
                yield Edit(*found.span(), fresh.encode())

    def _path(self, path: str) -> str:
        """Return the new form of a mentioned path; empty if it does not move."""
        roots = [f"{root}/" for root in SOURCES if root]
        for root in ("", *roots, *(f"{root}unbounded/" for root in roots)):
            if (fresh := self.files.get(root + path)) is not None:
                return fresh.removeprefix(root)
        for old, new in self.modules.items():
            for base in (*roots, ""):
                before = base + old.replace(".", "/")
                if "/" in before and (path == before or path.startswith(before + "/")):
                    return base + new.replace(".", "/") + path[len(before) :]
        return ""

    # imports

    def _concerns(self, file: SourceFile) -> bool:
        """Return whether a file may import a moved module through its package, or relatively."""
        relative = re.search(rb"^\s*from \.", file.content, re.MULTILINE) is not None
        return relative or any(file.may_use(*name.rpartition(".")[::2]) for name in self.modules)

    def _imports(self, file: SourceFile) -> Iterator[Edit]:
        names = Names(file)
        here = self.target(file.module)
        statements: dict[ast.ImportFrom, list[ImportedName]] = defaultdict(list)
        for one in names.imported:
            statements[one.statement].append(one)
        for statement, imported in statements.items():
            yield from self._statement(names, here, statement, imported)
        for member in names.members:
            qualified = names.qualify(member.node, member.scope)
            fresh = self.modules.get(qualified, "")
            if fresh and not member.inside and not _spelled_out(member.node, qualified):
                if fresh.rpartition(".")[0] != self.target(qualified.rpartition(".")[0]):
                    self.notes.append(f"{file.path}:{member.node.lineno}: {qualified} is used through its old package")
                yield Edit(member.start, member.end, fresh.rpartition(".")[2].encode())

    def _statement(
        self, names: Names, here: str, statement: ast.ImportFrom, imported: list[ImportedName]
    ) -> Iterator[Edit]:
        """Yield the edits of one `from … import …`: a new statement if a module that it names moves."""
        source = imported[0].source
        new_source = self.target(source)
        changed = bool(statement.level) and (here != names.file.module or new_source != source)
        lines: dict[str, list[str]] = {new_source: []}
        for one in imported:
            target = self.target(one.target)
            parent, _, name = target.rpartition(".")
            asname = one.node.asname
            if target != f"{new_source}.{one.node.name}":
                changed = True
                if asname is None and name != one.node.name:
                    fault = names.captured(one.scope, one.node.name, name)
                    fault = fault or (f"{name} is there already" if name in one.scope.names else "")
                    if fault:
                        self.notes.append(f"{names.file.path}: {target} is imported as {one.node.name}: {fault}")
                        asname = one.node.name
                    else:
                        yield from names.rename(one.scope, one.node.name, name)
                        one.scope.names.add(name)
            asname = None if asname == name else asname
            lines.setdefault(parent, []).append(f"{name} as {asname}" if asname else name)
        if changed:
            indent = "\n" + " " * statement.col_offset
            text = indent.join(f"from {parent} import {', '.join(each)}" for parent, each in lines.items() if each)
            if len(text) > 110 and "#" not in text:  # ruff's formatter wraps it
                text = indent.join(
                    f"from {parent} import ({', '.join(each)})" for parent, each in lines.items() if each
                )
            start, end = names.span(statement)
            if b"#" in names.file.content[start:end]:
                self.notes.append(f"{names.file.path}:{statement.lineno}: the comments of this import are gone")
            yield Edit(start, end, text.encode())

    # files

    def _move(self) -> None:
        root = self.tree.root
        for old, new in self.files.items():
            (root / new).parent.mkdir(parents=True, exist_ok=True)
            self._packages(PurePosixPath(new).parent)
            if git(root, "ls-files", "--", old):
                git(root, "mv", old, new)
            else:
                (root / old).rename(root / new)
            file = self.tree.files.pop(old)
            self.tree.files[new] = SourceFile(new, file.content)
            self.tree.touched.discard(old)
            self.tree.touched.add(new)
        for folder in sorted({PurePosixPath(old).parent for old in self.files}, reverse=True):
            self._remove_empty(folder)

    def _packages(self, folder: PurePosixPath) -> None:
        """Create the `__init__.py` of a module's folders."""
        while str(folder) not in (*SOURCES, ".", "src"):
            path = f"{folder}/__init__.py"
            if path not in self.tree.files and path not in self.files.values():
                (self.tree.root / path).touch()
                self.tree.files[path] = SourceFile(path, b"")
                self.tree.touched.add(path)
            folder = folder.parent

    def _remove_empty(self, folder: PurePosixPath) -> None:
        """Remove a package that has nothing left but an `__init__.py` without code."""
        left = [path for path in self.tree.files if path.startswith(f"{folder}/")]
        if left == [f"{folder}/__init__.py"]:
            body = ast.parse(self.tree.files[left[0]].content).body
            if all(isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant) for one in body):
                Path(self.tree.root / left[0]).unlink()
                del self.tree.files[left[0]]
                left = []
        if not left:
            self.notes.append(f"{folder} is empty and was removed")
            self._sweep(self.tree.root / folder)
            if len(folder.parts) > 1:
                self._remove_empty(folder.parent)

    def _sweep(self, folder: Path) -> None:
        for cached in folder.glob("__pycache__/*"):
            cached.unlink()
        for one in (folder / "__pycache__", folder):
            if one.is_dir() and not any(one.iterdir()):
                one.rmdir()


def _doubles(files: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    seen: set[str] = set()
    for old, new in files.items():
        if new in seen:
            yield old, new
        seen.add(new)


def _spelled_out(node: ast.expr, qualified: str) -> bool:
    """Return whether an expression is the qualified name itself, which counts as a mention."""
    return ast.unparse(node) == qualified
