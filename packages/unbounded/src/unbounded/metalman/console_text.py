"""Text of a serial console without secrets: pure functions over what a host has printed.

The text has no escape sequences, so that nothing hides in them, and so that it is safe to print. A known secret is
found also where a terminal has broken it into lines. `unbounded.kube.secret_text` finds secrets.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

from unbounded.kube.secret_text import Span, find_forms, find_values, hide

_MOVE: Final = "\x00"  # stands for a move of the cursor, which may stand between two words or inside of one

_ESCAPE: Final = re.compile(
    r"\x1b\[(?P<args>[0-?]*)[ -/]*(?P<final>[@-~])"  # CSI
    r"|\x1b[\]PX^_][^\x07\x1b\n]*(?:\x07|\x1b\\)?"  # strings: OSC, DCS, SOS, PM, APC
    r"|\x1b[ -/]*[0-~]?"
)
_MOVES: Final = frozenset("ABCDEFGHdf`ae")
_CONTROL: Final = re.compile(r"[\x01-\x07\x0b\x0c\x0e-\x1f\x7f-\x9f]")


def plain_text(data: bytes) -> str:
    """Return what a console has printed as lines, without escape sequences and control characters.

    A move of the cursor is a NUL, which `redacted` replaces.
    """
    text = data.decode("utf-8", "replace").replace("\x00", "")
    text = _ESCAPE.sub(lambda found: _MOVE if (found["final"] or "") in _MOVES else "", text)
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    return _CONTROL.sub("", _without_backspaces(text))


def _without_backspaces(text: str) -> str:
    if "\b" not in text:
        return text
    shown: list[str] = []
    for char in text:
        if char != "\b":
            shown.append(char)
        elif shown and shown[-1] != "\n":
            shown.pop()
    return "".join(shown)


def redacted(data: bytes, known: Iterable[str], *, dropped: int = 0) -> str:
    """Return the text of a console without secrets.

    Args:
        known: secrets to find by their value.
        dropped: bytes at the beginning that are examined, but not returned.
    """
    text = plain_text(data)
    spans = [*find_values(text, known), *_by_form(text)]
    return hide(text, spans, len(plain_text(data[:dropped]))).replace(_MOVE, "\n")


def _by_form(text: str) -> Iterator[Span]:
    """Find secrets by their form: once with moves of the cursor as breaks, and once without them."""
    yield from find_forms(text.replace(_MOVE, "\n"))
    if _MOVE in text:
        places = [index for index, char in enumerate(text) if char != _MOVE]
        for start, stop in find_forms(text.replace(_MOVE, "")):
            yield places[start], places[stop - 1] + 1
