"""Server-side apply: from the bytes of an apply configuration to the resulting object.

The configuration is merged for the fields that its manager owns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import msgspec

from unbounded_apiserver.decoding import RequestDocument
from unbounded_apiserver.managed_fields import fieldsets, merge, ownership
from unbounded_apiserver.managed_fields.encoding import APPLY, UPDATE, FieldManager, ManagedFields, encode_time
from unbounded_apiserver.managed_fields.fieldsets import FieldSet
from unbounded_apiserver.managed_fields.ownership import BEFORE_APPLY, ManagerEntries, ManagerEntry
from unbounded_apiserver.options import WriteOptions
from unbounded_apiserver.resource_model import Object, Resource
from unbounded_apiserver.status import StatusError, bad_request

KUBECTL: Final = "kubectl"
LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"
_IDENTITY: Final = frozenset({"name", "namespace", "uid", "resourceVersion"})


class Conflicts(Exception):
    """Other managers own fields that the configuration would change."""

    def __init__(self, owners: dict[FieldManager, FieldSet]) -> None:
        listed = [(m.described(), fieldsets.shown(p)) for m, f in owners.items() for p in fieldsets.paths(f)]
        super().__init__(_message(listed))
        self.causes = [
            {"reason": "FieldManagerConflict", "message": f"conflict with {who}", "field": path} for who, path in listed
        ]


def _message(listed: list[tuple[str, str]]) -> str:
    if len(listed) == 1:
        who, path = listed[0]
        return f"Apply failed with 1 conflict: conflict with {who}: {path}"
    lines = []
    for who in dict.fromkeys(who for who, _ in listed):
        mine = [path for other, path in listed if other == who]
        lines += [f"conflicts with {who}:", *(f"- {path}" for path in mine)]
    return f"Apply failed with {len(listed)} conflicts: " + "\n".join(lines)


@dataclass(frozen=True)
class ApplyResult:
    """The object after an apply, and the owners of its fields."""

    obj: Object
    owners: ManagedFields


def decode(resource: Resource, document: RequestDocument, options: WriteOptions, subresource: str) -> Object:
    """Decode an apply configuration without the fields that this subresource cannot write. Raises StatusError (400)."""
    _check_repeated(document, options)
    config = document.value
    if not isinstance(config, dict):
        raise bad_request("error decoding YAML: the document is not an object")
    version, kind = config.get("apiVersion") or "", config.get("kind") or ""
    if kind != resource.kind:
        group, _, name = str(version).rpartition("/")
        raise bad_request(f"invalid object type: {group}/{name}, Kind={kind}")
    if version != resource.api_version:
        why = f"Specified patch version: {version}, expected: {resource.api_version}"
        raise bad_request(f"Incorrect version specified in apply patch. {why}")
    meta = config.get("metadata") or {}
    if not isinstance(meta, dict):
        raise bad_request("metadata of the configuration is not an object")
    if meta.get("managedFields") is not None:
        raise bad_request("metadata.managedFields must be nil")
    if subresource:
        if resource.custom:  # a subresource of a built-in type may be written together with labels and the like
            meta = {k: v for k, v in meta.items() if k in _IDENTITY}
        config = {k: v for k, v in config.items() if k in {"apiVersion", "kind", "status"}}
    elif "status" in resource.subresources:
        config.pop("status", None)
    config["metadata"] = meta
    return config


def _check_repeated(document: RequestDocument, options: WriteOptions) -> None:
    if not document.duplicate_keys or options.validation == "Ignore":
        return
    if options.validation == "Strict":
        lines = "\n  ".join(("yaml: unmarshal errors:", *document.duplicate_keys))
        raise bad_request(f"error strict decoding YAML: error converting YAML to JSON: {lines}")
    options.warnings.extend(document.duplicate_keys)


def apply(
    resource: Resource,
    live: Object,
    owners: ManagedFields,
    config: Object,
    options: WriteOptions,
    subresource: str,
    time: str,
) -> ApplyResult:
    """Return the object with the configuration merged into it. Raises StatusError (400, 409)."""
    kind = resource.type
    manager = FieldManager(options.manager or "", APPLY, subresource)
    try:
        done = apply_configuration(
            kind.merge_fields,
            live,
            owners,
            kind.empty(),
            config,
            manager,
            version=resource.api_version,
            time=time,
            force=options.force,
        )
        return _with_last_applied(done, config, manager, live)
    except RecursionError as error:
        raise bad_request("exceeded max depth") from error
    except Conflicts as error:
        raise StatusError(409, "Conflict", str(error), details={"causes": error.causes}) from error
    except merge.Mistyped as error:
        meta = config["metadata"]
        what = f"{meta.get('namespace', '')}/{meta.get('name', '')}"
        version = f"{resource.group}/{resource.version}, Kind={resource.kind}"
        raise bad_request(f"failed to create typed patch object ({what}; {version}): {error}") from error


def _with_last_applied(done: ApplyResult, config: Object, manager: FieldManager, live: Object) -> ApplyResult:
    """Update the annotation of a client-side apply, so that kubectl can return to client-side apply."""
    if manager.name != KUBECTL or manager.subresource or last_applied(live) is None:
        return done
    meta = done.obj["metadata"]
    annotations = meta.get("annotations") or {}
    if not isinstance(annotations, dict):
        return done  # the write is rejected because of it
    text = msgspec.json.encode(config).decode() + "\n"
    return ApplyResult(
        {**done.obj, "metadata": meta | {"annotations": annotations | {LAST_APPLIED: text}}}, done.owners
    )


def apply_configuration(
    kind: merge.ObjectKind,
    live: Object,
    owners: ManagedFields,
    empty: Object,
    config: Object,
    manager: FieldManager,
    *,
    version: str,
    time: str,
    force: bool,
) -> ApplyResult:
    """Merge `config` into `live`, and remove fields that the manager does not name any more, unless others own them.

    Args:
        live: the present object, or `empty` if there is none.
        owners: those of its fields so far.
        empty: the object of this type to which a client has given nothing.
        version: the apiVersion of the configuration.
    Raises:
        Conflicts: others own fields with other values, and not `force`.
        Mistyped: the configuration does not fit the type.
    """
    if not owners:  # not tracked so far: its fields belong to a manager for everything before the first apply
        earlier = FieldManager(BEFORE_APPLY, UPDATE, "", version)
        owners = ownership.created(kind, empty, live, earlier, time)
    entries = ownership.decode_entries(owners)
    before = entries.get(manager)
    desired = merge.owned_paths(kind, config)
    entries.pop(manager, None)
    merged = merge.merge(kind, live, config)
    if before is not None:
        merged = merge.remove(kind, merged, _dropped(kind, before, desired, entries))
    change = ownership.difference(kind, live, merged)
    others = ownership.conflicts(entries, change.changed, manager)
    if others and not (force or _is_own(kind, live, manager, others)):
        raise Conflicts(others)
    entries = ownership.without(entries, change)
    unchanged = b"" if before is None else before.time
    changes = change.changed or change.removed
    if fields := ownership.stripped(desired):
        entries[manager] = ManagerEntry(manager, version, encode_time(time) if changes else unchanged, fields)
    return ApplyResult(merged, ownership.encode_entries(entries.values()))


def last_applied(obj: Object) -> Object | None:
    """Return the configuration of kubectl's last client-side apply."""
    text = obj.get("metadata", {}).get("annotations", {}).get(LAST_APPLIED)
    try:
        decoded = msgspec.json.decode(text) if text else None
    except msgspec.DecodeError:
        return None
    return decoded if isinstance(decoded, dict) else None


def _is_own(kind: merge.ObjectKind, live: Object, manager: FieldManager, owners: dict[FieldManager, FieldSet]) -> bool:
    """Return whether kubectl set all these fields by client-side apply, and no other manager has changed them since."""
    before = last_applied(live) if manager.name == KUBECTL else None
    if before is None:
        return False
    try:
        own = merge.owned_paths(kind, before)
    except merge.Mistyped:
        return False
    change = merge.compare(kind, before, live)
    own = fieldsets.difference(own, fieldsets.union(change.changed, change.removed))
    return all(not fieldsets.difference(fields, own) for fields in owners.values())


def _dropped(kind: merge.ObjectKind, before: ManagerEntry, desired: FieldSet, others: ManagerEntries) -> FieldSet:
    """Return the fields that the manager owned before, and that no manager owns now."""
    now = desired
    for entry in others.values():
        now = fieldsets.union(now, entry.fields)
    return fieldsets.difference(merge.with_parents(kind, before.fields), merge.with_parents(kind, now))
