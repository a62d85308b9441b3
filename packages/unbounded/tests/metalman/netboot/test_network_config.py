"""The network configuration of an installed host: served from the ConfigMap that the Machine refers to, or awaited."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest

from tests.metalman.support.netboot_objects import ADDRESS, REDFISH, machine_body
from tests.metalman.support.netboot_site import World, netboot_site
from unbounded.api.core import CONFIG_MAPS
from unbounded.api.hardware import DiskFacts, DiskState, HardwareFacts
from unbounded.api.machine import MACHINES
from unbounded.metalman.http.ports import FileRejected, HardwareReport, NotReadyYet, OnDisk, Rendered
from unbounded.metalman.netboot.network_config import LARGEST_BYTES, NetworkConfigInvalid, check_network_config

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
        (b"[" * 10_000, "not YAML: "),
    ],
)
def test_what_cloud_init_would_not_apply_is_rejected(content: bytes, words: str) -> None:
    with pytest.raises(NetworkConfigInvalid, match=words) as caught:
        check_network_config(content, "here")
    assert str(caught.value).startswith("here: ")


@pytest.mark.parametrize("content", [CONTENT.encode(), b"version: 1\nconfig: []\n", b'{"version": 2}'])
def test_a_network_configuration_of_either_version_is_taken(content: bytes) -> None:
    check_network_config(content, "here")
