"""Accepts the names of definitions, serves what they define, and empties them before they go."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, Final

from unbounded.apiserver import versions
from unbounded.apiserver.catalog import Catalog
from unbounded.apiserver.conditions import merge_conditions
from unbounded.apiserver.definitions import CLEANUP, DEFINITIONS, defined
from unbounded.apiserver.deletes import Deletes
from unbounded.apiserver.housekeeping.work import Work
from unbounded.apiserver.options import DeleteOptions, ListOptions
from unbounded.apiserver.store import Change, Record, Store
from unbounded.apiserver.types import Object
from unbounded.apiserver.writes import Target, Writes

log = logging.getLogger(__name__)

_NAMES: Final = (
    ("plural", "PluralConflict"),
    ("singular", "SingularConflict"),
    ("shortNames", "ShortNamesConflict"),
    ("kind", "KindConflict"),
    ("listKind", "ListKindConflict"),
)


class DefinitionKeeper:
    """One for a server; `begin` serves what is stored, `run` keeps status up to date."""

    def __init__(
        self, store: Store, catalog: Catalog, writes: Writes, deletes: Deletes, now: Callable[[], datetime]
    ) -> None:
        self._store = store
        self._catalog = catalog
        self._writes = writes
        self._deletes = deletes
        self._now = now
        self._work: Work[str] = Work(self._look)

    def begin(self) -> None:
        for record in self._store.snapshot(DEFINITIONS.name).within(""):
            self._serve(record)
            self._work.note(record.key)
        self._store.listen(self._hear)

    async def run(self) -> None:
        await self._work.run()

    def _hear(self, change: Change) -> None:
        if change.resource == DEFINITIONS.name:
            if change.deleted:
                self._catalog.define(change.record.key, ())
                for key in self._store.snapshot(DEFINITIONS.name).keys:
                    self._work.note(key)  # a name may have become free
            else:
                self._serve(change.record)
                self._work.note(change.record.key)
        elif change.deleted:
            definition = self._store.get(DEFINITIONS.name, change.resource)
            if definition is not None and b'"deletionTimestamp"' in definition.body:
                self._work.note(change.resource)

    def _others(self, name: str) -> list[Object]:
        records = self._store.snapshot(DEFINITIONS.name).within("")
        return [record.decode() for record in records if record.key != name]

    def _serve(self, record: Record) -> None:
        """Serve a definition whose names are free, from this moment on."""
        definition = record.decode()
        accepted, _ = accept(definition["spec"]["names"], _taken(definition, self._others(record.key)))
        if accepted.get("kind") != definition["spec"]["names"]["kind"] or not accepted.get("listKind"):
            self._catalog.define(record.key, ())
            return
        try:
            resources = defined(definition)
        except Exception:
            log.exception("a stored definition cannot be served", extra={"definition": record.key})
            return
        self._catalog.define(record.key, resources)
        if definition["metadata"].get("generation", 1) > 1:
            versions.refresh(self._store, next(self._catalog.stored_of(record.key), None))

    async def _look(self, name: str) -> None:
        record = self._store.get(DEFINITIONS.name, name)
        if record is None:
            return
        if "deletionTimestamp" in record.decode()["metadata"]:
            await self._empty(name)
        await self._writes.change(Target(DEFINITIONS, "", name), self._settle)

    def _settle(self, definition: Object) -> None:
        """Bring status, and the finalizer of one that is empty, to where they should be."""
        name = definition["metadata"]["name"]
        status = definition["status"]
        accepted, names = accept(definition["spec"]["names"], _taken(definition, self._others(name)))
        conditions = [names, _established(names)]
        if "deletionTimestamp" in definition["metadata"]:
            left = next(self._store.snapshot(name).within(""), None)
            conditions.append(_terminating(left is None))
            if left is None:
                kept = [f for f in definition["metadata"].get("finalizers", ()) if f != CLEANUP]
                definition["metadata"].pop("finalizers", None)
                if kept:
                    definition["metadata"]["finalizers"] = kept
        status["acceptedNames"] = accepted
        status["conditions"] = merge_conditions(status.get("conditions") or (), conditions, self._now())

    async def _empty(self, name: str) -> None:
        resource = next(self._catalog.stored_of(name), None)
        if resource is not None:
            await self._deletes.delete_collection(resource, "", ListOptions(), DeleteOptions())


def _taken(definition: Mapping[str, Any], others: Iterable[Object]) -> set[str]:
    """The names that other definitions of the group have been given."""
    taken: set[str] = set()
    for other in others:
        if other["spec"]["group"] == definition["spec"]["group"]:
            names = (other.get("status") or {}).get("acceptedNames") or {}
            taken.update(names.get("shortNames", ()))
            taken.update(value for key in ("plural", "singular", "kind", "listKind") if (value := names.get(key)))
    return taken


def accept(names: Mapping[str, Any], taken: set[str]) -> tuple[Object, Object]:
    """The names that are free, and the condition that says whether all are."""
    accepted: Object = {"plural": "", "kind": ""}
    condition = {
        "type": "NamesAccepted",
        "status": "True",
        "reason": "NoConflicts",
        "message": "no conflicts found",
    }
    for key, reason in _NAMES:
        value = names.get(key)
        wanted = value if isinstance(value, list) else [value] if value else []
        used = [name for name in wanted if name in taken]
        if used:
            message = ", ".join(f'"{name}" is already in use' for name in used)
            condition = {"type": "NamesAccepted", "status": "False", "reason": reason, "message": message}
        elif value:
            accepted[key] = value
    if condition["status"] == "True" and names.get("categories"):
        accepted["categories"] = names["categories"]
    return accepted, condition


def _established(names: Mapping[str, Any]) -> Object:
    if names["status"] == "True":
        reason, message = "InitialNamesAccepted", "the initial names have been accepted"
        return {"type": "Established", "status": "True", "reason": reason, "message": message}
    reason, message = "NotAccepted", "not all names are accepted"
    return {"type": "Established", "status": "False", "reason": reason, "message": message}


def _terminating(done: bool) -> Object:
    if done:
        reason, message = "InstanceDeletionCompleted", "removed all instances"
        return {"type": "Terminating", "status": "False", "reason": reason, "message": message}
    reason, message = "InstanceDeletionInProgress", "CustomResource deletion is in progress"
    return {"type": "Terminating", "status": "True", "reason": reason, "message": message}
