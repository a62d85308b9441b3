"""Behaviour that the recorded exchanges do not show: defaults, pruning, ratcheting, transitions, limits."""

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.paths import ROOT
from unbounded_apiserver.schema import FieldError, Schema, SchemaError, compile_schema

DEFINITIONS = ROOT / "deploy" / "crd"
TEXT = {"type": "string"}
NUMBER = {"type": "integer"}


def _root(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"spec": {"type": "object", "properties": properties}}}


def _compiled(**properties: Any) -> Schema:
    return compile_schema(_root(**properties), path="$")


def _ruled(rules: list[dict[str, Any]], **properties: Any) -> Schema:
    schema = _root(**properties)
    schema["properties"]["spec"]["x-kubernetes-validations"] = rules
    return compile_schema(schema, path="$")


def _object(**spec: Any) -> dict[str, Any]:
    return {"apiVersion": "example.com/v1", "kind": "Thing", "metadata": {"name": "a", "odd": 1}, "spec": spec}


def _fields(errors: list[FieldError]) -> list[str]:
    return [error.field for error in errors]


# defaults


def test_defaults_are_filled_in_below_what_is_there() -> None:
    nested = {"type": "object", "properties": {"a": {"type": "integer", "default": 3}}}
    schema = _compiled(
        nested=nested, many={"type": "array", "items": nested}, by={"type": "object", "additionalProperties": nested}
    )
    obj = _object(nested={}, many=[{}, {"a": 1}], by={"x": {}})
    schema.default(obj)
    assert obj["spec"] == {"nested": {"a": 3}, "many": [{"a": 3}, {"a": 1}], "by": {"x": {"a": 3}}}


def test_a_default_is_not_shared_between_objects() -> None:
    schema = _compiled(tags={"type": "array", "items": TEXT, "default": []})
    first, second = _object(), _object()
    schema.default(first)
    first["spec"]["tags"].append("x")
    schema.default(second)
    assert second["spec"]["tags"] == []


def test_a_default_within_a_default_is_filled_in() -> None:
    inner = {"type": "object", "default": {}, "properties": {"a": {"type": "integer", "default": 3}}}
    obj = _object()
    _compiled(inner=inner).default(obj)
    assert obj["spec"] == {"inner": {"a": 3}}


def test_nulls_give_way_to_defaults_or_go() -> None:
    schema = _compiled(d={"type": "string", "default": "x"}, plain=TEXT, may={"type": "string", "nullable": True})
    obj = _object(d=None, plain=None, may=None)
    schema.default(obj)
    assert obj["spec"] == {"d": "x", "may": None}


def test_a_default_has_to_obey_the_rules() -> None:
    inner = {
        "type": "object",
        "default": {"a": 1},
        "properties": {"a": NUMBER},
        "x-kubernetes-validations": [{"rule": "self.a > 1", "fieldPath": ".a"}],
    }
    with pytest.raises(SchemaError) as refused:
        _compiled(inner=inner)
    assert [cause.field for cause in refused.value.causes] == ["$.properties[spec].properties[inner].default.a"]


# pruning


def test_pruning_keeps_root_type_and_metadata_and_returns_dropped_fields() -> None:
    obj = {**_object(a="x", b=1), "extra": {}}
    assert _compiled(a=TEXT).prune(obj) == ["extra", "spec.b"]
    assert obj == _object(a="x")


def test_pruning_stops_where_unknown_fields_are_preserved_but_not_below() -> None:
    known = {"type": "object", "properties": {"a": TEXT}}
    free = {"type": "object", "x-kubernetes-preserve-unknown-fields": True, "properties": {"known": known}}
    obj = _object(free={"x": {"y": 1}, "known": {"a": "1", "b": 2}})
    assert _compiled(free=free).prune(obj) == ["spec.free.known.b"]
    assert obj["spec"] == {"free": {"x": {"y": 1}, "known": {"a": "1"}}}


def test_pruning_goes_through_lists_and_maps() -> None:
    known = {"type": "object", "properties": {"a": TEXT}}
    schema = _compiled(many={"type": "array", "items": known}, by={"type": "object", "additionalProperties": known})
    obj = _object(many=[{"a": "1"}, {"b": 2}], by={"k": {"c": 3}})
    assert schema.prune(obj) == ["spec.by.k.c", "spec.many[1].b"]


