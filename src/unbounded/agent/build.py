"""Which release of the agent this is, and where it lies."""

from __future__ import annotations

import json
import pkgutil
import sys
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Final

STAMP: Final = "build.json"  # written by scripts/agent_release.py

SHIPPED: Final = ("agent", "api", "fetch", "join", "kube", "operations")  # what the agent may import of unbounded


@dataclass(frozen=True)
class Build:
    """Args:
    build: of which sources; empty where they themselves run.
    """

    version: str
    build: str = ""


def this_build() -> Build:
    """What runs here."""
    inside = getattr(sys, "_MEIPASS", "")  # where PyInstaller's part of a release is
    if inside:
        told = json.loads((Path(inside) / STAMP).read_text())
        return Build(str(told["version"]), str(told["build"]))
    from importlib.metadata import version  # noqa: PLC0415  # slow, and not needed in a release

    return Build(version("unbounded"))


def this_release() -> Path | None:
    """The folder of the release that runs, with the executable `unbounded-agent` in it; None for sources."""
    return Path(sys.executable).resolve().parent if getattr(sys, "frozen", False) else None


def load_everything() -> list[str]:
    """Import every module of the release, with all that they import at their top; their names, sorted.

    Who takes the release's files away, or checks that it is whole, calls this first.
    """
    names = ["unbounded"]
    for package in SHIPPED:
        path = str(Path(__file__).parents[1] / package)
        names += [f"unbounded.{package}", *(one.name for one in pkgutil.walk_packages([path], f"unbounded.{package}."))]
    for name in names:
        import_module(name)
    return sorted(names)
