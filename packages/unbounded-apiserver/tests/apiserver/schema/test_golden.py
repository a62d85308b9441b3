"""Schema refusals and object causes, as a kube-apiserver gave them."""

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support import paths
from unbounded_apiserver.schema import FieldError, Schema, SchemaError, compile_schema

GOLDENS = paths.GOLDENS / "kube"
PATH = "spec.validation.openAPIV3Schema"
CEL = json.loads((GOLDENS.parent / "cel.json").read_text())


def _exchanges(name: str) -> dict[str, dict[str, Any]]:
    found = json.loads((GOLDENS / name).read_text())["exchanges"]
    return {exchange["id"].partition("/")[2]: exchange for exchange in found}


DEFINITIONS = _exchanges("08-crd.json")
OBJECTS = _exchanges("02-crud-errors.json")
SCHEMA_CASES = [
    *(name for name in DEFINITIONS if name.startswith(("schema-", "cel-"))),
    "def-root-not-object",
    "def-metadata-schema",
]
OBJECT_CASES = [name for name in OBJECTS if name.startswith("schema-")]


def _definition_schema(exchange: dict[str, Any]) -> dict[str, Any]:
    schema: dict[str, Any] = exchange["request"]["body"]["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return schema


def _causes(exchange: dict[str, Any]) -> list[tuple[str, str, str]]:
    listed = exchange["response"]["body"].get("details", {}).get("causes", [])
    return [(cause["reason"], cause["field"], cause["message"]) for cause in listed]


def _plain(errors: list[FieldError]) -> list[tuple[str, str, str]]:
    return [(error.reason, error.field, error.message) for error in errors]


@pytest.fixture(scope="module")
def widgets() -> Schema:
    setup = _exchanges("00-setup.json").values()
    return next(
        compile_schema(_definition_schema(exchange), path=PATH)
        for exchange in setup
        if exchange["request"].get("body", {}).get("metadata", {}).get("name") == "widgets.example.com"
    )


@pytest.mark.parametrize("name", SCHEMA_CASES)
def test_a_schema_is_refused_for_the_same_causes(name: str) -> None:
    exchange = DEFINITIONS[name]
    if exchange["response"]["status"] == 201:
        schema = compile_schema(_definition_schema(exchange), path=PATH)
        headers = exchange["response"]["headers"].get("Warning", [])
        assert headers == [f'299 - "{warning}"'.replace('"nonsense"', '\\"nonsense\\"') for warning in schema.warnings]
        return
    with pytest.raises(SchemaError) as refused:
        compile_schema(_definition_schema(exchange), path=PATH)
    assert _plain(refused.value.causes) == _causes(exchange)


@pytest.mark.parametrize("name", OBJECT_CASES)
def test_an_object_gets_the_same_causes(name: str, widgets: Schema) -> None:
    exchange = OBJECTS[name]
    obj = copy.deepcopy(exchange["request"]["body"])
    warnings = [f'299 - "unknown field \\"{path}\\""' for path in widgets.prune(obj)]
    widgets.default(obj)
    causes = _plain(widgets.validate(obj))
    if exchange["response"]["status"] == 201:
        assert causes == []
        assert obj["spec"] == exchange["response"]["body"]["spec"]
        assert warnings == exchange["response"]["headers"].get("Warning", [])
    else:
        assert causes == _causes(exchange)


def _patched(target: Any, patch: Any) -> Any:
    """A JSON merge patch, as the recorded updates are."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = _patched(result.get(name), value)
    return result


def _transitions() -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Yield each recorded update: its name, the object before it, and the requested object."""
    current: dict[str, Any] = {}
    for name in (name for name in OBJECTS if name.startswith("transition-")):
        exchange = OBJECTS[name]
        asked = _patched(current, exchange["request"]["body"])
        if current:
            yield name, current, asked
        if exchange["response"]["status"] < 300:
            current = exchange["response"]["body"]


@pytest.mark.parametrize(("name", "before", "after"), list(_transitions()), ids=lambda value: str(value)[:40])
def test_an_update_is_judged_by_what_it_changes(
    name: str, before: dict[str, Any], after: dict[str, Any], widgets: Schema
) -> None:
    assert _plain(widgets.validate(after, before)) == _causes(OBJECTS[name])


def test_unknown_fields_are_named_in_order(widgets: Schema) -> None:
    obj = copy.deepcopy(OBJECTS["create"]["request"]["body"])
    dropped = [f'299 - "unknown field \\"{path}\\""' for path in widgets.prune(obj)]
    widgets.default(obj)
    assert dropped == OBJECTS["create"]["response"]["headers"]["Warning"]
    assert obj["spec"] == OBJECTS["create"]["response"]["body"]["spec"]


@pytest.mark.parametrize("case", CEL["cases"], ids=lambda case: case["expression"])
def test_a_rule_gives_the_recorded_cause(case: dict[str, Any]) -> None:
    spec = {
        "type": "object",
        "properties": CEL["schema"],
        "x-kubernetes-validations": [{"rule": case["expression"]}],
    }
    schema = {"type": "object", "properties": {"spec": spec}}
    if case["result"] == "refused":
        with pytest.raises(SchemaError) as refused:
            compile_schema(schema, path=PATH)
        place = f"{PATH}.properties[spec]"
        assert _plain(refused.value.causes) == [
            (cause["reason"], cause["field"].replace("$schema", place), cause["message"]) for cause in case["causes"]
        ]
        return
    old = {"spec": CEL["oldSelf"]} if case["transition"] else None
    found = compile_schema(schema, path=PATH).validate({"spec": CEL["self"]}, old)
    expected = [] if case["result"] is True else [(case["reason"], "spec", case["message"])]
    assert _plain(found) == expected
