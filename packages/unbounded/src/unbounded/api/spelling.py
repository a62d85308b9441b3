"""Suggestions for misspelled names."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from typing import Final

LEAST: Final = 3  # the least length of a name that may be part of the other


def nearest(text: str, known: Iterable[str]) -> str:
    """Return the most similar known name, ignoring case and separators; empty where none is similar."""
    meant, plain = _plain(text), {_plain(one): one for one in known}
    within = [one for one in plain if min(len(one), len(meant)) >= LEAST and (one in meant or meant in one)]
    near = within or difflib.get_close_matches(meant, plain, n=1, cutoff=0.6)
    return plain[near[0]] if near else ""


def _plain(text: str) -> str:
    return re.sub("[^a-z0-9]", "", text.lower())
