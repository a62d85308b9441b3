"""Deletion of objects: at once, or by marking an object that has finalizers; and the conditions that report it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final

from unbounded_apiserver import metadata, status
from unbounded_apiserver.builtin_resources import NAMESPACES
from unbounded_apiserver.collection import StoredObject
from unbounded_apiserver.crd_types import CLEANUP, DEFINITIONS
from unbounded_apiserver.managed_fields.encoding import join_body
from unbounded_apiserver.options import DeleteOptions, ListOptions
from unbounded_apiserver.reads import ObjectPage, Reads
from unbounded_apiserver.resource_model import Object, Resource, decode_stored, served_body
from unbounded_apiserver.status import StatusError
from unbounded_apiserver.store import Store
from unbounded_apiserver.writes import WriteTarget, is_deletion_complete, wait_stored

KEPT_NAMESPACES: Final = frozenset({"default", "kube-system", "kube-public"})
BATCH_SIZE: Final = 200  # deletions of a collection that share one commit
_POLICY_FINALIZERS: Final = {"Orphan": metadata.ORPHAN, "Foreground": metadata.FOREGROUND}


@dataclass(frozen=True)
class DeleteResult:
    """The answer of a deletion: the object while finalizers remain, else (most often) None for a Status of success."""

    body: bytes | None
    uid: str


class Deletes:
    """Deletions of one store."""

    def __init__(self, store: Store, reads: Reads, now: Callable[[], datetime]) -> None:
        self._store = store
        self._reads = reads
        self._now = now

    async def delete(self, target: WriteTarget, options: DeleteOptions) -> DeleteResult:
        """Delete an object or mark it for deletion. Raises StatusError."""
        resource = target.resource
        current = await self._store.wait_current(resource.name, target.key)
        if current is None:
            raise status.not_found(resource.group, resource.plural, target.name)
        if resource is NAMESPACES and target.name in KEPT_NAMESPACES:
            raise status.forbidden("", resource.plural, target.name, "this namespace may not be deleted")
        obj = current.decode()
        check_preconditions(target, obj["metadata"], options)
        uid = obj["metadata"]["uid"]
        if options.admit is not None:
            options.admit(decode_stored(resource, current))
        self._mark(resource, obj, options)
        if is_deletion_complete(obj):
            body = await self._remove(resource, current, obj, dry_run=options.dry_run)
            return DeleteResult(served_body(resource, body) if resource.shows_deleted else None, uid)
        if options.dry_run or metadata.equal(obj, current.decode()):
            return DeleteResult(
                served_body(resource, join_body(metadata.encode(obj, current.revision), current.owners)), uid
            )
        return DeleteResult(served_body(resource, (await self._write(resource, current, obj)).body), uid)

    async def _write(self, resource: Resource, current: StoredObject, obj: Object) -> StoredObject:
        bare = partial(metadata.encode, obj)
        return await wait_stored(self._store.write(resource.name, current.key, bare, current.owners))

    async def _remove(self, resource: Resource, current: StoredObject, obj: Object, *, dry_run: bool) -> bytes:
        """Remove an object and return its last body.

        An object with a grace period is first shown with a grace period of 0.
        """
        unseen = resource.grace is not None and not metadata.equal(obj, current.decode())
        if dry_run:
            return join_body(metadata.encode(obj, current.revision), current.owners) if unseen else current.body
        if unseen:
            current = await self._write(resource, current, obj)
            if await self._store.wait_current(resource.name, current.key) is not current:
                return current.body  # another writer has removed it
        return (await wait_stored(self._store.remove(resource.name, current))).body

    async def delete_collection(
        self, resource: Resource, namespace: str, selection: ListOptions, options: DeleteOptions
    ) -> ObjectPage:
        """Delete the matching objects and return them as they were before. Raises StatusError."""
        page = await self._reads.list(resource, namespace, selection)
        for start in range(0, len(page.records), BATCH_SIZE):
            chunk = page.records[start : start + BATCH_SIZE]
            targets = [WriteTarget(resource, record.namespace, record.name) for record in chunk]
            await asyncio.gather(*(self._delete_if_there(target, options) for target in targets))
        return page

    async def _delete_if_there(self, target: WriteTarget, options: DeleteOptions) -> None:
        try:
            await self.delete(target, options)
        except StatusError as error:
            if error.code != 404:
                raise

    def _mark(self, resource: Resource, obj: Object, options: DeleteOptions) -> None:
        """Mark an object for deletion: deletionTimestamp, and the finalizer of its propagation policy."""
        meta, policy = obj["metadata"], options.policy
        finalizers = [f for f in meta.get("finalizers", ()) if not policy or f not in _POLICY_FINALIZERS.values()]
        if policy in _POLICY_FINALIZERS and _POLICY_FINALIZERS[policy] not in finalizers:
            finalizers.append(_POLICY_FINALIZERS[policy])
        if resource is DEFINITIONS and "deletionTimestamp" not in meta and CLEANUP not in finalizers:
            finalizers.append(CLEANUP)
        meta.pop("finalizers", None)
        if finalizers:
            meta["finalizers"] = finalizers
        if "deletionTimestamp" in meta:
            metadata.shorten_grace(meta, options.grace_s, self._now())
            return
        seconds = 0 if resource.grace is None else resource.grace(obj, options.grace_s)
        meta["deletionTimestamp"] = metadata.format_time(self._now() + timedelta(seconds=seconds))
        if resource is NAMESPACES:
            obj["status"] = {**obj.get("status", {}), "phase": "Terminating"}
        elif resource is DEFINITIONS:
            mark_terminating(obj, self._now())
        else:
            meta["deletionGracePeriodSeconds"] = seconds
            if "generation" in meta:
                meta["generation"] += 1


def mark_terminating(definition: Object, now: datetime) -> None:
    """Set the Terminating condition of a definition: its objects are about to be deleted."""
    words = "CustomResourceDefinition marked for deletion; CustomResource deletion will begin soon"
    condition = {"type": "Terminating", "status": "True", "reason": "InstanceDeletionPending", "message": words}
    status = definition["status"]
    status["conditions"] = merge_conditions(status.get("conditions") or (), [condition], now)


def check_preconditions(target: WriteTarget, meta: dict[str, Any], options: DeleteOptions) -> None:
    """Raise StatusError (409) if the object does not meet the preconditions of the deletion."""
    resource = target.resource
    if options.uid and options.uid != meta["uid"]:
        why = (
            f"the UID in the precondition ({options.uid}) does not match the UID in record ({meta['uid']}). "
            "The object might have been deleted and then recreated"
        )
        raise status.conflict(resource.group, resource.kind, target.name, why)
    if options.resource_version and options.resource_version != meta["resourceVersion"]:
        why = (
            f"the ResourceVersion in the precondition ({options.resource_version}) does not match the ResourceVersion "
            f"in record ({meta['resourceVersion']}). The object might have been modified"
        )
        raise status.conflict(resource.group, resource.kind, target.name, why)


def merge_conditions(old: Iterable[Object], new: Iterable[Object], now: datetime) -> list[Object]:
    """Merge new conditions over old ones; lastTransitionTime changes only with the status."""
    merged = {condition["type"]: condition for condition in old}
    for condition in new:
        before = merged.get(condition["type"])
        kept = before is not None and before["status"] == condition["status"]
        moment = before["lastTransitionTime"] if before is not None and kept else metadata.format_time(now)
        merged[condition["type"]] = {
            "type": condition["type"],
            "status": condition["status"],
            "lastTransitionTime": moment,
            "reason": condition["reason"],
            "message": condition["message"],
        }
    return list(merged.values())
