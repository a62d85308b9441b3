"""MachineOperations that the API refuses and accepts, and the fields that can still change."""

from typing import Any

import pytest

from tests.api.checking import Object, assert_refused, made, refusals
from unbounded.api.operation import OperationKind, OperationPhase

REBOOT = "{operationKind: HostReboot, machineRef: w}"
REPLACE = "{operationKind: HostReplace, machineRef: w, parameters: {acceptPCRs: '0,1,2,3,4,5,6,7,11,12'}}"
MANY = "{operationKind: HostReboot, machineSelector: {matchLabels: {unbounded-cloud.io/site: lab}}}"


def needed(kind: OperationKind) -> dict[str, str]:
    """Return the parameters without which the API refuses a kind."""
    key = f"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI{'A' * 43}"
    return {"authorizedKeys": key} if kind is OperationKind.HOST_RESCUE else {}


@pytest.mark.parametrize(
    ("spec", "changes", "field", "words"),
    [
        (REBOOT, {"operationKind": "HostDance"}, "spec.operationKind", "supported values"),
        (REBOOT, {"machineRef": None}, "spec", "exactly one of machineRef and machineSelector"),
        (MANY, {"machineRef": "w"}, "spec", "exactly one of machineRef and machineSelector"),
        (REBOOT, {"machineRef": "Not_A_Name"}, "spec.machineRef", "should match"),
        (MANY, {"machineSelector": {}}, "spec.machineSelector", "must not be empty"),
        (
            MANY,
            {"machineSelector": {"matchLabels": {}, "matchExpressions": []}},
            "spec.machineSelector",
            "must not be empty",
        ),
        (
            MANY,
            {"machineSelector": {"matchExpressions": [{"key": "a", "operator": "In"}]}},
            "spec.machineSelector.matchExpressions[0].values",
            "at least one value",
        ),
        (
            MANY,
            {"machineSelector": {"matchExpressions": [{"key": "a", "operator": "Exists", "values": ["b"]}]}},
            "spec.machineSelector.matchExpressions[0].values",
            "take none",
        ),
        (REBOOT, {"ttlSecondsAfterFinished": -1}, "spec.ttlSecondsAfterFinished", "greater than or equal to 0"),
        (REBOOT, {"startDeadlineSeconds": 0}, "spec.startDeadlineSeconds", "greater than or equal to 1"),
        (REBOOT, {"deadlineSeconds": 0}, "spec.deadlineSeconds", "greater than or equal to 1"),
        (
            REPLACE,
            {"parameters": {"acceptPCRs": "99"}},
            "spec.parameters",
            "acceptPCRs must be comma-separated numbers",
        ),
        (REPLACE, {"parameters": {"acceptPCRs": "8"}}, "spec.parameters", "of 0, 1, 2, 3, 4, 5, 6, 7, 11, 12, each"),
        (REPLACE, {"parameters": {"acceptPCRs": "7,12,7"}}, "spec.parameters", "each once"),
        (REPLACE, {"parameters": {"acceptPCRs": "0,0"}}, "spec.parameters", "each once"),
        (REPLACE, {"parameters": {"acceptPCRs": ""}}, "spec.parameters", "acceptPCRs must be"),
        (REPLACE, {"parameters": {"acceptPCRs": "7, 12"}}, "spec.parameters", "acceptPCRs must be"),
        (MANY, {"maxConcurrent": 0}, "spec.maxConcurrent", "greater than or equal to 1"),
        (MANY, {"maxFailures": 0}, "spec.maxFailures", "greater than or equal to 1"),
        (REBOOT, {"strategy": {}}, "spec.strategy", "strategy needs machineSelector"),
        (REBOOT, {"paused": True}, "spec.paused", "paused needs machineSelector"),
        (MANY, {"retryFailed": 1}, "spec.retryFailed", "needs strategy.onFailure Halt"),
        (MANY, {"strategy": {}, "retryFailed": 1}, "spec.retryFailed", "needs strategy.onFailure Halt"),
        (MANY, {"strategy": {"onFailure": "Rollback"}}, "spec.strategy.onFailure", 'supported values: "Fail", "Halt"'),
        (MANY, {"strategy": {"orderBy": "no label"}}, "spec.strategy.orderBy", "should match"),
    ],
)
def test_an_operation_is_refused(spec: str, changes: Object, field: str, words: str) -> None:
    assert refusals("MachineOperation", made("MachineOperation", spec)) == []
    assert_refused("MachineOperation", made("MachineOperation", spec, **changes), None, field, words)


FIRST = "spec.strategy.stages[0]"
LATER = [{"name": "a", "size": 1, "startAfter": {"stage": "b"}}, {"name": "b", "size": 1}]


