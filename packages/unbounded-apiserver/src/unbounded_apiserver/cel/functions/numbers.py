"""Conversion between numbers and text, as in Go."""

from __future__ import annotations

import math
import re
from typing import Final

_FLOAT: Final = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|[+-]?(inf|infinity|nan)", re.IGNORECASE | re.ASCII)
_INT: Final = re.compile(r"[+-]?\d+", re.ASCII)
_UINT: Final = re.compile(r"\d+", re.ASCII)


def parse_int(text: str) -> int | None:
    return int(text) if _INT.fullmatch(text) and len(text) < 40 else None


def parse_uint(text: str) -> int | None:
    return int(text) if _UINT.fullmatch(text) and len(text) < 40 else None


def parse_float(text: str) -> float | None:
    if _FLOAT.fullmatch(text) is None:
        return None
    value = float(text)
    return None if math.isinf(value) and text[-1].isdigit() else value  # too large is an error in Go


def format_float(value: float) -> str:
    """Format as Go's `%g`: the shortest digits that parse to the same number, an exponent below 1e-4 and from 1e+06."""
    return _format(value, low=-4, high=6)


def format_json_float(value: float) -> str:
    """Format as Go's JSON encoder: whole numbers without a fraction, an exponent below 1e-6 and from 1e+21."""
    return re.sub(r"e-0(\d)$", r"e-\1", _format(value, low=-6, high=21))


def _format(value: float, *, low: int, high: int) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    sign = "-" if math.copysign(1.0, value) < 0 else ""
    digits, exponent = _decimal(abs(value))
    if exponent < low or exponent >= high:
        mantissa = digits[0] + ("." + digits[1:] if len(digits) > 1 else "")
        return f"{sign}{mantissa}e{'-' if exponent < 0 else '+'}{abs(exponent):02d}"
    if exponent < 0:
        return f"{sign}0.{'0' * (-exponent - 1)}{digits}"
    padded = digits.ljust(exponent + 1, "0")
    whole, fraction = padded[: exponent + 1], padded[exponent + 1 :]
    return f"{sign}{whole}.{fraction}" if fraction else f"{sign}{whole}"


def _decimal(value: float) -> tuple[str, int]:
    """Return the shortest digits and the exponent of the first one: 1234.5 is ("12345", 3)."""
    mantissa, _, shift = repr(value).partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = (whole + fraction).lstrip("0")
    if not digits:
        return "0", 0
    exponent = len(digits) - len(fraction) - 1 + int(shift or "0")
    return digits.rstrip("0"), exponent


def group_thousands(text: str) -> str:
    """Format `1234.50` as `1,234.50`, as Go's message printer does for en-US."""
    sign = "-" if text.startswith("-") else ""
    whole, dot, fraction = text.lstrip("-").partition(".")
    return f"{sign}{int(whole):,}{dot}{fraction}"
