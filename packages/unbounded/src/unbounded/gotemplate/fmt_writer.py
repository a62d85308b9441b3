"""Single values under the flags, width and precision of a verb: the lower half of Go's package fmt, and FormatFloat."""

from __future__ import annotations

import math
import struct
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from unbounded.gotemplate.literals import quote

_BASES: Final = {2: "b", 8: "o", 10: "d", 16: "x"}


@dataclass(slots=True)
class Flags:
    """Flags, width and precision between the percent sign and the verb."""

    minus: bool = False
    plus: bool = False
    sharp: bool = False
    space: bool = False
    zero: bool = False
    plus_v: bool = False
    sharp_v: bool = False
    width: int | None = None
    precision: int | None = None

    def pad(self, text: str, *, zeros: bool = True) -> str:
        """Fill up to the width."""
        if self.width is None or len(text) >= self.width:
            return text
        if self.minus:
            return text.ljust(self.width)
        return text.rjust(self.width, "0" if self.zero and zeros else " ")

    def truncate(self, text: str) -> str:
        return text if self.precision is None else text[: self.precision]

    def boolean(self, value: bool) -> str:
        return self.pad("true" if value else "false")

    def string(self, text: str) -> str:
        return self.pad(self.truncate(text))

    def quoted(self, text: str) -> str:
        text = self.truncate(text)
        if self.sharp and _can_backquote(text):
            return self.pad(f"`{text}`")
        return self.pad(quote(text, ascii_only=self.plus))

    def hexadecimal(self, data: bytes, *, upper: bool) -> str:
        """Format each byte as two digits; the precision counts bytes."""
        if self.precision is not None:
            data = data[: self.precision]
        if not data:
            return self.pad("")
        prefix = ("0X" if upper else "0x") if self.sharp else ""
        digits = [f"{byte:02X}" if upper else f"{byte:02x}" for byte in data]
        text = " ".join(prefix + pair for pair in digits) if self.space else prefix + "".join(digits)
        return self.pad(text)

    def integer(self, value: int, base: int, verb: str = "d") -> str:
        digits = format(abs(value), _BASES[base])
        least = self.precision
        zeros = True
        if least is not None:
            zeros = False
            if least == 0 and value == 0:
                return self.pad("", zeros=False)
        elif self.zero and not self.minus and self.width is not None:
            least = self.width - (value < 0 or self.plus or self.space)
            zeros = False
        digits = digits.rjust(least or 0, "0")
        if verb == "X":
            digits = digits.upper()
        if self.sharp:
            prefix = {2: "0b", 8: "" if digits[0] == "0" else "0", 10: "", 16: "0x"}[base]
            digits = (prefix.upper() if verb == "X" else prefix) + digits
        if verb == "O":
            digits = "0o" + digits
        return self.pad(self.sign(value < 0) + digits, zeros=zeros)

    def sign(self, negative: bool) -> str:
        if negative:
            return "-"
        return "+" if self.plus else " " if self.space else ""

    def pointer(self, address: int, *, prefix: bool) -> str:
        sharp, self.sharp = self.sharp, prefix
        text = self.integer(address, 16, "v")
        self.sharp = sharp
        return text

    def rune(self, code: int) -> str:
        return self.pad(_character(code))

    def quoted_rune(self, code: int) -> str:
        return self.pad(quote(_character(code), "'", ascii_only=self.plus))

    def code_point(self, code: int) -> str:
        digits = f"{code:X}".rjust(max(self.precision or 0, 4), "0")
        letter = _character(code)
        shown = f" '{letter}'" if self.sharp and code <= 0x10FFFF and letter.isprintable() else ""
        return self.pad(f"U+{digits}{shown}", zeros=False)

    def real(self, value: float, verb: str, precision: int, bits: int) -> str:
        if self.precision is not None:
            precision = self.precision
        text = format_float(value, verb, precision, bits)
        if text[0] not in "+-":
            text = "+" + text
        if text[1:] in ("Inf", "NaN"):
            if self.space and not self.plus:
                text = text.replace("+", " ")
            elif text == "+NaN" and not self.plus:
                text = "NaN"
            return self.pad(text, zeros=False)
        if self.sharp and verb != "b":
            text = _all_digits(text, verb, precision)
        text = self._signed(text)
        if self.zero and not self.minus and self.width is not None and text[0] in "+- ":
            return text[0] + text[1:].rjust(self.width - 1, "0")
        return self.pad(text)

    def _signed(self, text: str) -> str:
        if text[0] == "+" and not self.plus:
            return (" " if self.space else "") + text[1:]
        return text

    def complex(self, value: complex, verb: str, precision: int) -> str:
        real = self.real(value.real, verb, precision, 64)
        plus, self.plus = self.plus, True
        imaginary = self.real(value.imag, verb, precision, 64)
        self.plus = plus
        return f"({real}{imaginary}i)"


def _character(code: int) -> str:
    return chr(code) if 0 <= code <= 0x10FFFF and not 0xD800 <= code < 0xE000 else "\ufffd"


def _can_backquote(text: str) -> bool:
    return all((letter >= " " or letter == "\t") and letter not in "`\x7f\ufeff" for letter in text) and not any(
        0xDC80 <= ord(letter) <= 0xDCFF for letter in text
    )


def _all_digits(text: str, verb: str, precision: int) -> str:
    """Apply the # flag: add a decimal point in any case, and for %g the zeros at the end."""
    marks = "pP" if verb in "xX" else "eE"
    split = next((place for place, letter in enumerate(text) if letter in marks and place > 1), len(text))
    number, tail = text[:split], text[split:]
    if "." not in number:
        number += "."
    if verb in "gG":
        desired = 6 if precision == -1 else max(precision, 1)
        significant = number[1:].replace(".", "").lstrip("0")
        number += "0" * (desired - max(len(significant), 1 if not significant else 0))
    return number + tail


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
