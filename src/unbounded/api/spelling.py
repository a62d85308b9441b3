"""What somebody may have meant who has misspelled a name."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from typing import Final

LEAST: Final = 3  # characters of a name in another one


def nearest(text: str, known: Iterable[str]) -> str:
    """The known name that is most like this one, whatever its letters' case and what is between them; else empty."""
    meant, plain = _plain(text), {_plain(one): one for one in known}
    within = [one for one in plain if min(len(one), len(meant)) >= LEAST and (one in meant or meant in one)]
    near = within or difflib.get_close_matches(meant, plain, n=1, cutoff=0.6)
    return plain[near[0]] if near else ""


def _plain(text: str) -> str:
    return re.sub("[^a-z0-9]", "", text.lower())
