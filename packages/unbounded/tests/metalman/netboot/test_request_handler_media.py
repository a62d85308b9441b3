"""Images of virtual media of a site: the boots and clients that get one, and its content."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pytest

from tests.metalman.media.support import whole
from tests.metalman.support.netboot_site import NETBOOT_FILES, World, netboot_site
from unbounded.api.machine import MACHINES
from unbounded.metalman.http.boot_service import FileRejected, ProgressReport, Rendered
from unbounded.metalman.media.image import MediaImage
from unbounded.metalman.media.tickets import MediaUrls, PresentedTicket, TicketKey, presented_ticket
from unbounded.metalman.netboot import media_content

BMC: Final = "192.0.2.7"
HOST: Final = "10.0.0.50"
MAC: Final = "52:54:00:00:00:01"
NOW: Final = datetime(2030, 1, 1, tzinfo=UTC)
GRUB: Final = (
    "linux /vmlinuz url={{.ServeURL}}{{range .Machine.Spec.PXE.DHCPLeases}} "
    "lease={{.MAC}},{{.IPv4}},{{.SubnetMask}},{{.Gateway}}{{end}}\n"
)
FILES: Final = {**NETBOOT_FILES, "grub/grub.cfg.tmpl": GRUB}
NETWORK: Final = {
    "ethernets": [{"name": "a", "mac": MAC}],
    "bonds": [
        {
            "name": "bond0",
            "interfaces": ["a"],
            "parameters": {"mode": "active-backup"},
            "addresses": ["2001:db8::5/64", f"{HOST}/24"],
            "routes": [{"to": "default", "via": "10.0.0.1"}],
        }
    ],
}


def body(**pxe: Any) -> dict[str, Any]:
    reference = {"name": "bmc", "namespace": "unbounded-kube"}
    redfish = {"url": f"https://{BMC}", "username": "admin", "passwordRef": reference}
    spec = {"pxe": {"image": "registry/host:v1", "bootMode": "VirtualMedia", "redfish": redfish, **pxe}}
    return {"metadata": {"name": "m1"}, "spec": {**spec, "network": NETWORK}}


def urls(lifetime: timedelta = timedelta(hours=1)) -> MediaUrls:
    found = MediaUrls("https://media.example:8443", lifetime, lambda: NOW)
    found.open(TicketKey(bytes(32)))
    return found


def ticket(boot: str, uid: str, *, issuer: MediaUrls | None = None, address: str = BMC) -> PresentedTicket:
    found = presented_ticket(
        (issuer or urls()).issue("m1", uid, boot, address).removeprefix("https://media.example:8443")
    )
    assert found is not None
    return found


async def booting(world: World, stage: str = "SettingBoot", **pxe: Any) -> tuple[str, str]:
    """Have a HostReplace in a stage; gives its UID, and that of its Machine."""
    machine = await world.machine(body(**pxe))
    return await world.replace(stage=stage), machine.metadata.uid


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(media_content, "OPEN_S", 0.2)


async def image(world: World, found: PresentedTicket, client: str = BMC) -> MediaImage | None:
    return await world.site.media.image(client, found)


@pytest.mark.parametrize(
    ("stage", "is_open"),
    [
        ("WaitingImage", False), ("ShuttingDown", False), ("SettingBoot", True), ("SettingBootToStay", True),
        ("WaitingOn", True), ("WaitingLoader", True), ("SettingBootAgain", True), ("WaitingInstaller", True),
        ("ClearingBoot", False), ("Undoing", False), ("CleaningUp", False),
    ],
)  # fmt: skip
async def test_an_image_is_there_while_its_boot_may_need_it(tmp_path: Path, stage: str, is_open: bool) -> None:
    async with netboot_site(tmp_path, now=lambda: NOW, files=FILES) as world:
        boot, uid = await booting(world, stage)
        assert (await image(world, ticket(boot, uid)) is not None) is is_open


async def test_another_address_boot_machine_or_time_gets_no_image(tmp_path: Path) -> None:
    async with netboot_site(tmp_path, now=lambda: NOW, files=FILES) as world:
        boot, uid = await booting(world)
        assert await image(world, ticket(boot, uid)) is not None
        assert await image(world, ticket(boot, uid), client="192.0.2.8") is None
        assert await image(world, ticket("an-earlier-boot", uid)) is None
        assert await image(world, ticket(boot, "an-earlier-machine")) is None
        assert await image(world, ticket(boot, uid, issuer=urls(timedelta(seconds=-1)))) is None
        await world.stage("WaitingLoader", phase="Failed")
        assert await image(world, ticket(boot, uid)) is None


async def test_a_machine_that_boots_from_the_network_has_no_image(tmp_path: Path) -> None:
    async with netboot_site(tmp_path, now=lambda: NOW, files=FILES) as world:
        boot, uid = await booting(world, "WaitingLoader", bootMode="Network")
        assert await image(world, ticket(boot, uid)) is None


async def test_an_image_that_may_be_inserted_stays_after_a_change_of_mode(tmp_path: Path) -> None:
    async with netboot_site(tmp_path, now=lambda: NOW, files=FILES) as world:
        boot, uid = await booting(world, "WaitingLoader", bootMode="Network")
        status = {"redfish": {"mediaBoot": boot}}
        await world.api.patch(MACHINES, "m1", {"status": status}, subresource="status")
        await world.caught_up()
        assert await image(world, ticket(boot, uid)) is not None


async def test_a_request_that_comes_before_the_stage_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(media_content, "OPEN_S", 60.0)
    async with netboot_site(tmp_path, now=lambda: NOW, files=FILES) as world:
        boot, uid = await booting(world, "ShuttingDown")
        asked = asyncio.create_task(image(world, ticket(boot, uid)))
        await asyncio.sleep(0.02)
        await world.stage("SettingBoot")
        assert await asked is not None


async def test_the_configuration_has_the_installer_address_of_the_network(tmp_path: Path) -> None:
    async with netboot_site(tmp_path, now=lambda: NOW, files=FILES) as world:
        boot, uid = await booting(world)
        made = await image(world, ticket(boot, uid))
        assert made is not None
        content = whole(made)
        line = f"linux /vmlinuz url={world.site.url('m1')} lease={MAC},{HOST},255.255.255.0,10.0.0.1\n"
        assert line.encode() in content
        assert b"the kernel" in content
        assert b"of the host image" not in content
        assert await image(world, ticket(boot, uid)) is made


async def test_neither_an_address_nor_dhcp_gives_such_a_host_a_file(tmp_path: Path) -> None:
    async with netboot_site(tmp_path, now=lambda: NOW, files=FILES) as world:
        await booting(world, "WaitingLoader")
        assert isinstance(await world.site.file(HOST, None, "grub/grub.cfg"), FileRejected)
        client = world.site.reservations.client(MAC)
        assert getattr(client, "boot", None) is None


async def test_the_installer_reports_from_its_address_and_a_second_one_ends_the_boot(tmp_path: Path) -> None:
    async with netboot_site(tmp_path, now=lambda: NOW, files=FILES) as world:
        await booting(world, "WaitingLoader")
        prefix = world.prefix()
        assert (
            await world.site.progress(HOST, prefix, ProgressReport(stage="Starting", message="it runs"))
        ).code == 200
        assert isinstance(await world.site.file(HOST, prefix, "grub/grub.cfg"), Rendered)
        seen = (await world.status()).status.netboot
        assert seen is not None
        assert seen.milestone == "InstallerStarted"
        assert (
            await world.site.progress("10.0.0.66", prefix, ProgressReport(stage="Starting", message="another"))
        ).code == 409


async def test_an_image_that_cannot_be_made_is_a_message_of_the_boot(tmp_path: Path) -> None:
    files = {name: text for name, text in FILES.items() if name != "vmlinuz" and name != "initrd"}
    async with netboot_site(tmp_path, now=lambda: NOW, files=files) as world:
        boot, uid = await booting(world)
        assert await image(world, ticket(boot, uid)) is None
        seen = (await world.status()).status.netboot
        assert seen is not None
        assert seen.message == "cannot make the boot image: the netboot image has no kernel in its first folder"


async def test_signed_image_has_the_words_of_the_boot_beside_its_program(tmp_path: Path) -> None:
    signed = {**NETBOOT_FILES, "statement.tmpl": GRUB}
    async with netboot_site(tmp_path, now=lambda: NOW, files=signed) as world:
        boot, uid = await booting(world)
        made = await image(world, ticket(boot, uid))
        assert made is not None
        content = whole(made)
        line = f"linux /vmlinuz url={world.site.url('m1')} lease={MAC},{HOST},255.255.255.0,10.0.0.1\n"
        assert line.encode() in content
        assert b"the kernel" not in content
