"""Caches whose objects record each read of a field that the process container-cloud leaves out of its caches."""

from __future__ import annotations

import functools
from typing import Any, Final, TypeVar

import msgspec

from unbounded.containercloud.caches import (
    UNREAD_OF_MACHINES,
    UNREAD_OF_NODES,
    UNREAD_OF_OPERATIONS,
    ContainerCloudCaches,
    container_cloud_caches,
)
from unbounded.kube.api import Api
from unbounded.kube.compaction import ObjectCompaction, Unread

T = TypeVar("T")

faults: Final[set[str]] = set()  # the fields that were read, as Type.field; a fixture judges them after each test


class WatchedCompaction(ObjectCompaction):
    """A compaction after which the parts of an object record the reads of their unread fields."""

    def __init__(self, unread: Unread | None = None, *, apart: frozenset[str] = frozenset()) -> None:
        super().__init__(unread, apart=apart)
        self._fields = {kind: frozenset(values) for kind, values in (unread or {}).items()}

    def __call__(self, item: T) -> T:
        watched: T = self._watched(super().__call__(item))
        return watched

    def _watched(self, part: Any) -> Any:
        if isinstance(part, tuple):
            return tuple(map(self._watched, part))
        if not isinstance(part, msgspec.Struct):
            return part
        values = {name: self._watched(getattr(part, name)) for name in part.__struct_fields__}
        kind = type(part)
        return (watched_type(kind, self._fields[kind]) if kind in self._fields else kind)(**values)


@functools.cache
def watched_type(kind: type[msgspec.Struct], unread: frozenset[str]) -> type[msgspec.Struct]:
    """Return a type like another one, which records the reads of some fields."""

    def read(part: msgspec.Struct, name: str) -> Any:
        if name in unread:
            faults.add(f"{kind.__name__}.{name}")
        return object.__getattribute__(part, name)

    return msgspec.defstruct(
        kind.__name__, (), bases=(kind,), namespace={"__getattribute__": read}, frozen=True, kw_only=True
    )


def watched_caches(api: Api) -> ContainerCloudCaches:
    return container_cloud_caches(api, compaction=WatchedCompaction)


ALL: Final = (UNREAD_OF_MACHINES, UNREAD_OF_OPERATIONS, UNREAD_OF_NODES)
