"""A release of the agent holds each package that its modules import."""

from __future__ import annotations

import ast
from pathlib import Path

from unbounded.agent import build
from unbounded.agent.build import SHIPPED

SOURCES = Path(build.__file__).parents[1]


def test_modules_of_a_release_import_packages_of_the_release_alone() -> None:
    needed = {name for package in SHIPPED for path in (SOURCES / package).rglob("*.py") for name in _imported(path)}
    assert needed <= {*SHIPPED}


def _imported(path: Path) -> set[str]:
    """Return the packages of unbounded that a module names in its imports, wherever in it."""
    names: list[str] = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names += [one.name for one in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module == "unbounded":
            names += [f"unbounded.{one.name}" for one in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.append(node.module)
    return {name.split(".")[1] for name in names if name.startswith("unbounded.")}
