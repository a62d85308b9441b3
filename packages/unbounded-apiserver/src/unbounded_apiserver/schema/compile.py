"""Compilation of a definition's schema, after a check of the JSON types of its keywords.

Ratcheting: an update does not fail for an invalid value that it does not change.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from unbounded_apiserver.cel.functions.formats import STRING_FORMATS
from unbounded_apiserver.schema.defaulting import defaulter, pruner
from unbounded_apiserver.schema.errors import (
    JSON_TYPES,
    NO_FIELD,
    FieldError,
    Path,
    SchemaError,
    SchemaProblem,
    invalid,
    json_equal,
    sort_key,
    steps,
    type_invalid,
)
from unbounded_apiserver.schema.evaluate import MISSING, key_of, run_rules
from unbounded_apiserver.schema.rules import RuleNode, compile_rules
from unbounded_apiserver.schema.structure import (
    Raw,
    combinator_schemas,
    form_errors,
    is_expressible,
    structural_errors,
    subschemas,
)
from unbounded_apiserver.schema.validate import validator

_BLOCKING: Final = frozenset(
    {
        "FieldValueNotSupported",
        "FieldValueRequired",
        "FieldValueTooLong",
        "FieldValueTooMany",
        "FieldValueTypeInvalid",
    }
)  # reasons for which rules are not run: the object lacks the form that they are written for
_NUMBER_FORMATS: Final = frozenset({"double", "float", "int32", "int64", "uint32", "uint64"})
_UNCHECKED: Final = (
    "some validation rules were not checked because the object was invalid; "
    "correct the existing errors to complete validation"
)
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


class Schema:
    """A compiled schema; its methods may be called from many threads.

    Attributes:
        warnings: kube-apiserver's warnings when the definition is written: formats that are not checked.
    """

    def __init__(self, raw: Raw, rules: RuleNode | None) -> None:
        self._raw = raw
        self._default = defaulter(raw, root=True)
        self._prune = pruner(raw, root=True)
        self._check = validator(raw)
        self._rules = rules
        self.warnings: list[str] = list(dict.fromkeys(_unknown_formats(raw)))

    def default(self, obj: dict[str, Any]) -> None:
        """Fill in defaults, in place. They replace nulls; a null that is not nullable and has no default is removed."""
        if self._default is not None:
            self._default(obj)

    def prune(self, obj: dict[str, Any]) -> list[str]:
        """Drop fields that the schema does not declare, in place; returns their paths in order."""
        dropped: list[str] = []
        if self._prune is not None:
            self._prune(obj, None, dropped)
        return sorted(dropped)

    def validate(
        self,
        obj: Mapping[str, Any],
        old: Mapping[str, Any] | None = None,
        warnings: list[str] | None = None,
        others: Sequence[FieldError] = (),
    ) -> list[FieldError]:
        """Return the errors of an object that was defaulted and pruned before.

        Args:
            old: the object that it replaces. Rules about changes then run, and errors of unchanged values are ignored.
            warnings: takes the failures of rules about values that did not change.
            others: errors outside of the schema, some of which keep rules from running, as errors in it do.
        """
        problems: list[SchemaProblem] = []
        self._check(obj, None, problems)
        if problems and old is not None:
            problems = self._new_problems(problems, obj, old)
        before = MISSING if old is None else old
        if not problems and not others:
            return [] if self._rules is None else run_rules(self._rules, obj, before, warnings)
        errors = [problem.error for problem in sorted(problems, key=sort_key)]
        if self._rules is None:
            return errors
        if any(error.reason in _BLOCKING for error in (*others, *errors)):
            return [*errors, invalid(NO_FIELD, None, _UNCHECKED)]
        return [*errors, *run_rules(self._rules, obj, before, warnings)]

    def _new_problems(
        self, problems: list[SchemaProblem], obj: Mapping[str, Any], old: Mapping[str, Any]
    ) -> list[SchemaProblem]:
        """Return the problems that count on an update; if the old object has duplicates, duplicates are ignored."""
        found = [problem for problem in problems if not _is_duplicate(problem)]
        changed = changed_only(found, self._raw, obj, old)
        duplicates = [problem for problem in problems if _is_duplicate(problem)]
        if duplicates:
            earlier: list[SchemaProblem] = []
            self._check(old, None, earlier)
            if not any(map(_is_duplicate, earlier)):
                changed += duplicates
        return changed


def _is_duplicate(problem: SchemaProblem) -> bool:
    return problem.error.reason == "FieldValueDuplicate"


@dataclass(frozen=True)
class Draft:
    """A schema in a definition: validated when the definition is written, compiled when it is served.

    A stored definition is served as an earlier server accepted it, and is not validated again.

    Attributes:
        path: the path of the schema in the definition, under which errors are reported.
    """

    raw: Raw
    path: str

    @classmethod
    def of(cls, open_api_v3_schema: Mapping[str, Any], *, path: str) -> Draft:
        """Parse a schema. Raises SchemaError if a keyword has the wrong JSON type."""
        _refuse(malformed(open_api_v3_schema, path))
        return cls(normalized(open_api_v3_schema), path)

    @cached_property
    def _rules(self) -> tuple[RuleNode | None, list[FieldError]]:
        return compile_rules(self.raw, self.path)

    @cached_property
    def schema(self) -> Schema:
        """Return the compiled schema."""
        return Schema(self.raw, self._rules[0])

    def errors(self) -> list[FieldError]:
        """Return kube-apiserver's errors of the schema, in its order."""
        form = list(form_errors(self.raw, self.path))
        if not is_expressible(self.raw):
            return form
        structural = sorted(structural_errors(self.raw, self.path), key=lambda cause: (cause.field, cause.message))
        if structural:
            return [*structural, *form]
        defaults = list(_default_errors(self.raw, self.path))
        if defaults:
            return [*defaults, *form]
        return [*form, *(cause for cause in self._rules[1] if not _is_above(cause, form))]