def test_object_without_properties_is_emptied_unless_it_allows_any_values() -> None:
    schema = _compiled(none={"type": "object"}, all={"type": "object", "additionalProperties": True})
    obj = _object(none={"a": 1}, all={"a": {"b": 1}})
    schema.prune(obj)
    assert obj["spec"] == {"none": {}, "all": {"a": {"b": 1}}}


# validation


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"type": "string", "maxLength": 2}, "éé", "ééé"),
        ({"type": "string", "maxLength": 0}, "", "a"),
        ({"type": "string", "minLength": 2, "description": "d"}, "ab", "a"),
        ({"type": "string", "pattern": "b+"}, "abc", "ac"),
        ({"type": "integer", "maximum": 3, "exclusiveMaximum": True}, 2, 3),
        ({"type": "integer", "multipleOf": 5}, 10, 11),
        ({"type": "number"}, 1, "1"),
        ({"type": "boolean"}, True, 1),
        ({"type": "integer"}, 1, True),
        ({"type": "integer", "enum": [1, 2]}, 2, 3),
        ({"type": "integer", "enum": [1]}, 1, 0),
        ({"type": "array", "items": NUMBER, "minItems": 1}, [1], []),
        ({"type": "object", "additionalProperties": NUMBER, "minProperties": 1}, {"a": 1}, {}),
        ({"type": "string", "not": {"enum": ["x"]}}, "y", "x"),
        ({"type": "string", "allOf": [{"minLength": 2}, {"pattern": "^a"}]}, "ab", "a"),
        ({"type": "string", "nullable": True, "enum": ["a"]}, None, "b"),
        ({"type": "string", "format": "mac"}, "52:54:00:00:00:01", "52:54:00"),
        ({"type": "string", "format": "ipv6"}, "fe80::1", "10.0.0.1"),
        ({"type": "string", "format": "cidr"}, "10.0.0.0/8", "10.0.0.0"),
        ({"type": "string", "format": "uri"}, "https://a/b", "a b"),
        ({"type": "string", "format": "duration"}, "1h30m", "soon"),
        ({"type": "string", "format": "date"}, "2026-02-28", "2026-02-30"),
        ({"type": "string", "format": "uuid"}, "123e4567-e89b-12d3-a456-426614174000", "123e4567"),
        ({"type": "string", "format": "hostname"}, "a.example", "-a-.example"),
        ({"type": "string", "format": "made-up"}, "anything", 1),
    ],
)  # fmt: skip
def test_a_value_is_taken_or_refused(schema: dict[str, Any], good: Any, bad: Any) -> None:
    compiled = _compiled(v=schema)
    assert compiled.validate(_object(v=good)) == []
    assert compiled.validate(_object(v=bad)) != []


