"""Defaulting and pruning, which precede validation.

Resources within resources (x-kubernetes-embedded-resource) have their own type and metadata, which are checked here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any, Final, TypeAlias

from unbounded_apiserver import name_validation
from unbounded_apiserver.schema.errors import Path, SchemaProblem, invalid, render, required
from unbounded_apiserver.schema.scalars import mistyped
from unbounded_apiserver.schema.structure import Raw

METADATA_FIELDS: Final = frozenset(
    {
        "annotations",
        "creationTimestamp",
        "deletionGracePeriodSeconds",
        "deletionTimestamp",
        "finalizers",
        "generateName",
        "generation",
        "labels",
        "managedFields",
        "name",
        "namespace",
        "ownerReferences",
        "resourceVersion",
        "selfLink",
        "uid",
    }
)
RESOURCE_FIELDS: Final = frozenset({"apiVersion", "kind", "metadata"})
Default: TypeAlias = Callable[[Any], None]
Prune: TypeAlias = Callable[[Any, Path, "list[str]"], None]


def defaulter(raw: Raw, *, root: bool = False) -> Default | None:
    """Return a function that fills in defaults below a value, in place, and drops nulls that the schema does not allow.

    None if there is nothing to do. Metadata at the root stays unchanged.
    """
    items = raw.get("items")
    inner = defaulter(items) if isinstance(items, Mapping) else None
    if inner is not None:
        return _list_defaulter(inner)
    properties = dict(raw.get("properties") or {})
    if root:
        properties.pop("metadata", None)
    additional = raw.get("additionalProperties")
    if not properties and not isinstance(additional, Mapping):
        return None
    return _object_defaulter(properties, additional if isinstance(additional, Mapping) else None)


def _list_defaulter(inner: Default) -> Default:
    def fill(value: Any) -> None:
        if type(value) is list:
            for item in value:
                inner(item)

    return fill


def _object_defaulter(properties: dict[str, Raw], additional: Raw | None) -> Default:
    defaults = [(name, prop["default"]) for name, prop in properties.items() if prop.get("default") is not None]
    children = {name: child for name, prop in properties.items() if (child := defaulter(prop)) is not None}
    others = defaulter(additional) if additional is not None else None
    not_null = frozenset(name for name, prop in properties.items() if not prop.get("nullable"))
    other_not_null = additional is not None and not additional.get("nullable")
    known = frozenset(properties)

    def fill(value: Any) -> None:
        if type(value) is not dict:
            return
        if None in value.values():
            for name in [name for name, item in value.items() if item is None]:
                if name in not_null or (other_not_null and name not in known):
                    del value[name]
        for name, default in defaults:
            if name not in value:
                value[name] = deepcopy(default) if isinstance(default, (dict, list)) else default
        for name, child in children.items():
            if name in value:
                child(value[name])
        if others is not None:
            for name, item in value.items():
                if name not in children:
                    others(item)

    return fill


def pruner(raw: Raw, *, root: bool = False) -> Prune | None:
    """Return a function that drops unknown fields in place and lists their paths; None if all fields are kept."""
    items = raw.get("items")
    inner = pruner(items) if isinstance(items, Mapping) else None
    if inner is not None:
        return _list_pruner(inner)
    embedded = bool(raw.get("x-kubernetes-embedded-resource"))
    preserve = bool(raw.get("x-kubernetes-preserve-unknown-fields")) or raw.get("x-kubernetes-int-or-string")
    additional = raw.get("additionalProperties")
    if isinstance(additional, Mapping):
        return None if (others := pruner(additional)) is None else _map_pruner(others)
    if additional or (raw.get("type") != "object" and not preserve):
        return None
    properties = raw.get("properties") or {}
    children = {name: child for name, prop in properties.items() if (child := pruner(prop)) is not None}
    kept = None if preserve else frozenset(properties) | (RESOURCE_FIELDS if root or embedded else frozenset())
    if root:
        children.pop("metadata", None)
    elif embedded:
        children["metadata"] = _fields_pruner(METADATA_FIELDS, {})
    return _fields_pruner(kept, children) if kept is not None or children else None


def _list_pruner(inner: Prune) -> Prune:
    def prune(value: Any, path: Path, dropped: list[str]) -> None:
        if type(value) is list:
            for index, item in enumerate(value):
                inner(item, (path, index), dropped)

    return prune


def _map_pruner(inner: Prune) -> Prune:
    def prune(value: Any, path: Path, dropped: list[str]) -> None:
        if type(value) is dict:
            for name, item in value.items():
                inner(item, (path, name), dropped)

    return prune


def _fields_pruner(kept: frozenset[str] | None, children: Mapping[str, Prune]) -> Prune:
    def prune(value: Any, path: Path, dropped: list[str]) -> None:
        if type(value) is not dict:
            return
        if kept is not None and not value.keys() <= kept:
            for name in [name for name in value if name not in kept]:
                del value[name]
                dropped.append(render((path, name)))
        for name, child in children.items():
            if name in value:
                child(value[name], (path, name), dropped)

    return prune


def check_embedded(value: dict[str, Any], path: Path, out: list[SchemaProblem]) -> None:
    """Check that apiVersion and kind are present and metadata is well formed; names are not checked further."""
    for name in ("apiVersion", "kind"):
        if not value.get(name):
            out.append(SchemaProblem(required(render((path, name))), path))
        elif not isinstance(value[name], str):
            mistyped(value[name], "string", (path, name), out)
    metadata = value.get("metadata")
    if metadata is None:
        return
    if not isinstance(metadata, dict):
        mistyped(metadata, "object", (path, "metadata"), out)
        return
    _check_name(metadata, (path, "metadata"), out)
    for name, check in (("labels", name_validation.label_value), ("annotations", None)):
        _check_map(metadata.get(name), ((path, "metadata"), name), check, out)


def _check_name(metadata: dict[str, Any], path: Path, out: list[SchemaProblem]) -> None:
    name = metadata.get("name")
    if isinstance(name, str) and name:
        place: Path = (path, "name")
        out.extend(
            SchemaProblem(invalid(render(place), name, why), place) for why in name_validation.path_segment(name)
        )


def _check_map(value: Any, path: Path, check: name_validation.Check | None, out: list[SchemaProblem]) -> None:
    if value is None:
        return
    if not isinstance(value, dict):
        mistyped(value, "object", path, out)
        return
    field = render(path)
    for key, item in value.items():
        wrong_key = name_validation.qualified_name(key if check is not None else key.lower())
        out.extend(SchemaProblem(invalid(field, key, why), path) for why in wrong_key)
        wrong_value = check(item) if check is not None and isinstance(item, str) else ()
        out.extend(SchemaProblem(invalid(field, item, why), path) for why in wrong_value)
