"""Releases of clients and servers that may talk to each other: those that differ by one minor release at most."""

from __future__ import annotations

import re
from typing import Final

from unbounded.explain.results import RELEASE

HEADER: Final = "Unbounded-Version"
_RELEASE: Final = re.compile(r"(\d{1,5})\.(\d{1,5})(\.\d{1,5})?([-.+a-zA-Z0-9]{0,64})?")


def release_fault(other: str, own: str = RELEASE) -> str:
    """Return why a program of another release may not be talked to; empty where it may."""
    theirs = _RELEASE.fullmatch(other)
    if theirs is None:
        return f"{other!r} is not a release, such as {own}"
    ours = _RELEASE.fullmatch(own)
    if ours is not None and theirs[1] == ours[1] and abs(int(theirs[2]) - int(ours[2])) <= 1:
        return ""
    return f"releases {other} and {own} do not fit: they may differ by one minor release"
