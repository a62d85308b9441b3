"""Answers are compared with all rules of the models of Oracle's SDK."""

from __future__ import annotations

from typing import Any

import oci.core
import pytest

from tests.lab.cloud.oci.models import annotation, fields_of
from tests.lab.cloud.strict import faults
from unbounded_lab.cloud.oci import views
from unbounded_lab.cloud.oci.seeding import SeededInstance, seed_instance
from unbounded_lab.cloud.oci.tenancy import Tenancy


def body() -> dict[str, Any]:
    tenancy = Tenancy("strict", now=0.0)
    instance = seed_instance(tenancy, SeededInstance("worker"), 0.0)
    return views.instance_body(instance, tenancy.shapes[instance.launch.shape])


def faults_of(instance: dict[str, Any]) -> list[str]:
    return list(faults(instance, annotation("Instance", oci.core.models), fields_of))


def test_a_sound_answer_has_no_faults() -> None:
    assert faults_of(body()) == []


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"colour": "red"}, "$.colour: the model does not know it"),
        ({"lifecycleState": "WALKING"}, "$.lifecycleState: 'WALKING' is no lifecycle_state"),
        ({"displayName": 7}, "$.displayName: 7 is no str"),
        ({"displayName": None}, "$.displayName: None is no str"),
        ({"timeCreated": "yesterday"}, "$.timeCreated: 'yesterday' is no datetime"),
        ({"freeformTags": {"key": 1}}, "$.freeformTags.key: 1 is no str"),
        ({"shapeConfig": {"gpus": True}}, "$.shapeConfig.gpus: True is no int"),
        ({"shapeConfig": {"wheels": 4}}, "$.shapeConfig.wheels: the model does not know it"),
        ({"sourceDetails": {"sourceType": "image", "bootVolumeId": "x"}}, "$.sourceDetails."),
    ],
)
def test_what_the_models_do_not_have_is_a_fault(changes: dict[str, Any], fault: str) -> None:
    (found,) = faults_of(body() | changes)
    assert found.startswith(fault)


def test_a_required_field_that_is_missing_is_a_fault() -> None:
    given = body()
    del given["region"]
    assert faults_of(given) == ["$.region: it is required"]
