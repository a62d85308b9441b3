"""Single values under the flags, width and precision of a verb: the lower half of Go's package fmt."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from unbounded.metalman.templates.fmt.numbers import format_float
from unbounded.metalman.templates.literals import quote

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
        wanted = 6 if precision == -1 else max(precision, 1)
        significant = number[1:].replace(".", "").lstrip("0")
        number += "0" * (wanted - max(len(significant), 1 if not significant else 0))
    return number + tail
