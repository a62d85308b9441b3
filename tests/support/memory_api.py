"""`MemoryApi`: an API server's behaviour in one object, for tests that need its semantics and not its transport.

What it does is held to `tests.kube.test_api_contract`, which also runs against real servers. It has no faults of its
own: tests wrap it. Calls never wait (only a watch does), so a test decides where others come in between.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

import msgspec

from tests.support.memory_store import Change, Collection, Key, Version, merged, without_nulls
from unbounded.api.meta import Kind
from unbounded.api.names import GROUP
from unbounded.kube.api import (
    AlreadyExists,
    ApiError,
    Conflict,
    EventType,
    Expired,
    InvalidObject,
    NotFound,
    ObjectList,
    StrategicMerge,
    WatchEvent,
)
from unbounded.kube.clock import WallClock, rfc3339, utc_now
from unbounded.kube.selectors import SelectorError, field_terms, field_value, label_test

T = TypeVar("T")
E = TypeVar("E", bound=ApiError)
Body = dict[str, Any]
Test = Callable[[Body], bool]

BUILT_IN_GROUPS: Final = frozenset({"", "coordination.k8s.io"})
BUILT_IN_WITH_STATUS: Final = frozenset({"nodes", "namespaces"})
CUSTOM_WITHOUT_STATUS: Final = frozenset({"machineoperationcredentials", "machineprofiles"})
SERVER_FIELDS: Final = ("uid", "creationTimestamp", "generation", "deletionTimestamp", "deletionGracePeriodSeconds")
MODIFIED: Final = "the object has been modified; please apply your changes to the latest version and try again"


def has_status(kind: Kind[Any]) -> bool:
    """Return whether the kind has a status subresource."""
    if kind.group in BUILT_IN_GROUPS:
        return kind.plural in BUILT_IN_WITH_STATUS
    return kind.plural not in CUSTOM_WITHOUT_STATUS


class MemoryApi:
    """An `unbounded.kube.api.Api` that keeps everything in memory.

    Args:
        admit: called with (kind, old, new) before every write; it raises Invalid to refuse.
        defaults: called with (kind, new) before that; it fills in the schema's defaults in place,
            and changes nothing in an object that has them.
        now: the wall clock of its timestamps.
        namespaces: those that exist from the start.
    """

    def __init__(
        self,
        *,
        admit: Callable[[Kind[Any], Body | None, Body], None] = lambda kind, old, new: None,
        defaults: Callable[[Kind[Any], Body], None] = lambda kind, new: None,
        now: WallClock = utc_now,
        namespaces: Iterable[str] = ("default", "kube-system", "unbounded-kube"),
    ) -> None:
        self.revision = 0
        self.writes = 0  # changes that were stored: what tests of idleness count
        self._admit = admit
        self._defaults = defaults
        self._now = now
        self._collections: dict[tuple[str, str], Collection] = {}
        self._owned: dict[str, set[tuple[Collection, Key]]] = {}  # dependents by the UID of an owner
        self._uids: set[str] = set()
        self._names = 0
        self._compacted = 0
        self._namespaces = self._collection(Kind("", "v1", "Namespace", "namespaces", dict))
        for name in namespaces:
            self._insert(self._namespaces, ("", name), {"apiVersion": "v1", "kind": "Namespace", "metadata": {}})

    # ---- reads

    async def version(self) -> str:
        return "v1.34.0"

    async def get(self, kind: Kind[T], name: str, *, namespace: str = "") -> T:
        return self._current(self._collection(kind), (namespace, name)).decode(kind.type)

    async def list(self, kind: Kind[T], *, namespace: str = "", labels: str = "", fields: str = "") -> ObjectList[T]:
        found = self._matching(self._collection(kind), _selects(kind, namespace, labels, fields))
        return ObjectList(tuple(version.decode(kind.type) for version in found), str(self.revision))

    async def watch(
        self, kind: Kind[T], *, resource_version: str, namespace: str = "", labels: str = "", fields: str = ""
    ) -> AsyncIterator[WatchEvent[T]]:
        collection = self._collection(kind)
        selects = _selects(kind, namespace, labels, fields)
        position = int(resource_version or 0)
        if position == 0:  # begin with what there is
            position = self.revision
            for version in self._matching(collection, selects):
                yield WatchEvent(EventType.ADDED, version.decode(kind.type), str(version.revision))
            if not resource_version:
                yield WatchEvent(EventType.BOOKMARK, None, str(position), synced=True)
        elif position < self._compacted:
            raise _error(Expired, 410, "Expired", f"too old resource version: {position} ({self.revision})")
        while True:
            if position < collection.forgotten:
                raise _error(Expired, 410, "Expired", f"too old resource version: {position} ({self.revision})")
            changes = collection.after(position)
            for change in changes:
                position = change.revision
                event = _event(change, selects, kind.type)
                if event is not None:
                    yield event
            if not changes:
                await collection.wait()

    # ---- writes

    async def create(self, kind: Kind[T], body: Mapping[str, Any], *, namespace: str = "") -> T:
        collection = self._collection(kind)
        new: Body = without_nulls(_plain(body))
        meta: Body = new.setdefault("metadata", {})
        key = (self._namespace_for(kind, namespace, meta), self._name_for(kind, meta))
        existing = collection.versions.get(key)
        if existing is not None:
            terminating = "deletionTimestamp" in existing.body["metadata"]
            prefix = "object is being deleted: " if terminating else ""
            raise _error(AlreadyExists, 409, "AlreadyExists", f"{prefix}{_what(kind, key[1])} already exists")
        if meta.get("resourceVersion"):
            raise _error(InvalidObject, 400, "BadRequest", "resourceVersion should not be set on objects to be created")
        if kind.group not in BUILT_IN_GROUPS and has_status(kind):
            new.pop("status", None)
        new["apiVersion"], new["kind"] = kind.api_version, kind.kind
        self._defaults(kind, new)
        self._admit(kind, None, new)
        return self._insert(collection, key, new).decode(kind.type)

    async def patch(
        self, kind: Kind[T], name: str, patch: Mapping[str, Any], *, namespace: str = "", subresource: str = ""
    ) -> T:
        collection = self._collection(kind)
        if subresource not in ("", "status") or (subresource and not has_status(kind)):
            raise _error(NotFound, 404, "NotFound", "the server could not find the requested resource")
        key = (namespace, name)
        old = self._current(collection, key)
        change = _plain(patch)
        wanted = merged(old.body, change, strategic=isinstance(patch, StrategicMerge))
        if wanted["metadata"].get("resourceVersion") not in (None, "", str(old.revision)):
            raise _conflict(kind, name, MODIFIED)
        new = _writable(kind, old.body, wanted, subresource)
        self._defaults(kind, new)
        if new == old.body:
            return old.decode(kind.type)
        self._admit(kind, old.body, new)
        if kind.group not in BUILT_IN_GROUPS and _specification(kind, new) != _specification(kind, old.body):
            new["metadata"]["generation"] = old.body["metadata"].get("generation", 0) + 1
        if "deletionTimestamp" in new["metadata"] and not new["metadata"].get("finalizers"):
            self._remove(collection, key, old)
            return Version.of(new, old.revision).decode(kind.type)
        return self._store(collection, key, old, new).decode(kind.type)

    async def delete(
        self, kind: Kind[T], name: str, *, namespace: str = "", uid: str = "", resource_version: str = ""
    ) -> None:
        collection = self._collection(kind)
        old = self._current(collection, (namespace, name))
        meta = old.body["metadata"]
        for field, given, actual in (
            ("UID", uid, meta["uid"]),
            ("ResourceVersion", resource_version, str(old.revision)),
        ):
            if given and given != actual:
                why = f"the {field} in the precondition ({given}) does not match the {field} in record ({actual})"
                raise _conflict(kind, name, why)
        self._delete(collection, (namespace, name), old)

    # ---- what tests turn

    def compact(self) -> None:
        """Forget the history: a watch from before now is Expired, and so is one that has not read up to now."""
        self._compacted = self.revision
        for collection in self._collections.values():
            collection.forget()

    # ---- inside

    def _collection(self, kind: Kind[Any]) -> Collection:
        found = self._collections.get((kind.group, kind.plural))
        if found is None:
            found = self._collections[kind.group, kind.plural] = Collection(kind)
        return found

    def _current(self, collection: Collection, key: Key) -> Version:
        version = collection.versions.get(key)
        if version is None:
            text = f"{_what(collection.kind, key[1])} not found"
            details = {"group": collection.kind.group, "kind": collection.kind.plural, "name": key[1]}
            raise NotFound(text, code=404, reason="NotFound", status={"details": details})
        return version

    def _matching(self, collection: Collection, selects: Test) -> Sequence[Version]:
        return [version for _, version in sorted(collection.versions.items()) if selects(version.body)]

    def _namespace_for(self, kind: Kind[Any], namespace: str, meta: Body) -> str:
        if not kind.namespaced:
            return ""
        wanted = namespace or meta.get("namespace", "")
        if meta.get("namespace", wanted) != wanted:
            message = "the namespace of the provided object does not match the namespace sent on the request"
            raise _error(InvalidObject, 400, "BadRequest", message)
        if ("", wanted) not in self._namespaces.versions:
            raise _error(NotFound, 404, "NotFound", f'namespaces "{wanted}" not found')
        meta["namespace"] = wanted
        return wanted

    def _name_for(self, kind: Kind[Any], meta: Body) -> str:
        if not meta.get("name") and meta.get("generateName"):
            self._names += 1
            meta["name"] = f"{meta['generateName']}{self._names:05x}"
        if not meta.get("name"):
            message = f'{kind.kind} "" is invalid: metadata.name: Required value: name or generateName is required'
            raise _error(InvalidObject, 422, "Invalid", message)
        return str(meta["name"])

    def _insert(self, collection: Collection, key: Key, new: Body) -> Version:
        uid = f"{self.revision + 1:08x}-0000-4000-8000-000000000000"
        meta = new["metadata"]
        meta |= {"name": key[1], "uid": uid, "creationTimestamp": rfc3339(self._now())}
        for field in ("generation", "deletionTimestamp", "deletionGracePeriodSeconds", "managedFields"):
            meta.pop(field, None)
        if collection.kind.group not in BUILT_IN_GROUPS:
            meta["generation"] = 1
        self._uids.add(uid)
        version = self._store(collection, key, None, new)
        if meta.get("ownerReferences") and not any(owner["uid"] in self._uids for owner in meta["ownerReferences"]):
            asyncio.get_running_loop().call_soon(self._collect, meta["ownerReferences"][0]["uid"])
        return version

    def _store(self, collection: Collection, key: Key, old: Version | None, new: Body) -> Version:
        self.revision += 1
        self.writes += 1
        new["metadata"]["resourceVersion"] = str(self.revision)
        version = Version.of(new, self.revision)
        for owner in new["metadata"].get("ownerReferences", ()):
            self._owned.setdefault(owner["uid"], set()).add((collection, key))
        collection.versions[key] = version
        collection.record(Change(self.revision, old, version))
        return version

    def _delete(self, collection: Collection, key: Key, old: Version) -> None:
        meta = old.body["metadata"]
        if not meta.get("finalizers"):
            self._remove(collection, key, old)
        elif "deletionTimestamp" not in meta:
            marks: Body = {"deletionTimestamp": rfc3339(self._now()), "deletionGracePeriodSeconds": 0}
            if "generation" in meta:
                marks["generation"] = meta["generation"] + 1
            self._store(collection, key, old, merged(old.body, {"metadata": marks}))

    def _remove(self, collection: Collection, key: Key, old: Version) -> None:
        self.revision += 1
        self.writes += 1
        del collection.versions[key]
        uid = old.body["metadata"]["uid"]
        self._uids.discard(uid)
        collection.record(Change(self.revision, old, None))
        if uid in self._owned:
            asyncio.get_running_loop().call_soon(self._collect, uid)
        if collection is self._namespaces:
            for other in self._collections.values():
                for other_key in [k for k in other.versions if other.kind.namespaced and k[0] == key[1]]:
                    self._delete(other, other_key, other.versions[other_key])

    def _collect(self, owner_uid: str) -> None:
        """Garbage collection: delete the dependents of this owner whose owners are all gone."""
        for collection, key in sorted(self._owned.pop(owner_uid, ()), key=lambda item: item[1]):
            version = collection.versions.get(key)
            owners = version.body["metadata"].get("ownerReferences") if version else None
            if version and owners and not any(owner["uid"] in self._uids for owner in owners):
                self._delete(collection, key, version)


def _plain(body: Mapping[str, Any]) -> Any:
    """As it would arrive over the wire: plain JSON that shares nothing with the caller."""
    return msgspec.json.decode(msgspec.json.encode(body))


def _what(kind: Kind[Any], name: str) -> str:
    return f'{kind.plural}.{kind.group} "{name}"' if kind.group else f'{kind.plural} "{name}"'


def _error(error: type[E], code: int, reason: str, message: str) -> E:
    return error(message, code=code, reason=reason)


def _conflict(kind: Kind[Any], name: str, why: str) -> Conflict:
    return _error(Conflict, 409, "Conflict", f"Operation cannot be fulfilled on {_what(kind, name)}: {why}")


def _specification(kind: Kind[Any], body: Body) -> Body:
    """The part whose changes count as generations."""
    left_out = ("metadata", "status") if has_status(kind) else ("metadata",)
    return {name: value for name, value in body.items() if name not in left_out}


def _writable(kind: Kind[Any], old: Body, wanted: Body, subresource: str) -> Body:
    """Return `wanted` with everything unchanged that this request may not write; a dict (and metadata) of its own.

    Raises:
        Invalid: it changes an immutable field.
    """
    custom = kind.group not in BUILT_IN_GROUPS
    if subresource == "status":
        meta = old["metadata"] if custom else wanted["metadata"]
        new = {**old, "status": wanted.get("status"), "metadata": dict(meta)}
    else:
        new = {**wanted, "metadata": dict(wanted["metadata"])}
        if has_status(kind):
            new["status"] = old.get("status")
    if new.get("status") is None:
        new.pop("status", None)
    was, meta = old["metadata"], new["metadata"]
    for field in ("name", "namespace", "uid"):
        if meta.get(field) not in (None, was.get(field)):
            message = f'{_what(kind, was["name"])} is invalid: metadata.{field}: Invalid value: "{meta[field]}": '
            raise _error(InvalidObject, 422, "Invalid", message + "field is immutable")
    added = set(meta.get("finalizers") or ()) - set(was.get("finalizers") or ())
    if "deletionTimestamp" in was and added:
        message = "no new finalizers can be added if the object is being deleted, found new finalizers "
        text = f"{_what(kind, was['name'])} is invalid: metadata.finalizers: Forbidden: {message}{sorted(added)}"
        raise _error(InvalidObject, 422, "Invalid", text)
    for field in ("name", "namespace", "resourceVersion", *SERVER_FIELDS):
        meta.pop(field, None)
        if field in was:
            meta[field] = was[field]
    for field in ("managedFields", *(name for name in ("finalizers", "ownerReferences") if not meta.get(name))):
        meta.pop(field, None)
    new["apiVersion"], new["kind"] = kind.api_version, kind.kind
    return new


def _selects(kind: Kind[Any], namespace: str, labels: str, fields: str) -> Test:
    """Raises Invalid for a selector that cannot be parsed or a field that cannot be selected by."""
    try:
        label = label_test(labels)
        terms = field_terms(fields)
    except SelectorError as error:
        raise _error(InvalidObject, 400, "BadRequest", str(error)) from error
    for path, _, _ in terms:
        known = path in ("metadata.name", "metadata.namespace", "spec.nodeName") or path.startswith("involvedObject.")
        if not known and not (kind.group == GROUP and path.startswith(("spec.", "status."))):
            raise _error(InvalidObject, 400, "BadRequest", f"field label not supported: {path}")
    if not (namespace or labels or terms):
        return lambda body: True

    def selects(body: Body) -> bool:
        meta = body["metadata"]
        return (
            (not namespace or meta.get("namespace") == namespace)
            and label(meta.get("labels") or {})
            and all((field_value(body, path) == value) is equal for path, equal, value in terms)
        )

    return selects


def _event(change: Change, selects: Test, to: type[T]) -> WatchEvent[T] | None:
    """Return the event of a change for a watch with this selector; an object that leaves the selection has its last
    state.
    """
    before = change.old is not None and selects(change.old.body)
    after = change.new is not None and selects(change.new.body)
    if change.new is not None and after:
        kind = EventType.MODIFIED if before else EventType.ADDED
        return WatchEvent(kind, change.new.decode(to), str(change.revision))
    if change.old is not None and before:
        return WatchEvent(EventType.DELETED, change.last().decode(to), str(change.revision))
    return None
