"""Go's literals: quoted strings, character constants and numbers, parsed and written as strconv does."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Final

from unbounded.gotemplate.types import CallFailed

_SIMPLE: Final = {"a": 7, "b": 8, "f": 12, "n": 10, "r": 13, "t": 9, "v": 11, "\\": 92}
_NAMED: Final = {7: "\\a", 8: "\\b", 12: "\\f", 10: "\\n", 13: "\\r", 9: "\\t", 11: "\\v"}
_ESCAPE: Final = re.compile(
    r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([0-7]{3})|([abfnrtv\\'\"]))|([^\\])", re.S
)
_INTEGER: Final = re.compile(
    r"[+-]?(?:0[xX](?:_?[0-9a-fA-F])+|0[oO]?(?:_?[0-7])+|0[bB](?:_?[01])+|0|[1-9](?:_?[0-9])*)\Z"
)
_DECIMAL: Final = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?\Z")
_HEX_FLOAT: Final = re.compile(r"[+-]?0[xX](?:[0-9a-fA-F]+\.?[0-9a-fA-F]*|\.[0-9a-fA-F]+)[pP][+-]?[0-9]+\Z")
INVALID: Final = CallFailed("invalid syntax")


def unquote(literal: str) -> str:
    """Return the value of a quoted or raw string literal."""
    if literal[0] == "`":
        return literal[1:-1].replace("\r", "")
    out = bytearray()
    place, end = 1, len(literal) - 1
    while place < end:
        part, place = _one(literal, place, '"')
        out += part if isinstance(part, bytes) else chr(part).encode("utf-8", "surrogateescape")
    return out.decode("utf-8", "surrogateescape")


def character(literal: str) -> int:
    """Return the code point of a character constant."""
    if len(literal) < 3:
        raise INVALID
    part, place = _one(literal, 1, "'")
    if place != len(literal) - 1:
        raise CallFailed(f"malformed character constant: {literal}")
    return part[0] if isinstance(part, bytes) else part


def _one(literal: str, place: int, quote_mark: str) -> tuple[bytes | int, int]:
    """Return the next character or byte of a literal, and the position after it."""
    found = _ESCAPE.match(literal, place)
    if found is None:
        raise INVALID
    hexadecimal, short, long, octal, simple, plain = found.groups()
    if plain is not None:
        return ord(plain), found.end()
    if simple is not None:
        if simple in "'\"" and simple != quote_mark:
            raise INVALID
        return _SIMPLE.get(simple, ord(simple)), found.end()
    if hexadecimal is not None or octal is not None:
        byte = int(hexadecimal, 16) if hexadecimal is not None else int(octal, 8)
        if byte > 255:
            raise INVALID
        return bytes((byte,)), found.end()
    code = int(short or long, 16)
    if code > 0x10FFFF or 0xD800 <= code < 0xE000:
        raise INVALID
    return code, found.end()


def quote(text: str, mark: str = '"', *, ascii_only: bool = False) -> str:
    """Return a string as a Go literal."""
    return mark + "".join(_escaped(letter, mark, ascii_only) for letter in text) + mark


def _escaped(letter: str, mark: str, ascii_only: bool) -> str:
    code = ord(letter)
    if letter in (mark, "\\"):
        return "\\" + letter
    if letter.isprintable() and (code < 128 or not ascii_only):
        return letter
    if code in _NAMED:
        return _NAMED[code]
    if 0xDC80 <= code <= 0xDCFF:
        return f"\\x{code - 0xDC00:02x}"
    if code < 32 or code == 127:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


@dataclass(frozen=True, slots=True)
class Number:
    """Values of a number literal by type; None if the literal does not fit the type."""

    integer: int | None = None
    unsigned: int | None = None
    real: float | None = None
    complex: complex | None = None


def number(text: str) -> Number:
    """Parse a number or character constant."""
    if text[0] == "'":
        code = character(text)
        return Number(code, code, float(code))
    if text[-1] == "i":
        return _imaginary(text)
    whole = _integer(text)
    integer = whole if whole is not None and -(2**63) <= whole < 2**63 else None
    unsigned = whole if whole is not None and text[0] not in "+-" and whole < 2**64 else None
    if integer == 0:
        unsigned = 0
    if integer is not None or unsigned is not None:
        return Number(integer, unsigned, float(integer if integer is not None else unsigned or 0))
    real = _real(text)
    if real is None:
        raise CallFailed(f"illegal number syntax: {quote(text)}")
    if not any(letter in text for letter in ".eEpP"):
        raise CallFailed(f"integer overflow: {quote(text)}")
    return _from_real(real)


def _from_real(real: float) -> Number:
    if not real.is_integer():
        return Number(None, None, real)
    whole = int(real)
    return Number(
        whole if -(2**63) <= whole < 2**63 else None,
        whole if 0 <= whole < 2**64 else None,
        real,
    )


def _imaginary(text: str) -> Number:
    split = max(text.rfind("+", 1), text.rfind("-", 1))
    while split > 0 and text[split - 1] in "eEpP":
        split = max(text.rfind("+", 1, split), text.rfind("-", 1, split))
    first, second = (text[:split], text[split:-1]) if split > 0 else ("0", text[:-1])
    real, imaginary = _real(first), _real(second)
    if real is None or imaginary is None:
        raise CallFailed(f"illegal number syntax: {quote(text)}")
    plain = _from_real(real) if imaginary == 0 else Number()
    return Number(plain.integer, plain.unsigned, plain.real, complex(real, imaginary))


def _integer(text: str) -> int | None:
    if not _INTEGER.match(text):
        return None
    body = text.lstrip("+-")
    if len(body) > 1 and body[0] == "0" and body[1] in "01234567_":
        body = "0o" + body[1:].lstrip("_")
    whole = int(body, 0)
    return -whole if text[0] == "-" else whole


def _real(text: str) -> float | None:
    plain = text.replace("_", "") if text.lstrip("+-")[:2] in ("0x", "0X") else text
    if _DECIMAL.match(plain):
        real = float(plain)
    elif _HEX_FLOAT.match(plain):
        try:
            real = float.fromhex(plain)
        except OverflowError:
            return None
    else:
        return None
    return None if math.isinf(real) else real
