"""Protocol of a Kubernetes API for our code, the identity of its objects, and its errors, sorted by who acts next.

The HTTP client and the in-memory API of tests implement the Protocol.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

from unbounded.api.failures import Failure, Rejected, Stale, Transient, Uncertain
from unbounded.api.meta import Kind, Object

T = TypeVar("T")
READ_FORBIDDEN: Final = "may not be read"  # the words of components that lack a right


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


class StrategicMerge(dict[str, Any]):
    """A patch of a built-in kind that merges lists by their keys, such as the conditions of a Node by their type."""


class Api(Protocol):
    """Calls raise `ApiError`s; every call has a limit of its own."""

    async def get(self, kind: Kind[T], name: str, *, namespace: str = "") -> T: ...

    async def list(
        self, kind: Kind[T], *, namespace: str = "", labels: str = "", fields: str = ""
    ) -> ObjectList[T]: ...

    def watch(
        self, kind: Kind[T], *, resource_version: str, namespace: str = "", labels: str = "", fields: str = ""
    ) -> AsyncIterator[WatchEvent[T]]:
        """Changes after `resource_version`, until the server ends the stream or Expired is raised.

        With an empty `resource_version` it begins with an ADDED for every object that there is and a BOOKMARK with
        `synced`; a server that cannot do so (before Kubernetes 1.32) refuses with Invalid, and one whose etcd cannot
        (before 3.4.31 or 3.5.13) with ReadFailed, code 500.
        """
        ...

    async def create(self, kind: Kind[T], body: Mapping[str, Any], *, namespace: str = "") -> T:
        """Create from plain JSON (`metadata` included; apiVersion and kind are filled in)."""
        ...

    async def patch(
        self, kind: Kind[T], name: str, patch: Mapping[str, Any], *, namespace: str = "", subresource: str = ""
    ) -> T:
        """JSON merge patch, or a StrategicMerge. With `metadata.resourceVersion` in it, an object that has changed
        since raises Conflict.
        """
        ...

    async def delete(
        self, kind: Kind[T], name: str, *, namespace: str = "", uid: str = "", resource_version: str = ""
    ) -> None:
        """Request a deletion (background propagation); `uid` and `resource_version` are preconditions (Conflict)."""
        ...

    async def version(self) -> str:
        """The version of Kubernetes that the server is, such as v1.34.0."""
        ...


class ObjectKey(NamedTuple):
    """The name of an object of some kind; `namespace` is empty for cluster-scoped kinds."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


class ObjectIdentity(NamedTuple):
    key: ObjectKey
    uid: str
    version: str


def identify(item: object) -> ObjectIdentity:
    """Read the metadata of a decoded object.

    Raises:
        TypeError: it is neither an `Object` nor plain JSON.
    """
    if isinstance(item, Object):
        meta = item.metadata
        return ObjectIdentity(ObjectKey(meta.namespace or "", meta.name), meta.uid, meta.resource_version)
    if isinstance(item, dict):
        body: dict[str, Any] = item.get("metadata") or {}
        key = ObjectKey(body.get("namespace") or "", body.get("name") or "")
        return ObjectIdentity(key, body.get("uid") or "", body.get("resourceVersion") or "")
    raise TypeError(f"{type(item).__name__} is no API object")


def key_of(item: object) -> ObjectKey:
    return identify(item).key


def version_number(version: str) -> int:
    """A resourceVersion as a number, which is how versions of one server are ordered; 0 for one that is none."""
    return int(version) if version.isascii() and version.isdigit() else 0


class ApiError(Failure):
    """An answer of the API server that is not success: its status code, its reason, and the whole Status object."""

    def __init__(self, message: str, *, code: int = 0, reason: str = "", status: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.status = status or {}


class NotFound(ApiError, Rejected):
    """404: no such object (or no such resource)."""


class KindNotServed(NotFound):
    """404: the server does not serve this kind at all."""

    def __init__(self, kind: Kind[Any]) -> None:
        super().__init__(f"the server does not serve {kind.kind} ({kind.api_version})", code=404, reason="NotFound")
        self.kind = kind


def is_kind_missing(error: ApiError) -> bool:
    """Return whether a NotFound says that the server does not serve the kind, rather than that an object is missing."""
    return not (error.status.get("details") or {}).get("name")


def is_refusal(error: ApiError) -> bool:
    """Return whether the server, or its admission, refuses a write until a user changes something.

    A webhook that cannot be called refuses, too. A Conflict, a busy server and a lost answer are no refusals.
    """
    if _WEBHOOK.search(str(error)) is not None:
        return True
    if isinstance(error, Forbidden):
        return error.code != 401
    return isinstance(error, InvalidObject) and error.code != 408


def refused_by(error: ApiError) -> str:
    """Return what refuses a write: a webhook, a policy, or the API server itself."""
    for pattern, kind in ((_WEBHOOK, "admission webhook"), (_POLICY, "ValidatingAdmissionPolicy")):
        if (found := pattern.search(str(error))) is not None:
            return f"{kind} {found[1] or found[2]}"
    return "the API server"


_WEBHOOK: Final = re.compile(r'admission webhook "([^"]+)" denied the request|failed calling webhook "([^"]+)"')
_POLICY: Final = re.compile(r"ValidatingAdmissionPolicy '([^']+)'()")


class AlreadyExists(ApiError, Rejected):
    """409 AlreadyExists."""


class Conflict(ApiError, Stale):
    """409 Conflict: the object has changed since it was read, or a precondition does not hold."""


class Expired(ApiError, Stale):
    """410: the watch or the page starts before what the server still remembers; list again."""


class InvalidObject(ApiError, Rejected):
    """422 (and 400): the object is not valid; the message names the fields."""


class Forbidden(ApiError, Rejected):
    """403, or 401: these credentials may not do that."""


class ServerBusy(ApiError, Transient):
    """429, or 503: the server did nothing; `retry_after_s` is its Retry-After, or None."""

    retry_after_s: float | None = None


class EvictionBlocked(ApiError, Transient):
    """429 with cause DisruptionBudget: a PodDisruptionBudget allows no eviction of the pod now."""


class ServerError(ApiError, Uncertain):
    """Another 5xx: a write may have been done."""


class ServerUnreachable(ApiError, Transient):
    """The request did not reach the server."""


class ResponseLost(ApiError, Uncertain):
    """The request was sent and no whole answer came."""


class ReadFailed(ApiError, Transient):
    """A read, or a watch, got no whole answer; nothing can have changed by it."""
