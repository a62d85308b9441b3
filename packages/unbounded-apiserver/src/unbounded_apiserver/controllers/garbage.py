"""Delete objects that have lost their owners, and complete orphaning and foreground deletion."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import Enum
from typing import Final, NamedTuple

import msgspec

from unbounded_apiserver import metadata
from unbounded_apiserver.collection import ObjectChange, StoredObject
from unbounded_apiserver.controllers.work_queue import ControllerQueue
from unbounded_apiserver.crd_types import DEFINITIONS
from unbounded_apiserver.deletes import Deletes
from unbounded_apiserver.options import DeleteOptions
from unbounded_apiserver.resource_model import Object
from unbounded_apiserver.served_resources import Catalog
from unbounded_apiserver.status import StatusError
from unbounded_apiserver.store import Store
from unbounded_apiserver.writes import Writes, WriteTarget

WORKERS: Final = 20  # their writes share commits
AT_ONCE: Final = 200  # dependents that are orphaned together


class ResourceKey(NamedTuple):
    """The storage key of an object."""

    resource: str
    key: str

    @property
    def namespace(self) -> str:
        return self.key.rpartition("/")[0]


class _Owner(msgspec.Struct, rename="camel"):
    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    block_owner_deletion: bool | None = None


class _Meta(msgspec.Struct, rename="camel"):
    uid: str = ""
    owner_references: list[_Owner] | None = None
    finalizers: list[str] | None = None
    deletion_timestamp: str | None = None

    @property
    def owners(self) -> list[_Owner]:
        return self.owner_references or []

    def waits_for(self, finalizer: str) -> bool:
        return self.deletion_timestamp is not None and finalizer in (self.finalizers or ())

    def blocks(self, owner_uid: str) -> bool:
        """Return whether a foreground deletion of the owner waits for this object."""
        return any(owner.uid == owner_uid and owner.block_owner_deletion for owner in self.owners)


class _Head(msgspec.Struct):
    metadata: _Meta


_heads: Final = msgspec.json.Decoder(_Head)


def _meta(record: StoredObject) -> _Meta:
    return _heads.decode(record.bare).metadata


def _is_plain_update(change: ObjectChange) -> bool:
    """Return whether an object stays and has no owner before and after, as with most writes."""
    if change.previous is None or change.deleted or change.resource == DEFINITIONS.name:
        return False
    both = change.previous.bare, change.record.bare
    return not any(word in bare for bare in both for word in (b'"ownerReferences"', b'"deletionTimestamp"'))


class _OwnerState(Enum):
    """The state of the owner that a reference names."""

    PRESENT = "there"
    DELETING = "waits for its dependents to be deleted"
    GONE = "gone"
    UNKNOWN = "unknown: its kind is not served, or it cannot own this"


class GarbageCollector:
    """The garbage collector of a server.

    An owner is the object that a reference names (kind, name, in the dependent's namespace or cluster-wide), if its UID
    is that of the reference. A reference that cannot be resolved keeps its object: only owners known to be gone count.
    """

    def __init__(self, store: Store, catalog: Catalog, writes: Writes, deletes: Deletes) -> None:
        self._store = store
        self._catalog = catalog
        self._writes = writes
        self._deletes = deletes
        self._keys_by_uid: dict[str, ResourceKey] = {}
        self._dependents: dict[str, set[ResourceKey]] = {}
        self._deleted_owners: dict[
            str, ResourceKey
        ] = {}  # deleted owners with dependents; their kind may be gone by now
        self._unresolved: set[ResourceKey] = set()  # until another kind is served
        self._queue: ControllerQueue[ResourceKey] = ControllerQueue(self._reconcile, workers=WORKERS)

    def begin(self) -> None:
        for resource in self._store.resources():
            for record in self._store.snapshot(resource).with_prefix(""):
                self._index(ResourceKey(resource, record.key), _meta(record))
        for dependents in tuple(self._dependents.values()):
            for place in dependents:
                self._queue.add(place)
        for place in self._keys_by_uid.values():
            held = self._store.get(*place)
            if held is not None and b'"deletionTimestamp"' in held.bare:
                self._queue.add(place)
        self._store.listen(self._on_change)

    async def run(self) -> None:
        await self._queue.run()

    def _index(self, place: ResourceKey, meta: _Meta) -> None:
        self._keys_by_uid[meta.uid] = place
        for owner in meta.owners:
            self._dependents.setdefault(owner.uid, set()).add(place)

    def _on_change(self, change: ObjectChange) -> None:
        before = change.previous
        if _is_plain_update(change):
            return
        place = ResourceKey(change.resource, change.record.key)
        meta = _meta(change.record)
        if before is not None and b'"ownerReferences"' in before.bare:
            self._forget_owners(place, _meta(before), meta)
        if change.resource == DEFINITIONS.name:
            for unresolved in tuple(self._unresolved):
                self._queue.add(unresolved)
        if change.deleted:
            self._keys_by_uid.pop(meta.uid, None)
            if meta.uid in self._dependents:
                self._deleted_owners[meta.uid] = place
            for dependent in self._dependents.get(meta.uid, ()):
                self._queue.add(dependent)
            self._queue_owners(meta)
            return
        self._index(place, meta)
        if meta.owners or meta.waits_for(metadata.ORPHAN) or meta.waits_for(metadata.FOREGROUND):
            self._queue.add(place)

    def _forget_owners(self, place: ResourceKey, old: _Meta, new: _Meta) -> None:
        for owner in old.owners:
            dependents = self._dependents.get(owner.uid, set())
            dependents.discard(place)
            if not dependents:
                self._dependents.pop(owner.uid, None)
                self._deleted_owners.pop(owner.uid, None)
        if old.owners != new.owners:
            self._queue_owners(old)

    def _queue_owners(self, meta: _Meta) -> None:
        """Queue the owners, whose foreground deletion may have waited for this object."""
        for owner in meta.owners:
            if (holder := self._keys_by_uid.get(owner.uid)) is not None:
                self._queue.add(holder)

    async def _reconcile(self, place: ResourceKey) -> None:
        self._unresolved.discard(place)
        record = self._store.get(*place)
        if record is None:
            return
        meta = _meta(record)
        if meta.waits_for(metadata.ORPHAN):
            await self._orphan(place, meta)
        elif meta.waits_for(metadata.FOREGROUND):
            await self._await_dependents(place, meta)
        elif meta.owners and meta.deletion_timestamp is None:
            await self._collect(place, record, meta)

    async def _collect(self, place: ResourceKey, record: StoredObject, meta: _Meta) -> None:
        """Delete an object without a remaining owner; otherwise only drop references to owners that are gone."""
        states = {owner.uid: self._owner_state(owner, place) for owner in meta.owners}
        found = set(states.values())
        if _OwnerState.UNKNOWN in found:
            self._unresolved.add(place)
        elif _OwnerState.PRESENT in found:
            lost = {uid for uid, state in states.items() if state is not _OwnerState.PRESENT}
            if lost:
                await self._edit(place, lambda obj: _drop_owners(obj, lost))
        elif _OwnerState.DELETING in found and self._dependents.get(meta.uid):
            if self._in_cycle(meta):
                await self._edit(place, _unblock_owners)
                record = self._store.get(*place) or record
            await self._delete(place, record, meta.uid, "Foreground")
        else:
            await self._delete(place, record, meta.uid)

    def _owner_state(self, owner: _Owner, dependent: ResourceKey) -> _OwnerState:
        if (was := self._deleted_owners.get(owner.uid)) is not None:
            return _OwnerState.GONE if dependent.namespace or not was.namespace else _OwnerState.UNKNOWN
        resource = self._catalog.find_kind(owner.api_version, owner.kind)
        if resource is None or (resource.namespaced and not dependent.namespace):
            return _OwnerState.UNKNOWN
        record = self._store.get(resource.name, resource.key(dependent.namespace, owner.name))
        meta = _meta(record) if record is not None else None
        if meta is None or meta.uid != owner.uid:
            return _OwnerState.GONE
        return _OwnerState.DELETING if meta.waits_for(metadata.FOREGROUND) else _OwnerState.PRESENT

    def _in_cycle(self, meta: _Meta) -> bool:
        """Return whether a dependent waits for its own dependents, among which this object may be."""
        records = [self._store.get(*dependent) for dependent in self._dependents.get(meta.uid, ())]
        return any(record is not None and _meta(record).waits_for(metadata.FOREGROUND) for record in records)

    async def _orphan(self, place: ResourceKey, meta: _Meta) -> None:
        dependents = list(self._dependents.get(meta.uid, ()))
        for start in range(0, len(dependents), AT_ONCE):
            chunk = dependents[start : start + AT_ONCE]
            await asyncio.gather(*(self._edit(d, lambda obj: _drop_owners(obj, {meta.uid})) for d in chunk))
        await self._edit(place, lambda obj: _drop_finalizer(obj, metadata.ORPHAN))

    async def _await_dependents(self, place: ResourceKey, meta: _Meta) -> None:
        """Queue the dependents; if none is left that blocks this object, remove its finalizer."""
        is_blocked = False
        for dependent in tuple(self._dependents.get(meta.uid, ())):
            record = self._store.get(*dependent)
            if record is not None:
                known = _meta(record)
                is_blocked |= known.blocks(meta.uid)
                if known.deletion_timestamp is None:
                    self._queue.add(dependent)
        if not is_blocked:
            await self._edit(place, lambda obj: _drop_finalizer(obj, metadata.FOREGROUND))

    async def _delete(self, place: ResourceKey, record: StoredObject, uid: str, policy: str = "") -> None:
        """Delete an object unless it has changed since; a change is queued again."""
        target = self._target(place)
        if target is None:
            return
        options = DeleteOptions(policy=policy, uid=uid, resource_version=str(record.revision))
        try:
            await self._deletes.delete(target, options)
        except StatusError as error:
            if error.code not in {404, 409}:  # gone or changed, which queues it again
                raise

    async def _edit(self, place: ResourceKey, edit: Callable[[Object], None]) -> None:
        target = self._target(place)
        if target is not None:
            await self._writes.edit(target, edit)

    def _target(self, place: ResourceKey) -> WriteTarget | None:
        resource = self._catalog.by_name(place.resource)
        if resource is None:
            return None
        return WriteTarget(resource, place.namespace, place.key.rpartition("/")[2])


def _drop_owners(obj: Object, uids: set[str]) -> None:
    owners = [o for o in obj["metadata"].get("ownerReferences", ()) if o["uid"] not in uids]
    obj["metadata"].pop("ownerReferences", None)
    if owners:
        obj["metadata"]["ownerReferences"] = owners


def _unblock_owners(obj: Object) -> None:
    for owner in obj["metadata"].get("ownerReferences", ()):
        if owner.get("blockOwnerDeletion"):
            owner["blockOwnerDeletion"] = False


def _drop_finalizer(obj: Object, finalizer: str) -> None:
    finalizers = [f for f in obj["metadata"].get("finalizers", ()) if f != finalizer]
    obj["metadata"].pop("finalizers", None)
    if finalizers:
        obj["metadata"]["finalizers"] = finalizers
