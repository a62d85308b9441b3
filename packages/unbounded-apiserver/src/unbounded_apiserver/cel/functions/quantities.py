"""Kubernetes' quantity and semver libraries."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from unbounded_apiserver import quantity
from unbounded_apiserver.cel.types import BOOL, DOUBLE, INT, QUANTITY, SEMVER, STRING, Overload, function, method
from unbounded_apiserver.cel.values import INT_MAX, INT_MIN, EvalError, register_opaque


@dataclass(frozen=True, slots=True)
class Quantity:
    """An amount of a resource, in steps of 1e-9, to which Kubernetes rounds up."""

    value: Fraction


@dataclass(frozen=True, slots=True)
class Semver:
    major: int
    minor: int
    patch: int
    pre: tuple[str, ...] = ()

    def order(self) -> tuple[object, ...]:
        """Return a sort key by the precedence of semver.org: numbers before words, a release after its candidates."""
        release = (1,) if not self.pre else (0, *((0, int(p), "") if p.isdigit() else (1, 0, p) for p in self.pre))
        return (self.major, self.minor, self.patch, release)


register_opaque(Quantity, QUANTITY)
register_opaque(Semver, SEMVER)


def parse_quantity(text: str) -> Quantity | None:
    amount = quantity.parse(text)
    return None if amount is None else Quantity(amount)


def _quantity(text: str) -> Quantity:
    parsed = parse_quantity(text)
    if parsed is None:
        raise EvalError(quantity.MALFORMED if text else quantity.EMPTY)
    return parsed


def _is_integer(one: Quantity) -> bool:
    return one.value.denominator == 1 and INT_MIN <= one.value <= INT_MAX


def _as_integer(one: Quantity) -> int:
    if not _is_integer(one):
        raise EvalError("cannot convert value to integer")
    return one.value.numerator


def _order(one: Fraction, other: Fraction) -> int:
    return (one > other) - (one < other)


def _quantities() -> Iterator[Overload]:
    both, mixed = (QUANTITY, QUANTITY), (QUANTITY, INT)
    yield function("quantity", "string_to_quantity", (STRING,), QUANTITY, _quantity)
    yield function("isQuantity", "is_quantity_string", (STRING,), BOOL, lambda text: parse_quantity(text) is not None)
    yield function("sign", "quantity_sign", (QUANTITY,), INT, lambda one: _order(one.value, Fraction(0)))
    yield method("isGreaterThan", "quantity_is_greater_than", both, BOOL, lambda one, other: one.value > other.value)
    yield method("isLessThan", "quantity_is_less_than", both, BOOL, lambda one, other: one.value < other.value)
    yield method("compareTo", "quantity_compare_to", both, INT, lambda one, other: _order(one.value, other.value))
    yield method("asInteger", "quantity_as_integer", (QUANTITY,), INT, _as_integer)
    yield method("asApproximateFloat", "quantity_get_float", (QUANTITY,), DOUBLE, lambda one: float(one.value))
    yield method("isInteger", "quantity_is_integer", (QUANTITY,), BOOL, _is_integer)
    yield method("add", "quantity_add", both, QUANTITY, lambda one, other: Quantity(one.value + other.value))
    yield method("add", "quantity_add_int", mixed, QUANTITY, lambda one, other: Quantity(one.value + other))
    yield method("sub", "quantity_sub", both, QUANTITY, lambda one, other: Quantity(one.value - other.value))
    yield method("sub", "quantity_sub_int", mixed, QUANTITY, lambda one, other: Quantity(one.value - other))


_SEMVER: Final = re.compile(
    r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(?:-((?:[0-9A-Za-z-]+)(?:\.[0-9A-Za-z-]+)*))?(?:\+[0-9A-Za-z.-]+)?",
    re.ASCII,
)


def _normalized(text: str) -> str:
    """Normalize text for `semver(text, true)`: a leading v, missing minor and patch, leading zeros."""
    core, mark, rest = _split_core(text.removeprefix("v"))
    parts = [part.lstrip("0") or "0" for part in core.split(".")]
    return ".".join([*parts, "0", "0"][: max(3, len(parts))]) + mark + rest


def _split_core(text: str) -> tuple[str, str, str]:
    for index, char in enumerate(text):
        if char in "-+":
            return text[:index], char, text[index + 1 :]
    return text, "", ""


def parse_semver(text: str, normalize: bool = False) -> Semver | None:
    match = _SEMVER.fullmatch(_normalized(text) if normalize else text)
    if match is None:
        return None
    pre = tuple(match[4].split(".")) if match[4] else ()
    if any(part.isdigit() and len(part) > 1 and part.startswith("0") for part in pre):
        return None
    major, minor, patch = (int(number[:40]) for number in match.groups()[:3])
    return Semver(major, minor, patch, pre) if max(major, minor, patch) < 2**64 else None


def _semver(text: str, normalize: bool = False) -> Semver:
    version = parse_semver(text, normalize)
    if version is None:
        raise EvalError(f"invalid semver string {text!r}".replace("'", '"'))
    return version


def _is_semver(text: str, normalize: bool = False) -> bool:
    return parse_semver(text, normalize) is not None


def _compare(one: Semver, other: Semver) -> int:
    return (one.order() > other.order()) - (one.order() < other.order())


def _semvers() -> Iterator[Overload]:
    both = (SEMVER, SEMVER)
    yield function("semver", "string_to_semver", (STRING,), SEMVER, _semver)
    yield function("semver", "string_bool_to_semver", (STRING, BOOL), SEMVER, _semver)
    yield function("isSemver", "is_semver_string", (STRING,), BOOL, _is_semver)
    yield function("isSemver", "is_semver_string_bool", (STRING, BOOL), BOOL, _is_semver)
    yield method("isGreaterThan", "semver_is_greater_than", both, BOOL, lambda one, other: _compare(one, other) > 0)
    yield method("isLessThan", "semver_is_less_than", both, BOOL, lambda one, other: _compare(one, other) < 0)
    yield method("compareTo", "semver_compare_to", both, INT, _compare)
    yield method("major", "semver_major", (SEMVER,), INT, lambda version: version.major)
    yield method("minor", "semver_minor", (SEMVER,), INT, lambda version: version.minor)
    yield method("patch", "semver_patch", (SEMVER,), INT, lambda version: version.patch)


QUANTITIES: Final = (*_quantities(), *_semvers())
