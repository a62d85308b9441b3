"""Executors of operations: every row of the table, and that the table covers everything."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from tests.operations.building import REDFISH, machine_of
from unbounded.api.machine import Machine
from unbounded.api.operation import OperationKind
from unbounded.operations.executor_selection import TABLE, ExecutorKind, executor_name, executor_of, why_unsupported

HOST = [kind for kind in OperationKind if kind.is_host]
WITH_BMC = [kind for kind in OperationKind if kind.needs_bmc]
INSIDE = [kind for kind in OperationKind if not kind.is_host and not kind.needs_bmc]
BMC: dict[str, Any] = {"pxe": {"image": "i", "redfish": REDFISH}}
NO_BMC: dict[str, Any] = {"pxe": {"image": "i"}}
AGENT: dict[str, Any] = {"agent": {"version": "v1"}}
ANNOTATED = {"unbounded-cloud.io/provider": "AzureVM"}
MISNAMED = {"unbounded-cloud.io/provider": "Azure\x1b[1mVM\n"}

MACHINES: dict[str, Machine] = {
    "provider": machine_of(provider="AzureVM", providerID="azure:///1"),
    "provider by annotation": machine_of(annotations=ANNOTATED, **NO_BMC),
    "misnamed provider and BMC": machine_of(provider="lab/AzureVM", **BMC),
    "misnamed annotation and agent": machine_of(annotations=MISNAMED, status=AGENT, **NO_BMC),
    "provider and BMC": machine_of(provider="AzureVM", **BMC),
    "annotation and BMC": machine_of(annotations=ANNOTATED, **BMC),
    "BMC": machine_of(**BMC),
    "BMC and agent": machine_of(status=AGENT, **BMC),
    "BMC and providerID": machine_of(providerID="x:///1", **BMC),
    "agent": machine_of(status=AGENT, **NO_BMC),
    "agent without version": machine_of(status={"agent": {"image": "i"}}, **NO_BMC),
    "nothing": machine_of(**NO_BMC),
}


@pytest.mark.parametrize("kind", HOST)
@pytest.mark.parametrize("has", ["provider", "provider by annotation", "provider and BMC", "annotation and BMC"])
def test_a_provider_owns_the_host(has: str, kind: OperationKind) -> None:
    assert executor_of(kind, MACHINES[has]) is ExecutorKind.CLOUD


@pytest.mark.parametrize("kind", HOST)
@pytest.mark.parametrize("has", ["BMC", "BMC and agent"])
def test_metalman_owns_a_host_with_a_bmc(has: str, kind: OperationKind) -> None:
    assert executor_of(kind, MACHINES[has]) is ExecutorKind.METALMAN


def test_an_agent_reboots_its_host_where_nobody_else_can() -> None:
    assert executor_of(OperationKind.HOST_REBOOT, MACHINES["agent"]) is ExecutorKind.AGENT
    for kind in set(HOST) - {OperationKind.HOST_REBOOT}:
        assert executor_of(kind, MACHINES["agent"]) is None


@pytest.mark.parametrize("kind", HOST)
@pytest.mark.parametrize("has", ["nothing", "agent without version", "BMC and providerID"])
def test_nobody_owns_a_host_that_nobody_reaches(has: str, kind: OperationKind) -> None:
    assert executor_of(kind, MACHINES[has]) is None
    assert "spec.pxe.redfish" in why_unsupported(kind, MACHINES[has])


@pytest.mark.parametrize("kind", HOST)
@pytest.mark.parametrize(
    ("has", "words"),
    [
        ("misnamed provider and BMC", "spec.provider is 'lab/AzureVM', an invalid provider name. A name has at"),
        ("misnamed annotation and agent", r"annotation unbounded-cloud.io/provider is 'Azure\x1b[1mVM\n', an invalid"),
    ],
)
def test_what_is_no_name_of_a_provider_is_nobodys(has: str, words: str, kind: OperationKind) -> None:
    assert executor_of(kind, MACHINES[has]) is None
    assert words in why_unsupported(kind, MACHINES[has])


@pytest.mark.parametrize("kind", WITH_BMC)
@pytest.mark.parametrize("has", MACHINES)
def test_what_needs_a_bmc_is_metalmans_whatever_else_the_machine_has(has: str, kind: OperationKind) -> None:
    owner = executor_of(kind, MACHINES[has])
    assert owner is (ExecutorKind.METALMAN if "BMC" in has else None)
    assert why_unsupported(kind, MACHINES[has]).endswith("the Machine needs spec.pxe.redfish")


@pytest.mark.parametrize("kind", INSIDE)
@pytest.mark.parametrize("has", MACHINES)
def test_what_happens_inside_is_the_agents(has: str, kind: OperationKind) -> None:
    assert executor_of(kind, MACHINES[has]) is ExecutorKind.AGENT


def test_every_kind_on_every_machine_meets_a_row() -> None:
    for kind, machine in product(OperationKind, MACHINES.values()):
        assert any(kind in row.kinds and row.matches(machine) for row in TABLE)


def test_every_row_is_met_first_by_some_machine() -> None:
    met = {
        next(row.the_machine_has for row in TABLE if kind in row.kinds and row.matches(machine))
        for kind, machine in product(OperationKind, MACHINES.values())
    }
    assert met == {row.the_machine_has for row in TABLE}


@pytest.mark.parametrize(
    ("has", "kind", "name"),
    [
        ("provider", "HostReboot", "machine-ops-controller/lab/AzureVM"),
        ("provider by annotation", "HostReboot", "machine-ops-controller/lab/AzureVM"),
        ("BMC", "HostReboot", "metalman/lab"),
        ("agent", "HostReboot", "unbounded-agent/m1"),
        ("nothing", "NodeReboot", "unbounded-agent/m1"),
        ("nothing", "HostReboot", None),
    ],
)
def test_the_executor_is_named_with_its_site(has: str, kind: str, name: str | None) -> None:
    assert executor_name(OperationKind(kind), MACHINES[has]) == name


def test_without_a_site_the_name_has_none() -> None:
    assert executor_name(OperationKind.HOST_REBOOT, machine_of(labels={})) == "metalman"
