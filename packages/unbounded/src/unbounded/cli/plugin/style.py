"""Text on a terminal: wrapped to its width, and coloured on demand. Light: it imports no other module."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from typing import Final

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
