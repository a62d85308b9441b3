"""Check of the JSON types of a schema's keywords, on which everything after this may rely."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from unbounded_apiserver.schema.errors import JSON_TYPES, FieldError, type_invalid

_TEXTS: Final = frozenset(
    {"$ref", "$schema", "description", "format", "id", "pattern", "title", "type"}
    | {"x-kubernetes-list-type", "x-kubernetes-map-type"}
)
_FLAGS: Final = frozenset(
    {"exclusiveMaximum", "exclusiveMinimum", "nullable", "uniqueItems", "x-kubernetes-embedded-resource"}
    | {"x-kubernetes-int-or-string", "x-kubernetes-preserve-unknown-fields"}
)
_COUNTS: Final = frozenset({"maxItems", "maxLength", "maxProperties", "minItems", "minLength", "minProperties"})
_NUMBERS: Final = frozenset({"maximum", "minimum", "multipleOf"})
_TEXT_LISTS: Final = frozenset({"required", "x-kubernetes-list-map-keys"})
# keywords whose value is a schema, and the other types that it may have
_SCHEMAS: Final[Mapping[str, tuple[type, ...]]] = {"not": (), "items": (list,), "additionalProperties": (bool,)}
_SCHEMA_LISTS: Final = frozenset({"allOf", "anyOf", "oneOf"})
_RULE_WORDS: Final[Mapping[str, type]] = {
    "rule": str,
    "message": str,
    "messageExpression": str,
    "reason": str,
    "fieldPath": str,
    "optionalOldSelf": bool,
}
_MAX_DEPTH: Final = 60


def malformed(raw: Any, path: str, depth: int = 0) -> Iterator[FieldError]:
    """Yield the errors of keywords whose value has a wrong type; null counts as absent."""
    if not isinstance(raw, Mapping):
        yield _wrong(raw, path, "object")
        return
    if depth > _MAX_DEPTH:
        yield type_invalid(path, "object", "must not be nested deeper")
        return
    for word, value in raw.items():
        if value is not None:
            yield from _word(word, value, f"{path}.{word}", depth + 1)


def _word(word: str, value: Any, path: str, depth: int) -> Iterator[FieldError]:
    desired = _scalar_kind(word)
    if desired is not None:
        if not _is(value, desired):
            yield _wrong(value, path, desired)
    elif word in _TEXT_LISTS:
        yield from _list_of_texts(value, path)
    elif word in _SCHEMA_LISTS:
        yield from _list_of_schemas(value, path, depth)
    elif word == "properties":
        if not isinstance(value, Mapping):
            yield _wrong(value, path, "object")
            return
        for name, inner in value.items():
            yield from malformed(inner, f"{path}[{name}]", depth)
    elif word in _SCHEMAS and not isinstance(value, _SCHEMAS[word]):
        yield from malformed(value, path, depth)
    elif word == "enum" and not isinstance(value, list):
        yield _wrong(value, path, "array")
    elif word == "x-kubernetes-validations":
        yield from _rules(value, path)


def _scalar_kind(word: str) -> str | None:
    kinds = ((_TEXTS, "string"), (_FLAGS, "boolean"), (_COUNTS, "integer"), (_NUMBERS, "number"))
    return next((kind for words, kind in kinds if word in words), None)


def _is(value: Any, kind: str) -> bool:
    match kind:
        case "string":
            return isinstance(value, str)
        case "boolean":
            return isinstance(value, bool)
        case "integer":
            return isinstance(value, int) and not isinstance(value, bool)
        case _:
            return isinstance(value, (int, float)) and not isinstance(value, bool)


def _wrong(value: Any, path: str, desired: str) -> FieldError:
    found = JSON_TYPES.get(type(value), "object")
    return type_invalid(path, found, f'{path} in body must be of type {desired}: "{found}"')


def _list_of_texts(value: Any, path: str) -> Iterator[FieldError]:
    if not isinstance(value, list):
        yield _wrong(value, path, "array")
        return
    for index, item in enumerate(value):
        if not isinstance(item, str):
            yield _wrong(item, f"{path}[{index}]", "string")


def _list_of_schemas(value: Any, path: str, depth: int) -> Iterator[FieldError]:
    if not isinstance(value, list):
        yield _wrong(value, path, "array")
        return
    for index, inner in enumerate(value):
        yield from malformed(inner, f"{path}[{index}]", depth)


def _rules(value: Any, path: str) -> Iterator[FieldError]:
    if not isinstance(value, list):
        yield _wrong(value, path, "array")
        return
    for index, rule in enumerate(value):
        if not isinstance(rule, Mapping):
            yield _wrong(rule, f"{path}[{index}]", "object")
            continue
        for word, kind in _RULE_WORDS.items():
            if rule.get(word) is not None and not isinstance(rule[word], kind):
                yield _wrong(rule[word], f"{path}[{index}].{word}", JSON_TYPES[kind])


def normalized(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of a well-formed schema without keywords that are null, which have no effect."""
    copied: dict[str, Any] = {}
    for word, value in raw.items():
        if value is None:
            continue
        if word == "properties":
            copied[word] = {name: normalized(inner) for name, inner in value.items()}
        elif word in _SCHEMA_LISTS:
            copied[word] = [normalized(inner) for inner in value]
        elif word == "x-kubernetes-validations":
            copied[word] = [{key: said for key, said in rule.items() if said is not None} for rule in value]
        elif word in _SCHEMAS and isinstance(value, Mapping):
            copied[word] = normalized(value)
        else:
            copied[word] = value
    return copied
