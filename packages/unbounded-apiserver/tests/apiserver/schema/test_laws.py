"""Laws of any schema and any object."""

import copy
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unbounded_apiserver.schema import FieldError, Schema, SchemaError, compile_schema

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-5, 5)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=8,
)
WORDS = [
    *("type", "properties", "items", "additionalProperties", "required", "enum", "default", "nullable", "pattern"),
    *("format", "minimum", "maximum", "multipleOf", "maxLength", "minLength", "maxItems", "anyOf", "oneOf", "allOf"),
    *("not", "x-kubernetes-validations", "x-kubernetes-list-type", "x-kubernetes-list-map-keys"),
    *("x-kubernetes-map-type", "x-kubernetes-preserve-unknown-fields", "x-kubernetes-int-or-string"),
    "x-kubernetes-embedded-resource",
]
ODD = st.sampled_from(["object", "string", "integer", "array", "map", "set", "[", "date-time", True, 0]) | JSON
GARBAGE = st.recursive(
    st.dictionaries(st.sampled_from(WORDS), ODD, max_size=5),
    lambda inner: st.fixed_dictionaries(
        {"type": st.sampled_from(["object", "array"])},
        optional={
            "properties": st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
            "items": inner,
            "additionalProperties": inner,
            "anyOf": st.lists(inner, max_size=2),
            "x-kubernetes-validations": st.lists(st.fixed_dictionaries({"rule": st.text(max_size=8)}), max_size=2),
        },
    ),
    max_leaves=6,
)


def _fields() -> st.SearchStrategy[dict[str, Any]]:
    scalars: st.SearchStrategy[dict[str, Any]] = st.sampled_from(
        [
            {"type": "string", "maxLength": 2},
            {"type": "string", "pattern": "a", "nullable": True},
            {"type": "string", "enum": ["a", "b"], "default": "a"},
            {"type": "integer", "minimum": 0, "default": 1},
            {"type": "number"},
            {"type": "boolean"},
            {"x-kubernetes-int-or-string": True},
            {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
        ]
    )
    return st.recursive(
        scalars,
        lambda inner: st.one_of(
            st.builds(lambda items: {"type": "array", "items": items}, inner),
            st.builds(lambda value: {"type": "object", "additionalProperties": value}, inner),
            st.builds(
                lambda fields, required: {"type": "object", "properties": fields, "required": required},
                st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
                st.lists(st.sampled_from("abc"), max_size=1),
            ),
        ),
        max_leaves=6,
    )


def _schema(field: dict[str, Any]) -> Schema:
    return compile_schema({"type": "object", "properties": {"spec": field}}, path="$")


def _prepared(schema: Schema, value: Any) -> dict[str, Any]:
    obj = {"kind": "Thing", "metadata": {"name": "a"}, "spec": copy.deepcopy(value)}
    schema.prune(obj)
    schema.default(obj)
    return obj


@pytest.mark.slow
@given(GARBAGE, JSON)
def test_a_garbage_schema_is_refused_with_causes_or_works(garbage: dict[str, Any], value: Any) -> None:
    with suppress(SchemaError):
        schema = compile_schema({"type": "object", "properties": {"spec": garbage}}, path="$")
        obj = _prepared(schema, value)
        assert all(isinstance(error, FieldError) for error in schema.validate(obj, obj))


@pytest.mark.slow
@given(_fields(), JSON)
def test_preparing_an_object_twice_changes_nothing_more(field: dict[str, Any], value: Any) -> None:
    schema = _schema(field)
    once = _prepared(schema, value)
    twice = copy.deepcopy(once)
    assert schema.prune(twice) == []
    schema.default(twice)
    assert twice == once


@pytest.mark.slow
@given(_fields(), JSON)
def test_an_update_that_changes_nothing_is_let_pass(field: dict[str, Any], value: Any) -> None:
    schema = _schema(field)
    obj = _prepared(schema, value)
    assert schema.validate(obj, copy.deepcopy(obj)) == []


@pytest.mark.slow
@given(_fields(), JSON, JSON)
def test_an_update_is_held_to_no_more_than_a_creation(field: dict[str, Any], old: Any, new: Any) -> None:
    schema = _schema(field)
    before, after = _prepared(schema, old), _prepared(schema, new)
    assert set(schema.validate(after, before)) <= set(schema.validate(after))
    assert after == _prepared(schema, new)
