"""The checker that holds answers against an SDK's models finds what is wrong with them."""

from __future__ import annotations

from typing import Any

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


def _names(shape: Any, kind: Any, path: str = "") -> list[str]:
    """Where a shape of the simulator names other fields than the model."""
    fields = fields_of(kind)
    if shape is None or fields is None:
        return []
    wrong = [f"{path}{name}" for name in shape.keys() ^ fields.keys()]
    for name, deeper in shape.items():
        model = _model_in(fields[name][0]) if name in fields else None
        wrong += _names(deeper.get("*", deeper) if deeper else None, model, f"{path}{name}.")
    return wrong


def _model_in(annotation: Any) -> Any:
    from typing import get_args

    if fields_of(annotation) is not None:
        return annotation
    return next((found for each in get_args(annotation) if (found := _model_in(each))), None)


def test_a_request_may_hold_what_the_model_has() -> None:
    assert _names(shapes.VIRTUAL_MACHINE, models.VirtualMachine) == []
