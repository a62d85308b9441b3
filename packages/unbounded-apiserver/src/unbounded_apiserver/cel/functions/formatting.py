"""`string.format` with the clauses of version 2 of CEL's strings extension (numbers in en-US).

Numbers are parsed and printed as in Go.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from unbounded_apiserver.cel.functions.times import format_duration, format_timestamp
from unbounded_apiserver.cel.types import BOOL, BYTES, DOUBLE, INT, STRING, UINT, CelType, TypeKind
from unbounded_apiserver.cel.values import Duration, EvalError, Timestamp, TypeValue, type_of, type_value

_FLOAT: Final = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|[+-]?(inf|infinity|nan)", re.IGNORECASE | re.ASCII)
_INT: Final = re.compile(r"[+-]?\d+", re.ASCII)
_UINT: Final = re.compile(r"\d+", re.ASCII)
_CLAUSE: Final = re.compile(r"%(?:%|(?:\.(?P<precision>\d+))?(?P<verb>.?))", re.DOTALL)
_MAX_PRECISION: Final = 1000
_NOT_FINITE: Final = {"NaN": "NaN", "Infinity": "∞", "-Infinity": "-∞"}
_SUPERSCRIPTS: Final = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")
_ESCAPES: Final = {"\a": "\\a", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\v": "\\v"}
_STRINGLIKE: Final = frozenset({TypeKind.LIST, TypeKind.MAP, TypeKind.NULL, TypeKind.TYPE, TypeKind.PRIMITIVE})
_HEX: Final = "only integers, byte buffers, and strings can be formatted as hex"


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
    digits, exponent = _significant(abs(value))
    if exponent < low or exponent >= high:
        mantissa = digits[0] + ("." + digits[1:] if len(digits) > 1 else "")
        return f"{sign}{mantissa}e{'-' if exponent < 0 else '+'}{abs(exponent):02d}"
    if exponent < 0:
        return f"{sign}0.{'0' * (-exponent - 1)}{digits}"
    padded = digits.ljust(exponent + 1, "0")
    whole, fraction = padded[: exponent + 1], padded[exponent + 1 :]
    return f"{sign}{whole}.{fraction}" if fraction else f"{sign}{whole}"


def _significant(value: float) -> tuple[str, int]:
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


def go_quote(text: str) -> str:
    """Quote a text as Go's `%q` does."""
    escapes = {**_ESCAPES, '"': '\\"', "\\": "\\\\"}
    return '"' + "".join(escapes.get(char) or _printable(char) for char in text) + '"'


def _printable(char: str) -> str:
    if char.isprintable():
        return char
    code = ord(char)
    if code < 0x80:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _string(value: Any, _precision: int | None = None) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case None:
            return "null"
        case str():
            return value
        case bytes():
            return value.decode(errors="replace")
        case float():
            return format_float(value)
        case int():
            return str(int(value))
        case Timestamp():
            return format_timestamp(value)
        case Duration():
            return format_duration(value)
        case TypeValue(name=name):
            return name
        case list():
            return "[" + ", ".join(_nested(item) for item in value) + "]"
        case dict():
            return "{" + ", ".join(sorted(f"{_nested(key)}:{_nested(item)}" for key, item in value.items())) + "}"
        case _:
            raise _wrong("s", value)


def _nested(value: Any) -> str:
    """Format an element of a list or map so that CEL could parse it again."""
    match value:
        case str():
            return go_quote(value)
        case bytes():
            return "b" + go_quote(value.decode(errors="replace"))
        case float():
            return f"{value:.6f}"
        case Timestamp():
            return f'timestamp("{format_timestamp(value)}")'
        case Duration():
            return f'duration("{format_duration(value)}")'
        case _:
            return _string(value)


def _whole(value: Any, verb: str) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return int(value)
    raise _wrong(verb, value)


def _decimal(value: Any, _precision: int | None) -> str:
    return str(_whole(value, "d"))


def _octal(value: Any, _precision: int | None) -> str:
    return f"{_whole(value, 'o'):o}"


def _binary(value: Any, _precision: int | None) -> str:
    return f"{int(value):b}" if isinstance(value, int) else f"{_whole(value, 'b'):b}"


def _hex(value: Any, _precision: int | None) -> str:
    if isinstance(value, str):
        return value.encode().hex()
    return value.hex() if isinstance(value, bytes) else f"{_whole(value, 'x'):x}"


def _upper_hex(value: Any, precision: int | None) -> str:
    return _hex(value, precision).upper()


