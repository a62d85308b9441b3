"""Accept the names of definitions, serve their resources, and delete all objects of a definition before it goes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, Final

from unbounded.kube.logs import Log
from unbounded_apiserver import resource_model
from unbounded_apiserver.collection import ObjectChange, StoredObject
from unbounded_apiserver.controllers.work_queue import ControllerQueue
from unbounded_apiserver.crd_types import CLEANUP, DEFINITIONS, served_resources, stored_resource, types_by_version
from unbounded_apiserver.crd_validation import approval_condition, is_established
from unbounded_apiserver.deletes import Deletes, merge_conditions
from unbounded_apiserver.options import DeleteOptions, ListOptions
from unbounded_apiserver.resource_model import Object, Resource
from unbounded_apiserver.served_resources import Catalog
from unbounded_apiserver.store import Store
from unbounded_apiserver.writes import Writes, WriteTarget

log = Log(__name__)

_NAMES: Final = (
    ("plural", "PluralConflict"),
    ("singular", "SingularConflict"),
    ("shortNames", "ShortNamesConflict"),
    ("kind", "KindConflict"),
    ("listKind", "ListKindConflict"),
)


class DefinitionController:
    """The controller of definitions; `begin` serves the stored ones, `run` keeps their status up to date."""

    def __init__(
        self, store: Store, catalog: Catalog, writes: Writes, deletes: Deletes, now: Callable[[], datetime]
    ) -> None:
        self._store = store
        self._catalog = catalog
        self._writes = writes
        self._deletes = deletes
        self._now = now
        self._queue: ControllerQueue[str] = ControllerQueue(self._reconcile)

    def begin(self) -> None:
        for record in self._store.snapshot(DEFINITIONS.name).with_prefix(""):
            self._serve(record)
            self._queue.add(record.key)
        self._store.listen(self._on_change)

    async def run(self) -> None:
        await self._queue.run()

    def _on_change(self, change: ObjectChange) -> None:
        if change.resource == DEFINITIONS.name:
            if change.deleted:
                self._catalog.define(change.record.key, ())
                self._queue_all()
            else:
                self._serve(change.record)
                self._queue.add(change.record.key)
                if change.previous is not None and _names_of(change.record) != _names_of(change.previous):
                    self._queue_all()
        elif change.deleted:
            definition = self._store.get(DEFINITIONS.name, change.resource)
            if definition is not None and b'"deletionTimestamp"' in definition.bare:
                self._queue.add(change.resource)

    def _queue_all(self) -> None:
        """Queue all definitions, as a name may have become free."""
        for key in self._store.snapshot(DEFINITIONS.name).keys:
            self._queue.add(key)

    def _accept(self, definition: Object) -> tuple[Object, Object]:
        """Return the accepted names, and the condition NamesAccepted."""
        records = self._store.snapshot(DEFINITIONS.name).with_prefix("")
        others = [record.decode() for record in records if record.key != definition["metadata"]["name"]]
        accepted = (definition["status"] or {}).get("acceptedNames") or {}
        builtin = self._catalog.builtin(definition["spec"]["group"])
        return accepted_names(definition["spec"]["names"], accepted, *_taken_names(definition, others, builtin))

    def _is_builtin(self, definition: Object) -> bool:
        """Return whether an earlier server, without this built-in resource, may have established a definition of it."""
        spec = definition["spec"]
        return spec["names"]["plural"] in {one.plural for one in self._catalog.builtin(spec["group"])}

    def _serve(self, record: StoredObject) -> None:
        """Serve a definition from now on, if its names are free or it has been established before."""
        definition = record.decode()
        names, condition = self._accept(definition)
        accepted = condition["status"] == "True" or is_established(definition)
        if not accepted or self._is_builtin(definition):
            self._catalog.define(record.key, ())
            return
        definition["spec"]["names"] = names
        try:
            self._catalog.define(record.key, served_resources(definition), stored_resource(definition))
        except Exception:
            log.exception("cannot serve a stored definition", definition=record.key)
            return
        if definition["metadata"].get("generation", 1) > 1:
            resource_model.decode_again(self._store, record.key, types_by_version(definition))

    async def _reconcile(self, name: str) -> None:
        record = self._store.get(DEFINITIONS.name, name)
        if record is None:
            return
        if "deletionTimestamp" in record.decode()["metadata"]:
            await self._delete_objects(name)
        await self._writes.edit(WriteTarget(DEFINITIONS, "", name), self._update_status)

    def _update_status(self, definition: Object) -> None:
        """Update the status, and remove the finalizer of a definition without objects."""
        name = definition["metadata"]["name"]
        status = definition["status"]
        accepted, names = self._accept(definition)
        conditions = [names] if is_established(definition) else [names, _established(names)]
        if (approval := approval_condition(definition)) is not None:
            conditions.append(approval)
        if "deletionTimestamp" in definition["metadata"]:
            objects = () if self._is_builtin(definition) else self._store.snapshot(name).with_prefix("")
            left = next(iter(objects), None)
            conditions.append(_terminating(left is None))
            if left is None:
                others = [f for f in definition["metadata"].get("finalizers", ()) if f != CLEANUP]
                definition["metadata"].pop("finalizers", None)
                if others:
                    definition["metadata"]["finalizers"] = others
        status["acceptedNames"] = accepted
        status["conditions"] = merge_conditions(status.get("conditions") or (), conditions, self._now())

    async def _delete_objects(self, name: str) -> None:
        resource = self._catalog.stored_by_definition(name)
        if resource is not None:
            await self._deletes.delete_collection(resource, "", ListOptions(), DeleteOptions())


def _names_of(record: StoredObject) -> Any:
    return (record.decode()["status"] or {}).get("acceptedNames")


def _taken_names(
    definition: Mapping[str, Any], others: Iterable[Object], builtin: Iterable[Resource]
) -> tuple[set[str], set[str]]:
    """Return the names of resources and kinds in the group that other definitions or built-in resources use."""
    resources: set[str] = set()
    kinds: set[str] = set()
    for resource in builtin:
        resources.update((resource.plural, resource.singular, *resource.short_names))
        kinds.update((resource.kind, resource.list_kind or f"{resource.kind}List"))
    for other in others:
        if other["spec"]["group"] == definition["spec"]["group"]:
            names = (other.get("status") or {}).get("acceptedNames") or {}
            resources.update((names.get("plural", ""), names.get("singular", ""), *names.get("shortNames", ())))
            kinds.update((names.get("kind", ""), names.get("listKind", "")))
    return resources - {""}, kinds - {""}


def accepted_names(
    desired: Mapping[str, Any], held: Mapping[str, Any], resources: set[str], kinds: set[str]
) -> tuple[Object, Object]:
    """Return the accepted names of a definition, and the condition NamesAccepted.

    Args:
        held: the present names; the definition keeps one whose requested replacement is taken.
        resources: names of resources that others use.
        kinds: names of kinds that others use.
    """
    accepted: Object = {"plural": "", "kind": ""}
    condition = {
        "type": "NamesAccepted",
        "status": "True",
        "reason": "NoConflicts",
        "message": "no conflicts found",
    }
    for key, reason in _NAMES:
        value, mine = desired.get(key), held.get(key)
        names = value if isinstance(value, list) else [value] if value else []
        own = mine if isinstance(mine, list) else [mine]
        taken = kinds if key in {"kind", "listKind"} else resources
        used = [f'"{name}" is already in use' for name in names if name in taken and name not in own]
        if used:
            message = used[0] if len(used) == 1 else f"[{', '.join(used)}]"
            condition = {"type": "NamesAccepted", "status": "False", "reason": reason, "message": message}
        if kept_name := mine if used else value:
            accepted[key] = kept_name
    if desired.get("categories"):
        accepted["categories"] = desired["categories"]
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
