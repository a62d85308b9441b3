"""The checker that holds answers against an SDK's models finds what is wrong with them."""

from __future__ import annotations

from typing import Any

import pytest
from azure.mgmt.compute import models

from tests.lab.cloud import azure_models
from tests.lab.cloud.azure_models import fields_of
from tests.lab.cloud.strict import faults

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
        ({"properties": {"priority": "High"}}, "$.properties.priority: 'High' is no VirtualMachinePriorityTypes"),
        (
            {"properties": {"storageProfile": {"dataDisks": [{"createOption": "Attach"}]}}},
            "$.properties.storageProfile.dataDisks[0].lun: it is required",
        ),
    ],
)
def test_what_the_model_does_not_have_is_a_fault(change: dict[str, Any], fault: str) -> None:
    assert list(faults({**GOOD, **change}, models.VirtualMachine, fields_of)) == [fault]


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (
            {"status": "Running"},
            "$.status: 'Running' is no typing.Literal['InProgress', 'Succeeded', 'Failed', 'Canceled']",
        ),
        ({"endTime": 3}, "$.endTime: 3 is no datetime"),
        ({"id": "x"}, "$.id: the model does not know it"),
        ({"error": {"code": "x"}}, "$.error.message: it is required"),
    ],
)
def test_fields_missing_in_our_own_model_are_faults_too(change: dict[str, Any], fault: str) -> None:
    good = {"name": "1", "status": "Succeeded", "startTime": "2026-01-02T03:04:05+00:00"}
    assert list(faults(good, azure_models.Operation, fields_of)) == []
    assert list(faults({**good, **change}, azure_models.Operation, fields_of)) == [fault]
