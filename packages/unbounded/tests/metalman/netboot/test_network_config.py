"""The network configuration of an installed host: served from the ConfigMap that the Machine refers to, or awaited."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest

from tests.metalman.support.netboot_objects import ADDRESS, REDFISH, machine_body
from tests.metalman.support.netboot_site import World, netboot_site
from tests.metalman.support.networks import ONE, network
from unbounded.api.core import CONFIG_MAPS
from unbounded.api.hardware import DiskFacts, DiskState, HardwareFacts, NICFacts
from unbounded.api.machine import MACHINES
from unbounded.metalman.host_network import render_network
from unbounded.metalman.http.boot_service import (
    CloudInitEvent,
    FileRejected,
    HardwareReport,
    NotReadyYet,
    OnDisk,
    Rendered,
)
from unbounded.metalman.netboot.boot_files import LARGEST_BYTES, NetworkConfigInvalid, check_network_config

PATH: Final = "cloud-init/network-config"
REFERENCE: Final = {"name": "net", "namespace": "default", "key": "network-config"}
WITH_NETWORK: Final[dict[str, Any]] = {
    "pxe": {"redfish": REDFISH, "cloudInit": {"networkConfigConfigMapRef": REFERENCE}}
}
CONTENT: Final = "version: 2\nethernets:\n  eth0: {dhcp4: true}\n"
DISK: Final = DiskFacts(name="sda", size_bytes=480_000_000_000, sector_bytes=512, state=DiskState.BLANK)


async def got(world: World, path: str = PATH) -> Any:
    return await world.site.file(ADDRESS, world.prefix(), path)


async def message(world: World) -> str:
    await world.site.flush("m1")
    netboot = (await world.status()).status.netboot
    return "" if netboot is None else netboot.message or ""


async def test_the_installation_waits_for_the_config_map_and_its_key(tmp_path: Path) -> None:
    async with netboot_site(tmp_path) as world:
        await world.machine(machine_body(**WITH_NETWORK))
        await world.replace()
        assert isinstance(await got(world), NotReadyYet)
        field = "spec.pxe.cloudInit.networkConfigConfigMapRef: ConfigMap default/net"
        assert await message(world) == f"{field} does not exist; the installation waits for it"
        assert world.told[-1] == ("m1", "NetworkConfigMissing", await message(world))

        await world.api.create(CONFIG_MAPS, {"metadata": {"name": "net"}, "data": {"other": "x"}}, namespace="default")
        assert isinstance(await got(world), NotReadyYet)
        assert "no key 'network-config'; its keys are: other; the installation waits" in await message(world)

        await world.api.patch(CONFIG_MAPS, "net", {"data": {"network-config": CONTENT}}, namespace="default")
        found = await got(world)
        assert isinstance(found, Rendered)
        assert found.content == CONTENT.encode()


async def test_a_configuration_from_the_report_of_another_boot_is_not_served(tmp_path: Path) -> None:
    async with netboot_site(tmp_path) as world:
        await world.machine(machine_body(**WITH_NETWORK))
        await world.replace()
        metadata = {"name": "net", "annotations": {"unbounded-cloud.io/for-boot": "earlier"}}
        content = {"metadata": metadata, "data": {"network-config": CONTENT}}
        await world.api.create(CONFIG_MAPS, content, namespace="default")
        assert isinstance(await got(world), NotReadyYet)
        assert "was made from the hardware report of another boot (earlier); the installation" in await message(world)

        netboot = (await world.status()).status.netboot
        assert netboot is not None
        present = {"metadata": {"annotations": {"unbounded-cloud.io/for-boot": netboot.boot}}}
        await world.api.patch(CONFIG_MAPS, "net", present, namespace="default")
        assert isinstance(await got(world), Rendered)


async def test_an_invalid_network_configuration_ends_the_installation_before_it_writes(tmp_path: Path) -> None:
    async with netboot_site(tmp_path) as world:
        await world.machine(machine_body(**WITH_NETWORK))
        await world.replace()
        content = {"metadata": {"name": "net"}, "data": {"network-config": "[eth0]"}}
        await world.api.create(CONFIG_MAPS, content, namespace="default")
        found = await got(world)
        assert isinstance(found, FileRejected)
        assert found.code == 409
        assert found.text.startswith(
            "spec.pxe.cloudInit.networkConfigConfigMapRef: ConfigMap default/net, key network-"
        )
        assert await message(world) == found.text


async def test_it_is_behind_the_gates_of_user_data(tmp_path: Path) -> None:
    async with netboot_site(tmp_path) as world:
        await world.machine(machine_body(**WITH_NETWORK))
        await world.api.create(
            CONFIG_MAPS, {"metadata": {"name": "net"}, "data": {"network-config": CONTENT}}, namespace="default"
        )
        await world.replace(kind="HostInspect")
        assert isinstance(await got(world), FileRejected)
        await world.stage("WaitingLoader", phase="Complete")
        await world.replace(name="second")
        assert isinstance(await world.site.file(ADDRESS, None, PATH), FileRejected)
        assert isinstance(await got(world), Rendered)


async def test_a_machine_without_a_reference_gets_the_file_of_the_image_or_none(tmp_path: Path) -> None:
    async with netboot_site(tmp_path) as world:
        await world.machine(machine_body(pxe={"redfish": REDFISH}))
        await world.replace()
        found = await got(world)
        assert isinstance(found, FileRejected)
        assert found.code == 404


async def test_an_installer_that_would_leave_it_out_gets_no_image(tmp_path: Path) -> None:
    async with netboot_site(tmp_path) as world:
        await world.machine(machine_body(**WITH_NETWORK))
        await world.replace()
        found = await got(world, "disk.img.gz")
        assert isinstance(found, FileRejected)
        assert "which the installer of an older netboot image does not write" in found.text
        report = HardwareReport(hardware=HardwareFacts(disks=(DISK,)))
        assert (await world.site.hardware(ADDRESS, world.prefix(), report)).code == 200
        assert isinstance(await got(world, "disk.img.gz"), OnDisk)
        assert (await world.api.get(MACHINES, "m1")).status.hardware is not None


DECLARED: Final[dict[str, Any]] = {"ethernets": [{**ONE, "dhcp4": True}]}
WITHOUT_CARDS: Final = HardwareFacts(disks=(DISK,))
WITH_CARD: Final = HardwareFacts(disks=(DISK,), nics=(NICFacts(name="eno1", mac="52:54:00:00:00:0a"),))


def declaring(body: dict[str, Any]) -> dict[str, Any]:
    return machine_body(pxe={"redfish": REDFISH}, spec={"network": body})


async def reported(world: World, hardware: HardwareFacts, *, final: bool = False) -> tuple[int, str]:
    answer = await world.site.hardware(ADDRESS, world.prefix(), HardwareReport(hardware=hardware, final=final))
    return answer.code, str(answer.body.get("error") or answer.body.get("message") or answer.body["action"])


async def test_a_declared_network_is_served_as_it_is_rendered(tmp_path: Path) -> None:
    async with netboot_site(tmp_path) as world:
        await world.machine(declaring(DECLARED))
        await world.replace()
        found = await got(world)
        assert isinstance(found, Rendered)
        assert found.content == render_network(network(DECLARED))


async def test_a_card_that_the_machine_lacks_is_awaited_and_then_refused(tmp_path: Path) -> None:
    async with netboot_site(tmp_path) as world:
        await world.machine(declaring(DECLARED))
        await world.replace()
        lacks = "spec.network.ethernets: the machine has no network card one (52:54:00:00:00:0a); its cards: none"
        assert await reported(world, WITHOUT_CARDS) == (200, lacks)
        assert (await world.api.get(MACHINES, "m1")).status.hardware is None
        assert await reported(world, WITHOUT_CARDS, final=True) == (409, lacks)
        assert await message(world) == lacks
        found = await got(world, "disk.img.gz")
        assert isinstance(found, FileRejected)
        assert (found.code, found.text) == (409, lacks)
        assert await reported(world, WITH_CARD) == (200, "Write")
        assert isinstance(await got(world, "disk.img.gz"), OnDisk)


async def test_a_fault_of_the_declared_network_is_refused_at_once(tmp_path: Path) -> None:
    async with netboot_site(tmp_path) as world:
        twice = {"ethernets": [{**ONE, "addresses": ["192.0.2.9/24", "192.0.2.9/24"]}]}
        await world.machine(declaring(twice))
        await world.replace()
        fault = "spec.network.ethernets[one].addresses: 192.0.2.9/24 occurs twice"
        assert await reported(world, WITH_CARD) == (409, fault)
        found = await got(world)
        assert isinstance(found, FileRejected)
        assert (found.code, found.text) == (409, fault)


async def test_a_declared_network_needs_an_installer_that_writes_it(tmp_path: Path) -> None:
    async with netboot_site(tmp_path) as world:
        await world.machine(declaring(DECLARED))
        await world.replace()
        found = await got(world, "disk.img.gz")
        assert isinstance(found, FileRejected)
        assert "which the installer of an older netboot image does not write" in found.text


async def test_the_installed_host_reports_from_its_declared_addresses(tmp_path: Path) -> None:
    """The installer may repeat its last report from the lease's address, whose answer it did not get."""
    async with netboot_site(tmp_path) as world:
        addresses = ["192.0.2.10/24", "198.51.100.10/24"]
        await world.machine(declaring({"ethernets": [{**ONE, "addresses": addresses}]}))
        await world.replace()
        prefix, event = world.prefix(), CloudInitEvent(name="init-local", event_type="start")
        early = await world.site.cloud_init("192.0.2.10", prefix, event)
        assert early.code == 409  # the installer has the lease's address

    async with netboot_site(tmp_path / "again") as world:
        await world.machine(declaring({"ethernets": [{**ONE, "addresses": addresses}]}))
        await world.replace()
        prefix = world.prefix()
        for _ in range(2):
            assert (await world.site.disable(ADDRESS, prefix)).code == 200
            await world.caught_up()
        for address in ("192.0.2.10", "198.51.100.10", "192.0.2.10"):
            assert (await world.site.cloud_init(address, prefix, event)).code == 200
        assert (await world.site.cloud_init("192.0.2.11", prefix, event)).code == 409


