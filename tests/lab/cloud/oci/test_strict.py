"""The checker of answers finds what is wrong with them."""

from __future__ import annotations

from typing import Any

import oci.core
import pytest

from tests.lab.cloud.oci.strict import faults
from unbounded.lab.cloud.oci import views
from unbounded.lab.cloud.oci.seeding import Wanted, seed_instance
from unbounded.lab.cloud.oci.tenancy import Tenancy


def body() -> dict[str, Any]:
    tenancy = Tenancy("strict", now=0.0)
    instance = seed_instance(tenancy, Wanted("worker"), 0.0)
    return views.instance_body(instance, tenancy.shapes[instance.launch.shape])


def test_a_sound_answer_has_no_faults() -> None:
    assert list(faults(body(), "Instance", oci.core.models)) == []


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"colour": "red"}, "$.colour: not known to Instance"),
        ({"lifecycleState": "WALKING"}, "'WALKING' is none of"),
        ({"displayName": 7}, "$.displayName: 7 is no str"),
        ({"displayName": None}, "$.displayName: null"),
        ({"timeCreated": "yesterday"}, "$.timeCreated: 'yesterday' is no time"),
        ({"freeformTags": {"key": 1}}, "$.freeformTags.key: 1 is no str"),
        ({"shapeConfig": {"gpus": True}}, "$.shapeConfig.gpus: True is no int"),
        ({"shapeConfig": {"wheels": 4}}, "not known to InstanceShapeConfig"),
        ({"sourceDetails": {"sourceType": "image", "bootVolumeId": "x"}}, "not known to InstanceSourceViaImageDetails"),
    ],
)
def test_what_the_models_do_not_have_is_a_fault(changes: dict[str, Any], fault: str) -> None:
    found = list(faults(body() | changes, "Instance", oci.core.models))
    assert len(found) == 1
    assert fault in found[0]


def test_a_required_field_that_is_missing_is_a_fault() -> None:
    given = body()
    del given["region"]
    assert list(faults(given, "Instance", oci.core.models)) == ["$.region: required by Instance, and missing"]
