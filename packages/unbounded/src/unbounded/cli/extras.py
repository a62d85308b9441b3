"""Packages that some commands need and `unbounded` does not depend on: the API server and the simulators."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Final

API_SERVER: Final = "unbounded_apiserver"
LAB: Final = "unbounded_lab"
_EXTRAS: Final = {API_SERVER: ("unbounded-apiserver", "up"), LAB: ("unbounded-lab", "lab")}


def require(module: str, command: str) -> None:
    """Check that a package is installed.

    Raises:
        ValueError: it is absent; the message names the extra to install.
    """
    if find_spec(module) is None:
        distribution, extra = _EXTRAS[module]
        raise ValueError(
            f"{command} needs the package {distribution}, which is not installed: pip install 'unbounded[{extra}]'"
        )
