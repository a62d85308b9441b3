"""Floating point numbers as Go's strconv.FormatFloat writes them."""

from __future__ import annotations

import math
import struct
from contextlib import suppress


def format_float(value: float, verb: str, precision: int, bits: int) -> str:
    """Format a number; the only sign is a leading minus.

    Args:
        verb: one of b, e, E, f, g, G, x, X.
        precision: -1 for the fewest digits that parse to the same number.
        bits: 32 or 64.
    """
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    sign = "-" if math.copysign(1, value) < 0 else ""
    value = abs(value)
    if verb == "b":
        return sign + _binary(value, bits)
    if verb in "xX":
        text = _hexadecimal(value, precision)
        return sign + (text.upper() if verb == "X" else text)
    if verb in "eE":
        digits, exponent = _digits(value, precision + 1 if precision >= 0 else -1, bits)
        text = _scientific(digits, exponent, precision)
    elif verb == "f":
        text = f"{value:.{precision}f}" if precision >= 0 else _shortest_fixed(value, bits)
    else:
        text = _general(value, precision, bits)
    return sign + (text.upper() if verb in "EG" else text)


def _digits(value: float, count: int, bits: int) -> tuple[str, int]:
    """Return significant digits and the exponent of the first; count -1: the fewest that parse to the same number."""
    if count >= 0:
        mantissa, _, exponent = f"{value:.{max(count - 1, 0)}e}".partition("e")
    elif bits == 32:
        mantissa, _, exponent = _shortest_single(value).partition("e")
    else:
        return _from_repr(value)
    return mantissa.replace(".", ""), int(exponent)


def _from_repr(value: float) -> tuple[str, int]:
    """Return the digits of repr, which are the shortest; rounding to as many digits can result in others."""
    mantissa, _, power = repr(value).partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = (whole + fraction).lstrip("0")
    leading = len(whole + fraction) - len(digits)
    return digits.rstrip("0") or "0", int(power or 0) + (len(whole) - 1 - leading if digits else 0)


def _shortest_single(value: float) -> str:
    for precision in range(9):
        text = f"{value:.{precision}e}"
        with suppress(OverflowError):
            if struct.pack("f", float(text)) == struct.pack("f", value):
                return text
    return f"{value:.8e}"


def _scientific(digits: str, exponent: int, precision: int) -> str:
    rest = digits[1:] if precision < 0 else digits[1:].ljust(precision, "0")
    point = f".{rest}" if rest else ""
    return f"{digits[0]}{point}e{'-' if exponent < 0 else '+'}{abs(exponent):02d}"


def _shortest_fixed(value: float, bits: int) -> str:
    digits, exponent = _digits(value, -1, bits)
    return _fixed(digits.rstrip("0"), exponent)


def _fixed(digits: str, exponent: int) -> str:
    if exponent < 0:
        return "0." + "0" * (-exponent - 1) + digits if digits else "0"
    whole = digits[: exponent + 1].ljust(exponent + 1, "0")
    rest = digits[exponent + 1 :]
    return f"{whole}.{rest}" if rest else whole


def _general(value: float, precision: int, bits: int) -> str:
    shortest = precision < 0
    digits, exponent = _digits(value, -1 if shortest else max(precision, 1), bits)
    digits = digits.rstrip("0")
    limit = max(precision, 1)
    if limit > len(digits) and len(digits) >= exponent + 1:
        limit = len(digits)
    if shortest:
        limit = 6  # so that a million is 1e+06
    if exponent < -4 or exponent >= limit:
        return _scientific(digits or "0", exponent, -1)
    return _fixed(digits, exponent)


def _hexadecimal(value: float, precision: int) -> str:
    if value == 0:
        mantissa, exponent = 0, 0
    else:
        fraction, exponent = math.frexp(value)
        mantissa, exponent = int(fraction * 2**53), exponent - 1
    shift = 52 - 4 * precision
    if precision >= 0 and shift > 0:  # round half to even
        half, rest = 1 << (shift - 1), mantissa & ((1 << shift) - 1)
        mantissa >>= shift
        mantissa += rest > half or (rest == half and mantissa & 1 == 1)
        mantissa <<= shift
        if mantissa >> 53:
            mantissa, exponent = mantissa >> 1, exponent + 1
    fractional = f"{mantissa & (2**52 - 1):013x}"
    fractional = fractional.rstrip("0") if precision < 0 else fractional[:precision].ljust(precision, "0")
    point = f".{fractional}" if fractional else ""
    return f"0x{mantissa >> 52}{point}p{'-' if exponent < 0 else '+'}{abs(exponent):02d}"


def _binary(value: float, bits: int) -> str:
    size, lowest = (53, -1074) if bits == 64 else (24, -149)
    if value == 0:
        return f"0p{lowest}"
    exponent = max(math.frexp(value)[1] - size, lowest)
    return f"{int(math.ldexp(value, -exponent))}p{exponent:+d}"
