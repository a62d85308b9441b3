"""The macros at run time: one loop for each of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from unbounded_apiserver.cel.ast import Fold
from unbounded_apiserver.cel.errors import EvalError, no_such_overload
from unbounded_apiserver.cel.functions.lists import sort_by_keys
from unbounded_apiserver.cel.values import NONE, Optional, some

Code: TypeAlias = Callable[[list[Any]], Any]


@dataclass(frozen=True, slots=True)
class FoldCode:
    """A compiled comprehension; its variables are in the frame from `slot` on.

    Attributes:
        cost: charged to the meter for each element, 0 without a meter.
    """

    range: Code
    slot: int
    two: bool
    condition: Code | None
    body: Code
    cost: int

    def steps(self, frame: list[Any]) -> Iterator[Any]:
        """Set the variables to each element in turn; yields the first variable (key, index or element)."""
        values = self.range(frame)
        slot, cost = self.slot, self.cost
        if isinstance(values, dict):
            pairs: Iterator[tuple[Any, Any]] = iter(values.items())
            if not self.two:
                pairs = ((key, key) for key in values)
        elif isinstance(values, list):
            pairs = iter(enumerate(values))
        else:
            raise no_such_overload()
        for key, value in pairs:
            if cost:
                frame[0].charge(cost)
            if self.two:
                frame[slot], frame[slot + 1] = key, value
                yield key
            else:
                frame[slot] = value
                yield value

    def is_included(self, frame: list[Any]) -> bool:
        return self.condition is None or _truth(self.condition(frame))


def _truth(value: Any) -> bool:
    if value is True or value is False:
        return bool(value)
    raise no_such_overload()


def _decides(parts: FoldCode, decisive: bool) -> Code:
    """Return `all` or `exists`: the first decisive element ends it; an error counts only if no element is decisive."""
    body = parts.body

    def run(frame: list[Any]) -> bool:
        trouble: EvalError | None = None
        for _ in parts.steps(frame):
            try:
                if _truth(body(frame)) is decisive:
                    return decisive
            except EvalError as error:
                trouble = trouble or error
        if trouble is not None:
            raise trouble
        return not decisive

    return run


def _exactly_one(parts: FoldCode) -> Code:
    body = parts.body
    return lambda frame: sum(_truth(body(frame)) for _ in parts.steps(frame)) == 1


def _map(parts: FoldCode) -> Code:
    body = parts.body
    if parts.condition is None:
        return lambda frame: [body(frame) for _ in parts.steps(frame)]
    return lambda frame: [body(frame) for _ in parts.steps(frame) if parts.is_included(frame)]


def _filter(parts: FoldCode) -> Code:
    body = parts.body
    return lambda frame: [element for element in parts.steps(frame) if _truth(body(frame))]


def _transform_map(parts: FoldCode) -> Code:
    body = parts.body
    return lambda frame: {key: body(frame) for key in parts.steps(frame) if parts.is_included(frame)}


def _transform_entries(parts: FoldCode) -> Code:
    def run(frame: list[Any]) -> dict[Any, Any]:
        built: dict[Any, Any] = {}
        for _ in parts.steps(frame):
            if not parts.is_included(frame):
                continue
            entries = parts.body(frame)
            if not isinstance(entries, dict):
                raise no_such_overload()
            for key, value in entries.items():
                if key in built:
                    raise EvalError(f"insert failed: key {key} already exists")
                built[key] = value
        return built

    return run


def _sort_by(parts: FoldCode) -> Code:
    def run(frame: list[Any]) -> list[Any]:
        pairs = [(element, parts.body(frame)) for element in parts.steps(frame)]
        return sort_by_keys([element for element, _ in pairs], [key for _, key in pairs])

    return run


def _opt_flat_map(parts: FoldCode, wrap: Callable[[Any], Any] | None = None) -> Code:
    def run(frame: list[Any]) -> Any:
        value = parts.range(frame)
        if not isinstance(value, Optional):
            raise no_such_overload()
        if not value.present:
            return NONE
        frame[parts.slot] = value.value
        result = parts.body(frame)
        return result if wrap is None else wrap(result)

    return run


FOLDS: Final[Mapping[Fold, Callable[[FoldCode], Code]]] = {
    Fold.ALL: lambda parts: _decides(parts, False),
    Fold.EXISTS: lambda parts: _decides(parts, True),
    Fold.EXISTS_ONE: _exactly_one,
    Fold.MAP: _map,
    Fold.FILTER: _filter,
    Fold.TRANSFORM_LIST: _map,
    Fold.TRANSFORM_MAP: _transform_map,
    Fold.TRANSFORM_MAP_ENTRY: _transform_entries,
    Fold.SORT_BY: _sort_by,
    Fold.OPT_MAP: lambda parts: _opt_flat_map(parts, wrap=some),
    Fold.OPT_FLAT_MAP: _opt_flat_map,
}
