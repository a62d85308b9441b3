"""Two Machines of one host: which are told apart."""

from __future__ import annotations

from typing import Any, Final

import msgspec
import pytest

from unbounded.api.machine import Machine
from unbounded.cli.deploying.same_host import of_same_host

KEY: Final = {"name": "k", "namespace": "unbounded-kube"}


def machine(name: str, host: str, bastion: str = "") -> Machine:
    ssh: dict[str, Any] = {"host": host, "username": "u", "privateKeyRef": KEY}
    ssh |= {"bastion": {"host": bastion, "username": "u"}} if bastion else {}
    return msgspec.convert({"metadata": {"name": name}, "spec": {"ssh": ssh}}, Machine)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (("10.0.0.7",), ("10.0.0.7:22",), True),
        (("10.0.0.7",), ("10.0.0.7:2222",), False),
        (("Web7.example.com",), ("web7.example.com.",), True),
        (("fd00::7",), ("[FD00:0::7]:22",), True),
        (("10.0.0.7", "b1"), ("10.0.0.7", "b1:22"), True),
        (("10.0.0.7", "b1"), ("10.0.0.7", "b2"), False),
        (("10.0.0.7", "b1"), ("10.0.0.7",), False),
        (("10.0.0.7",), ("10.0.0.7:x",), False),
    ],
)
def test_one_host_has_one_address_however_it_is_spelled(
    one: tuple[str, ...], other: tuple[str, ...], same: bool
) -> None:
    there = machine("there", *other)
    assert of_same_host(machine("new", *one), [there]) is (there if same else None)


def test_a_machine_is_no_other_one_than_itself() -> None:
    assert of_same_host(machine("m", "h"), [machine("m", "h")]) is None
