"""Signatures of the paths in a value, which are cheaper to compute than the set of paths.

Objects of the same client differ in values, but hardly ever in paths: the set is computed once for each signature. A
signature lists, for each container, the number of its names, the names, and the content of its containers. Leaves, to
which most names belong, take no step of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final

from unbounded_apiserver.managed_fields.merge import (
    DeducedKind,
    MapListKind,
    MergeKind,
    ObjectKind,
    SetKind,
    element_of,
)

KINDS: Final = 1024

Signature = list[Any]
Walk = Callable[[Any, Signature], None]


@lru_cache(maxsize=KINDS)
def signer(kind: ObjectKind) -> Walk:
    """Return a function that appends an object's signature: equal signatures mean equal paths."""
    walk = _walk(kind)
    return _plain if walk is None else walk


def _walk(kind: MergeKind) -> Walk | None:
    """Return the walk of a kind; None if it has no paths below it."""
    match kind:
        case ObjectKind(declared=declared, rest=rest):
            deep = {name: walk for name, below in declared.items() if (walk := _walk(below)) is not None}
            return _fields(frozenset(declared), deep, None if rest is None else _walk(rest))
        case MapListKind(item=item):
            return _map_list(kind, _walk(item))
        case SetKind():
            return _map_list(kind, None)
        case DeducedKind():
            return _deduced
    return None


def _plain(value: Any, out: Signature) -> None:
    """Append a container of leaves, distinguished from a value that is no container."""
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


def _map_list(kind: MapListKind | SetKind, below: Walk | None) -> Walk:
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
