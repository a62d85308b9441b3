"""Host operations against another project's server: sushy-tools' emulator, in a process of its own and in real time."""

from __future__ import annotations

from base64 import b64encode
from datetime import timedelta
from pathlib import Path
from typing import Final

import pytest
import trustme

from tests.metalman.support.netboot_host import Story, living
from tests.metalman.support.netboot_site import netboot_site
from tests.metalman.support.site import Cluster, metalman
from tests.metalman.support.sushy_hardware import sushy_hardware
from tests.support.sushy import PASSWORD, USERNAME, sushy
from unbounded.api.core import SECRETS
from unbounded.api.machine import MACHINES
from unbounded.api.names import LABEL_SITE, NAMESPACE
from unbounded.kube.clock import utc_now
from unbounded.kube.serving_certificate import ServingCertificate
from unbounded.metalman.media.server import MediaServerSettings, VirtualMediaServer
from unbounded.metalman.media.tickets import MediaUrls, TicketKey
from unbounded.metalman.redfish.bmc_interface import BmcAccount
from unbounded.metalman.redfish.pool import BmcPool
from unbounded_lab.machines import SITE

pytestmark = pytest.mark.slow

WITHIN_S = 60.0
LEASE: Final = {"ipv4": "10.0.0.5", "mac": "52:54:00:00:00:01", "subnetMask": "255.255.255.0", "gateway": "10.0.0.1"}
MEDIA: Final = {"spec": {"pxe": {"bootMode": "VirtualMedia", "dhcpLeases": [LEASE]}}}


async def add(cluster: Cluster, url: str, device_id: str) -> str:
    """Apply the Machine of one of its systems; gives its name."""
    secret = {"metadata": {"name": "sushy"}, "data": {"password": b64encode(PASSWORD.encode()).decode()}}
    await cluster.api.create(SECRETS, secret, namespace=NAMESPACE)
    reference = {"name": "sushy", "namespace": NAMESPACE, "key": "password"}
    redfish = {"url": url, "username": USERNAME, "passwordRef": reference, "deviceID": device_id}
    machine = {
        "metadata": {"name": "node0", "labels": {LABEL_SITE: SITE}},
        "spec": {"pxe": {"image": "registry.invalid/host:v1", "redfish": redfish}},
    }
    return (await cluster.api.create(MACHINES, machine)).name


async def test_a_system_is_switched_on_rebooted_and_switched_off(tmp_path: Path) -> None:
    cluster = Cluster(now=utc_now)
    async with sushy(tmp_path, systems=2) as server, metalman(cluster):
        machine = await add(cluster, server.url, server.device_ids[0])
        for kind, evidence in (
            ("HostPowerOn", ["the host was On", "the host was On again, 5 s later"]),
            ("HostReboot", ["the host was Off", "the host was On"]),
            ("HostPowerOff", ["the host was Off", "the host was Off again, 5 s later"]),
        ):
            operation = await cluster.ended(await cluster.ask(kind, machine), within_s=WITHIN_S)
            assert (operation.status.phase, operation.status.reason) == ("Complete", "Succeeded")
            assert [each.what for each in operation.status.evidence] == evidence
            assert {each.where for each in operation.status.evidence} == {
                f"{server.url} Systems/{server.device_ids[0]}"
            }


async def test_a_system_is_reimaged(tmp_path: Path) -> None:
    cluster = Cluster(now=utc_now)
    async with sushy(tmp_path) as server, metalman(cluster):
        (device_id,) = server.device_ids
        machine = await add(cluster, server.url, device_id)
        story = Story(writes_s=3.0, step_s=0.5, cloud_init_s=0.5)
        async with sushy_hardware(server, device_id) as hardware, living(cluster, machine, hardware, story) as host:
            operation = await cluster.ended(await cluster.ask("HostReplace", machine), within_s=2 * WITHIN_S)
        assert (operation.status.phase, operation.status.reason) == ("Complete", "Succeeded"), operation.status.message
        assert host.sources == ["network", "disk"]
        assert hardware.boots() == ["Pxe", "Hdd"]


@pytest.mark.parametrize("kind", ["HostReplace", "HostInspect"])
async def test_a_system_boots_from_an_image_that_its_bmc_fetches_from_the_site(tmp_path: Path, kind: str) -> None:
    authority, pem, cluster = trustme.CA(), tmp_path / "site.pem", Cluster(now=utc_now)
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(pem))
    async with sushy(tmp_path) as server, netboot_site(tmp_path / "site", api=cluster.api) as site:
        settings, certificate = MediaServerSettings("127.0.0.1", 0), ServingCertificate(pem, pem, "virtual media")
        async with VirtualMediaServer(settings, certificate, site.site.media).serving() as media:
            urls = MediaUrls(f"https://127.0.0.1:{media.port}", timedelta(hours=1))
            urls.open(TicketKey(bytes(32)))  # the site's, too
            async with metalman(cluster, media_urls=urls):
                (device_id,) = server.device_ids
                machine = await add(cluster, server.url, device_id)
                await cluster.api.patch(MACHINES, machine, MEDIA)
                story = Story(writes_s=3.0, step_s=0.5, cloud_init_s=0.5)
                async with (
                    sushy_hardware(server, device_id) as hardware,
                    living(cluster, machine, hardware, story) as host,
                ):
                    operation = await cluster.ended(await cluster.ask(kind, machine), within_s=2 * WITHIN_S)
                assert (operation.status.phase, operation.status.reason) == ("Complete", "Succeeded"), operation.status
                assert host.sources[0] == "network"  # as the report of an installer is called there
                assert hardware.boots()[0] == "Cd"
                access = BmcAccount(server.url, USERNAME, PASSWORD, device_id=device_id, ca_bundle=server.ca_bundle)
                async with BmcPool() as pool:
                    assert (await pool.bmc(access).media_drive()).is_empty
                redfish = (await cluster.machine(machine)).status.redfish
                assert redfish is not None
                assert redfish.media_boot is None
                assert media.counts == {}


async def test_a_bmc_without_reset_firmware_update_or_passwords_is_refused_with_its_words(
    tmp_path: Path,
) -> None:
    cluster = Cluster(now=utc_now)
    async with sushy(tmp_path) as server, metalman(cluster):
        machine = await add(cluster, server.url, server.device_ids[0])
        reset = await cluster.ended(await cluster.ask("BMCReset", machine), within_s=WITHIN_S)
        image = {"imageURI": "https://images.example.com/BIOS-2.5.0.bin"}
        update = await cluster.ended(await cluster.ask("FirmwareUpdate", machine, parameters=image), within_s=WITHIN_S)
        rotation = await cluster.ended(await cluster.ask("BMCRotatePassword", machine), within_s=WITHIN_S)
        assert (rotation.status.phase, rotation.status.reason) == ("Failed", "BMCRefused")
        assert "the AccountService: 404" in (rotation.status.message or "")
        assert (reset.status.phase, reset.status.reason) == ("Failed", "BMCRefused")
        assert "has no action #Manager.Reset" in (reset.status.message or "")
        assert (update.status.phase, update.status.reason) == ("Failed", "BMCRefused")
        assert "the list of firmware: 404" in (update.status.message or "")