def test_lists_that_are_maps_may_hold_the_same_key_once() -> None:
    item = {"type": "object", "required": ["k"], "properties": {"k": NUMBER, "v": TEXT}}
    listed = {"type": "array", "items": item, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"]}
    errors = _compiled(l=listed).validate(_object(l=[{"k": 1}, {"k": 2}, {"k": 1, "v": "x"}]))
    assert [(error.field, error.message) for error in errors] == [("spec.l[2]", 'Duplicate value: {"k":1}')]


def test_halves_of_surrogate_pairs_do_no_harm() -> None:
    schema = _ruled(
        [{"rule": "!has(self.v) || self.v.matches('a')"}], v={"type": "string", "pattern": "a", "maxLength": 9}
    )
    assert schema.validate(_object(v="a\ud800")) == []


# what is wrong already


def test_what_was_wrong_before_does_not_stop_an_update_elsewhere() -> None:
    schema = _compiled(a={"type": "string", "maxLength": 1}, b=TEXT)
    old, new = _object(a="long", b="1"), _object(a="long", b="2")
    assert schema.validate(new, old) == []
    assert _fields(schema.validate(_object(a="longer", b="2"), old)) == ["spec.a"]
    assert _fields(schema.validate(new)) == ["spec.a"]


def test_one_is_not_true() -> None:
    schema = _compiled(a={"type": "boolean"})
    assert _fields(schema.validate(_object(a=1), _object(a=True))) == ["spec.a"]


def test_a_missing_field_is_held_against_what_changed_around_it() -> None:
    schema = compile_schema(
        {
            "type": "object",
            "properties": {"spec": {"type": "object", "required": ["a"], "properties": {"a": TEXT, "b": TEXT}}},
        },
        path="$",
    )
    assert schema.validate(_object(b="1"), _object(b="1")) == []
    assert _fields(schema.validate(_object(b="2"), _object(b="1"))) == ["spec.a"]


def test_elements_correspond_by_their_keys() -> None:
    item = {"type": "object", "required": ["k"], "properties": {"k": TEXT, "v": {"type": "string", "maxLength": 1}}}
    listed = {"type": "array", "items": item, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"]}
    schema = _compiled(l=listed)
    old = _object(l=[{"k": "a", "v": "long"}])
    moved = _object(l=[{"k": "b", "v": "1"}, {"k": "a", "v": "long"}])
    assert schema.validate(moved, old) == []
    assert _fields(schema.validate(_object(l=[{"k": "b", "v": "long"}]), old)) == ["spec.l[0].v"]


def test_a_rule_about_an_unchanged_value_is_let_pass() -> None:
    schema = _ruled([{"rule": "self.a < 5"}], a=NUMBER)
    assert schema.validate(_object(a=9), _object(a=9)) == []
    assert _fields(schema.validate(_object(a=9), _object(a=8))) == ["spec"]


# rules


def test_rules_about_changes_run_where_there_is_an_old_value_only() -> None:
    schema = _compiled(
        a={"type": "integer", "x-kubernetes-validations": [{"rule": "self >= oldSelf", "message": "no"}]}
    )
    assert schema.validate(_object(a=1)) == []
    assert schema.validate(_object(a=1), _object()) == []
    assert schema.validate(_object(a=1), _object(a=2)) == [
        FieldError("FieldValueInvalid", "spec.a", "Invalid value: 1: no")
    ]


def test_an_optional_old_value_lets_a_rule_run_on_creation() -> None:
    rule = {"rule": "oldSelf.hasValue() || self == 0", "optionalOldSelf": True, "message": "starts at 0"}
    schema = _compiled(a={"type": "integer", "x-kubernetes-validations": [rule]})
    assert schema.validate(_object(a=0)) == []
    assert _fields(schema.validate(_object(a=1))) == ["spec.a"]
    assert schema.validate(_object(a=1), _object(a=0)) == []


def test_rules_reach_list_elements_and_map_values_with_their_old_values() -> None:
    item = {
        "type": "object",
        "required": ["k"],
        "properties": {"k": {"type": "string", "maxLength": 9}, "v": NUMBER},
        "x-kubernetes-validations": [{"rule": "self.v >= oldSelf.v", "fieldPath": ".v", "message": "only up"}],
    }
    listed = {
        "type": "array",
        "maxItems": 5,
        "items": item,
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["k"],
    }
    mapped = {
        "type": "object",
        "maxProperties": 5,
        "additionalProperties": {"type": "integer", "x-kubernetes-validations": [{"rule": "self > 0"}]},
    }
    schema = _compiled(l=listed, m=mapped)
    old = _object(l=[{"k": "a", "v": 5}, {"k": "b", "v": 5}], m={"x": 1})
    new = _object(l=[{"k": "b", "v": 4}, {"k": "a", "v": 6}, {"k": "c", "v": 0}], m={"x": 1, "y": -1})
    assert _fields(schema.validate(new, old)) == ["spec.l[0].v", "spec.m[y]"]


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("FieldValueForbidden", "Forbidden: so it is"),
        ("FieldValueRequired", "Required value: so it is"),
        ("FieldValueDuplicate", 'Duplicate value: "x"'),
        ("FieldValueInvalid", 'Invalid value: "x": so it is'),
    ],
)
def test_a_rule_gives_its_own_reason(reason: str, expected: str) -> None:
    rule = {"rule": "self == 'y'", "message": "so it is", "reason": reason}
    schema = _compiled(a={"type": "string", "maxLength": 9, "x-kubernetes-validations": [rule]})
    assert schema.validate(_object(a="x")) == [FieldError(reason, "spec.a", expected)]


def test_a_message_expression_that_fails_leaves_the_message() -> None:
    rule = {"rule": "false", "message": "plain", "messageExpression": "string(1 / self.zero)"}
    found = _ruled([rule], zero=NUMBER).validate(_object(zero=0))
    assert [error.message for error in found] == ["Invalid value: plain"]


