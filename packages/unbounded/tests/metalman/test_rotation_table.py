"""The table of BMCRotatePassword: it completes only after a log-in, and discards only what the BMC refused."""

from __future__ import annotations

from typing import Any, Final

import pytest

from unbounded.api.machine import Machine
from unbounded.api.machine_spec import MachineSpec, PXESpec, RedfishSpec, SecretKeySelector
from unbounded.api.meta import ObjectMeta
from unbounded.api.operation import MachineOperation, MachineOperationSpec
from unbounded.metalman.password_rotation import (
    CLASSES,
    DISCARD,
    DISCARDING,
    PROMOTE,
    PROMOTING,
    READING_ACCOUNT,
    SET,
    SETTING,
    STORE,
    STORING,
    TABLE,
    RotationFact,
    generate,
    rotate,
    secret_conflict,
)
from unbounded.metalman.reasons import MEANING
from unbounded.workflow.procedure import COMPLETE, Cancel, Repeat

SPELLED: Final = "https://BMC:443/redfish/v1/"  # the same BMC as https://bmc
PROCEDURE: Final = rotate(MachineOperation(spec=MachineOperationSpec(operation_kind="BMCRotatePassword")))


def test_the_table_is_sound() -> None:
    assert PROCEDURE.faults() == []


def test_it_completes_only_with_one_password_that_opens_the_bmc() -> None:
    assert [here for here, step in TABLE.items() if step.stage == COMPLETE] == [(PROMOTING, RotationFact.SINGLE)]


def test_each_action_has_its_facts() -> None:
    facts: dict[str, set[tuple[str, RotationFact]]] = {}
    for (stage, fact), step in TABLE.items():
        if step.action is not None:
            facts.setdefault(step.action, set()).add((stage, RotationFact(fact)))
    assert facts[STORE] == {
        (READING_ACCOUNT, RotationFact.SINGLE),
        (READING_ACCOUNT, RotationFact.PRESENT_OPENS),
        (STORING, RotationFact.SINGLE),
    }
    assert facts[SET] == {(STORING, RotationFact.PRESENT_OPENS), (SETTING, RotationFact.PRESENT_OPENS)}
    assert {fact for _, fact in facts[PROMOTE]} == {RotationFact.NEXT_OPENS}
    assert facts[DISCARD] == {(DISCARDING, RotationFact.REFUSED)}
    assert PROCEDURE.actions[SET] is Repeat.ONCE


@pytest.mark.parametrize("stage", sorted(PROCEDURE.stages))
def test_a_cancel_ends_it_before_the_password_is_stored_only(stage: str) -> None:
    assert PROCEDURE.stages[stage].cancel is (Cancel.AT_ONCE if stage == READING_ACCOUNT else Cancel.TOO_LATE)


@pytest.mark.parametrize(
    ("limits", "length"),
    [((None, None), 16), ((8, 20), 16), ((20, 40), 20), ((None, 12), 12), ((20, None), 20), ((8, 16), 16)],
)
def test_a_password_fits_the_limits_of_the_bmc(limits: tuple[int | None, int | None], length: int) -> None:
    made = {generate(*limits) for _ in range(200)}
    assert len(made) == 200
    for one in made:
        assert len(one) == length
        assert one.isascii()
        assert one[0].isalnum()
        assert one[-1].isalnum()
        assert all(any(each in one for each in kind) for kind in CLASSES)


def a_machine(machine: str, url: str = "https://bmc", user: str = "admin", **reference: Any) -> Machine:
    selector = SecretKeySelector(**{"name": "s", "namespace": "n", "key": "k"} | reference)
    redfish = RedfishSpec(url=url, username=user, password_ref=selector)
    return Machine(metadata=ObjectMeta(name=machine), spec=MachineSpec(pxe=PXESpec(image="i", redfish=redfish)))


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (a_machine("b", SPELLED), None),
        (a_machine("b", "https://other", name="t"), None),
        (a_machine("b", "https://other", key="j"), None),
        (a_machine("b", user="root", name="t"), None),
        (Machine(metadata=ObjectMeta(name="b")), None),
        (a_machine("b", "https://other"), "has the password of another account in key k of Secret n/s"),
        (a_machine("b", "https://other", key="k-next"), "has the password of another account in key k-next of"),
        (a_machine("b", user="root"), "has the password of another account in key k of Secret n/s"),
        (a_machine("b", SPELLED, name="t"), "has the password of the same account in key k of Secret n/t"),
    ],
)
def test_a_secret_that_another_account_uses_is_not_rotated(other: Machine, words: str | None) -> None:
    own = a_machine("a")
    found = secret_conflict(own, (own, other))
    assert (found is None) if words is None else (found is not None and f"Machine b {words}" in found)


def test_each_reason_has_a_meaning() -> None:
    fails = {step.fail for step in TABLE.values() if step.fail is not None}
    assert fails <= {*MEANING, "NoEffect"}
