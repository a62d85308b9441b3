"""Everything that is written of a boot, on the embedded API server with the project's definitions."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.metalman.support.netboot_objects import ADDRESS, MAC, machine_body
from tests.metalman.support.netboot_site import netboot_site
from tests.support.embedded_server import embedded_server, install_crds
from unbounded.api.machine import MACHINES
from unbounded.kube.client import HttpApi
from unbounded.kube.config import from_kubeconfig
from unbounded.metalman.dhcp.model import DhcpFinding, DhcpFindingKind
from unbounded.metalman.http.boot_service import CloudInitEvent, OnDisk, ProgressReport, Rendered

pytestmark = pytest.mark.slow
OTHER = {"ipv4": ADDRESS, "mac": "52:54:00:00:00:02", "subnetMask": "255.255.255.0", "gateway": "10.0.0.1"}


def test_a_counted_repave_with_all_that_can_be_seen_of_it(tmp_path: Path) -> None:
    async def main(kubeconfig: Path) -> None:
        await install_crds(kubeconfig)
        async with HttpApi(from_kubeconfig(kubeconfig)) as api, netboot_site(tmp_path / "site", api=api) as world:
            spec = {"operations": {"repaveCounter": 1}}
            await world.machine(machine_body(spec=spec))
            prefix = world.prefix()
            world.site.findings.report(DhcpFinding(DhcpFindingKind.NO_BOOT_FILE, "m1", "none for arm64"))
            for name in ("shimx64.efi", "grub/grub.cfg", "vmlinuz"):
                found = await world.site.file(ADDRESS, None, name)
                assert isinstance(found, OnDisk | Rendered)
                await world.site.served(ADDRESS, None, name)
            await world.site.progress(ADDRESS, prefix, ProgressReport(stage="Starting", message="ü" * 5000))
            for percent in (0, 50, 1000):
                await world.site.progress(ADDRESS, prefix, ProgressReport(stage="Writing", percent=percent))
                seen = (await world.status()).status.netboot
                assert seen is not None
                assert (seen.milestone, seen.percent) == ("ImageWriting", min(percent, 100))
            assert (await world.site.disable(ADDRESS, prefix)).code == 200
            done = await world.status()
            assert done.status.netboot is not None
            assert (done.status.netboot.milestone, done.status.netboot.loads) == ("ImageWritten", 1)
            assert done.status.operations is not None
            assert done.status.operations.repave_counter == 1
            await world.caught_up()
            for kind in ("start", "finish"):
                event = CloudInitEvent(name="modules-final", event_type=kind, result="SUCCESS", description="x" * 9000)
                assert (await world.site.cloud_init(ADDRESS, prefix, event)).code == 200
            conditions = {each.type: (each.status, each.reason) for each in (await world.status()).status.conditions}
            assert conditions == {
                "Repaved": ("True", "Succeeded"),
                "NetbootServed": ("True", "Served"),
                "CloudInitDone": ("True", "Succeeded"),
            }
            await world.caught_up()

            # The next one starts from the beginning, and is contested.
            await api.patch(MACHINES, "m1", {"spec": {"operations": {"repaveCounter": 2}}})
            await world.caught_up()
            conditions = {each.type: (each.status, each.reason) for each in (await world.status()).status.conditions}
            assert conditions == {"Repaved": ("False", "Pending"), "NetbootServed": ("True", "Served")}
            assert (await world.site.progress("10.0.0.99", world.prefix(), ProgressReport(stage="x"))).code == 409
            seen = (await world.status()).status.netboot
            assert seen is not None
            assert (seen.boot, seen.milestone) == ("repave-2", "Contested")
            assert (seen.percent, seen.loads, seen.image_digest) == (None, None, None)

            await world.machine(machine_body("m2", leases=[OTHER]))
            for name in ("m1", "m2"):
                conditions = {
                    each.type: (each.status, each.reason) for each in (await world.status(name)).status.conditions
                }
                assert conditions["NetbootServed"] == ("False", "DuplicateLease")
            assert world.site.reservations.client(MAC) is not None

    with embedded_server(tmp_path / "data") as kubeconfig:
        asyncio.run(main(kubeconfig))
