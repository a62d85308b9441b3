"""A machine with real firmware carries out the requests of its BMC."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.boot.bench import MAC, bench
from tests.support.qemu import Firmware, Hardware, Segment
from unbounded.metalman.redfish.bmc_interface import BmcPowerState, ResetType

pytestmark = [pytest.mark.slow, pytest.mark.root]


async def test_firmware_runs_while_the_power_is_on(net: Segment, tmp_path: Path) -> None:
    async with bench(Hardware(mac=MAC, firmware=Firmware.BIOS), net, tmp_path) as it:
        assert not it.machine.running
        await it.power_on()
        await it.machine.shows("SeaBIOS", within_s=60)
        assert it.machine.running
        await it.bmc.reset(ResetType.FORCE_OFF)
        assert not it.machine.running
        assert (await it.bmc.system()).power is BmcPowerState.OFF
        assert it.machine.boots == ["Hdd"]


@pytest.mark.timeout(120)
async def test_guest_that_dies_fails_its_test_at_once_with_its_output(net: Segment, tmp_path: Path) -> None:
    """Each test waited 240 s, twice, for a guest that had died at its start."""
    hardware = Hardware(mac=MAC, firmware=Firmware.BIOS, disk=tmp_path / "gone.img")
    async with bench(hardware, net, tmp_path) as it:
        await it.power_on()
        with pytest.raises(AssertionError, match="QEMU ended by itself with 1") as failed:
            await it.machine.shows("SeaBIOS", within_s=240)
        assert "gone.img" in str(failed.value).partition("--- qemu")[2]
        with pytest.raises(AssertionError, match=r"gone\.img"):
            await it.machine.off(within_s=240)
