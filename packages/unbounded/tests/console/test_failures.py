"""Failures that the fleet shows, and the successes that make them good."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from unbounded.api.configuration import MachineConfiguration
from unbounded.api.machine import RecentOperation
from unbounded.api.operation import MachineOperation
from unbounded.console.models.failures import (
    FailingRollouts,
    failing_operation,
    failing_update,
    last_failure,
    unresolved,
)

AT = "2030-01-01T00:00:0{}Z"


def results(*given: str) -> list[RecentOperation]:
    """Return results, each given as KIND:PHASE or KIND:PHASE:REASON, the oldest first."""
    found = []
    for number, text in enumerate(given):
        kind, phase, *reason = text.split(":")
        found.append(
            RecentOperation(
                name=f"op-{number}", uid=f"u-{number}", kind=kind, phase=phase, reason=reason[0] if reason else None
            )
        )
    return found


@pytest.mark.parametrize(
    ("history", "name"),
    [
        ((), None),
        (("HostReboot:Complete",), None),
        (("HostReboot:Failed",), "op-0"),
        (("HostReboot:Failed", "HostReboot:Failed"), "op-1"),
        (("HostReboot:Failed", "HostReboot:Complete"), None),
        (("HostReboot:Complete", "HostReboot:Failed"), "op-1"),
        (("HostReboot:Failed", "HostPowerOff:Complete"), "op-0"),
        (("HostReboot:Failed", "HostPowerOff:Failed", "HostPowerOff:Complete"), "op-0"),
        (("HostReboot:Failed", "HostReplace:Complete"), None),
        (("HostReplace:Complete", "HostReboot:Failed"), "op-1"),
        (("HostReboot:Failed:Cancelled",), None),
        (("NodeReboot:Failed:Preempted",), None),
        (("HostReboot:Failed", "HostReboot:Failed:Cancelled"), "op-0"),
        (("HostReboot:Complete", "NodeRecreation:Failed"), "op-1"),
    ],
    ids=str,
)
def test_a_failure_counts_until_a_later_success_of_its_kind(history: tuple[str, ...], name: str | None) -> None:
    found = last_failure(results(*history))
    assert (None if found is None else found.name) == name


def configuration(name: str = "workers", **rollout: Any) -> MachineConfiguration:
    body = {"metadata": {"name": name}, "spec": {"template": {}}, "status": {"rollout": {"version": 2, **rollout}}}
    return msgspec.convert(body, MachineConfiguration)


@pytest.mark.parametrize(
    ("rollout", "state", "detail"),
    [
        ({"phase": "InProgress"}, None, ""),
        ({"phase": "Complete"}, None, ""),
        ({"phase": "Paused"}, None, ""),
        ({"phase": "Halted", "message": "canary has failed"}, "Halted", "v2: canary has failed"),
        ({"phase": "RolledBack"}, "RolledBack", "v2: see its stages"),
        (
            {"phase": "InProgress", "failed": [{"machine": "m-1", "message": "no Node"}, {"machine": "m-2"}]},
            "2 failed",
            "v2: m-1: no Node",
        ),
        ({"phase": "Halted", "failed": [{"machine": "m-2"}]}, "Halted", "v2: m-2: failed"),
    ],
)
def test_a_rolling_update_fails_with_its_machines_or_its_phase(
    rollout: dict[str, Any], state: str | None, detail: str
) -> None:
    found = failing_update(configuration(**rollout))
    assert (found and (found.state, found.detail)) == (state and (state, detail))


def operation(name: str, *phases: str, created: int = 0, rack: str = "r1", **status: Any) -> MachineOperation:
    targets = [{"machineRef": f"m-{number}", "phase": phase} for number, phase in enumerate(phases)]
    spec = {"operationKind": "HostReboot", "machineSelector": {"matchLabels": {"rack": rack}}}
    body = {
        "metadata": {"name": name, "creationTimestamp": AT.format(created)},
        "spec": spec,
        "status": {"targets": targets, **status},
    }
    return msgspec.convert(body, MachineOperation)


STAGE = {"name": "canary", "phase": "Halted", "targets": 2, "completed": 0, "failed": 1}


@pytest.mark.parametrize(
    ("given", "state"),
    [
        (operation("a", "InProgress", phase="InProgress"), None),
        (operation("a", "Failed", "InProgress", phase="InProgress"), "1 of 2 Machines failed"),
        (operation("a", "Failed", phase="InProgress", rollout={"stages": [STAGE]}), "Halted"),
        (operation("a", "Failed", phase="Failed", rollout={"stages": [STAGE]}), "1 of 1 Machine failed"),
        (operation("a", phase="Failed", reason="NoMatchingMachines"), "Failed"),
        (operation("a", "Failed", phase="Failed", reason="Cancelled"), None),
        (operation("a", "Complete", phase="Complete"), None),
    ],
)
def test_an_operation_on_several_machines_fails_with_one_of_them(given: MachineOperation, state: str | None) -> None:
    found = failing_operation(given)
    assert (None if found is None else found.state) == state


def test_an_ended_operation_is_made_good_by_a_later_one_on_the_same_machines() -> None:
    failed = operation("a", "Failed", phase="Failed", created=1)
    for other, is_left in (
        (operation("b", "Complete", phase="Complete", created=2), False),
        (operation("b", "Complete", phase="Complete", created=0), True),
        (operation("b", "Complete", phase="Complete", created=2, rack="r2"), True),
        (operation("b", "InProgress", phase="InProgress", created=2), True),
    ):
        assert (failed in unresolved([failed, other])) == is_left, other
    is_open = operation("a", "Failed", phase="InProgress", created=1)
    assert is_open in unresolved([is_open, operation("b", "Complete", phase="Complete", created=2)])


def test_failing_rollouts_follow_each_change_those_that_go_on_first() -> None:
    index = FailingRollouts()
    ended, running = operation("ended", "Failed", phase="Failed"), operation("runs", "Failed", phase="InProgress")
    halted = configuration(phase="Halted")
    for one in (ended, running, halted):
        index.changed(None, one)
    assert [one.name for one in index.all()] == ["runs", "workers", "ended"]
    index.changed(halted, configuration(phase="Complete"))
    index.changed(running, operation("runs", "Complete", phase="InProgress"))
    assert [one.name for one in index.all()] == ["ended"]
    index.changed(ended, None)
    assert index.all() == ()