def test_a_rule_sees_escaped_names_the_resource_and_typed_values() -> None:
    rules = [
        {"rule": "self.__namespace__ == 'x' && self.a__dash__b == 1 && self.c__dot__d"},
        {"rule": "self.at < timestamp('2027-01-01T00:00:00Z') && self.wait == duration('60s') && self.raw == b'a'"},
        {"rule": "self.n / 2.0 == 1.5 && type(self.n) == double"},
        {"rule": "type(self.port) == int ? self.port > 5 : self.port.endsWith('%')"},
    ]
    text = {"type": "string", "maxLength": 20}
    properties = {
        "namespace": text,
        "a-b": NUMBER,
        "c.d": {"type": "boolean"},
        "at": {**text, "format": "date-time"},
        "wait": {**text, "format": "duration"},
        "raw": {**text, "format": "byte"},
        "n": {"type": "number"},
        "port": {"x-kubernetes-int-or-string": True, "maxLength": 5},
    }
    schema = _root(**properties)
    schema["properties"]["spec"]["x-kubernetes-validations"] = rules
    schema["x-kubernetes-validations"] = [{"rule": "self.metadata.name == 'a' && self.kind == 'Thing'"}]
    spec = {"namespace": "x", "a-b": 1, "c.d": True, "at": "2026-01-01T00:00:00Z", "wait": "1m", "raw": "YQ==", "n": 3}
    compiled = compile_schema(schema, path="$")
    assert compiled.validate(_object(**spec, port=6)) == []
    assert compiled.validate(_object(**spec, port="7%")) == []
    assert _fields(compiled.validate(_object(**spec, port=True))) == ["spec.port", "<nil>"]


@pytest.mark.slow
def test_a_rule_that_costs_too_much_while_it_runs_ends_the_rules() -> None:
    listed = {"type": "array", "items": NUMBER, "maxItems": 1000}
    schema = _ruled(
        [{"rule": "self.l.all(x, self.l.all(y, x + y >= 0))"}, {"rule": "false"}],
        l=listed,
    )
    assert schema.validate(_object(l=[1] * 10)) != []  # the second rule
    found = schema.validate(_object(l=list(range(1000))))
    assert len(found) == 1
    assert "call cost exceeds limit for rule" in found[0].message


# refusals


@pytest.mark.parametrize("file", sorted(DEFINITIONS.glob("*.yaml")), ids=lambda file: file.stem)
def test_our_own_definitions_are_accepted(file: Path) -> None:
    definition = yaml.load(file.read_bytes(), Loader=yaml.CSafeLoader)
    for version in definition["spec"]["versions"]:
        schema = compile_schema(version["schema"]["openAPIV3Schema"], path="$")
        assert schema.warnings == []


@pytest.mark.parametrize(
    ("schema", "field"),
    [
        ({"type": 5}, "$.type"),
        ([], "$"),
        ({"type": "object", "properties": []}, "$.properties"),
        ({"type": "object", "properties": {"a": {"type": "string", "maxLength": "9"}}}, "$.properties[a].maxLength"),
        ({"type": "object", "required": [1]}, "$.required[0]"),
        ({"type": "object", "x-kubernetes-validations": [{"rule": 1}]}, "$.x-kubernetes-validations[0].rule"),
        ({"type": "object", "properties": {"a": {"type": "array", "items": {}}}}, "$.properties[a].items.type"),
        ({"type": "object", "additionalProperties": True}, "$.additionalProperties"),
    ],
)
def test_a_malformed_schema_is_refused_at_its_place(schema: Any, field: str) -> None:
    with pytest.raises(SchemaError) as refused:
        compile_schema(schema, path="$")
    assert [cause.field for cause in refused.value.causes] == [field]


def test_nulls_in_a_schema_say_nothing() -> None:
    schema = _compiled(a={"type": "string", "maxLength": None, "enum": None, "default": None})
    assert schema.validate(_object(a="anything")) == []


def test_the_cost_of_a_rule_counts_for_every_element() -> None:
    rule = {"rule": "self.all(x, self.all(y, x != y || x == y))"}
    inner = {
        "type": "array",
        "maxItems": 100,
        "items": {"type": "string", "maxLength": 10},
        "x-kubernetes-validations": [rule],
    }
    assert _compiled(l={"type": "array", "maxItems": 2, "items": inner}).validate(_object(l=[])) == []
    with pytest.raises(SchemaError) as refused:
        _compiled(l={"type": "array", "maxItems": 1000, "items": inner})
    assert "estimated rule cost exceeds budget by factor of" in refused.value.causes[0].message


