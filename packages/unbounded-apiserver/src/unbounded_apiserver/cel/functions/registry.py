"""Declarations of functions: a table of overloads for each name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from unbounded_apiserver.cel.types import CelType


@dataclass(frozen=True, slots=True)
class Overload:
    """One signature of a function. The first parameter of a method is the receiver.

    Attributes:
        id: stable name, as in cel-go; the key of cost tables.
        apply: computes the result; raises EvalError.
    """

    function: str
    id: str
    params: tuple[CelType, ...]
    result: CelType
    apply: Callable[..., Any]
    method: bool = False


Table: TypeAlias = Mapping[str, tuple[Overload, ...]]


def function(
    name: str, overload_id: str, params: Iterable[CelType], result: CelType, apply: Callable[..., Any]
) -> Overload:
    return Overload(name, overload_id, tuple(params), result, apply)


def method(
    name: str, overload_id: str, params: Iterable[CelType], result: CelType, apply: Callable[..., Any]
) -> Overload:
    """Return a `function` that is called as `receiver.name(…)`; the receiver is the first of `params`."""
    return Overload(name, overload_id, tuple(params), result, apply, method=True)


def table(*libraries: Iterable[Overload]) -> Table:
    """Return all overloads by function name."""
    found: dict[str, list[Overload]] = {}
    for library in libraries:
        for overload in library:
            found.setdefault(overload.function, []).append(overload)
    return {name: tuple(overloads) for name, overloads in found.items()}
