"""Text on a terminal: foreign text escaped, wrapped to the terminal's width, and coloured on demand.

Text in a status or an annotation reaches the terminal of each user that reads the object. With control characters, its
author could clear the screen, set the title or forge the output of a command. JSON and YAML have their own escapes.
This module is light: it imports no other one.
"""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass
from typing import Final

# Controls of C0 and C1, and Unicode characters that set the direction of text or begin a line.
_CONTROLS: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_SPACES: Final = "\t\n\r\v\f"
LEAST: Final = 40  # columns; narrower terminals get lines of this width
BOLD: Final = "1"
DIM: Final = "2"
RED: Final = "1;31"
GREEN: Final = "32"
YELLOW: Final = "33"
CYAN: Final = "36"
PHASES: Final = {
    "Ready": GREEN,
    "Complete": GREEN,
    "Failed": RED,
    "InProgress": YELLOW,
    "Rebooting": YELLOW,
    "Provisioning": YELLOW,
    "Joining": YELLOW,
    "Pending": YELLOW,
}


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


@dataclass(frozen=True)
class Style:
    """Style of text.

    Attributes:
        columns: of the terminal; 0 where there is none.
        colour: whether text may be coloured.
    """

    columns: int = 0
    colour: bool = False

    def paint(self, text: str, code: str) -> str:
        """Return text in a colour. It has to be free of control characters already."""
        return f"\x1b[{code}m{text}\x1b[0m" if self.colour and code and text else text

    def phase(self, text: str) -> str:
        """Return the name of a phase in its colour; other text as it is."""
        return self.paint(text, PHASES.get(text, ""))

    def wrapped(self, text: str, *, usual: int = 0, indent: str = "  ") -> list[str]:
        """Wrap a line to the width; further lines are indented by `indent`.

        Args:
            usual: columns where there is no terminal; 0 for no limit.
        """
        width = max(self.columns, LEAST) if self.columns else usual
        if not width:
            return [text]
        first = text[: len(text) - len(text.lstrip())]
        return textwrap.wrap(
            text.strip(),
            width,
            initial_indent=first,
            subsequent_indent=first + indent,
            break_long_words=False,
            break_on_hyphens=False,
        )

    def cut(self, text: str) -> str:
        """Cut a line to the width."""
        return f"{text[: self.columns - 1]}…" if self.columns and len(text) > self.columns else text


PLAIN: Final = Style()
