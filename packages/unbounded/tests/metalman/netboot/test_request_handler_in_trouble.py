"""While the API does not answer, hosts continue as far as they can, and no report of theirs is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from tests.metalman.support.netboot_objects import ADDRESS, IMAGE, REDFISH, machine_body
from tests.metalman.support.netboot_site import netboot_site
from tests.support.memory_api import MemoryApi
from tests.support.virtual_time import run_virtual, virtual_now
from unbounded.api.hardware import DiskFacts, HardwareFacts
from unbounded.api.meta import Kind
from unbounded.kube.api import ServerUnreachable
from unbounded.metalman.http.boot_service import HardwareReport, OnDisk, ProgressReport
from unbounded.metalman.netboot.request_handler import WRITE_S

T = TypeVar("T")


class Gone(MemoryApi):
    """Takes no patch of a status while it is away."""

    def __init__(self) -> None:
        super().__init__(now=virtual_now)
        self.away = False

    async def patch(
        self, kind: Kind[T], name: str, patch: Mapping[str, Any], *, namespace: str = "", subresource: str = ""
    ) -> T:
        if self.away and subresource:
            raise ServerUnreachable("fault: away")
        return await super().patch(kind, name, patch, namespace=namespace, subresource=subresource)


def test_boot_report_is_requested_again_until_it_is_stored() -> None:
    async def main(folder: Path) -> None:
        api = Gone()
        async with netboot_site(folder, api=api, now=virtual_now) as world:
            await world.machine(machine_body(pxe={"redfish": REDFISH}))
            await world.replace()
            prefix, clock = world.prefix(), asyncio.get_running_loop()
            api.away = True
            assert isinstance(await world.site.file(ADDRESS, None, "vmlinuz"), OnDisk)
            await world.site.served(ADDRESS, None, "shimx64.efi")
            for percent in range(0, 100, 10):
                report = ProgressReport(stage="Writing", percent=percent)
                assert (await world.site.progress(ADDRESS, prefix, report)).code == 200
                await asyncio.sleep(30)
            began = clock.time()
            answer = await world.site.disable(ADDRESS, prefix)
            assert (answer.code, answer.retry_after_s) == (503, 5)
            assert WRITE_S - 0.1 <= clock.time() - began <= WRITE_S + 0.1
            disk = DiskFacts(name="sda", size_bytes=8_000_000_000, sector_bytes=512, state="Blank")
            inspection = HardwareReport(hardware=HardwareFacts(disks=(disk,)))
            answer = await world.site.hardware(ADDRESS, prefix, inspection)
            assert (answer.code, answer.retry_after_s) == (503, 5)
            api.away = False
            assert (await world.site.disable(ADDRESS, prefix)).code == 200
            machine = await world.status()
            assert machine.status.netboot is not None
            assert (machine.status.netboot.milestone, machine.status.netboot.loads) == ("ImageWritten", 1)
            assert [each.message for each in machine.status.conditions if each.type == "Repaved"] == [f"image={IMAGE}"]

    with TemporaryDirectory() as folder:
        run_virtual(main(Path(folder)))


def test_a_contested_boot_stays_closed_while_that_cannot_be_written_down() -> None:
    async def main(folder: Path) -> None:
        api = Gone()
        async with netboot_site(folder, api=api, now=virtual_now) as world:
            await world.machine(machine_body(pxe={"redfish": REDFISH}))
            await world.replace()
            prefix = world.prefix()
            api.away = True
            assert (await world.site.progress("10.0.0.99", prefix, ProgressReport(stage="x"))).code == 409
            for number in range(3):
                await asyncio.sleep(60)
                await api.create(world.machines.kind, machine_body(f"other-{number}", leases=[]))
                await world.caught_up()
                assert (await world.site.progress(ADDRESS, prefix, ProgressReport(stage="x"))).code == 404
            api.away = False
            machine = await world.status()
            assert machine.status.netboot is not None
            assert machine.status.netboot.milestone == "Contested"

    with TemporaryDirectory() as folder:
        run_virtual(main(Path(folder)))
