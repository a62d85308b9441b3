"""The rows of the fleet: need, order, filters, pages and counts."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unbounded.api.machine import MACHINES, Machine
from unbounded.api.names import ANNOTATION_PAUSED, LABEL_SITE
from unbounded.api.operation import MachineOperation
from unbounded.console.compaction import compaction_of
from unbounded.console.models.fleet import NO_SITE, FleetFilter, FleetIndex, Need, fleet_row, need_of

AT = "2026-01-01T00:00:00Z"
ACTIVE = {"uid": "u", "name": "op", "kind": "HostReboot", "executor": "metalman", "since": AT}


def waiting(name: str, on: str, reason: str, **status: Any) -> MachineOperation:
    spec = {"operationKind": "HostReboot", "machineRef": on}
    body = {"phase": "Pending", "waiting": {"reason": reason, "since": AT}, **status}
    return msgspec.convert({"metadata": {"name": name}, "spec": spec, "status": body}, MachineOperation)


def machine(name: str, *, site: str = "", labels: dict[str, str] | None = None, **status: Any) -> Machine:
    found = {**({LABEL_SITE: site} if site else {}), **(labels or {})}
    return msgspec.convert({"metadata": {"name": name, "labels": found}, "status": status}, Machine)


@pytest.mark.parametrize(
    ("status", "need"),
    [
        ({}, Need.CALM),
        ({"phase": "Ready"}, Need.CALM),
        ({"phase": "Failed", "message": "no route"}, Need.ATTENTION),
        ({"phase": "Ready", "redfish": {"refusedSecretVersion": "7"}}, Need.ATTENTION),
        ({"phase": "Ready", "ssh": {"untrusted": [{"hop": "host", "fingerprint": "SHA256:x"}]}}, Need.ATTENTION),
        ({"phase": "Pending", "reason": "NoRoute"}, Need.BLOCKED),
        ({"phase": "Ready", "power": {"state": "Unknown", "at": AT}}, Need.BLOCKED),
        ({"phase": "Ready", "activeOperation": ACTIVE}, Need.WORKING),
        ({"phase": "Ready", "activeOperation": {**ACTIVE, "lost": True}}, Need.BLOCKED),
        ({"phase": "Provisioning", "reason": "InProgress"}, Need.WORKING),
    ],
    ids=str,
)
def test_the_need_of_a_machine_follows_from_its_status(status: dict[str, Any], need: Need) -> None:
    assert need_of(machine("m", **status), None) is need


def test_a_machine_that_a_user_holds_back_says_so() -> None:
    paused = {"metadata": {"name": "m", "annotations": {ANNOTATION_PAUSED: "new disk"}}}
    drained = {"metadata": {"name": "m"}, "spec": {"maintenance": {"enabled": True}}}
    assert fleet_row(msgspec.convert(paused, Machine)).need is Need.PAUSED
    assert fleet_row(msgspec.convert(drained, Machine)).need is Need.MAINTENANCE
    assert fleet_row(msgspec.convert(paused | {"status": {"phase": "Failed"}}, Machine)).need is Need.ATTENTION


def test_a_machine_is_blocked_as_long_as_an_operation_of_it_is() -> None:
    index = filled(machine("a"), machine("b", activeOperation=ACTIVE), machine("c", phase="Failed"), machine("d"))
    first, second = waiting("op-1", "b", "WaitingForBudget", message="rack1 allows 0"), waiting("op-2", "b", "Paused")
    for one in (first, second, waiting("op-3", "d", "Settling"), waiting("op-4", "c", "Paused")):
        index.changed(None, one)
    assert names(index, FleetFilter(state="blocked")) == ["b"]
    (row,) = index.page(FleetFilter(text="rack1 allows"), 0).rows
    assert row.cause == "HostReboot op-1: rack1 allows 0"
    assert names(index, FleetFilter(state="attention")) == ["c"]
    index.changed(first, waiting("op-1", "b", "WaitingForBudget", phase="Complete"))
    assert names(index, FleetFilter(state="blocked")) == ["b"]
    index.changed(second, waiting("op-2", "a", "Paused"))  # a later operation of the same name
    assert names(index, FleetFilter(state="blocked")) == ["a"]
    index.changed(waiting("op-2", "a", "Paused"), None)
    assert names(index, FleetFilter(state="blocked")) == []
    assert names(index, FleetFilter(state="working")) == ["b"]


def test_a_row_has_the_cause_where_a_person_is_needed() -> None:
    assert fleet_row(machine("m", phase="Failed", message="no route")).cause == "no route"
    assert fleet_row(machine("m", redfish={"refusedSecretVersion": "7"})).cause == "The BMC refuses the password"
    assert fleet_row(machine("m", power={"state": "Unknown", "at": AT})).cause == "The BMC does not answer"
    assert fleet_row(machine("m", phase="Ready", message="all is well")).cause == ""


def filled(*objects: Machine | MachineOperation) -> FleetIndex:
    index = FleetIndex()
    for one in objects:
        index.changed(None, one)
    return index


def names(index: FleetIndex, desired: FleetFilter, first: int = 0, rows: int = 50) -> list[str]:
    return [row.name for row in index.page(desired, first, rows).rows]


def ended(name: str, phase: str, at: str = AT, *, kind: str = "HostReboot", reason: str = "TimedOut") -> dict[str, Any]:
    return {"name": name, "uid": name, "kind": kind, "phase": phase, "reason": reason, "completedAt": at}


def test_a_machine_with_a_failed_operation_comes_before_blocked_ones_and_the_newest_first() -> None:
    index = filled(
        machine("a", phase="Ready", recentOperations=[ended("op-1", "Failed")]),
        machine("b", phase="Ready", recentOperations=[ended("op-2", "Failed", "2026-01-02T00:00:00Z")]),
        machine("c", phase="Pending", reason="NoRoute"),
        machine("d", phase="Failed", recentOperations=[ended("op-3", "Failed")]),
        machine("e", activeOperation=ACTIVE, recentOperations=[ended("op-4", "Failed")]),
    )
    assert names(index, FleetFilter()) == ["d", "b", "a", "c", "e"]
    assert names(index, FleetFilter(state="failed")) == ["b", "a"]
    (row,) = index.page(FleetFilter(text="op-2"), 0).rows
    assert (row.operation, row.operation_name, row.cause) == ("HostReboot", "op-2", "HostReboot op-2 failed: TimedOut")
    assert index.summary().needs[Need.FAILED] == 2
    assert index.summary().sites == {NO_SITE: (5, 1)}


def test_an_unrecorded_failure_counts_until_its_operation_is_deleted_or_made_good() -> None:
    given = machine("a", phase="Ready", recentOperations=[ended("op-0", "Complete")])
    index = filled(given)
    spec = {"operationKind": "HostReboot", "machineRef": "a"}
    later = {"phase": "Failed", "reason": "NotStarted", "completedAt": "2026-01-02T00:00:00Z"}
    body = {"metadata": {"name": "op-1", "uid": "u-1"}, "spec": spec, "status": later}
    failed = msgspec.convert(body, MachineOperation)
    index.changed(None, failed)
    (row,) = index.page(FleetFilter(state="failed"), 0).rows
    assert row.cause == "HostReboot op-1 failed: NotStarted"
    index.changed(failed, None)
    assert names(index, FleetFilter(state="failed")) == []
    index.changed(None, failed)
    good = [ended("op-0", "Complete"), ended("op-2", "Complete", "2026-01-03T00:00:00Z")]
    index.changed(given, machine("a", phase="Ready", recentOperations=good))
    assert names(index, FleetFilter(state="failed")) == []


def test_machines_that_need_a_person_come_first_then_names() -> None:
    index = filled(machine("b"), machine("a", activeOperation=ACTIVE), machine("c", phase="Failed"), machine("d"))
    assert names(index, FleetFilter()) == ["c", "a", "b", "d"]
    index.changed(machine("c", phase="Failed"), machine("c", phase="Ready"))
    assert names(index, FleetFilter()) == ["a", "b", "c", "d"]


def test_filters_select_by_each_part_and_by_all_together() -> None:
    index = filled(
        machine("web-1", site="x", phase="Ready", labels={"rack": "r1"}),
        machine("web-2", site="y", phase="Ready", labels={"rack": "r2"}),
        machine("db-1", phase="Failed", reason="NoRoute", message="no route to 192.0.2.1"),
    )
    assert names(index, FleetFilter(text="WEB 2")) == ["web-2"]
    assert names(index, FleetFilter(text="192.0.2.1")) == ["db-1"]
    assert names(index, FleetFilter(site="x")) == ["web-1"]
    assert names(index, FleetFilter(site=NO_SITE)) == ["db-1"]
    assert names(index, FleetFilter(phase="Ready")) == ["web-1", "web-2"]
    assert names(index, FleetFilter(reason="NoRoute")) == ["db-1"]
    assert names(index, FleetFilter(labels="rack in (r1,r9)")) == ["web-1"]
    assert names(index, FleetFilter(text="web", site="y", phase="Ready", labels="rack")) == ["web-2"]
    assert names(index, FleetFilter(text="web", site="y", labels="!rack")) == []


def test_a_selector_that_cannot_be_read_is_named() -> None:
    assert FleetFilter(labels="a in b").fault.startswith("labels: ")
    assert FleetFilter(labels="a in (b)").fault == ""


def test_a_query_and_its_filter_are_the_same() -> None:
    query = {"text": "a&b", "site": "x", "labels": "a in (b,c)"}
    assert FleetFilter.from_query({**query, "other": "1"}).query() == query


def test_a_page_past_the_end_is_the_last_one() -> None:
    index = filled(*(machine(f"m{number:02}") for number in range(25)))
    page = index.page(FleetFilter(), 50, 10)
    assert (page.first, page.selected, [row.name for row in page.rows]) == (20, 25, [f"m2{n}" for n in range(5)])
    assert filled().page(FleetFilter(), 50, 10).first == 0


results = st.lists(st.sampled_from([ended("op-8", "Failed"), ended("op-9", "Complete")]), max_size=2)
status = st.fixed_dictionaries(
    {},
    optional={
        "phase": st.sampled_from(["Ready", "Failed"]),
        "reason": st.just("R"),
        "recentOperations": results,
    },
)
step = st.tuples(st.sampled_from("abcd"), st.sampled_from(["", "x", "y"]), st.none() | status)
wait = st.tuples(
    st.sampled_from("abcd"), st.sampled_from(["op-1", "op-2"]), st.sampled_from(["", "Paused", "Settling", "Failed"])
)


@given(st.lists(step | wait, max_size=30))
def test_counts_and_order_follow_each_change(steps: list[tuple[str, str, dict[str, Any] | str | None]]) -> None:
    index, now, waits = FleetIndex(), dict[str, Machine](), dict[str, MachineOperation]()
    for name, site, given_status in steps:
        if isinstance(given_status, str):
            key = f"{name}-{site}"
            before = waits.pop(key, None)
            if given_status:
                end = {"phase": "Failed", "completedAt": AT} if given_status == "Failed" else {}
                waits[key] = waiting(key, name, given_status, **end)
            if before is not None or given_status:
                index.changed(before, waits.get(key))
            continue
        old = now.pop(name, None)
        new = None if given_status is None else machine(name, site=site, **dict[str, Any](given_status))
        if new is not None:
            now[name] = new
        if old is not None or new is not None:
            index.changed(old, new)
    afresh = filled(*waits.values(), *now.values())
    assert index.summary() == afresh.summary()
    assert names(index, FleetFilter()) == names(afresh, FleetFilter())
    assert index.summary().machines == len(now)


def test_live_machines_have_the_unhealthy_parts_of_their_hardware_alone() -> None:
    parts = [{"kind": "disk", "name": f"Disk {health}", "health": health} for health in ("OK", "Warning", "Critical")]
    hardware = {"source": "Redfish", "at": AT, "digest": "a" * 64, "cpus": 64, "bmc": {"at": AT, "parts": parts}}
    whole = machine("m", phase="Ready", hardware=hardware)
    found = compaction_of(MACHINES)(whole).status.hardware
    assert found is not None
    assert found.cpus is None
    assert [part.name for part in (found.bmc.parts if found.bmc is not None else ())] == [
        "Disk Warning",
        "Disk Critical",
    ]
    assert compaction_of(MACHINES)(machine("m", phase="Ready")) == machine("m", phase="Ready")
    host = {"hostname": "m", "hardware": {"cpus": 64}}
    for inspected in (None, hardware):
        reporting = machine("m", agent={"stage": "Running", "host": host}, hardware=inspected)
        agent = compaction_of(MACHINES)(reporting).status.agent
        assert agent is not None
        assert agent.host is not None
        assert (agent.stage, agent.host.hostname, agent.host.hardware) == ("Running", "m", None)


def test_a_long_filter_is_cut() -> None:
    found = FleetFilter.from_query({"text": "s " * 50_000, "labels": "a," * 30_000})
    assert {len(value) for value in found.query().values()} == {256}
