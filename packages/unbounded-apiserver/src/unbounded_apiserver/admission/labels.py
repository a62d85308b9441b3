"""Label selectors as objects: matchLabels and matchExpressions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from unbounded_apiserver import field_errors, name_validation
from unbounded_apiserver.schema import FieldError
from unbounded_apiserver.selectors import LabelRequirement, LabelSelector

NONE: Final = "<none>"
_OPERATORS: Final = {"In": "in", "NotIn": "notin", "Exists": "exists", "DoesNotExist": "!"}


def read(selector: Mapping[str, Any] | None) -> LabelSelector:
    """Return the requirements of a well-formed selector; none for an empty one, which matches everything."""
    given = selector or {}
    equal = [LabelRequirement(key, "in", frozenset({value})) for key, value in (given.get("matchLabels") or {}).items()]
    other = [
        LabelRequirement(one["key"], _OPERATORS[one["operator"]], frozenset(one.get("values") or ()))
        for one in given.get("matchExpressions") or ()
    ]
    return (*equal, *other)


def check(selector: Mapping[str, Any], at: str) -> Iterator[FieldError]:
    """Yield the errors of a selector, worded as by Kubernetes."""
    for key, value in (selector.get("matchLabels") or {}).items():
        yield from (field_errors.invalid(f"{at}.matchLabels", key, why) for why in name_validation.qualified_name(key))
        yield from (field_errors.invalid(f"{at}.matchLabels", value, why) for why in name_validation.label_value(value))
    for index, one in enumerate(selector.get("matchExpressions") or ()):
        yield from _check_requirement(one, f"{at}.matchExpressions[{index}]")


def _check_requirement(one: Mapping[str, Any], at: str) -> Iterator[FieldError]:
    values = one.get("values") or ()
    match one["operator"]:
        case "In" | "NotIn":
            if not values:
                yield field_errors.required(f"{at}.values", "must be specified when `operator` is 'In' or 'NotIn'")
        case "Exists" | "DoesNotExist":
            if values:
                why = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"
                yield field_errors.forbidden(f"{at}.values", why)
        case other:
            yield field_errors.invalid(f"{at}.operator", other, "not a valid selector operator")
    yield from (
        field_errors.invalid(f"{at}.key", one["key"], why) for why in name_validation.qualified_name(one["key"])
    )
    for index, value in enumerate(values):
        yield from (
            field_errors.invalid(f"{at}.values[{index}]", value, why) for why in name_validation.label_value(value)
        )


def shown(selector: Mapping[str, Any] | None) -> str:
    """Format a selector as kubectl prints it: app=a,tier in (1,2),!old."""
    given = selector or {}
    terms = {key: f"{key}={value}" for key, value in (given.get("matchLabels") or {}).items()}
    words = []
    for one in given.get("matchExpressions") or ():
        key, values = one["key"], ",".join(sorted(one.get("values") or ()))
        words.append(
            {
                "In": f"{key} in ({values})",
                "NotIn": f"{key} notin ({values})",
                "Exists": key,
                "DoesNotExist": f"!{key}",
            }[one["operator"]]
        )
    return ",".join(sorted([*terms.values(), *words])) or NONE
