"""Resource quantities as Kubernetes writes them: 4, 500m, 1536Mi, 1e3."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache
from typing import Final

EMPTY: Final = "quantities must not be empty"
MALFORMED: Final = "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
LONGEST: Final = 64
_TEXT: Final = re.compile(
    r"(?P<number>[+-]?(?:\d+\.?\d*|\.\d+))(?:(?P<suffix>[numkMGTPE]|[KMGTPE]i)|[eE](?P<exponent>[+-]?\d{1,3}))?",
    re.ASCII,
)
_DECIMAL: Final = {-9: "n", -6: "u", -3: "m", 0: "", 3: "k", 6: "M", 9: "G", 12: "T", 15: "P", 18: "E"}
_BINARY: Final = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
_SUFFIXES: Final = {
    **{suffix: Fraction(10) ** power for power, suffix in _DECIMAL.items()},
    **{suffix: Fraction(1024) ** power for power, suffix in enumerate(_BINARY)},
}
_NANO: Final = 10**9


def parse(text: str) -> Fraction | None:
    """Parse an amount, rounded up to 1e-9; None if the text is not a quantity."""
    match = _TEXT.fullmatch(text)
    if match is None or len(text) > LONGEST:
        return None
    scale = Fraction(10) ** int(match["exponent"]) if match["exponent"] else _SUFFIXES[match["suffix"] or ""]
    exact = Fraction(match["number"].rstrip(".")) * scale
    rounded = Fraction(math.ceil(abs(exact) * _NANO), _NANO)
    return -rounded if exact < 0 else rounded


@lru_cache(maxsize=4096)
def canonical(text: str) -> str | None:
    """Return the same amount as Kubernetes writes it, in its kind of unit; None if the text is not a quantity."""
    amount, match = parse(text), _TEXT.fullmatch(text)
    if amount is None or match is None:
        return None
    if amount == 0:
        return "0"
    if (match["suffix"] or "").endswith("i") and amount.denominator == 1 and abs(amount) >= 1024:
        return _with_unit(amount.numerator, 1024, lambda power: _BINARY[power], len(_BINARY) - 1)
    nanos = int(amount * _NANO)
    if match["exponent"]:
        return _with_unit(nanos, 1000, lambda power: f"e{power * 3 - 9}" if power != 3 else "", 40)
    return _with_unit(nanos, 1000, lambda power: _DECIMAL[power * 3 - 9], len(_DECIMAL) - 1)


def _with_unit(count: int, base: int, unit: Callable[[int], str], largest: int) -> str:
    """Format a count in the largest unit in which it is whole."""
    power = 0
    while power < largest and count % base == 0:
        count //= base
        power += 1
    return f"{count}{unit(power)}"