def test_validation_leaves_the_object_alone() -> None:
    schema = _ruled(
        [{"rule": "self.l.map(x, x + 1).size() == self.l.size()"}], l={"type": "array", "items": NUMBER, "maxItems": 9}
    )
    obj = _object(l=[1, 2])
    before = copy.deepcopy(obj)
    schema.validate(obj, obj)
    assert obj == before


# what is found without a call


_SCALARS: list[dict[str, Any]] = [
    TEXT,
    {"type": "string", "maxLength": 2},
    {"type": "string", "minLength": 1, "maxLength": 2, "description": "short"},
    {"type": "string", "maxLength": 2, "pattern": "a"},
    {"type": "string", "maxLength": 2, "format": "date"},
    {"type": "string", "enum": ["a"]},
    {"type": "string", "nullable": True, "minLength": 1},
    NUMBER,
    {"type": "integer", "format": "int32"},
    {"type": "integer", "format": "odd"},
    {"type": "integer", "minimum": 1, "maximum": 3},
    {"type": "integer", "minimum": 1.5, "maximum": 1e300},
    {"type": "integer", "minimum": 1, "exclusiveMinimum": True},
    {"type": "integer", "maximum": 3, "exclusiveMaximum": True},
    {"type": "integer", "multipleOf": 3},
    {"type": "integer", "enum": [1]},
    {"type": "integer", "not": {"enum": [1]}},
    {"type": "number", "minimum": 1},
    {"type": "boolean"},
    {"x-kubernetes-int-or-string": True},
]
_VALUES = ["", "a", "b", "ab", "aß", "abc", "2026-01-01", 0, 1, 2, 3, 4, -1, 2**31 - 1, 2**31, -(2**31) - 1]
_VALUES += [2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 1.0, 1.5, True, None, [], {}]


@pytest.mark.parametrize("scalar", _SCALARS, ids=str)
def test_a_value_is_judged_alike_wherever_it_stands(scalar: dict[str, Any]) -> None:
    named = _compiled(x={"type": "object", "properties": {"y": scalar}})
    mapped = _compiled(x={"type": "object", "additionalProperties": scalar})
    listed = _compiled(x={"type": "array", "items": scalar})
    for value in _VALUES:
        found = named.validate(_object(x={"y": value}))
        assert found == mapped.validate(_object(x={"y": value})), value
        said = [(e.field.replace("x.y", "x[0]"), e.message.replace("x.y", "x[0]")) for e in found]
        assert said == [(e.field, e.message) for e in listed.validate(_object(x=[value]))], value


def test_a_text_of_the_wrong_length_is_not_held_against_the_pattern() -> None:
    def messages(value: str, **more: Any) -> list[str]:
        schema = _compiled(v={"type": "string", "minLength": 1, "pattern": "^a", **more})
        return [error.message for error in schema.validate(_object(v=value))]

    short = 'Invalid value: "": spec.v in body should be at least 1 chars long'
    assert messages("") == [short]
    assert messages("b") == ["Invalid value: \"b\": spec.v in body should match '^a'"]
    assert messages("", format="ipv4") == [short, 'Invalid value: "": spec.v in body must be of type ipv4: ""']


@pytest.mark.parametrize(
    ("field", "value", "shown"),
    [
        ({"type": "integer", "format": "int32"}, True, ("int32", "")),
        ({"type": "integer", "format": "int32"}, "a", ("integer", "string")),
        ({"type": "integer", "format": "int32"}, 1.5, ("int32", "float64")),
        ({"type": "number", "format": "double"}, {}, ("double", "")),
        ({"type": "string", "format": "date-time"}, 1, ("date-time", "int64")),
        ({"type": "string", "format": "nonsense"}, 1, ("string", "integer")),
        ({"type": "integer"}, True, ("integer", "boolean")),
    ],
)
def test_a_wrong_type_is_named_by_the_format_where_there_is_one(
    field: dict[str, Any], value: object, shown: tuple[str, str]
) -> None:
    wanted, found = shown
    errors = [error for error in _compiled(v=field).validate(_object(v=value)) if error.field == "spec.v"]
    assert [(error.reason, error.message) for error in errors] == [
        ("FieldValueTypeInvalid", f'Invalid value: "{found}": spec.v in body must be of type {wanted}: "{found}"')
    ]
