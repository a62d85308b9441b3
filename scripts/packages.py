"""The packages of the workspace: their folders and dependencies."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[1]
PRODUCT: Final = "unbounded"
API_SERVER: Final = "unbounded-apiserver"
LAB: Final = "unbounded-lab"
PACKAGES: Final = (PRODUCT, API_SERVER, LAB)


def folder(package: str = PRODUCT) -> Path:
    """Return the folder of a package."""
    return ROOT / "packages" / package


def sources(package: str = PRODUCT) -> Path:
    """Return the folder of a package that is on the import path."""
    return folder(package) / "src"


def module_name(package: str) -> str:
    """Return the name of the package's top-level module."""
    return package.replace("-", "_")


def project(package: str = PRODUCT) -> dict[str, Any]:
    """Return the table `project` of the package's pyproject.toml."""
    return dict(tomllib.loads((folder(package) / "pyproject.toml").read_text())["project"])


def version() -> str:
    """Return the version, which all packages share."""
    return str(project()["version"])


def requirements(*extras: str) -> set[str]:
    """Return the names of the packages of others that `unbounded` with these extras depends on."""
    return set(_requirements(PRODUCT, extras))


def _requirements(package: str, extras: tuple[str, ...] = ()) -> Iterator[str]:
    of = project(package)
    for one in (*of["dependencies"], *(line for extra in extras for line in of["optional-dependencies"][extra])):
        name = re.split(r"[=<>~!\[ ]", one)[0].lower().replace("_", "-")
        if name not in PACKAGES:
            yield name
        elif name != PRODUCT:
            yield from _requirements(name)
