"""Who starts an executor's process again and again knows which of its lives are over: a life's name says so."""

from __future__ import annotations

import re
import uuid
from dataclasses import dataclass
from typing import Final

_NAME: Final = re.compile(r"([A-Za-z0-9-]{1,64})\.([0-9]{1,15})")


@dataclass(frozen=True)
class Life:
    """One life of a process.

    Args:
        keeper: names who starts it, and nobody else, ever: the next one only when the one before has ended, and that
            was seen by waiting for it.
        number: one more with each.
    """

    keeper: str
    number: int

    def __str__(self) -> str:
        return f"{self.keeper}.{self.number}"

    def new_identity(self) -> str:
        """An incarnation in this life, that nobody else has ever been."""
        return f"{self}_{uuid.uuid4()}"

    def has_ended(self, incarnation: str) -> bool:
        """Whether an incarnation was of an earlier life. Of others nothing is known."""
        try:
            other = life_of(incarnation.partition("_")[0])
        except ValueError:
            return False
        return other.keeper == self.keeper and other.number < self.number


def life_of(text: str) -> Life:
    """Raises ValueError: it is no KEEPER.NUMBER."""
    found = _NAME.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is no life: write KEEPER.NUMBER")
    return Life(found[1], int(found[2]))
