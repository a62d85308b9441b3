"""Compaction of decoded objects: fields that a process never reads are left out, and equal parts are shared."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, Final, TypeVar

import msgspec
from msgspec.structs import replace

T = TypeVar("T")
Unread = Mapping[type[msgspec.Struct], Mapping[str, Any]]
"""Fields that a process never reads, by the type that has them, with the values that take their place."""

MAX_SHARED: Final = 1024  # parts, those used last: the objects of a fleet repeat models, reasons, messages and names
MAX_SHARED_DICTS: Final = 128  # likewise; most are labels


class ObjectCompaction:
    """Compaction of frozen objects, such as those of one kind. It takes about twice as long as their decoding.

    Args:
        apart: names of fields whose values are not shared, as what is shared may outlast its object: passwords.
    """

    def __init__(self, unread: Unread | None = None, *, apart: frozenset[str] = frozenset()) -> None:
        self._unread = unread or {}
        self._apart = apart

    def __call__(self, item: T) -> T:
        """Return an object without the unread fields, which shares equal parts with those compacted before."""
        compacted: T = self._compacted(item)
        return compacted

    def _compacted(self, part: Any) -> Any:
        if type(part) is str:
            return _shared(part)
        if type(part) is tuple:
            return _shared_if_hashable(tuple(map(self._compacted, part)))
        if type(part) is dict:
            items = tuple((self._compacted(key), self._compacted(value)) for key, value in part.items())
            return _shared_texts(items) if all(type(value) is str for _, value in items) else dict(items)
        if isinstance(part, msgspec.Struct):
            return self._compacted_struct(part)
        return part

    def _compacted_struct(self, part: msgspec.Struct) -> Any:
        changed = {}
        unread = self._unread.get(type(part), {})
        for name in part.__struct_fields__:
            if name in self._apart:
                continue
            value = getattr(part, name)
            compacted = unread[name] if name in unread else self._compacted(value)
            if compacted is not value:
                changed[name] = compacted
        whole = replace(part, **changed) if changed else part
        return whole if self._apart else _shared_if_hashable(whole)


@functools.lru_cache(MAX_SHARED)
def _shared(part: Any) -> Any:
    return part


@functools.lru_cache(MAX_SHARED_DICTS)
def _shared_texts(items: tuple[tuple[str, str], ...]) -> dict[str, str]:
    """Return a dict of texts, such as the labels of many objects."""
    return dict(items)


def _shared_if_hashable(part: Any) -> Any:
    try:
        return _shared(part)
    except TypeError:  # a dict is in it
        return part