@pytest.mark.parametrize(
    ("stages", "field", "words"),
    [
        ([{"name": "a", "size": 1}, {"name": "a", "size": 2}], "spec.strategy.stages[1]", "Duplicate value"),
        ([{"size": 1}], f"{FIRST}.name", "Required value"),
        ([{"name": "a"}], FIRST, "exactly one of size and machineSelector"),
        (
            [{"name": "a", "size": 1, "machineSelector": {"matchLabels": {"a": "b"}}}],
            FIRST,
            "exactly one of size and machineSelector",
        ),
        ([{"name": "a", "machineSelector": {}}], f"{FIRST}.machineSelector", "must not be empty"),
        ([{"name": "a", "size": 0}], f"{FIRST}.size", "a percentage from 1% to 100%"),
        ([{"name": "a", "size": "101%"}], f"{FIRST}.size", "a percentage from 1% to 100%"),
        ([{"name": "a", "size": "0%"}], f"{FIRST}.size", "a percentage from 1% to 100%"),
        ([{"name": "a", "size": "7"}], f"{FIRST}.size", "a percentage from 1% to 100%"),
        ([{"name": "a", "size": 1, "maxConcurrent": "200%"}], f"{FIRST}.maxConcurrent", "a percentage from 1% to 100%"),
        ([{"name": "a", "size": 1, "maxConcurrent": 11}], "spec.strategy.stages", "must not exceed spec.maxConcurrent"),
        ([{"name": "a", "size": 1, "soakSeconds": -1}], f"{FIRST}.soakSeconds", "greater than or equal to 0"),
        (LATER, "spec.strategy.stages", "startAfter must name an earlier stage"),
        (
            [{"name": "a", "size": 1, "startAfter": {"stage": "a"}}],
            "spec.strategy.stages",
            "must name an earlier stage",
        ),
        (
            [{"name": "a", "size": 1, "startAfter": {"stage": "x"}}],
            "spec.strategy.stages",
            "must name an earlier stage",
        ),
        (
            [{"name": "a", "size": 1}, {"name": "b", "size": 1, "startAfter": {"stage": "a", "targets": 0}}],
            "spec.strategy.stages[1].startAfter.targets",
            "a number from 1, or All",
        ),
        (
            [{"name": "a", "size": 1}, {"name": "b", "size": 1, "startAfter": {"stage": "a", "targets": "Any"}}],
            "spec.strategy.stages[1].startAfter.targets",
            "a number from 1, or All",
        ),
        ([{"name": f"s{n}", "size": 1} for n in range(17)], "spec.strategy.stages", "at most 16 items"),
    ],
)
def test_stages_are_refused_by_their_field(stages: list[Object], field: str, words: str) -> None:
    assert_refused("MachineOperation", made("MachineOperation", MANY, strategy={"stages": stages}), None, field, words)


def test_stages_are_accepted() -> None:
    stages = [
        {"name": "canary", "size": 1, "soakSeconds": 300, "pauseAfter": True},
        {"name": "rack-1", "machineSelector": {"matchLabels": {"rack": "1"}}, "maxConcurrent": "50%"},
        {"name": "some", "size": "10%", "startAfter": {"stage": "canary", "targets": 1}},
        {"name": "rest", "size": "100%", "maxConcurrent": 10, "startAfter": {"stage": "rack-1", "targets": "All"}},
    ]
    strategy = {"stages": stages, "orderBy": "example.com/unit", "onFailure": "Halt"}
    assert refusals("MachineOperation", made("MachineOperation", MANY, strategy=strategy, retryFailed=2)) == []


def test_a_rollout_can_be_paused_and_retried_and_its_strategy_stays() -> None:
    halting = made("MachineOperation", MANY, strategy={"onFailure": "Halt"}, retryFailed=1)
    for paused, retries in ((True, 1), (None, 2)):
        new = made("MachineOperation", MANY, strategy={"onFailure": "Halt"}, paused=paused, retryFailed=retries)
        assert refusals("MachineOperation", new, halting) == []
    less = made("MachineOperation", MANY, strategy={"onFailure": "Halt"})
    assert_refused("MachineOperation", less, halting, "spec.retryFailed", "can only be raised")
    other = made("MachineOperation", MANY, strategy={"onFailure": "Halt", "orderBy": "unit"}, retryFailed=1)
    assert_refused("MachineOperation", other, halting, "spec.strategy", "strategy is immutable")


@pytest.mark.parametrize(
    ("spec", "changes"),
    [
        *((REBOOT, {"operationKind": kind.value, "parameters": needed(kind)}) for kind in OperationKind),
        (REBOOT, {"ttlSecondsAfterFinished": 0}),
        (REBOOT, {"parameters": {"force": "true"}}),
        (MANY, {"machineSelector": {"matchExpressions": [{"key": "a/b", "operator": "NotIn", "values": ["c"]}]}}),
        (MANY, {"machineSelector": {"matchExpressions": [{"key": "a", "operator": "DoesNotExist"}]}}),
    ],
)
def test_an_operation_is_accepted(spec: str, changes: Object) -> None:
    assert refusals("MachineOperation", made("MachineOperation", spec, **changes)) == []


