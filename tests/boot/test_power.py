"""A machine with real firmware does what its BMC is asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.boot.bench import MAC, bench
from tests.support.qemu import Firmware, Hardware, Segment
from unbounded.metalman.redfish.ports import Power, ResetType

pytestmark = [pytest.mark.slow, pytest.mark.root]


async def test_firmware_runs_while_the_power_is_on(net: Segment, tmp_path: Path) -> None:
    async with bench(Hardware(mac=MAC, firmware=Firmware.BIOS), net, tmp_path) as it:
        assert not it.machine.running
        await it.power_on()
        await it.machine.shows("SeaBIOS", within_s=60)
        assert it.machine.running
        await it.bmc.reset(ResetType.FORCE_OFF)
        assert not it.machine.running
        assert (await it.bmc.system()).power is Power.OFF
        assert it.machine.boots == ["Hdd"]
