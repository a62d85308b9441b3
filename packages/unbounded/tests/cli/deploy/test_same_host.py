"""Detection of two Machines with one host."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import msgspec
import pytest

from unbounded.api.machine import Machine
from unbounded.cli.deploy.host_addresses import names_to_compare, of_same_host, resolved, system_resolver

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


KNOWN: Final = {
    "web7": frozenset({"10.0.0.7", "fd00::7"}),
    "www": frozenset({"10.0.0.7"}),
    "db": frozenset({"10.0.0.8"}),
    "lost": frozenset[str](),
}


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (("web7",), ("10.0.0.7",), True),
        (("fd00::7",), ("Web7:22",), True),
        (("web7",), ("www",), True),
        (("web7:2222",), ("www",), False),
        (("web7:2222",), ("10.0.0.7:2222",), True),
        (("web7",), ("db",), False),
        (("lost",), ("unknown",), False),
        (("h", "web7"), ("h", "www"), True),
        (("h", "web7"), ("h2", "www"), False),
        (("web7", "b"), ("10.0.0.7", "b"), False),
        (("web7", "db"), ("web7",), False),
    ],
)
def test_two_names_of_one_address_are_one_host(one: tuple[str, ...], other: tuple[str, ...], same: bool) -> None:
    """The bastion resolves a host behind it: here only the bastion's own name counts."""
    there = machine("there", *other)
    assert of_same_host(machine("new", *one), [there], KNOWN) is (there if same else None)


def test_only_names_are_looked_up_that_can_tell() -> None:
    others = [machine("a", "www"), machine("b", "db:2222"), machine("c", "10.0.0.9"), machine("d", "h", "bastion")]
    assert names_to_compare(machine("new", "web7"), others) == {"web7", "www"}
    assert names_to_compare(machine("new", "10.0.0.7"), others) == {"www"}
    assert names_to_compare(machine("new", "h", "10.0.0.1"), others) == {"bastion"}
    assert names_to_compare(machine("new", "web7:2200"), others) == frozenset()


async def test_names_that_are_not_found_in_time_are_left_out() -> None:
    async def find(name: str) -> frozenset[str]:
        if name == "slow":
            await asyncio.sleep(60)
        if name == "unknown":
            raise OSError("no such name")
        return frozenset({"10.0.0.7"})

    found = await resolved(["quick", "slow", "unknown"], find, within_s=0.05)
    assert found == {"quick": frozenset({"10.0.0.7"})}


async def test_a_name_is_looked_up_as_this_machine_does() -> None:
    assert "127.0.0.1" in await system_resolver()("localhost")
