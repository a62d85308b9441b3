"""Text that others wrote, as it can be shown on a terminal.

Whoever may write a status or an annotation writes to the terminal of whoever looks at it: with control characters, that
would be able to clear the screen, to set its title, or to pretend an output of ours. JSON and YAML have escapes of
their own.
"""

from __future__ import annotations

import re
from typing import Final

# Controls of C0 and C1, and what sets the direction of text or begins a line to a reader of Unicode.
_CONTROLS: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_SPACES: Final = "\t\n\r\v\f"


def one_line(text: str) -> str:
    """A value as a part of a line: white space as spaces, other controls as they are escaped in Python."""
    return text if text.isascii() and text.isprintable() else _CONTROLS.sub(_in_line, text)


def lines(text: str) -> str:
    """A text of ours with values of others in it: its line ends and tabs stay."""
    return text if text.isascii() and text.isprintable() else _CONTROLS.sub(_in_lines, text)


def _in_line(found: re.Match[str]) -> str:
    return " " if found[0] in _SPACES else _escaped(found[0])


def _in_lines(found: re.Match[str]) -> str:
    return found[0] if found[0] in "\n\t" else _escaped(found[0])


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
