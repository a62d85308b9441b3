"""The checker that holds answers against an SDK's models finds what is wrong with them."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Union, get_args, get_origin

import pytest
from azure.mgmt.compute import models

from tests.lab.cloud.azure_support import fields_of
from tests.lab.cloud.strict import faults
from unbounded.lab.cloud.azure import shapes

GOOD: dict[str, Any] = {
    "location": "here",
    "zones": ["1"],
    "tags": {"a": "b"},
    "properties": {
        "timeCreated": "2026-01-02T03:04:05+00:00",
        "storageProfile": {"dataDisks": [{"lun": 0, "createOption": "Attach"}]},
    },
}


def test_what_the_model_has_is_no_fault() -> None:
    assert list(faults(GOOD, models.VirtualMachine, fields_of)) == []


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"colour": "red"}, "$.colour: the model does not know it"),
        ({"location": 3}, "$.location: 3 is no str"),
        ({"zones": "1"}, "$.zones: '1' is no list"),
        ({"tags": {"a": 1}}, "$.tags.a: 1 is no str"),
        ({"properties": {"timeCreated": "noon"}}, "$.properties.timeCreated: 'noon' is no datetime"),
        ({"properties": {"platformFaultDomain": True}}, "$.properties.platformFaultDomain: True is no int"),
        (
            {"properties": {"storageProfile": {"dataDisks": [{"createOption": "Attach"}]}}},
            "$.properties.storageProfile.dataDisks[0].lun: it is required",
        ),
    ],
)
def test_what_the_model_does_not_have_is_a_fault(change: dict[str, Any], fault: str) -> None:
    assert list(faults({**GOOD, **change}, models.VirtualMachine, fields_of)) == [fault]


def _differences(shape: Any, annotation: Any, path: str = "$") -> list[str]:
    """Where a shape of the simulator has other names or types than the SDK."""
    origin = get_origin(annotation)
    arguments = [each for each in get_args(annotation) if each is not type(None)]
    if origin is Union:
        is_plain = isinstance(shape, type) and shape in (str, int)
        return [] if is_plain and shape in arguments else _differences(shape, arguments[0], path)
    if isinstance(shape, list):
        return _differences(shape[0], arguments[0], f"{path}[]") if origin is list else [path]
    if isinstance(shape, dict) and "*" in shape:
        return _differences(shape["*"], arguments[1], f"{path}.*") if origin is dict else [path]
    fields = fields_of(annotation)
    if isinstance(shape, dict) and fields is not None:
        wrong = [f"{path}.{name}" for name in shape.keys() ^ fields.keys()]
        both = shape.keys() & fields.keys()
        return wrong + [each for name in both for each in _differences(shape[name], fields[name][0], f"{path}.{name}")]
    like = {datetime: str, Any: object}.get(annotation, dict if fields is not None else annotation)
    return [] if shape is like else [f"{path}: {shape} for {annotation}"]


@pytest.mark.parametrize(
    ("shape", "model"),
    [
        (shapes.VIRTUAL_MACHINE, models.VirtualMachine),
        (shapes.EXTENSION, models.VirtualMachineExtension),
    ],
)
def test_a_request_may_hold_what_the_model_has(shape: Any, model: Any) -> None:
    assert _differences(shape, model) == []
