"""Deletes what has lost its owners, and carries out orphaning and foreground deletion."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

import msgspec

from unbounded.apiserver import metadata
from unbounded.apiserver.catalog import Catalog
from unbounded.apiserver.deletes import Deletes
from unbounded.apiserver.housekeeping.work import Work
from unbounded.apiserver.options import DeleteOptions
from unbounded.apiserver.status import StatusError
from unbounded.apiserver.store import Change, Record, Store
from unbounded.apiserver.types import Object
from unbounded.apiserver.writes import Target, Writes


class Place(NamedTuple):
    """Where an object is stored."""

    resource: str
    key: str

    @property
    def namespace(self) -> str:
        return self.key.rpartition("/")[0]


class _Owner(msgspec.Struct, rename="camel"):
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


class _Head(msgspec.Struct):
    metadata: _Meta


_heads: Final = msgspec.json.Decoder(_Head)


def _meta(record: Record) -> _Meta:
    return _heads.decode(record.body).metadata


class GarbageCollector:
    """One for a server. Owners are found by UID, and count only in the same namespace or without one."""

    def __init__(self, store: Store, catalog: Catalog, writes: Writes, deletes: Deletes) -> None:
        self._store = store
        self._catalog = catalog
        self._writes = writes
        self._deletes = deletes
        self._places: dict[str, Place] = {}
        self._dependents: dict[str, set[Place]] = {}
        self._work: Work[Place] = Work(self._look)

    def begin(self) -> None:
        for resource in self._store.resources():
            for record in self._store.snapshot(resource).within(""):
                self._index(Place(resource, record.key), _meta(record))
        for dependents in tuple(self._dependents.values()):
            for place in dependents:
                self._work.note(place)
        for place in self._places.values():
            held = self._store.get(*place)
            if held is not None and b'"deletionTimestamp"' in held.body:
                self._work.note(place)
        self._store.listen(self._hear)

    async def run(self) -> None:
        await self._work.run()

    def _index(self, place: Place, meta: _Meta) -> None:
        self._places[meta.uid] = place
        for owner in meta.owners:
            self._dependents.setdefault(owner.uid, set()).add(place)

    def _hear(self, change: Change) -> None:
        place = Place(change.resource, change.record.key)
        meta = _meta(change.record)
        before = change.previous
        if before is not None and b'"ownerReferences"' in before.body:
            self._forget_owners(place, _meta(before))
        if change.deleted:
            self._places.pop(meta.uid, None)
            for dependent in self._dependents.get(meta.uid, ()):
                self._work.note(dependent)
            for owner in meta.owners:
                if (holder := self._places.get(owner.uid)) is not None:
                    self._work.note(holder)  # its foreground deletion may have waited for this
            return
        self._index(place, meta)
        if meta.owners or meta.waits_for(metadata.ORPHAN) or meta.waits_for(metadata.FOREGROUND):
            self._work.note(place)

    def _forget_owners(self, place: Place, meta: _Meta) -> None:
        for owner in meta.owners:
            dependents = self._dependents.get(owner.uid, set())
            dependents.discard(place)
            if not dependents:
                self._dependents.pop(owner.uid, None)

    async def _look(self, place: Place) -> None:
        record = self._store.get(*place)
        if record is None:
            return
        meta = _meta(record)
        if meta.waits_for(metadata.ORPHAN):
            await self._orphan(place, meta)
        elif meta.waits_for(metadata.FOREGROUND):
            await self._delete_dependents(place, meta)
        if meta.owners and meta.deletion_timestamp is None:
            await self._judge(place, meta)

    async def _judge(self, place: Place, meta: _Meta) -> None:
        """Delete what has no owner left; otherwise only forget the owners that are gone."""
        gone = {owner.uid for owner in meta.owners if not self._exists(owner.uid, place)}
        if not gone:
            return
        if len(gone) == len({owner.uid for owner in meta.owners}):
            await self._delete(place, meta.uid)
        else:
            await self._edit(place, lambda obj: _drop_owners(obj, gone))

    def _exists(self, uid: str, dependent: Place) -> bool:
        owner = self._places.get(uid)
        return owner is not None and owner.namespace in {"", dependent.namespace}

    async def _orphan(self, place: Place, meta: _Meta) -> None:
        for dependent in tuple(self._dependents.get(meta.uid, ())):
            await self._edit(dependent, lambda obj: _drop_owners(obj, {meta.uid}))
        await self._edit(place, lambda obj: _drop_finalizer(obj, metadata.ORPHAN))

    async def _delete_dependents(self, place: Place, meta: _Meta) -> None:
        blocked = False
        for dependent in tuple(self._dependents.get(meta.uid, ())):
            record = self._store.get(*dependent)
            if record is None:
                continue
            held = _meta(record)
            if held.deletion_timestamp is None:
                policy = "Foreground" if self._dependents.get(held.uid) else ""
                await self._delete(dependent, held.uid, policy)
            still = self._store.get(*dependent) is not None
            blocked |= still and any(o.uid == meta.uid and o.block_owner_deletion for o in held.owners)
        if not blocked:
            await self._edit(place, lambda obj: _drop_finalizer(obj, metadata.FOREGROUND))

    async def _delete(self, place: Place, uid: str, policy: str = "") -> None:
        target = self._target(place)
        if target is None:
            return
        try:
            await self._deletes.delete(target, DeleteOptions(policy=policy, uid=uid))
        except StatusError as error:
            if error.code not in {404, 409}:  # gone, or another object of that name by now
                raise

    async def _edit(self, place: Place, edit: Callable[[Object], None]) -> None:
        target = self._target(place)
        if target is not None:
            await self._writes.change(target, edit)

    def _target(self, place: Place) -> Target | None:
        resource = self._catalog.by_name(place.resource)
        if resource is None:
            return None
        return Target(resource, place.namespace, place.key.rpartition("/")[2])


def _drop_owners(obj: Object, uids: set[str]) -> None:
    kept = [o for o in obj["metadata"].get("ownerReferences", ()) if o["uid"] not in uids]
    obj["metadata"].pop("ownerReferences", None)
    if kept:
        obj["metadata"]["ownerReferences"] = kept


def _drop_finalizer(obj: Object, finalizer: str) -> None:
    kept = [f for f in obj["metadata"].get("finalizers", ()) if f != finalizer]
    obj["metadata"].pop("finalizers", None)
    if kept:
        obj["metadata"]["finalizers"] = kept
