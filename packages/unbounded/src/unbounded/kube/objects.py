"""Key, UID and version of any object, be it a Struct or plain JSON."""

from __future__ import annotations

from typing import Any, NamedTuple

from unbounded.api.meta import Object


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