def _is_above(cause: FieldError, others: Iterable[FieldError]) -> bool:
    """Return whether a rule is at or above a schema with errors of its own: rules there are not compiled."""
    place, is_rule, _ = cause.field.partition(".x-kubernetes-validations[")
    return bool(is_rule) and any(other.field.startswith(place) for other in others)


def compile_schema(open_api_v3_schema: Mapping[str, Any], *, path: str) -> Schema:
    """Check and compile a schema.

    Args:
        path: the path of the schema in the definition, under which errors are reported.
    Raises:
        SchemaError: kube-apiserver would reject it.
    """
    draft = Draft.of(open_api_v3_schema, path=path)
    _refuse(draft.errors())
    return draft.schema


def _refuse(causes: Iterable[FieldError]) -> None:
    found = list(causes)
    if found:
        raise SchemaError(found)


def _default_errors(raw: Raw, path: str) -> Iterator[FieldError]:
    """Report defaults that are invalid themselves, or contain fields that pruning would drop.

    A default is checked without the defaults of its own fields. kube-apiserver checks none below additionalProperties,
    and no duplicates.
    """
    default = raw.get("default")
    if default is not None:
        yield from _default_problems(raw, default, f"{path}.default")
    for inner, inner_path, _ in subschemas(raw, path):
        if inner_path != f"{path}.additionalProperties":
            yield from _default_errors(inner, inner_path)


def _default_problems(raw: Raw, default: Any, path: str) -> Iterator[FieldError]:
    prune = pruner(raw)
    dropped: list[str] = []
    copied = _copy(default)
    if prune is not None:
        prune(copied, None, dropped)
    if dropped:
        yield invalid(path, default, "must not have unknown fields")
        return
    problems: list[SchemaProblem] = []
    validator(raw)(copied, None, problems)
    errors = [problem.error for problem in problems if not _is_duplicate(problem)]
    rules, _ = compile_rules(raw, path, root=False)
    if rules is not None and not errors:
        errors = run_rules(rules, copied, copied)
        errors += [error for error in run_rules(rules, copied, MISSING) if error not in errors]
    for error in errors:
        below = "" if error.field in ("", NO_FIELD) else f".{error.field}"
        yield FieldError(error.reason, f"{path}{below}", error.message)


def _copy(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _copy(item) for name, item in value.items()}
    return [_copy(item) for item in value] if isinstance(value, list) else value


def _unknown_formats(raw: Raw) -> Iterator[str]:
    name = raw.get("format")
    if name and name not in STRING_FORMATS and name not in _NUMBER_FORMATS:
        yield f'unrecognized format "{name}"'
    for inner, _, _ in subschemas(raw, ""):
        yield from _unknown_formats(inner)
    for inner, _ in combinator_schemas(raw, ""):
        yield from _unknown_formats(inner)


def changed_only(problems: list[SchemaProblem], raw: Raw, value: Any, old: Any) -> list[SchemaProblem]:
    """Return the problems of values that differ from their old ones."""
    return [problem for problem in problems if not _unchanged(problem.at, raw, value, old)]


def _unchanged(path: Path, raw: Raw, value: Any, old: Any) -> bool:
    """Return whether the value at the path, or the nearest one above with an old counterpart, is unchanged."""
    schema: Any = raw
    for step in steps(path):
        if not isinstance(schema, Mapping):
            break
        inner, inner_old, inner_schema = _descend(schema, step, value, old)
        if inner_old is MISSING:
            known = isinstance(value, dict) and isinstance(old, dict) and _granular(schema)
            return False if known else json_equal(value, old)
        value, old, schema = inner, inner_old, inner_schema
    return json_equal(value, old)


def _granular(schema: Raw) -> bool:
    return schema.get("x-kubernetes-map-type") != "atomic"


def _descend(schema: Raw, step: str | int, value: Any, old: Any) -> tuple[Any, Any, Any]:
    if isinstance(step, int):
        keys = tuple(schema.get("x-kubernetes-list-map-keys") or ()) or None
        desired = key_of(value[step], keys)
        if desired is None or not isinstance(old, list):
            return value[step], MISSING, None
        match = next((item for item in old if key_of(item, keys) == desired), MISSING)
        return value[step], match, schema.get("items")
    if not isinstance(old, dict) or not _granular(schema) or step not in value:
        return None, MISSING, None
    inner = (schema.get("properties") or {}).get(step, schema.get("additionalProperties"))
    return value[step], old.get(step, MISSING), inner


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
