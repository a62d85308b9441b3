"""Checks of a schema: structural, and well formed in all that needs neither its values nor its rules."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple, TypeAlias

from unbounded_apiserver.cel.regexp import BadPattern, compile_pattern
from unbounded_apiserver.schema.errors import FieldError, forbidden, invalid, not_supported, required

Raw: TypeAlias = Mapping[str, Any]

TYPES: Final = ("array", "boolean", "integer", "number", "object", "string")
COMBINATORS: Final = ("allOf", "anyOf", "oneOf")
_RESOURCE_FIELDS: Final = frozenset({"apiVersion", "kind", "metadata"})
_UNSUPPORTED: Final = ("id", "additionalItems", "patternProperties", "definitions", "dependencies", "$ref")
_INT_OR_STRING: Final = [{"type": "integer"}, {"type": "string"}]
_EMPTY_TYPE: Final = {
    "root": "must not be empty at the root",
    "items": "must not be empty for specified array items",
    "field": "must not be empty for specified object fields",
}


def subschemas(raw: Raw, path: str) -> Iterator[tuple[Raw, str, str]]:
    """Yield the schemas of the structure directly below: schema, path, and kind (items or a field)."""
    items = raw.get("items")
    if isinstance(items, Mapping):
        yield items, f"{path}.items", "items"
    for name, inner in (raw.get("properties") or {}).items():
        yield inner, f"{path}.properties[{name}]", "field"
    additional = raw.get("additionalProperties")
    if isinstance(additional, Mapping):
        yield additional, f"{path}.additionalProperties", "field"


def combinator_schemas(raw: Raw, path: str) -> Iterator[tuple[Raw, str]]:
    """Yield the value validations directly below, under allOf, anyOf, oneOf and not."""
    for junctor in COMBINATORS:
        for index, inner in enumerate(raw.get(junctor) or ()):
            yield inner, f"{path}.{junctor}[{index}]"
    if isinstance(raw.get("not"), Mapping):
        yield raw["not"], f"{path}.not"


def is_expressible(raw: Raw) -> bool:
    """Return whether all keywords exist in structural schemas; only such a schema is checked as one."""
    if any(raw.get(word) for word in _UNSUPPORTED) or isinstance(raw.get("items"), list):
        return False
    below = (*(inner for inner, _, _ in subschemas(raw, "")), *(inner for inner, _ in combinator_schemas(raw, "")))
    return all(map(is_expressible, below))


class _Scope(NamedTuple):
    """The part of a resource that a schema describes.

    Attributes:
        resource: the whole resource.
        metadata: its apiVersion, kind or metadata, or a part of them.
        no_default: the reason that a default is forbidden, empty if it is allowed.
    """

    resource: bool = False
    metadata: bool = False
    no_default: str = ""


_WHOLE: Final = _Scope(resource=True)


def form_errors(raw: Raw, path: str, scope: _Scope = _WHOLE) -> Iterator[FieldError]:
    """Report the errors of each schema by itself: keywords that are not supported, alone or together."""
    if scope.resource and raw.get("nullable"):
        yield forbidden(f"{path}.nullable", "nullable cannot be true at the root")
    yield from _word_errors(raw, path, scope)
    if raw.get("uniqueItems"):
        why = "uniqueItems cannot be set to true since the runtime complexity becomes quadratic"
        yield forbidden(f"{path}.uniqueItems", why)
    if raw.get("additionalProperties") and raw.get("properties"):
        yield forbidden(f"{path}.additionalProperties", "additionalProperties and properties are mutual exclusive")
    below = scope._replace(resource=False)
    for inner, inner_path, _ in subschemas(raw, path):
        yield from form_errors(inner, inner_path, _scope_below(raw, inner_path.removeprefix(path), scope))
    for inner, inner_path in combinator_schemas(raw, path):
        yield from form_errors(inner, inner_path, below)
    if raw.get("x-kubernetes-preserve-unknown-fields") is False:
        yield invalid(f"{path}.x-kubernetes-preserve-unknown-fields", False, "must be true or undefined")
    yield from _map_errors(raw, path)
    yield from _list_errors(raw, path)


def _scope_below(raw: Raw, step: str, scope: _Scope) -> _Scope:
    inner = scope._replace(resource=False)
    if step == ".additionalProperties" and scope.metadata:
        return inner._replace(no_default=" inside additionalProperties applying to object metadata")
    name = step.removeprefix(".properties[").removesuffix("]")
    if name in _RESOURCE_FIELDS and (scope.resource or raw.get("x-kubernetes-embedded-resource")):
        reason = f" in top-level {name}" if scope.resource else scope.no_default
        return inner._replace(metadata=True, no_default=reason)
    return inner


def _word_errors(raw: Raw, path: str, scope: _Scope) -> Iterator[FieldError]:
    kind = raw.get("type")
    if kind and kind not in TYPES:
        yield not_supported(f"{path}.type", kind, TYPES)
    if raw.get("default") is not None and scope.no_default:
        yield forbidden(f"{path}.default", f"must not be set{scope.no_default}")
    for word in _UNSUPPORTED:
        if raw.get(word):
            yield forbidden(f"{path}.{word}", f"{word} is not supported")
    if kind == "null":
        yield forbidden(f"{path}.type", "type cannot be set to null, use nullable as an alternative")
    if isinstance(raw.get("items"), list):
        yield forbidden(f"{path}.items", "items must be a schema object and not an array")
    if scope.metadata and raw.get("x-kubernetes-embedded-resource"):
        yield forbidden(f"{path}.x-kubernetes-embedded-resource", "must not be used inside of resource meta")


def _map_errors(raw: Raw, path: str) -> Iterator[FieldError]:
    map_type = raw.get("x-kubernetes-map-type")
    if map_type is None:
        return
    if map_type not in ("atomic", "granular"):
        yield not_supported(f"{path}.x-kubernetes-map-type", map_type, ("atomic", "granular"))
    if raw.get("type") != "object":
        why = "must be object if x-kubernetes-map-type is specified"
        yield invalid(f"{path}.type", raw.get("type", ""), why) if raw.get("type") else required(f"{path}.type", why)


def _list_errors(raw: Raw, path: str) -> Iterator[FieldError]:
    list_type, keys = raw.get("x-kubernetes-list-type"), raw.get("x-kubernetes-list-map-keys") or []
    type_path, keys_path = f"{path}.x-kubernetes-list-type", f"{path}.x-kubernetes-list-map-keys"
    if list_type is not None and raw.get("type") != "array":
        why = "must be array if x-kubernetes-list-type is specified"
        yield invalid(f"{path}.type", raw.get("type", ""), why) if raw.get("type") else required(f"{path}.type", why)
    if list_type is not None and list_type not in ("atomic", "set", "map"):
        yield not_supported(type_path, list_type, ("atomic", "set", "map"))
    if keys and list_type is None:
        yield required(type_path, "must be map if x-kubernetes-list-map-keys is non-empty")
    elif keys and list_type != "map":
        yield invalid(type_path, list_type, "must be map if x-kubernetes-list-map-keys is non-empty")
    items = raw.get("items")
    if not isinstance(items, Mapping):
        if list_type == "map" and items is None:
            yield required(f"{path}.items", "must have a schema if x-kubernetes-list-type is map")
        return
    if list_type == "set":
        yield from _set_errors(items, f"{path}.items")
    if list_type == "map":
        if not keys:
            yield required(keys_path, "must not be empty if x-kubernetes-list-type is map")
        yield from _map_list_errors(items, keys, f"{path}.items", keys_path)


def _set_errors(items: Raw, path: str) -> Iterator[FieldError]:
    atomic = "must be atomic as item of a list with x-kubernetes-list-type=set"
    if items.get("nullable"):
        yield forbidden(f"{path}.nullable", "cannot be nullable when x-kubernetes-list-type is set")
    for kind, word in (("object", "x-kubernetes-map-type"), ("array", "x-kubernetes-list-type")):
        if items.get("type") == kind and items.get(word) != "atomic" and (kind == "object" or word in items):
            yield invalid(f"{path}.{word}", items.get(word), atomic)


def _map_list_errors(items: Raw, keys: list[str], path: str, keys_path: str) -> Iterator[FieldError]:
    properties = items.get("properties") or {}
    if items.get("type") != "object":
        why = "must be object if parent array's x-kubernetes-list-type is map"
        yield invalid(f"{path}.type", items.get("type", ""), why)
    else:
        yield from _key_errors(properties, keys, path, keys_path)
    if items.get("nullable"):
        yield forbidden(f"{path}.nullable", "cannot be nullable when x-kubernetes-list-type is map")
    for key in (key for key in keys if key in properties):
        inner, inner_path = properties[key], f"{path}.properties[{key}]"
        if key not in (items.get("required") or ()) and inner.get("default") is None:
            why = "this property is in x-kubernetes-list-map-keys, so it must have a default or be a required property"
            yield required(f"{inner_path}.default", why)
        if inner.get("nullable"):
            why = "this property is in x-kubernetes-list-map-keys, so it cannot be nullable"
            yield forbidden(f"{inner_path}.nullable", why)


def _key_errors(properties: Mapping[str, Raw], keys: list[str], path: str, keys_path: str) -> Iterator[FieldError]:
    for index, key in enumerate(keys):
        if key not in properties:
            yield invalid(keys_path, keys, "entries must all be names of item properties")
        elif properties[key].get("type") in ("array", "object"):
            why = "must be a scalar type if parent array's x-kubernetes-list-type is map"
            yield invalid(f"{path}.properties[{key}].type", "object", why)  # the type of the items, in Kubernetes too
        if key in keys[:index]:
            yield invalid(keys_path, keys, "must not contain duplicate entries")


def structural_errors(raw: Raw, path: str, level: str = "root") -> Iterator[FieldError]:
    """Yield the reasons why a well-formed schema is not structural."""
    for inner, inner_path, inner_level in subschemas(raw, path):
        yield from structural_errors(inner, inner_path, inner_level)
    for junctor in COMBINATORS:
        for index, inner in enumerate(raw.get(junctor) or ()):
            if not (junctor == "anyOf" and raw["anyOf"] == _INT_OR_STRING):  # an allowed idiom
                skip_any_of = junctor == "allOf" and index == 0 and inner.get("anyOf") == _INT_OR_STRING
                yield from _nested_errors(inner, f"{path}.{junctor}[{index}]", skip_any_of=skip_any_of)
    if isinstance(raw.get("not"), Mapping):
        yield from _nested_errors(raw["not"], f"{path}.not")
    yield from _type_errors(raw, path, level)
    yield from _extension_errors(raw, path, level)
    yield from _pattern_errors(raw, path)
    if level == "root" or raw.get("x-kubernetes-embedded-resource"):
        yield from _resource_errors(raw, path, level)


def _type_errors(raw: Raw, path: str, level: str) -> Iterator[FieldError]:
    kind = raw.get("type")
    if kind == "array" and not isinstance(raw.get("items"), Mapping):
        yield required(f"{path}.items", "must be specified")
    if raw.get("x-kubernetes-embedded-resource") and kind != "object":
        why = "must be object if x-kubernetes-embedded-resource is true"
        yield invalid(f"{path}.type", kind, why) if kind else required(f"{path}.type", why)
    elif not kind and not raw.get("x-kubernetes-int-or-string") and not raw.get("x-kubernetes-preserve-unknown-fields"):
        yield required(f"{path}.type", _EMPTY_TYPE[level])
    if level == "root" and kind and kind != "object":
        yield invalid(f"{path}.type", kind, "must be object at the root")


def _extension_errors(raw: Raw, path: str, level: str) -> Iterator[FieldError]:
    embedded, preserve = raw.get("x-kubernetes-embedded-resource"), raw.get("x-kubernetes-preserve-unknown-fields")
    if raw.get("x-kubernetes-int-or-string"):
        for word in ("x-kubernetes-preserve-unknown-fields", "x-kubernetes-embedded-resource"):
            if raw.get(word):
                yield invalid(f"{path}.{word}", True, "must be false if x-kubernetes-int-or-string is true")
    if raw.get("additionalProperties") is not None:
        if level == "root":
            yield forbidden(f"{path}.additionalProperties", "must not be used at the root")
        if embedded:
            why = "must not be used if x-kubernetes-embedded-resource is set"
            yield forbidden(f"{path}.additionalProperties", why)
    if embedded and not preserve and not raw.get("properties"):
        why = "must not be empty if x-kubernetes-embedded-resource is true without x-kubernetes-preserve-unknown-fields"
        yield required(f"{path}.properties", why)


def _resource_errors(raw: Raw, path: str, level: str) -> Iterator[FieldError]:
    """Check the types of apiVersion, kind and metadata at the root of a resource."""
    properties = raw.get("properties") or {}
    for name, expected in (("kind", "string"), ("apiVersion", "string"), ("metadata", "object")):
        if name in properties and properties[name].get("type") != expected:
            found = properties[name].get("type", "")
            yield invalid(f"{path}.properties[{name}].type", found, f"must be {expected}")
    metadata = properties.get("metadata")
    if level == "root" and metadata is not None:
        rest = {word: value for word, value in metadata.items() if word not in ("type", "description", "default")}
        if set(rest.get("properties") or ()) <= {"name", "generateName"}:
            rest.pop("properties", None)
        if rest:
            why = "must not specify anything other than name and generateName, but metadata is implicitly specified"
            yield forbidden(f"{path}.properties[metadata]", why)


def _pattern_errors(raw: Raw, path: str) -> Iterator[FieldError]:
    pattern = raw.get("pattern")
    if pattern:
        try:
            compile_pattern(pattern)
        except BadPattern as error:
            why = f"must be a valid regular expression, but isn't: {error}"
            yield invalid(f"{path}.pattern", pattern, why)


_Emptiness: TypeAlias = tuple[str, str, Callable[[Any], bool]]
_FORBIDDEN_NESTED: Final[tuple[_Emptiness, ...]] = (
    ("type", "must be empty to be structural", bool),
    ("additionalProperties", "must be undefined to be structural", lambda value: value is not None),
    ("default", "must be undefined to be structural", lambda value: value is not None),
    ("title", "must be empty to be structural", bool),
    ("description", "must be empty to be structural", bool),
    ("nullable", "must be false to be structural", bool),
    ("externalDocs", "must be undefined to be structural", lambda value: value is not None),
    ("x-kubernetes-preserve-unknown-fields", "must be false to be structural", bool),
    ("x-kubernetes-embedded-resource", "must be false to be structural", bool),
    ("x-kubernetes-int-or-string", "must be false to be structural", bool),
    ("x-kubernetes-list-map-keys", "must be empty to be structural", bool),
    ("x-kubernetes-list-type", "must be undefined to be structural", lambda value: value is not None),
    ("x-kubernetes-map-type", "must be undefined to be structural", lambda value: value is not None),
    ("x-kubernetes-validations", "must be empty to be structural", bool),
)


def _nested_errors(raw: Raw, path: str, *, skip_any_of: bool = False) -> Iterator[FieldError]:
    """Report keywords under allOf, anyOf, oneOf and not that do more than restrict values."""
    for inner, inner_path, _ in subschemas(raw, path):
        if not inner_path.endswith(".additionalProperties"):
            yield from _nested_errors(inner, inner_path)
    for inner, inner_path in combinator_schemas(raw, path):
        if not (skip_any_of and inner_path.startswith(f"{path}.anyOf")):
            yield from _nested_errors(inner, inner_path)
    for word, why, is_set in _FORBIDDEN_NESTED:
        if is_set(raw.get(word)):
            yield forbidden(f"{path}.{word}", why)
    if "metadata" in (raw.get("properties") or {}):
        yield forbidden(f"{path}.properties[metadata]", "must not be specified in a nested context")
    yield from _pattern_errors(raw, path)
