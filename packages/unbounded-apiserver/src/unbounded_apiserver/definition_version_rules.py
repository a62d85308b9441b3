"""The rules of those parts of a definition that versions have or share: schema, subresources, columns, selectors."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

import msgspec

from unbounded_apiserver import field_errors
from unbounded_apiserver.schema import Draft, FieldError, SchemaError
from unbounded_apiserver.schema.fieldpath import BadFieldPath, selected_field
from unbounded_apiserver.schema.messages import too_many

COLUMN_FORMATS: Final = ("byte", "date", "date-time", "double", "float", "int32", "int64", "password")
COLUMN_TYPES: Final = ("boolean", "date", "integer", "number", "string")
SELECTABLE: Final = 8
PARTS: Final = frozenset({"schema", "subresources", "additionalPrinterColumns", "selectableFields"})
_SCALE_PATHS: Final[Mapping[str, tuple[str, ...]]] = {
    "specReplicasPath": (".spec",),
    "statusReplicasPath": (".status",),
    "labelSelectorPath": (".spec", ".status"),
}
# The keywords that may be at the root of a schema beside the status subresource, as kube-apiserver names them.
_ROOT_WORDS: Final = (
    "Description Type Format Title Maximum ExclusiveMaximum Minimum ExclusiveMinimum MaxLength MinLength Pattern "
    "MaxItems MinItems UniqueItems MultipleOf Required Items Properties ExternalDocs Example XPreserveUnknownFields "
    "XValidations"
)
_AT_ROOT: Final = frozenset(word[0].lower() + word[1:] for word in _ROOT_WORDS.split()) | {
    "x-kubernetes-preserve-unknown-fields",
    "x-kubernetes-validations",
}


def draft(schema: Mapping[str, Any], path: str) -> Draft:
    """Return the parsed schema from a cache: a definition is validated when written and used when served.

    Raises:
        SchemaError: with the paths under `path`.
    """
    return _draft(msgspec.json.encode(schema), path)


@lru_cache(maxsize=64)
def _draft(schema: bytes, path: str) -> Draft:
    return Draft.of(msgspec.json.decode(schema), path=path)


def shared_parts(versions: list[Mapping[str, Any]]) -> frozenset[str]:
    """Return the parts that all versions share: errors name them once, as parts of spec itself."""
    first = versions[0] if versions else {}
    return frozenset(part for part in PARTS if first.get(part) and all(v.get(part) == first[part] for v in versions))


def part_errors(version: Mapping[str, Any], where: str, parts: frozenset[str], *, has_status: bool) -> list[FieldError]:
    """Validate some parts of a version: its own parts, or those that all versions share."""
    schema = (version.get("schema") or {}).get("openAPIV3Schema")
    errors: list[FieldError] = []
    if schema is not None and "schema" in parts:
        at = f"{where}.{'validation' if where == 'spec' else 'schema'}.openAPIV3Schema"
        errors += _rules_root(schema, at) if has_status else []
        try:
            errors += draft(schema, at).errors()
        except SchemaError as error:
            errors += error.causes
    if "subresources" in parts:
        errors += _rules_scale((version.get("subresources") or {}).get("scale"), f"{where}.subresources.scale")
    if "additionalPrinterColumns" in parts:
        errors += _rules_columns(version.get("additionalPrinterColumns", ()), f"{where}.additionalPrinterColumns")
    if schema is not None and "selectableFields" in parts:
        errors += _rules_selectable(version.get("selectableFields", ()), schema, f"{where}.selectableFields")
    return errors


def has_status_part(version: Mapping[str, Any]) -> bool:
    return (version.get("subresources") or {}).get("status") is not None


def _rules_root(schema: Mapping[str, Any], at: str) -> list[FieldError]:
    """Check the root of a schema beside the status subresource.

    The schema of status is checked by itself, so that other keywords at the root would have no effect.
    """
    if schema.get("type", "object") != "object":
        why = 'only "object" is allowed as the type at the root of the schema if the status subresource is enabled'
        return [field_errors.invalid(f"{at}.type", schema["type"], why)]
    if all(word in _AT_ROOT or not value for word, value in schema.items()):
        return []
    why = f"only [{_ROOT_WORDS}] fields are allowed at the root of the schema if the status subresource is enabled"
    return [field_errors.invalid(at, schema, why)]


def _rules_scale(scale: Mapping[str, Any] | None, where: str) -> list[FieldError]:
    if scale is None:
        return []
    errors = []
    for key, roots in _SCALE_PATHS.items():
        path, under = scale.get(key) or "", " or ".join(roots)
        if not path:
            errors += [field_errors.required(f"{where}.{key}")] if key != "labelSelectorPath" else []
        elif not path.startswith("."):
            errors.append(field_errors.invalid(f"{where}.{key}", path, "must be a simple json path starting with ."))
        elif not path.startswith(tuple(f"{root}." for root in roots)):
            either = "either " if len(roots) > 1 else ""
            errors.append(field_errors.invalid(f"{where}.{key}", path, f"should be a json path under {either}{under}"))
    return errors


def _rules_columns(given: list[Mapping[str, Any]], where: str) -> list[FieldError]:
    errors = []
    for index, column in enumerate(given):
        at = f"{where}[{index}]"
        if not column["name"]:
            errors.append(field_errors.required(f"{at}.name"))
        if not column["type"]:
            errors.append(field_errors.required(f"{at}.type", f"must be one of {','.join(COLUMN_TYPES)}"))
        elif column["type"] not in COLUMN_TYPES:
            errors.append(
                field_errors.invalid(f"{at}.type", column["type"], f"must be one of {','.join(COLUMN_TYPES)}")
            )
        if column.get("format") and column["format"] not in COLUMN_FORMATS:
            why = f"must be one of {','.join(COLUMN_FORMATS)}"
            errors.append(field_errors.invalid(f"{at}.format", column["format"], why))
        path = column["jsonPath"]
        if not path:
            errors.append(field_errors.required(f"{at}.JSONPath"))
        elif not path.startswith("."):
            errors.append(field_errors.invalid(f"{at}.JSONPath", path, "must be a simple json path starting with ."))
    return errors


def _rules_selectable(given: list[Mapping[str, Any]], schema: Mapping[str, Any], where: str) -> list[FieldError]:
    errors: list[FieldError] = []
    known: set[str] = set()
    for index, selectable in enumerate(given):
        path = selectable["jsonPath"]
        at = f"{where}[{index}].jsonPath"
        if not path:
            errors.append(field_errors.required(at))
            continue
        try:
            found = selected_field(path, schema)
        except BadFieldPath as error:
            errors.append(field_errors.invalid(at, path, f"is an invalid path: {error}"))
            continue
        if path.startswith(".metadata."):
            errors.append(field_errors.invalid(at, path, "must not point to fields in metadata"))
        if found.get("type") not in {"string", "boolean", "integer"}:
            why = (
                "must point to a field of type string, boolean or integer. "
                "Enum string fields and strings with formats are allowed."
            )
            errors.append(field_errors.invalid(at, path, why))
        if path in known:
            errors.append(field_errors.duplicate(at, path))
        known.add(path)
    if len(known) > SELECTABLE:
        errors.append(too_many(where, len(known), SELECTABLE))
    return errors
