"""Plan of a copy of one server's objects to another: pure, from the objects of both.

A plan contains the next writes, not all of them. `copier` performs them, reads both sides and plans again until
nothing is left. So an interrupted copy resumes by itself, and the empty last plan verifies the copy.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

import msgspec

from unbounded.api.core import NAMESPACES, NODES, SECRETS
from unbounded.api.machine import MACHINES, Machine
from unbounded.api.meta import Kind
from unbounded.api.names import ANNOTATION_MIGRATED_FROM, GROUP
from unbounded.api.operation import MACHINE_OPERATIONS, MachineOperation
from unbounded.cli.deploy.server_side_apply import NOISE, kind_name
from unbounded.cli.manifests import CRDS
from unbounded.cli.migrate.copied_objects import (
    WITH_STATUS,
    Raw,
    RawKind,
    is_of_the_server,
    machine_status,
    regenerated,
    translated,
    translated_data,
    uids_in,
    uids_in_data,
)
from unbounded.operations.claim_gates import order

_COUNTERS: Final = "operations"  # in a Machine's spec
_BINDING: Final = "ValidatingAdmissionPolicyBinding"
_UNIQUE: Final = frozenset({NODES.kind, SECRETS.kind})
_NO_GENERATIONS: Final = frozenset({MACHINE_OPERATIONS.kind, NODES.kind})  # their status contains no generation


@dataclass(frozen=True, order=True)
class ObjectRef:
    """Kind and name of an object."""

    group: str
    plural: str
    namespace: str
    name: str


@dataclass(frozen=True)
class ServerObject:
    """An object on a server."""

    kind: RawKind
    body: Raw

    @property
    def ref(self) -> ObjectRef:
        return ObjectRef(self.kind.group, self.kind.plural, self.namespace, self.name)

    @property
    def name(self) -> str:
        return str(self.body["metadata"]["name"])

    @property
    def namespace(self) -> str:
        return str(self.body["metadata"].get("namespace", ""))

    @property
    def uid(self) -> str:
        return str(self.body["metadata"]["uid"])

    @property
    def version(self) -> str:
        return str(self.body["metadata"]["resourceVersion"])

    @property
    def generation(self) -> int:
        return int(self.body["metadata"].get("generation", 0))

    @property
    def shown(self) -> str:
        """The object's name as kubectl writes it, after its namespace."""
        where = f"{self.namespace}/" if self.namespace else ""
        return f"{kind_name(self.kind)} {where}{self.name}"

    @property
    def origin(self) -> tuple[str, str]:
        """The migration that created it, and its UID on the source; both empty for any other object."""
        annotations: Mapping[str, str] = self.body["metadata"].get("annotations") or {}
        migration, _, uid = annotations.get(ANNOTATION_MIGRATED_FROM, "").partition("/")
        return migration, uid


@dataclass(frozen=True)
class ServerObjects:
    """A server's objects of the kinds that are copied."""

    objects: Mapping[ObjectRef, ServerObject] = field(default_factory=dict)

    @classmethod
    def of(cls, found: Iterable[ServerObject]) -> ServerObjects:
        return cls({one.ref: one for one in found})

    @cached_property
    def copied(self) -> tuple[ServerObject, ...]:
        """The objects that a migration from here copies, in the order of creation.

        An object whose owner is gone, or is not copied itself, is left out: a cluster would collect it at once.
        """
        own = sorted(
            (one for one in self.objects.values() if not is_of_the_server(one.kind, one.body)),
            key=lambda one: (one.body["metadata"].get("creationTimestamp", ""), one.ref),
        )
        kept = {one.uid: one for one in own}
        while lost := [uid for uid, one in kept.items() if not all(owner in kept for owner in _owners(one))]:
            for uid in lost:
                del kept[uid]
        return tuple(kept.values())

    @cached_property
    def copied_uids(self) -> frozenset[str]:
        return frozenset(one.uid for one in self.copied)

    @cached_property
    def queue(self) -> Mapping[str, str]:
        """The predecessor of each operation that waits for the same Machine as another one, both by UID.

        Their order follows from their creation times, so they are created one after the other.
        """
        before: dict[str, str] = {}
        last: dict[str | None, str] = {}
        for one in sorted(self.operations(), key=order):
            if not one.terminal:
                machine, uid = one.spec.machine_ref, one.metadata.uid
                if machine in last:
                    before[uid] = last[machine]
                last[machine] = uid
        return before

    def machines(self) -> tuple[Machine, ...]:
        return tuple(msgspec.convert(one.body, Machine) for one in self.of_kind(MACHINES))

    def operations(self) -> tuple[MachineOperation, ...]:
        return tuple(msgspec.convert(one.body, MachineOperation) for one in self.of_kind(MACHINE_OPERATIONS))

    def of_kind(self, kind: Kind[Any]) -> Iterator[ServerObject]:
        return (one for one in self.objects.values() if one.kind == kind.raw())


