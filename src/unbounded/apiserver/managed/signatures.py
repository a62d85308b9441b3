"""Which paths a value has, told by a key that is cheaper to make than the set of them.

Objects that the same client makes differ in values, hardly ever in paths: the set is worked out once for each key. The
key lists, for each container, how many names it has and which, and then what the containers in it hold; leaves, which
most names stand for, take no step of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final

from unbounded.apiserver.managed.typed import Deduced, Fields, Kind, MapList, SetList, element_of

KINDS: Final = 1024

Signature = list[Any]
Walk = Callable[[Any, Signature], None]


@lru_cache(maxsize=KINDS)
def signer(kind: Fields) -> Walk:
    """What appends the key of an object of this kind: two with the same key have the same paths."""
    walk = _walk(kind)
    return _plain if walk is None else walk


def _walk(kind: Kind) -> Walk | None:
    """None for what has no paths below it."""
    match kind:
        case Fields(declared=declared, rest=rest):
            deep = {name: walk for name, below in declared.items() if (walk := _walk(below)) is not None}
            return _fields(frozenset(declared), deep, None if rest is None else _walk(rest))
        case MapList(item=item):
            return _map_list(kind, _walk(item))
        case SetList():
            return _map_list(kind, None)
        case Deduced():
            return _deduced
    return None


def _plain(value: Any, out: Signature) -> None:
    """A container of leaves, told apart from what is not a container."""
    if isinstance(value, dict):
        out.append(len(value))
        out.extend(value)
    else:
        out.append(None)


def _fields(declared: frozenset[str], deep: Mapping[str, Walk], rest: Walk | None) -> Walk:
    if not deep and rest is None:
        return _plain
    pairs = tuple(deep.items())

    def walk(value: Any, out: Signature) -> None:
        _plain(value, out)
        if isinstance(value, dict):
            for name, below in pairs:
                if name in value:
                    below(value[name], out)
            if rest is not None:
                for name, item in value.items():
                    if name not in declared:
                        rest(item, out)

    return walk


def _map_list(kind: MapList | SetList, below: Walk | None) -> Walk:
    def walk(value: Any, out: Signature) -> None:
        if not isinstance(value, list):
            out.append(None)
            return
        out.append(len(value))
        for item in value:
            out.append(element_of(kind, item))
            if below is not None:
                below(item, out)

    return walk


def _deduced(value: Any, out: Signature) -> None:
    _plain(value, out)
    if isinstance(value, dict):
        for item in value.values():
            _deduced(item, out)
