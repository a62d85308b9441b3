"""Clients that die at one of their calls: from that moment no call of theirs has an effect."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from unbounded.api.meta import Kind
from unbounded.kube.api import ObjectList
from unbounded.kube.client import HttpApi

T = TypeVar("T")


class Killed(BaseException):
    """The process is dead."""


@dataclass
class Life:
    """Of one process, which has clients on both sides.

    Args:
        calls: that it makes before it dies; None for all.
        after: it dies when its last call has had its effect, and not before.
        before_phase: it dies before it would write this phase into the record.
    """

    calls: int | None = None
    after: bool = False
    before_phase: str = ""
    made: int = 0

    async def through(self, call: Callable[[], Awaitable[T]]) -> T:
        self.made += 1
        if self.calls is not None and self.made > self.calls:
            raise Killed
        dies = self.calls is not None and self.made == self.calls
        if dies and not self.after:
            raise Killed
        answer = await call()
        if dies:
            raise Killed
        return answer


class MortalApi(HttpApi):
    """A client of such a process."""

    def __init__(self, of: HttpApi, life: Life) -> None:
        super().__init__(of.config)
        self._life = life

    async def get(self, kind: Kind[T], name: str, *, namespace: str = "") -> T:
        get = super().get
        return await self._life.through(lambda: get(kind, name, namespace=namespace))

    async def list(self, kind: Kind[T], *, namespace: str = "", labels: str = "", fields: str = "") -> ObjectList[T]:
        list_ = super().list
        return await self._life.through(lambda: list_(kind, namespace=namespace, labels=labels, fields=fields))

    async def create(self, kind: Kind[T], body: Mapping[str, Any], **options: Any) -> T:
        create = super().create
        return await self._life.through(lambda: create(kind, body, **options))

    async def patch(self, kind: Kind[T], name: str, patch: Mapping[str, Any], **options: Any) -> T:
        change = super().patch
        if self._life.before_phase and (patch.get("data") or {}).get("phase") == self._life.before_phase:
            self._life.calls = 0
        return await self._life.through(lambda: change(kind, name, patch, **options))

    async def apply(self, kind: Kind[T], body: Mapping[str, Any], **options: Any) -> T:
        apply = super().apply
        return await self._life.through(lambda: apply(kind, body, **options))

    async def delete(self, kind: Kind[T], name: str, **options: Any) -> None:
        delete = super().delete
        await self._life.through(lambda: delete(kind, name, **options))