@pytest.mark.parametrize(
    ("spec", "changes", "field"),
    [
        (REBOOT, {"operationKind": "HostPowerOff"}, "operationKind"),
        (REBOOT, {"machineRef": "other"}, "machineRef"),
        (REBOOT, {"parameters": {"force": "true"}}, "parameters"),
        (REBOOT, {"startDeadlineSeconds": 60}, "startDeadlineSeconds"),
        (MANY, {"machineSelector": {"matchLabels": {"unbounded-cloud.io/site": "other"}}}, "machineSelector"),
        (MANY, {"maxConcurrent": 20}, "maxConcurrent"),
        (MANY, {"maxFailures": 2}, "maxFailures"),
    ],
)
def test_what_an_operation_asks_for_cannot_be_changed(spec: str, changes: Object, field: str) -> None:
    old, new = made("MachineOperation", spec), made("MachineOperation", spec, **changes)
    assert_refused("MachineOperation", new, old, f"spec.{field}", "is immutable: create another MachineOperation")
    if field not in {"operationKind", "machineRef", "machineSelector"}:
        assert_refused("MachineOperation", old, new, f"spec.{field}", "is immutable: create another MachineOperation")


def test_a_target_cannot_become_a_selector() -> None:
    refused = refusals("MachineOperation", made("MachineOperation", MANY), made("MachineOperation", REBOOT))
    assert [refusal.partition(":")[0] for refusal in refused] == ["spec.machineRef", "spec.machineSelector"]


@pytest.mark.parametrize("field", ["ttlSecondsAfterFinished", "deadlineSeconds"])
def test_ttl_and_deadline_can_be_set_changed_and_removed(field: str) -> None:
    absent = made("MachineOperation", REBOOT)
    lengths: list[Object] = [{field: 60}, {field: 600}]
    short, long = (made("MachineOperation", REBOOT, **length) for length in lengths)
    for old, new in ((absent, short), (short, long), (long, absent)):
        assert refusals("MachineOperation", new, old) == []


def test_cancel_can_be_asked_for_and_not_taken_back() -> None:
    plain, cancelled = made("MachineOperation", REBOOT), made("MachineOperation", REBOOT, cancel=True)
    assert refusals("MachineOperation", cancelled, plain) == []
    assert refusals("MachineOperation", cancelled, cancelled) == []
    assert_refused("MachineOperation", plain, cancelled, "spec.cancel", "from false to true only")


END = {"reason": "Succeeded", "completedAt": "2026-01-01T00:00:00Z"}


def with_status(**status: Any) -> Object:
    return made("MachineOperation", REBOOT, status=status)


@pytest.mark.parametrize("phase", ["Complete", "Failed"])
@pytest.mark.parametrize(
    "change",
    [
        *({"phase": phase.value} for phase in OperationPhase),
        {"phase": None},
        {"reason": "Another"},
        {"reason": None},
        {"completedAt": "2026-01-02T00:00:00Z"},
        {"completedAt": None},
    ],
    ids=str,
)
def test_an_end_is_final(phase: str, change: Object) -> None:
    status = {"phase": phase, **END}
    changed = {key: value for key, value in (status | change).items() if value is not None}
    old, new = with_status(**status), with_status(**changed)
    if changed == status:
        assert refusals("MachineOperation", new, old) == []
    else:
        assert_refused("MachineOperation", new, old, "status.phase", "final")


def test_an_end_is_not_undone_by_leaving_the_status_out() -> None:
    old = with_status(phase="Complete", **END)
    (refusal,) = refusals("MachineOperation", made("MachineOperation", REBOOT), old)
    assert "final" in refusal


def test_after_the_end_message_ttl_and_evidence_can_still_be_written() -> None:
    old = with_status(phase="Complete", **END)
    new = with_status(phase="Complete", **END, message="nothing was heard again", evidence=[
        {"what": "PowerState=On", "at": "2026-01-01T00:00:00Z", "where": "https://bmc"},
    ])  # fmt: skip
    new["spec"]["ttlSecondsAfterFinished"] = 60
    assert refusals("MachineOperation", new, old) == []


@pytest.mark.parametrize(("old", "new"), [("Pending", "InProgress"), ("InProgress", "Pending"), ("Pending", "Failed")])
def test_an_open_phase_can_change(old: str, new: str) -> None:
    assert refusals("MachineOperation", with_status(phase=new), with_status(phase=old)) == []


def test_a_phase_is_one_of_the_four() -> None:
    assert_refused("MachineOperation", with_status(phase="Done"), None, "status.phase", "supported values")


def test_a_machine_is_a_target_once() -> None:
    (refusal,) = refusals("MachineOperation", with_status(targets=[{"machineRef": "w"}, {"machineRef": "w"}]))
    assert "Duplicate value" in refusal
