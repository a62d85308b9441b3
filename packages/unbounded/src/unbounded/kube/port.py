"""The Protocol of a Kubernetes API for our code; the HTTP client and the in-memory API of tests implement it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Generic, Protocol, TypeVar

from unbounded.api.kinds import Kind

T = TypeVar("T")


class EventType(StrEnum):
    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"
    BOOKMARK = "BOOKMARK"


@dataclass(frozen=True)
class WatchEvent(Generic[T]):
    """One change. A BOOKMARK has no object, only a `resource_version`; `synced` marks the end of the initial list."""

    type: EventType
    object: T | None
    resource_version: str
    synced: bool = False


@dataclass(frozen=True)
class ObjectList(Generic[T]):
    """All objects that matched at one revision."""

    items: tuple[T, ...]
    resource_version: str


class Api(Protocol):
    """Calls raise the failures of `unbounded.kube.errors`; every call has a limit of its own."""

    async def get(self, kind: Kind[T], name: str, *, namespace: str = "") -> T: ...

    async def list(
        self, kind: Kind[T], *, namespace: str = "", labels: str = "", fields: str = ""
    ) -> ObjectList[T]: ...

    def watch(
        self, kind: Kind[T], *, resource_version: str, namespace: str = "", labels: str = "", fields: str = ""
    ) -> AsyncIterator[WatchEvent[T]]:
        """Changes after `resource_version`, until the server ends the stream or Expired is raised.

        With an empty `resource_version` it begins with an ADDED for every object that there is and a BOOKMARK with
        `synced`; a server that cannot do so (before Kubernetes 1.32) refuses with Invalid.
        """
        ...

    async def create(self, kind: Kind[T], body: Mapping[str, Any], *, namespace: str = "") -> T:
        """Create from plain JSON (`metadata` included; apiVersion and kind are filled in)."""
        ...

    async def patch(
        self, kind: Kind[T], name: str, patch: Mapping[str, Any], *, namespace: str = "", subresource: str = ""
    ) -> T:
        """JSON merge patch. With `metadata.resourceVersion` in it, an object that has changed since raises Conflict."""
        ...

    async def delete(
        self, kind: Kind[T], name: str, *, namespace: str = "", uid: str = "", resource_version: str = ""
    ) -> None:
        """Request a deletion (background propagation); `uid` and `resource_version` are preconditions (Conflict)."""
        ...

    async def version(self) -> str:
        """The version of Kubernetes that the server is, such as v1.34.0."""
        ...
