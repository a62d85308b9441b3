"""Macros: calls that the parser rewrites, as their arguments are variables and bodies instead of values.

At run time each macro is one loop (`FOLDS`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from unbounded_apiserver.cel.ast import Comprehension, Fold, Ident, Node, Select
from unbounded_apiserver.cel.functions.lists import sort_by_keys
from unbounded_apiserver.cel.values import NONE, EvalError, Issue, Optional, no_such_overload, some

Code: TypeAlias = Callable[[list[Any]], Any]
_Expander: TypeAlias = Callable[[Node, list[Node], int], Node]


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


class MacroError(Exception):
    """A macro is called with invalid arguments."""

    def __init__(self, offset: int, message: str) -> None:
        super().__init__(message)
        self.issue = Issue(offset, message)


def _comprehension(fold: Fold, variables: int, *, condition: bool = False) -> _Expander:
    """Return an expander whose arguments are variables, then a condition if there is one, then the body."""

    def expand(target: Node, args: list[Node], offset: int) -> Node:
        names = tuple(_simple_name(arg) for arg in args[:variables])
        if len(set(names)) < len(names):
            raise MacroError(args[1].offset, f"duplicate variable name: {names[1]}")
        return Comprehension(
            fold, target, names, body=args[-1], condition=args[variables] if condition else None, offset=offset
        )

    return expand


def _simple_name(arg: Node) -> str:
    if not isinstance(arg, Ident):
        raise MacroError(arg.offset, "argument must be a simple name")
    return arg.name


_MACROS: Final[Mapping[tuple[str, int], _Expander]] = {
    ("all", 2): _comprehension(Fold.ALL, 1),
    ("all", 3): _comprehension(Fold.ALL, 2),
    ("exists", 2): _comprehension(Fold.EXISTS, 1),
    ("exists", 3): _comprehension(Fold.EXISTS, 2),
    ("exists_one", 2): _comprehension(Fold.EXISTS_ONE, 1),
    ("exists_one", 3): _comprehension(Fold.EXISTS_ONE, 2),
    ("existsOne", 2): _comprehension(Fold.EXISTS_ONE, 1),
    ("existsOne", 3): _comprehension(Fold.EXISTS_ONE, 2),
    ("map", 2): _comprehension(Fold.MAP, 1),
    ("map", 3): _comprehension(Fold.MAP, 1, condition=True),
    ("filter", 2): _comprehension(Fold.FILTER, 1),
    ("transformList", 3): _comprehension(Fold.TRANSFORM_LIST, 2),
    ("transformList", 4): _comprehension(Fold.TRANSFORM_LIST, 2, condition=True),
    ("transformMap", 3): _comprehension(Fold.TRANSFORM_MAP, 2),
    ("transformMap", 4): _comprehension(Fold.TRANSFORM_MAP, 2, condition=True),
    ("transformMapEntry", 3): _comprehension(Fold.TRANSFORM_MAP_ENTRY, 2),
    ("transformMapEntry", 4): _comprehension(Fold.TRANSFORM_MAP_ENTRY, 2, condition=True),
    ("sortBy", 2): _comprehension(Fold.SORT_BY, 1),
    ("optMap", 2): _comprehension(Fold.OPT_MAP, 1),
    ("optFlatMap", 2): _comprehension(Fold.OPT_FLAT_MAP, 1),
}  # (method, number of arguments)


def expand_call(function: str, target: Node | None, args: list[Node], offset: int) -> Node | None:
    """Return the expansion of a call if it is a macro, else None.

    Raises:
        MacroError: the arguments are invalid.
    """
    if target is None:
        return _expand_has(args, offset) if function == "has" and len(args) == 1 else None
    expander = _MACROS.get((function, len(args)))
    return None if expander is None else expander(target, args, offset)


def _expand_has(args: list[Node], offset: int) -> Node:
    arg = args[0]
    if not isinstance(arg, Select) or arg.test:
        raise MacroError(arg.offset, "invalid argument to has() macro")
    return Select(arg.operand, arg.name, test=True, optional=arg.optional, offset=offset)
