"""A machine on the bench: QEMU behind a BMC, and metalman's own Redfish client for its requests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.support.qemu import Hardware, QemuMachine, Segment
from tests.support.qemu.router import router
from unbounded.metalman.redfish.bmc_interface import BmcAccount, BootEnabled, BootOverride, BootTarget, ResetType
from unbounded.metalman.redfish.pool import BmcPool, PooledBmc
from unbounded_lab.bmc.local import LabBmc
from unbounded_lab.bmc.power import HostPower

MAC: Final = "52:54:00:00:00:01"


@dataclass
class Bench:
    machine: QemuMachine
    bmc: PooledBmc

    async def power_on(self, target: BootTarget | None = None) -> None:
        """Switch it on, to boot once from there; None: from its disk."""
        if target is not None:
            wanted = BootOverride(BootEnabled.ONCE, target, "UEFI")
            assert await self.bmc.set_boot_override(wanted) == wanted
        await self.bmc.reset(ResetType.ON)


@asynccontextmanager
async def bench(hardware: Hardware, net: Segment, folder: Path) -> AsyncIterator[Bench]:
    """The machine, off; it is switched off again on leaving."""
    async with (
        router(net.bridge),
        LabBmc(power=HostPower.OFF, boot_s=0.5) as lab,
        QemuMachine(hardware, lab, net, folder) as machine,
        BmcPool() as pool,
    ):
        access = BmcAccount(lab.url, lab.username, lab.password, cert_fingerprint=lab.fingerprint)
        yield Bench(machine, pool.bmc(access))
