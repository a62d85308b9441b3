"""Refuse names and docstrings that make code hard to find and read: `python -m scripts.language`.

- Two public top-level classes of the same name: a search for one finds the other. Names of roles, which every
  component has, are free (`ROLES`).
- A docstring that begins with a question word. It starts with a verb in the imperative or with a noun phrase.
- A docstring that says `Raises` of a class that does not exist.

`PENDING` lists the shared names that are still to be changed. It can only shrink: the check also rejects a listed name
that classes no longer share.
"""

from __future__ import annotations

import ast
import builtins
import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from scripts import packages

ROLES: Final = frozenset({"Settings", "Controller"})
PENDING: Final = frozenset[str]()
QUESTION: Final = re.compile(r"(What|Whether|Who|Whose|Whom|How|Where|Why|Which)\b")

_CLASS: Final = r"[A-Z]\w*[a-z]\w*"
_CLASSES: Final = rf"{_CLASS}(?:(?:, (?:and |or )?| and | or ){_CLASS})*"
RAISES: Final = re.compile(rf"\b[Rr]aises ({_CLASSES})(?!\w|\.\w)")  # in a sentence
RAISED: Final = re.compile(rf"({_CLASSES})(?::.*)?")  # a line of a section
SECTION: Final = re.compile(r"^( *)Raises:\n((?:\1 +\S.*(?:\n|$))+)", re.MULTILINE)

Trees = Mapping[str, ast.Module]


def trees(*roots: Path) -> dict[str, ast.Module]:
    """Parse every module below some folders, by its path relative to its folder."""
    paths = ((root, path) for root in roots for path in sorted(root.rglob("*.py")))
    return {str(path.relative_to(root)): ast.parse(path.read_text()) for root, path in paths}


def question_docstrings(modules: Trees) -> Iterator[str]:
    """Find docstrings that begin with a question word."""
    for place, text in docstrings(modules):
        first = text.partition("\n")[0]
        if QUESTION.match(first):
            yield f"{place}: the docstring begins with a question word: {first}"


def docstrings(modules: Trees) -> Iterator[tuple[str, str]]:
    """Yield the docstrings of modules, classes and functions, each with its place."""
    for path, tree in modules.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                yield f"{path}:{getattr(node, 'lineno', 1)}", ast.get_docstring(node) or ""


def unknown_errors(modules: Trees) -> Iterator[str]:
    """Find docstrings that say `Raises` of a class that no module has or imports."""
    known = {*dir(builtins), *(name for tree in modules.values() for name in _names_in(tree))}
    for place, text in docstrings(modules):
        for name in raised_in(text):
            if name not in known:
                yield f"{place}: the docstring says that it raises {name}, which does not exist"


def raised_in(text: str) -> list[str]:
    """Return the names of the classes of which a docstring says `Raises`; not those with the name of their module."""
    found = list(RAISES.finditer(text))
    for section in SECTION.finditer(text):
        lines = section[2].splitlines()
        margin = len(lines[0]) - len(lines[0].lstrip())
        found += [match for line in lines if (match := RAISED.fullmatch(line, margin)) is not None]
    return [name for match in found for name in re.findall(_CLASS, match[1])]


def _names_in(tree: ast.Module) -> Iterator[str]:
    """Yield the names of classes and imports of a module, and those that it assigns."""
    for node in ast.walk(tree):
        match node:
            case ast.ClassDef(name=name) | ast.Name(id=name, ctx=ast.Store()):
                yield name
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                yield from (one.asname or one.name for one in names)


def shared_names(modules: Trees) -> dict[str, list[str]]:
    """Return the names that several public top-level classes have, with the places of these classes."""
    places = defaultdict(list)
    for path, tree in modules.items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(f"{path}:{node.lineno}")
    return {name: there for name, there in places.items() if len(there) > 1 and name not in ROLES}


def shared_classes(modules: Trees, pending: frozenset[str]) -> Iterator[str]:
    """Find classes that share a name without being listed, and listed names that no classes share any more."""
    shared = shared_names(modules)
    for name in sorted(shared.keys() - pending):
        yield f"{len(shared[name])} public classes are called {name}: {', '.join(shared[name])}"
    for name in sorted(pending - shared.keys()):
        yield f"scripts/language.py: no two classes are called {name} any more; remove it from PENDING"


def faults(modules: Trees, pending: frozenset[str] = PENDING) -> Sequence[str]:
    """Return one line for each fault."""
    return [*question_docstrings(modules), *unknown_errors(modules), *shared_classes(modules, pending)]


def main() -> int:
    found = faults(trees(*map(packages.sources, packages.PACKAGES)))
    for fault in found:
        print(fault, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main())
