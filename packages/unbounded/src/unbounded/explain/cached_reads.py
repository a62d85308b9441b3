"""Reads of explanations from watch caches, for programs that explain many objects again and again."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import msgspec

from unbounded.api.meta import Kind
from unbounded.explain.facts_reader import ReadApi
from unbounded.kube.api import NotFound, ObjectList, identify
from unbounded.kube.cache import Cache
from unbounded.kube.selectors import field_terms, label_test

T = TypeVar("T")


class CachedReads:
    """A ReadApi that reads the kinds of synced caches there, and the others from an API.

    Args:
        api: of the reader.
        caches: of all objects of their kinds, without selectors. They have to be the reader's own: a cache of another
            user would show what the reader may not read.
    """

    def __init__(self, api: ReadApi, caches: Iterable[Cache[Any]]) -> None:
        self._api = api
        self._caches = {(cache.kind.group, cache.kind.plural): cache for cache in caches}

    async def get(self, kind: Kind[T], name: str, *, namespace: str = "") -> T:
        cache = self._cache(kind)
        if cache is None:
            return await self._api.get(kind, name, namespace=namespace)
        found = cache.get(name, namespace)
        if found is None:
            raise NotFound(f"{kind.kind} {name} does not exist", code=404, reason="NotFound")
        return found

    async def list(self, kind: Kind[T], *, namespace: str = "", labels: str = "", fields: str = "") -> ObjectList[T]:
        cache = self._cache(kind)
        if cache is None:
            return await self._api.list(kind, namespace=namespace, labels=labels, fields=fields)
        return ObjectList(tuple(filter(selection_test(namespace, labels, fields), cache.all())), "")

    def _cache(self, kind: Kind[T]) -> Cache[T] | None:
        cache = self._caches.get((kind.group, kind.plural))
        return cache if cache is not None and cache.synced.is_set() and cache.kind.type is kind.type else None


def selection_test(namespace: str = "", labels: str = "", fields: str = "") -> Callable[[Any], bool]:
    """Return the test of an object that a list with these arguments makes.

    Raises:
        SelectorError: a selector cannot be parsed.
    """
    has_labels, terms = label_test(labels), field_terms(fields)

    def is_selected(item: Any) -> bool:
        if namespace and identify(item).key.namespace != namespace:
            return False
        if labels and not has_labels(item.metadata.labels):
            return False
        return all((_field_text(item, path) == value) is equal for path, equal, value in terms)

    return is_selected


def _field_text(item: object, path: str) -> str:
    """Return the text of a field by its path in JSON, such as spec.machineRef; empty where it is absent."""
    value = item
    for step in path.split("."):
        if not isinstance(value, msgspec.Struct) or step not in value.__struct_encode_fields__:
            return ""
        value = getattr(value, value.__struct_fields__[value.__struct_encode_fields__.index(step)])
    return "" if value is None else str(value)
