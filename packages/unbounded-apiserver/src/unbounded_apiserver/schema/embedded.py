"""Resources within resources (x-kubernetes-embedded-resource), which have their own type and metadata."""

from __future__ import annotations

from typing import Any, Final

from unbounded_apiserver import name_validation
from unbounded_apiserver.schema.messages import Path, SchemaProblem, invalid, render, required
from unbounded_apiserver.schema.scalars import mistyped

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
