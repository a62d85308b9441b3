"""`StatusWriter`: the only way in which a controller changes the status of an object. `StatusDebounce`: when."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping
from datetime import datetime
from typing import Any, Final, Generic, TypeVar

from unbounded.api.meta import Kind
from unbounded.kube.api import Api, Conflict, NotFound, ObjectKey, StrategicMerge, identify
from unbounded.kube.cache import Cache

T = TypeVar("T")
Raw = dict[str, Any]

ATTEMPTS: Final = 4  # of an update whose object others change at the same time


class StatusDebounce:
    """Delays of status changes that can wait, so that one write has what changes meanwhile."""

    def __init__(self) -> None:
        self._since: dict[Hashable, datetime] = {}  # of the first change that was not written

    def left_s(self, key: Hashable, now: datetime, *, waits_s: float) -> float:
        """Return for how long the write of an object's status still waits; 0 to write now.

        Args:
            waits_s: for how long the present changes can wait; 0 if there is none, or one that cannot.
        """
        if waits_s:
            left_s = waits_s - (now - self._since.setdefault(key, now)).total_seconds()
            if left_s > 0:
                return left_s
        self._since.pop(key, None)
        return 0.0


class StatusWriter(Generic[T]):
    """Writer of some fields of the status of one kind.

    A write rests on the version that was read, so that a change by another writer is a Conflict and never lost. A
    status without a change is not written. The cache learns each answer before the watch delivers it.

    Args:
        fields: the status fields that the writer owns, as on the wire; it refuses to write others. None for all of
            them, where something else decides who may write, such as a claim.
        cache: the cache of the kind; None where the caller keeps none.
        strategic: merge lists by their keys, which built-in kinds allow, and leave the elements of others alone.
    """

    def __init__(
        self,
        api: Api,
        kind: Kind[T],
        *,
        fields: Collection[str] | None,
        cache: Cache[T] | None = None,
        strategic: bool = False,
    ) -> None:
        self._api = api
        self._kind = kind
        self._fields = None if fields is None else frozenset(fields)
        self._cache = cache
        self._strategic = strategic

    async def write(self, base: object, status: Mapping[str, Any] | None) -> T | None:
        """Merge `status` into that of `base`, an object as it was read: a Struct or plain JSON.

        Returns:
            The object as the server keeps it; None where there was nothing to write.

        Raises:
            Conflict: the object has changed since it was read.
            ValueError: the writer does not own a field.
        """
        if not status:
            return None
        key, _uid, version = identify(base)
        return await self._patch(key, {"metadata": {"resourceVersion": version}, "status": self._owned(status)})

    async def merge(self, name: str, status: Mapping[str, Any], *, namespace: str = "", uid: str = "") -> T:
        """Merge `status` into that of an object of any version: for fields that have one writer.

        Args:
            uid: of the expected object; another one under its name is a Conflict.
        """
        precondition = {"metadata": {"uid": uid}} if uid else {}
        return await self._patch(ObjectKey(namespace, name), {**precondition, "status": self._owned(status)})

    async def update(
        self,
        name: str,
        change: Callable[[Raw], Mapping[str, Any] | None],
        *,
        namespace: str = "",
        uid: str = "",
        attempts: int = ATTEMPTS,
    ) -> T | None:
        """Read the object, let `change` compute the fields to merge into its status, and write them; retry after a
        Conflict.

        Args:
            uid: of the expected object; another one under its name is not changed.

        Returns:
            The object as the server stores it; None if it does not exist, or if there was nothing to write.

        Raises:
            Conflict: other writers changed it each time.
            ValueError: the writer does not own a field.
        """
        for left in range(attempts - 1, -1, -1):
            try:
                raw = await self._api.get(self._kind.raw(), name, namespace=namespace)
                return None if uid not in ("", identify(raw).uid) else await self.write(raw, change(raw))
            except NotFound:
                return None
            except Conflict:
                if not left:
                    raise
        return None

    def _owned(self, status: Mapping[str, Any]) -> dict[str, Any]:
        foreign = status.keys() - (status.keys() if self._fields is None else self._fields)
        if foreign:
            raise ValueError(f"status.{', status.'.join(sorted(foreign))} of {self._kind.kind} has another writer")
        return dict(status)

    async def _patch(self, key: ObjectKey, patch: Mapping[str, Any]) -> T:
        body = StrategicMerge(patch) if self._strategic else patch
        written = await self._api.patch(self._kind, key.name, body, namespace=key.namespace, subresource="status")
        if self._cache is not None:
            self._cache.observe(written)
        return written
