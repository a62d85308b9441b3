"""Macros: calls that the parser rewrites, as their arguments are variables and bodies instead of values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from unbounded_apiserver.cel.ast import Comprehension, Fold, Ident, Node, Select
from unbounded_apiserver.cel.errors import Issue


class MacroError(Exception):
    """A macro is called with invalid arguments."""

    def __init__(self, offset: int, message: str) -> None:
        super().__init__(message)
        self.issue = Issue(offset, message)


_Expander: TypeAlias = Callable[[Node, list[Node], int], Node]


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
