"""Firmware that trusts the keys of one site alone starts the signed installer and the signed disk, and nothing else."""

from __future__ import annotations

import base64
import subprocess
from pathlib import Path
from typing import Final

import pytest

from tests.boot.bench import MAC, bench
from tests.boot.rack import MACHINE, SEEN, Rack, blank_disk, rack, seen
from tests.boot.served import served
from tests.cli.running import KUBECTL
from tests.fetch.layers import from_layout
from tests.fetch.registries import push
from tests.images.support import TOP
from tests.support.qemu import Firmware, Hardware, Segment
from tests.support.qemu.tools import built
from unbounded.metalman.dhcp.model import Loader
from unbounded.metalman.redfish.bmc_interface import BootTarget

pytestmark = [pytest.mark.soak, pytest.mark.root, pytest.mark.timeout(3600)]

needs_kubectl = pytest.mark.skipif(KUBECTL is None, reason="kubectl is not installed")
INSTALLER: Final = "installer.efi"
LOADERS: Final = {Loader.HTTP: INSTALLER, Loader.X64: INSTALLER}
DENIES_S: Final = 300.0
STARTS_S: Final = 900.0
REPLACES_S: Final = 2400.0


@pytest.fixture
def image() -> Path:
    """The signed image, with the keys of its site."""
    found = built("host-debian12-signed")
    if found is None:
        pytest.skip("the signed image of Debian is not built; scripts/host-image signed does")
    return found


def other_keys(folder: Path) -> Path:
    subprocess.run([str(TOP / "images/site-keys"), str(folder)], check=True)
    return folder


def secure(keys: Path, disk: Path | None = None) -> Hardware:
    return Hardware(mac=MAC, firmware=Firmware.SECURE, site_keys=keys, disk=disk, memory_mib=1024)


async def prepare(it: Rack, image: Path, keys: Path) -> None:
    """Give metalman the key of statements, and the Machine the signed image."""
    key = base64.b64encode((keys / "statement.key").read_bytes()).decode()
    name = {"name": "metalman-statement-key", "namespace": "unbounded-kube"}
    await it.apply({"apiVersion": "v1", "kind": "Secret", "metadata": name, "data": {"statement.key": key}})
    await push(it.registry, "images/signed", "v1", from_layout(image / "oci"))
    await it.add_machine("images/signed:v1", pxe={"bootProtocol": "HTTP"})


@needs_kubectl
async def test_a_signed_installer_and_its_disk_start(net: Segment, image: Path, tmp_path: Path) -> None:
    disk = blank_disk(tmp_path, 5 << 30)
    async with rack(secure(image / "keys", disk), net, tmp_path) as it:
        await prepare(it, image, image / "keys")
        await it.ask("HostReplace")
        status = await it.ended("HostReplace", within_s=REPLACES_S)
        assert status["phase"] == "Complete", status
        assert seen(status) >= SEEN
        assert it.machine.boots == ["UefiHttp", "Hdd"]
        machine = await it.up.get("machine", MACHINE)
        assert machine["status"]["hardware"]["firmware"]["secureBoot"] is True


@needs_kubectl
async def test_nothing_is_written_that_the_site_has_not_signed(net: Segment, image: Path, tmp_path: Path) -> None:
    disk = blank_disk(tmp_path, 5 << 30)
    async with rack(secure(image / "keys", disk), net, tmp_path) as it:
        await prepare(it, image, other_keys(tmp_path / "other"))
        await it.ask("HostReplace")
        await it.machine.shows("an answer that the site has not signed", within_s=STARTS_S)
        await it.machine.shows("the installation failed", within_s=STARTS_S)
        assert disk.stat().st_blocks == 0


@pytest.mark.parametrize("change", ["command line", "initrd", "other keys"])
async def test_a_changed_installer_does_not_start(net: Segment, image: Path, tmp_path: Path, change: str) -> None:
    program = bytearray((image / "disk" / INSTALLER).read_bytes())
    keys = image / "keys"
    match change:
        case "command line":
            at = program.index(b"panic=30 ")
            program[at : at + 9] = b"panic=31 "
        case "initrd":
            program[len(program) * 3 // 4] ^= 1
        case _:
            keys = other_keys(tmp_path / "other")
    files = {INSTALLER: bytes(program)}
    async with (
        served(net, MAC, files, tmp_path / "served", LOADERS) as it_has,
        bench(secure(keys), net, tmp_path / "machine") as it,
    ):
        await it.power_on(BootTarget.UEFI_HTTP)
        await it.machine.shows("Access Denied", within_s=DENIES_S)
        assert "Linux" not in it.machine.console()
    assert it_has.by_http == [INSTALLER]
