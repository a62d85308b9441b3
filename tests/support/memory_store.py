"""Versions of objects, their history, and merge patches: what `MemoryApi` is built on."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

import msgspec

from unbounded.api.meta import Kind

T = TypeVar("T")
Body = dict[str, Any]
Key = tuple[str, str]  # namespace (empty for cluster-scoped kinds), name


@dataclass(slots=True, eq=False)
class Version:
    """One version of one object. `body` is never changed: later versions share parts of it."""

    body: Body
    raw: bytes
    revision: int
    _decoded: dict[type, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, body: Body, revision: int) -> Version:
        return cls(body, msgspec.json.encode(body), revision)

    def decode(self, to: type[T]) -> T:
        """The object as this type: frozen Structs are decoded once, plain JSON is the reader's own."""
        if to is dict:
            return cast("T", msgspec.json.decode(self.raw))
        if to not in self._decoded:
            self._decoded[to] = msgspec.json.decode(self.raw, type=to)
        return cast("T", self._decoded[to])


@dataclass(slots=True)
class Change:
    """A step of the history: created (no old), changed, or deleted (no new)."""

    revision: int
    old: Version | None
    new: Version | None
    _last: Version | None = None

    def last(self) -> Version:
        """The old object under the revision of the change: what a DELETED event carries."""
        if self._last is None:
            assert self.old is not None
            self._last = Version.of(merged(self.old.body, {"metadata": {"resourceVersion": str(self.revision)}}), 0)
        return self._last


class Collection:
    """All objects of one kind, and what has happened to them since the last compaction."""

    def __init__(self, kind: Kind[Any]) -> None:
        self.kind = kind
        self.versions: dict[Key, Version] = {}
        self.forgotten = 0  # revision of the last change that was forgotten
        self._changes: list[Change] = []
        self._waiting: dict[asyncio.Future[None], None] = {}  # in order, so that a run can be repeated

    def record(self, change: Change) -> None:
        self._changes.append(change)
        for future in self._waiting:
            if not future.done():
                future.set_result(None)
        self._waiting.clear()

    def after(self, revision: int) -> list[Change]:
        """The changes after a revision, oldest first."""
        start = len(self._changes)
        while start and self._changes[start - 1].revision > revision:
            start -= 1
        return self._changes[start:]

    def forget(self) -> None:
        if self._changes:
            self.forgotten = self._changes[-1].revision
            self._changes.clear()
            for future in self._waiting:
                if not future.done():
                    future.set_result(None)

    async def wait(self) -> None:
        """Until something happens."""
        future = asyncio.get_running_loop().create_future()
        self._waiting[future] = None
        try:
            await future
        finally:
            self._waiting.pop(future, None)


def merged(target: Any, patch: Any, *, strategic: bool = False) -> Any:
    """A JSON merge patch (RFC 7386); what it does not touch is shared with `target`, which is not changed.

    Args:
        strategic: merge lists of conditions by their types, as a strategic merge patch does.
    """
    if strategic and isinstance(patch, list) and all("type" in one for one in patch):
        present = {one["type"]: one for one in target or ()}
        changes = {one["type"]: merged(present.get(one["type"]), one) for one in patch}
        added = [change for type_, change in changes.items() if type_ not in present]
        return [*added, *(changes.get(type_, one) for type_, one in present.items())]
    if not isinstance(patch, dict):
        return patch
    result: Body = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = merged(result.get(name), value, strategic=strategic)
    return result


def without_nulls(body: Any) -> Any:
    """The object without its null members, which the server prunes where a field is not nullable."""
    return merged({}, body)