def _owners(one: ServerObject) -> Iterator[str]:
    return (str(owner["uid"]) for owner in one.body["metadata"].get("ownerReferences") or ())


@dataclass(frozen=True)
class CreateCopy:
    """Creation of a copy.

    Args:
        queued: other operations wait for it, and must be created in a later second.
    """

    kind: RawKind
    body: Raw
    queued: bool = False


@dataclass(frozen=True)
class PatchCopy:
    """A merge patch that a resourceVersion guards."""

    kind: RawKind
    name: str
    namespace: str
    body: Raw
    subresource: str = ""


Write = CreateCopy | PatchCopy


def uid_map(source: ServerObjects, target: ServerObjects, migration: str) -> dict[str, str]:
    """Return the target's UID of each UID of the source that has one: a copy carries it, others are paired by name."""
    return {
        one.uid: existing.uid
        for one in source.objects.values()
        if (existing := target.objects.get(one.ref)) is not None and _is_the_same(one, existing, migration)
    }


def clashes(source: ServerObjects, target: ServerObjects, migration: str) -> tuple[ServerObject, ...]:
    """Return other objects on the target with the names of objects to copy."""
    return tuple(
        existing
        for one in source.copied
        if (existing := target.objects.get(one.ref)) is not None and not _is_the_same(one, existing, migration)
    )


def _is_the_same(one: ServerObject, existing: ServerObject, migration: str) -> bool:
    """Return whether the target's object is a copy of this one, or makes a copy unnecessary.

    A Machine, Node or Secret of other origin is never the same one, even with equal contents.
    """
    if existing.origin[0] == migration:
        return existing.origin[1] == one.uid
    if one.kind.group == GROUP or one.kind.kind in _UNIQUE:
        return False
    return one.kind.kind == "Namespace" or is_of_the_server(one.kind, one.body) or _content(one) == _content(existing)


def _content(one: ServerObject) -> Raw:
    meta = {key: value for key, value in one.body["metadata"].items() if key not in {*NOISE, "annotations"}}
    annotations: Raw = one.body["metadata"].get("annotations") or {}
    meta["annotations"] = {key: value for key, value in annotations.items() if key != ANNOTATION_MIGRATED_FROM}
    return {key: value for key, value in one.body.items() if key not in {"metadata", "status"}} | {"metadata": meta}


def next_writes(source: ServerObjects, target: ServerObjects, migration: str) -> tuple[Write, ...]:
    """Return the next writes; nothing where the copy is complete.

    Objects come first, owners before what they own. Then comes each status. The counters of a Machine come last:
    without the Machine's status, a counter would request a reboot or a repave that was executed long ago.
    """
    uids = uid_map(source, target, migration)
    missing = [one for one in source.copied if one.uid not in uids]
    if missing:
        first = [one for one in missing if one.kind.kind != _BINDING] or missing  # a policy could reject the rest
        ready = [one for one in first if not _needs(one, source) - uids.keys()]
        first_of_others = frozenset(source.queue.values())
        return tuple(CreateCopy(one.kind, _created(one, uids, migration), one.uid in first_of_others) for one in ready)
    pairs = [
        (one, existing)
        for one in source.copied
        if (existing := target.objects.get(one.ref)) is not None and existing.origin[0] == migration
    ]
    versions = {one.version: existing.version for one, existing in pairs if one.kind.kind == SECRETS.kind}
    return tuple(_statuses(pairs, uids, versions)) or tuple(_counters(pairs))