def _not_finite(value: Any, verb: str) -> str | None:
    """Format NaN and the infinities, given as numbers or by name; None for other numbers."""
    if isinstance(value, float):
        names = {"NaN": "NaN", "+Inf": "Infinity", "-Inf": "-Infinity"}
        name = names.get(format_float(value))
        return None if name is None else _NOT_FINITE[name]
    if isinstance(value, str) and value in _NOT_FINITE:
        return _NOT_FINITE[value]
    raise _wrong(verb, value)


def _fixed(value: Any, precision: int | None) -> str:
    special = _not_finite(value, "f")
    return special or group_thousands(f"{value:.{6 if precision is None else precision}f}")


def _scientific(value: Any, precision: int | None) -> str:
    """Format as `1.2 × 10⁰³`, with a narrow no-break space on both sides of the cross: Go's message printer for en-US.

    The precision is that of version 2 of the library, which passes it on as a width: six digits always.
    """
    special = _not_finite(value, "e")
    if special is not None:
        return special
    mantissa, _, exponent = f"{value:.6e}".partition("e")
    sign = "⁻" if exponent.startswith("-") else ""
    text = f"{mantissa}\u202f×\u202f10{sign}{exponent[1:].translate(_SUPERSCRIPTS)}"
    return text.rjust(precision or 0)


@dataclass(frozen=True, slots=True)
class _Clause:
    render: Callable[[Any, int | None], str]
    complaint: str
    accepts: tuple[CelType, ...]


_CLAUSES: Final[Mapping[str, _Clause]] = {
    "s": _Clause(
        _string,
        "string clause can only be used on strings, bools, bytes, ints, doubles, maps, lists, types, durations, "
        "and timestamps",
        (),
    ),
    "d": _Clause(_decimal, "decimal clause can only be used on integers", (INT, UINT)),
    "f": _Clause(_fixed, "fixed-point clause can only be used on doubles", (DOUBLE, STRING)),
    "e": _Clause(_scientific, "scientific clause can only be used on doubles", (DOUBLE, STRING)),
    "b": _Clause(_binary, "only integers and bools can be formatted as binary", (INT, UINT, BOOL)),
    "x": _Clause(_hex, _HEX, (INT, UINT, STRING, BYTES)),
    "X": _Clause(_upper_hex, _HEX, (INT, UINT, STRING, BYTES)),
    "o": _Clause(_octal, "octal clause can only be used on integers", (INT, UINT)),
}


def _wrong(verb: str, value: Any) -> EvalError:
    given = type_value(type_of(value)).name
    return EvalError(f"error during formatting: {_CLAUSES[verb].complaint}, was given {given}")


def _unknown(verb: str) -> str:
    if not verb:
        return "unexpected end of string"
    return f'could not parse formatting clause: unrecognized formatting clause "{verb}"'


def format_string(template: str, args: list[Any]) -> str:
    """Return the template with its clauses filled in.

    Raises:
        EvalError: a clause is unknown, has no argument, or one of another type.
    """
    used = 0

    def fill(match: re.Match[str]) -> str:
        nonlocal used
        if match.group() == "%%":
            return "%"
        if used >= len(args):
            raise EvalError(f"index {used} out of range")
        clause = _CLAUSES.get(match["verb"])
        if clause is None:
            raise EvalError(_unknown(match["verb"]))
        precision = None if match["precision"] is None else int(match["precision"][:9])
        if precision is not None and precision > _MAX_PRECISION:
            raise EvalError(f"error while parsing precision: {precision} is too large")
        used += 1
        return clause.render(args[used - 1], precision)

    return _CLAUSE.sub(fill, template)


def check_format(template: str, types: list[CelType]) -> tuple[int | None, str] | None:
    """Check a template with arguments of these types; return the index of a wrong argument, if any, and the reason."""
    used = 0
    for match in _CLAUSE.finditer(template):
        if match.group() == "%%":
            continue
        if used >= len(types):
            return None, f"index {used} out of range"
        clause = _CLAUSES.get(match["verb"])
        if clause is None:
            return None, _unknown(match["verb"])
        given = types[used]
        accepted = given.kind in _STRINGLIKE if not clause.accepts else given in clause.accepts
        if given.kind is not TypeKind.DYN and not accepted:
            return used, f"error during formatting: {clause.complaint}, was given {type_value(given).name}"
        used += 1
    if used < len(types):
        return None, f"too many arguments supplied to string.format (expected {used}, got {len(types)})"
    return None
