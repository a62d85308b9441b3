"""Optional values."""

from __future__ import annotations

from typing import Any, Final

from unbounded_apiserver.cel.errors import EvalError
from unbounded_apiserver.cel.functions.registry import function, method
from unbounded_apiserver.cel.types import BOOL, list_of, optional_of, param
from unbounded_apiserver.cel.values import NONE, Optional, some, zero

_T = param("T")
_MAYBE: Final = optional_of(_T)


def _value(optional: Optional) -> Any:
    if not optional.present:
        raise EvalError("optional.none() dereference")
    return optional.value


def _unwrap(values: list[Optional]) -> list[Any]:
    return [value.value for value in values if value.present]


def _end(values: list[Any], index: int) -> Optional:
    return some(values[index]) if values else NONE


OPTIONALS: Final = (
    function("optional.of", "optional_of", (_T,), _MAYBE, some),
    function(
        "optional.ofNonZeroValue", "optional_ofNonZeroValue", (_T,), _MAYBE, lambda v: NONE if zero(v) else some(v)
    ),
    function("optional.none", "optional_none", (), _MAYBE, lambda: NONE),
    function("optional.unwrap", "optional_unwrap", (list_of(_MAYBE),), list_of(_T), _unwrap),
    method("unwrapOpt", "optional_unwrapOpt", (list_of(_MAYBE),), list_of(_T), _unwrap),
    method("hasValue", "optional_hasValue", (_MAYBE,), BOOL, lambda optional: optional.present),
    method("value", "optional_value", (_MAYBE,), _T, _value),
    method("or", "optional_or_optional", (_MAYBE, _MAYBE), _MAYBE, lambda one, other: one if one.present else other),
    method(
        "orValue", "optional_orValue_value", (_MAYBE, _T), _T, lambda one, other: one.value if one.present else other
    ),
    method("first", "list_first", (list_of(_T),), _MAYBE, lambda values: _end(values, 0)),
    method("last", "list_last", (list_of(_T),), _MAYBE, lambda values: _end(values, -1)),
)
