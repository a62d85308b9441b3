"""Version and folder of the agent's release that runs."""

from __future__ import annotations

import json
import pkgutil
import sys
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Final

STAMP: Final = "build.json"  # written by scripts/agent_release.py

# the packages of unbounded that the agent may import
SHIPPED: Final = ("agent", "api", "fetch", "join", "kube", "operations", "workflow")
# their modules that no release has: they need an extra
NOT_SHIPPED: Final = frozenset({"unbounded.kube.otel"})


@dataclass(frozen=True)
class AgentBuild:
    """Version of the running agent.

    Args:
        build: revision of the sources of a release; empty where the sources themselves run.
    """

    version: str
    build: str = ""


def this_build() -> AgentBuild:
    """Return version and build of this process."""
    inside = getattr(sys, "_MEIPASS", "")  # PyInstaller sets it to the folder of a release's files
    if inside:
        stamp = json.loads((Path(inside) / STAMP).read_text())
        return AgentBuild(str(stamp["version"]), str(stamp["build"]))
    from importlib.metadata import version  # noqa: PLC0415  # slow, and not needed in a release

    return AgentBuild(version("unbounded"))


def this_release() -> Path | None:
    """Return the folder of the running release, which holds the executable `unbounded-agent`; None for sources."""
    return Path(sys.executable).resolve().parent if getattr(sys, "frozen", False) else None


def load_everything() -> list[str]:
    """Import every module of the release with its top-level imports; return their names, sorted.

    Code that removes the release's files, or checks that a release is complete, calls this first.
    """
    names = ["unbounded"]
    for package in SHIPPED:
        path = str(Path(__file__).parents[1] / package)
        names += [f"unbounded.{package}", *(one.name for one in pkgutil.walk_packages([path], f"unbounded.{package}."))]
    found = sorted(set(names) - NOT_SHIPPED)
    for name in found:
        import_module(name)
    return found
