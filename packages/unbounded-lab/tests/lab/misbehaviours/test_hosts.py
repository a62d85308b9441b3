"""Hosts that boot with other disks and cards than their BMC shows, with a second client, or without an agent."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lab.boot_server import ADDRESS, BootFake, booting, happens
from tests.lab.misbehaviours.checks import Checks
from tests.lab.wire import SYSTEM, Wire
from unbounded_lab.hosts.board import LabBoard
from unbounded_lab.hosts.installer import LabHardware

CHECKS = Checks()


def found(talk: Wire) -> LabHardware:
    """Return the hardware that an installer finds in the host."""
    bmc = talk.bmc.bmc
    return LabBoard(bmc, bmc.systems[0], lambda: b"", talk.clock, Path()).hardware()


@CHECKS.shows
async def small_disks(talk: Wire) -> None:
    shown = (await talk.get(f"{SYSTEM}/Storage/1/Drives/Disk.Bay.0")).json
    assert shown["CapacityBytes"] == 960_197_124_096
    assert [disk.size_bytes for disk in found(talk).disks] == [1_000_000_000] * 2
    assert found(talk).disks[0].serial_number == shown["SerialNumber"]


@CHECKS.shows
async def nic_vanishes(talk: Wire) -> None:
    shown = (await talk.get(f"{SYSTEM}/EthernetInterfaces/1")).json
    assert found(talk).macs == (shown["MACAddress"],)
    assert len((await talk.get(f"{SYSTEM}/EthernetInterfaces")).json["Members"]) == 2


@CHECKS.shows
async def second_client(_talk: Wire) -> None:
    fake = BootFake()
    async with booting(fake, profile="second-client") as bmc:
        await happens(bmc, "installer")
    assert len(fake.clients() - {ADDRESS}) == 1


@CHECKS.shows
async def agent_never_joins(_talk: Wire) -> None:
    async with booting(BootFake(), profile="agent-never-joins") as bmc:
        await happens(bmc, "started", "m1")
        assert not [event for event in bmc.history() if event.what == "joins"]


@pytest.mark.parametrize("name", CHECKS)
async def test_it_does_what_it_says(name: str) -> None:
    await CHECKS.show(name)