def _needs(one: ServerObject, source: ServerObjects) -> set[str]:
    """Return the UIDs of the copied objects that must exist before this one."""
    meta = {key: one.body["metadata"].get(key) for key in ("labels", "annotations", "ownerReferences")}
    rest = {key: value for key, value in one.body.items() if key not in {"metadata", "status", "data"}}
    named = {*uids_in(meta), *uids_in(rest)}
    if one.kind.kind == SECRETS.kind:
        named |= {*uids_in_data(one.body.get("data") or {})}
    place = (
        source.objects.get(ObjectRef("", NAMESPACES.plural, "", one.namespace)),
        source.objects.get(ObjectRef(CRDS.group, CRDS.plural, "", f"{one.kind.plural}.{one.kind.group}")),
    )
    named |= {existing.uid for existing in place if existing is not None}
    if one.uid in source.queue:
        named.add(source.queue[one.uid])
    return (named & source.copied_uids) - {one.uid}


def _created(one: ServerObject, uids: Mapping[str, str], migration: str) -> Raw:
    """Return the object to create on the target, without what the server assigns."""
    metadata = {key: value for key, value in one.body["metadata"].items() if key not in {*NOISE, "annotations"}}
    annotations = dict(one.body["metadata"].get("annotations") or {})
    meta = translated(metadata | {"annotations": annotations}, uids)
    meta["annotations"][ANNOTATION_MIGRATED_FROM] = f"{migration}/{one.uid}"
    body = {
        key: translated(value, uids) for key, value in one.body.items() if key not in {"metadata", "status", "data"}
    }
    data = one.body.get("data")
    if data is not None:
        body["data"] = translated_data(data, uids) if one.kind.kind == SECRETS.kind else data
    if one.kind.kind == "ServiceAccount":
        body.pop("secrets", None)
    if one.kind.kind == MACHINES.kind:
        body["spec"] = {key: value for key, value in body["spec"].items() if key != _COUNTERS}
    return body | {"metadata": meta}


def _statuses(
    pairs: Iterable[tuple[ServerObject, ServerObject]], uids: Mapping[str, str], versions: Mapping[str, str]
) -> Iterator[PatchCopy]:
    for one, existing in pairs:
        status = one.body.get("status")
        if not status or one.kind not in WITH_STATUS:
            continue
        if one.kind.kind == NODES.kind and (existing.body.get("status") or {}).get("conditions"):
            continue  # they are kubelet's, or those of a controller there
        desired = _status(one, existing, translated(status, uids), versions)
        if not _contains(existing.body.get("status"), desired):
            yield _patch(existing, {"status": desired}, "status")


def _status(one: ServerObject, existing: ServerObject, status: Raw, versions: Mapping[str, str]) -> Raw:
    if one.kind.kind in _NO_GENERATIONS:
        return status
    later = 1 if _lacks_counters(one, existing) else 0
    generations = {one.generation: existing.generation + later}
    if one.kind.kind != MACHINES.kind:
        return dict(regenerated(status, generations))
    lasting = msgspec.convert(one.body, Machine).lasting_uid
    return machine_status(status, versions, generations) | {"originalUID": lasting}


def _counters(pairs: Iterable[tuple[ServerObject, ServerObject]]) -> Iterator[PatchCopy]:
    for one, existing in pairs:
        if _lacks_counters(one, existing):
            yield _patch(existing, {"spec": {_COUNTERS: one.body["spec"][_COUNTERS]}})


def _lacks_counters(one: ServerObject, existing: ServerObject) -> bool:
    return one.kind.kind == MACHINES.kind and _COUNTERS in one.body["spec"] and _COUNTERS not in existing.body["spec"]


def _patch(existing: ServerObject, body: Raw, subresource: str = "") -> PatchCopy:
    guarded = body | {"metadata": {"resourceVersion": existing.version}}
    return PatchCopy(existing.kind, existing.name, existing.namespace, guarded, subresource)


def _contains(existing: Any, desired: Any) -> bool:
    """Return whether a JSON value contains another one."""
    match desired:
        case dict():
            return isinstance(existing, dict) and all(
                _contains(existing.get(key), value) for key, value in desired.items()
            )
        case list():
            pairs = (
                zip(existing, desired, strict=True)
                if isinstance(existing, list) and len(existing) == len(desired)
                else None
            )
            return pairs is not None and all(_contains(*pair) for pair in pairs)
    return bool(existing == desired)
