"""Misbehaviours of BMCs, each as a set of faults, with its source.

`owner/repository#number` is a thread on GitHub (an issue or a pull request). Without a public thread, the docstring
names the source. Misbehaviours can be combined: each sets only its own faults. Every public function of the files
beside this one is a misbehaviour.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Final

from unbounded_lab.bmc.faults import BmcFaults
from unbounded_lab.bmc.misbehaviours import host, service

Turn = Callable[[BmcFaults], BmcFaults]


def _turns(module: ModuleType) -> Iterator[Turn]:
    for name, value in vars(module).items():
        if inspect.isfunction(value) and value.__module__ == module.__name__ and not name.startswith("_"):
            yield value


MISBEHAVIOURS: Final[dict[str, Turn]] = {
    turn.__name__.replace("_", "-"): turn for module in (host, service) for turn in _turns(module)
}
"""By name, in the order of the files and in them; the name of a function with dashes for underscores."""


def summary(name: str) -> str:
    """Return the first line of a misbehaviour's description."""
    return description(name).partition("\n")[0]


def description(name: str) -> str:
    return inspect.getdoc(MISBEHAVIOURS[name]) or ""
