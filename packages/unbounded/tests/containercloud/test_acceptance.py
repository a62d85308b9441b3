"""Definitions and policies of Container Cloud as Kubernetes' own code has accepted them."""

from __future__ import annotations

import json
import re
from typing import Any, Final

import pytest
from scripts import record_acceptance

RECORDED: Final[dict[str, Any]] = json.loads(record_acceptance.RECORDING.read_text())
OBJECTS: Final = record_acceptance.definitions() | record_acceptance.policies()


def test_each_definition_and_each_policy_is_recorded() -> None:
    assert set(RECORDED["objects"]) == set(OBJECTS)
    assert len(record_acceptance.definitions()) == 10


@pytest.mark.parametrize("name", sorted(OBJECTS))
def test_what_is_generated_is_what_kubernetes_has_accepted(name: str) -> None:
    recorded = RECORDED["objects"].get(name, {})
    assert recorded.get("digest") == record_acceptance.digest(OBJECTS[name]), (
        f"{name} has changed since the code of Kubernetes {RECORDED['kubernetes']} accepted it, on "
        f"{RECORDED['recorded']}: record it again, as scripts/kubernetes-checks/README.md describes"
    )
    assert re.search(r"^v1 errors: 0 <nil> warnings: \[\]$|^expressions compiled: [1-9]", recorded["said"])


def test_a_digest_changes_with_a_rule_and_not_with_a_description() -> None:
    (name, body), *_ = record_acceptance.definitions().items()
    text = json.dumps(body)
    assert record_acceptance.digest(json.loads(text.replace('"description": "', '"description": "More. '))) == (
        record_acceptance.digest(body)
    ), name
    assert record_acceptance.digest(json.loads(text.replace('"type": "string"', '"type": "integer"', 1))) != (
        record_acceptance.digest(body)
    )
