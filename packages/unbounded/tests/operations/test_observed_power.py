"""Power of a host and state of its BMC."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from unbounded.api.machine import Machine
from unbounded.operations.observed_power import bmc_state, power_of, read_power

MADE = "2030-01-01T00:00:00Z"
Raw = dict[str, Any]
PASSWORD = {"name": "bmc-1", "namespace": "unbounded-kube", "key": "password"}
BMC: Raw = {"pxe": {"redfish": {"url": "https://bmc-1", "username": "u", "passwordRef": PASSWORD}}}


def machine(spec: Raw | None = None, **status: Any) -> Machine:
    return msgspec.convert({"metadata": {"name": "m1"}, "spec": spec or {}, "status": status}, Machine)


def powered_off(status: str, reason: str) -> dict[str, Any]:
    condition = {"type": "PoweredOff", "status": status, "reason": reason, "lastTransitionTime": MADE}
    return {"conditions": [condition]}


def ended(kind: str, phase: str = "Complete") -> dict[str, Any]:
    return {"recentOperations": [{"name": "o", "uid": "u", "kind": kind, "phase": phase}]}


@pytest.mark.parametrize(
    ("status", "shown"),
    [
        ({}, ""),
        (powered_off("True", "PoweredOff"), "Off"),
        (powered_off("True", "PoweringOn"), "PoweringOn"),
        (powered_off("False", "PoweringOff"), "PoweringOff"),
        (ended("HostReboot"), "On"),
        (ended("HostPowerOff"), "Off"),
        (ended("HostReboot", "Failed"), ""),
        (ended("NodeReboot"), ""),
        (powered_off("False", "PoweringOff") | ended("HostReboot"), "PoweringOff"),
    ],
)
def test_power_is_what_operations_saw_last(status: dict[str, Any], shown: str) -> None:
    assert power_of(machine(**status)) == shown


@pytest.mark.parametrize(
    ("reading", "conditions", "power"),
    [
        (None, {}, "Unknown"),
        ("On", {}, "On"),
        ("On", powered_off("True", "PoweredOff"), "Off"),  # an operation saw it Off, and its reading is written next
        ("On", powered_off("False", "PoweringOff"), "On"),
        ("Off", powered_off("True", "PoweredOff"), "Off"),
        ("Off", powered_off("True", "PoweringOn"), "Unknown"),
        ("Off", {}, "Unknown"),  # an operation may have switched it on since
        ("Unknown", powered_off("True", "PoweredOff"), "Unknown"),
    ],
)
def test_a_reading_counts_until_an_operation_has_a_newer_one(reading: str | None, conditions: Raw, power: str) -> None:
    given: Raw = {} if reading is None else {"power": {"state": reading, "at": MADE}}
    assert read_power(machine(**given, **conditions)) == power


@pytest.mark.parametrize(
    ("status", "state"),
    [
        ({}, "unread"),
        ({"power": {"state": "On"}}, "reachable"),
        ({"power": {"state": "Unknown"}}, "unreachable"),
        ({"power": {"state": "Unknown"}, "redfish": {"refusedSecretVersion": "7"}}, "refused"),
        ({"redfish": {"refusedSecretVersion": "7"}}, "refused"),
        ({"power": {"state": "On"}, "redfish": {"refusedSecretVersion": "7"}}, "reachable"),
    ],
)
def test_the_state_of_a_bmc_follows_its_last_readings(status: Raw, state: str) -> None:
    if "power" in status:
        status["power"] |= {"at": "2030-01-01T00:00:00Z"}
    assert bmc_state(machine(BMC, **status)) == state


def test_a_machine_without_a_bmc_has_no_state_of_one() -> None:
    assert bmc_state(machine({"pxe": {"image": "i"}})) is None