async def test_an_inspection_does_not_need_the_network(tmp_path: Path) -> None:
    async with netboot_site(tmp_path) as world:
        await world.machine(declaring(DECLARED))
        await world.replace(kind="HostInspect")
        assert await reported(world, WITHOUT_CARDS) == (200, "PowerOff")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"version: [", "not YAML: "),
        (b"2020-99-99", "not YAML: "),
        (b"- eth0", "must be a mapping"),
        (b"", "must be a mapping"),
        (b"network: {version: 2}", "remove `network:`"),
        (b"ethernets: {}", "version must be 2"),
        (b"version: '2'", "version must be 2"),
        (b"version: 3", "version must be 2"),
        (b"version: 2\n#" + b"x" * LARGEST_BYTES, f"the limit is {LARGEST_BYTES}"),
        (b"[" * 60_000, "nested more than 32 deep"),
        (b"version: 2\na:" + b" {a:" * 40 + b" 1" + b"}" * 40, "nested more than 32 deep"),
    ],
)
def test_what_cloud_init_would_not_apply_is_rejected(content: bytes, words: str) -> None:
    with pytest.raises(NetworkConfigInvalid, match=words) as caught:
        check_network_config(content, "here")
    assert str(caught.value).startswith("here: ")


@pytest.mark.parametrize("content", [CONTENT.encode(), b"version: 1\nconfig: []\n", b'{"version": 2}'])
def test_a_network_configuration_of_either_version_is_taken(content: bytes) -> None:
    check_network_config(content, "here")
    with pytest.raises(NetworkConfigInvalid):
        check_network_config(content + b"]", "here")
