"""Escaping of foreign text for terminals.

Text in a status or an annotation reaches the terminal of each user that reads the object. With control characters, its
author could clear the screen, set the title or forge the output of a command. JSON and YAML have their own escapes.
"""

from __future__ import annotations

import re
from typing import Final

# Controls of C0 and C1, and Unicode characters that set the direction of text or begin a line.
_CONTROLS: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_SPACES: Final = "\t\n\r\v\f"


def one_line(text: str) -> str:
    """Return a value that fits into one line: white space becomes spaces, other controls become Python escapes."""
    return text if text.isascii() and text.isprintable() else _CONTROLS.sub(_in_line, text)


def lines(text: str) -> str:
    """Return a text of this program with foreign values in it, escaped; line ends and tabs stay."""
    return text if text.isascii() and text.isprintable() else _CONTROLS.sub(_in_lines, text)


def _in_line(found: re.Match[str]) -> str:
    return " " if found[0] in _SPACES else _escaped(found[0])


def _in_lines(found: re.Match[str]) -> str:
    return found[0] if found[0] in "\n\t" else _escaped(found[0])


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
