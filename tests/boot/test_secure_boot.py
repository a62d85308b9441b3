"""Firmware that trusts the keys of one site alone starts the signed installer and the signed disk, and nothing else."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import copy
import hashlib
import re
import socket
import subprocess
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from tests.boot.bench import MAC, bench
from tests.boot.rack import ADDRESS, MACHINE, MEDIA, SEEN, Rack, blank_disk, media_rack, rack, seen, static_network
from tests.boot.served import served
from tests.cli.running import KUBECTL
from tests.fetch.layers import files, from_layout, with_layer
from tests.fetch.registries import push
from tests.images.content import image as disk_image
from tests.images.content import packed
from tests.images.support import TOP
from tests.support.qemu import Firmware, Hardware, Segment
from tests.support.qemu.segment import ip
from tests.support.qemu.tools import built
from unbounded.api.names import API_VERSION
from unbounded.metalman.dhcp.model import Loader
from unbounded.metalman.redfish.bmc_interface import BootTarget

pytestmark = [pytest.mark.soak, pytest.mark.root, pytest.mark.timeout(3600)]

needs_kubectl = pytest.mark.skipif(KUBECTL is None, reason="kubectl is not installed")
INSTALLER: Final = "installer.efi"
LOADERS: Final = dict.fromkeys((Loader.HTTP, Loader.X64, Loader.ARM64), INSTALLER)
DENIES_S: Final = 300.0
STARTS_S: Final = 900.0
REPLACES_S: Final = 2400.0
HTTP_PORT: Final = 8880  # of metalman
IP_TRANSPARENT: Final = 19  # of linux/in.h
BY_HTTP: Final[Mapping[str, Any]] = {"bootProtocol": "HTTP"}


@pytest.fixture
def image(request: pytest.FixtureRequest) -> Path:
    """The signed image, with the keys of its site; `general-signed` has the drivers of real machines, `arm64-signed` is
    for Arm processors.
    """
    kind = getattr(request, "param", "signed")
    found = built(f"host-debian12-{kind}")
    if found is None:
        pytest.skip(f"the image is not built; scripts/host-image {kind} does")
    return found


def is_arm64(image: Path) -> bool:
    return image.name == "host-debian12-arm64-signed"


def other_keys(folder: Path) -> Path:
    subprocess.run([str(TOP / "images/site-keys"), str(folder)], check=True)
    return folder


def secure(
    image: Path,
    disk: Path | None = None,
    second: Path | None = None,
    *,
    keys: Path | None = None,
    has_bmc_drive: bool = False,
) -> Hardware:
    """A machine for the image, which trusts its keys or other ones."""
    return Hardware(
        mac=MAC,
        firmware=Firmware.ARM64 if is_arm64(image) else Firmware.SECURE,
        cpus=2 if is_arm64(image) else 1,
        site_keys=keys or image / "keys",
        disk=disk,
        second_disk=second,
        has_bmc_drive=has_bmc_drive,
        memory_mib=1024,
    )


MIRROR: Final[Mapping[str, Any]] = {
    "devices": [
        {
            "device": {},
            "partitions": [
                {"name": f"efi-{name}", "size": "200Mi", "partflags": ["esp"]},
                {"name": f"data-{name}", "size": 0, "partflags": ["raid"]},
            ],
        }
        for name in ("a", "b")
    ],
    "softRaidDevices": [
        {
            "name": "/dev/md0",
            "level": "raid1",
            "metadata": "1.0",
            "devices": [{"partition": "data-a"}, {"partition": "data-b"}],
        }
    ],
    "volumeGroups": [{"name": "system", "devices": [{"softRaidDevice": "/dev/md0"}]}],
    "logicalVolumes": [{"name": "root", "vg": "system", "size": 0, "type": "linear"}],
    "fileSystems": [
        {"fileSystem": "vfat", "partition": "efi-a", "mountPoint": "/boot/efi"},
        {"fileSystem": "vfat", "partition": "efi-b"},
        {"fileSystem": "ext4", "logicalVolume": "root", "mountPoint": "/"},
    ],
}


async def add_mirror(it: Rack, **more: Any) -> None:
    """Add the MachineProfile `mirror`, and let the Machine be laid out by it."""
    name = {"apiVersion": API_VERSION, "kind": "MachineProfile", "metadata": {"name": "mirror"}}
    await it.up.apply({**name, "spec": {**MIRROR, **more}})


@dataclass
class Attacker:
    url: str
    changed: int = 0


@asynccontextmanager
async def changing(net: Segment, path: str, old: bytes, new: bytes) -> AsyncIterator[Attacker]:
    """Pass requests on to metalman, from the address of the machine, and change its answers to a path with this end."""
    ip(f"rule add ipproto tcp sport {HTTP_PORT} lookup 100")
    ip(f"route add local {ADDRESS} dev lo table 100")  # what metalman answers comes back here

    async def connected() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        line = socket.socket()
        line.setsockopt(socket.SOL_IP, IP_TRANSPARENT, 1)
        line.setblocking(False)
        line.bind((ADDRESS, 0))
        await asyncio.get_running_loop().sock_connect(line, (net.address, HTTP_PORT))
        return await asyncio.open_connection(sock=line)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer), contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            head = await reader.readuntil(b"\r\n\r\n")
            sent = re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)
            body = await reader.readexactly(int(sent[1]) if sent else 0)
            upstream, request = await connected()
            with contextlib.closing(request):
                request.write(head + body)
                answer = await upstream.read()
            if head.split()[1].decode().endswith(path) and old in answer:
                made.changed += 1
                answer = answer.replace(old, new)
            writer.write(answer)
            await writer.drain()

    server = await asyncio.start_server(serve, net.address, 0)
    made = Attacker(f"http://{net.address}:{server.sockets[0].getsockname()[1]}")
    async with server:
        yield made


async def prepare(
    it: Rack, image: Path, keys: Path, pxe: Mapping[str, Any] = BY_HTTP, *, layer: bytes = b"", **spec: Any
) -> None:
    """Give metalman the key of statements, and the Machine the signed image, with one more layer if there is one."""
    key = base64.b64encode((keys / "statement.key").read_bytes()).decode()
    name = {"name": "metalman-statement-key", "namespace": "unbounded-kube"}
    await it.up.apply({"apiVersion": "v1", "kind": "Secret", "metadata": name, "data": {"statement.key": key}})
    pushed = from_layout(image / "oci")
    await push(it.registry, "images/signed", "v1", with_layer(pushed, layer) if layer else pushed)
    architecture = {"architecture": "arm64"} if is_arm64(image) else {}
    await it.add_machine("images/signed:v1", pxe=architecture | dict(pxe), **spec)


@needs_kubectl
@pytest.mark.parametrize("image", ["signed", "general-signed", "arm64-signed"], indirect=True)
async def test_a_signed_installer_and_its_disk_start(net: Segment, image: Path, tmp_path: Path) -> None:
    disk = blank_disk(tmp_path, 5 << 30)
    async with rack(secure(image, disk), net, tmp_path) as it:
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
    async with rack(secure(image, disk), net, tmp_path) as it:
        await prepare(it, image, other_keys(tmp_path / "other"))
        await it.ask("HostReplace")
        await it.machine.shows("an answer that the site has not signed", within_s=STARTS_S)
        await it.machine.shows("the installation failed", within_s=STARTS_S)
        assert disk.stat().st_blocks == 0


@needs_kubectl
async def test_a_signed_installer_writes_no_disk_image_of_another_build(
    net: Segment, image: Path, tmp_path: Path
) -> None:
    """The registry has another disk image beside the installer, and metalman signs that."""
    disk, other = blank_disk(tmp_path, 5 << 30), packed(disk_image(), "zst")
    digest = hashlib.sha256(other).hexdigest()
    changed = {
        "disk.img.zst": other,
        "disk.img.zst.sha256": f"{digest}  disk.img.zst\n".encode(),
        "metadata.yaml": f"dhcpBootImageName: {INSTALLER}\ndiskImageSHA256: {digest}\n".encode(),
    }
    layer = files({f"disk/{name}": content for name, content in changed.items()})
    async with rack(secure(image, disk), net, tmp_path) as it:
        await prepare(it, image, image / "keys", layer=layer)
        await it.ask("HostReplace")
        status = await it.ended("HostReplace", within_s=REPLACES_S)
        assert status["phase"] == "Failed", status
        assert f"disk.img.zst has the SHA-256 {digest}, and the signed installer was built with" in status["message"]
        assert disk.stat().st_blocks == 0


@needs_kubectl
async def test_a_signed_system_starts_from_a_layout_also_without_a_disk(
    net: Segment, image: Path, tmp_path: Path
) -> None:
    """The kernel that was signed once finds the root file system of this layout, on LVM on RAID 1."""
    first, second = (blank_disk(tmp_path, 5 << 30, name) for name in ("first", "second"))
    async with rack(secure(image, first, second), net, tmp_path) as it:
        await prepare(it, image, image / "keys", {**BY_HTTP, "profileRef": {"name": "mirror"}})
        await add_mirror(it)
        await it.ask("HostReplace")
        status = await it.ended("HostReplace", within_s=REPLACES_S)
        assert status["phase"] == "Complete", status
        assert seen(status) >= SEEN
        assert it.machine.boots == ["UefiHttp", "Hdd"]
        machine = await it.up.get("machine", MACHINE)
        assert machine["status"]["hardware"]["firmware"]["secureBoot"] is True
        assert len(machine["status"]["layout"]["disks"]) == 2
        await it.ask("HostPowerOff")
        await it.ended("HostPowerOff", within_s=STARTS_S)
        it.machine.hardware = secure(image, second)
        since = len(it.machine.console())
        await it.ask("HostPowerOn")
        await it.machine.shows("login:", within_s=STARTS_S, since=since)


@needs_kubectl
async def test_a_layout_that_was_changed_on_the_way_is_not_written(net: Segment, image: Path, tmp_path: Path) -> None:
    """An attacker between the machine and metalman makes a stripe of the mirror, and passes all else on."""
    first, second = (blank_disk(tmp_path, 5 << 30, name) for name in ("first", "second"))
    hardware = secure(image, first, second, has_bmc_drive=True)
    async with (
        changing(net, "/layout", b" 1 1.0 ", b" 0 1.0 ") as attacker,
        media_rack(hardware, net, tmp_path, "--pxe-serve-url", attacker.url) as it,
    ):
        await prepare(
            it, image, image / "keys", {**MEDIA, "profileRef": {"name": "mirror"}}, network=static_network(net, MAC)
        )
        await add_mirror(it)
        await it.ask("HostReplace")
        status = await it.ended("HostReplace", within_s=REPLACES_S)
        assert status["phase"] == "Failed", status
        assert "an answer that the site has not signed; nothing was written" in status["message"]
        assert attacker.changed > 1
        assert first.stat().st_blocks == second.stat().st_blocks == 0


@needs_kubectl
async def test_kernel_parameters_that_are_not_signed_are_refused(net: Segment, image: Path, tmp_path: Path) -> None:
    first, second = (blank_disk(tmp_path, 5 << 30, name) for name in ("first", "second"))
    async with rack(secure(image, first, second), net, tmp_path) as it:
        await prepare(it, image, image / "keys", {**BY_HTTP, "profileRef": {"name": "mirror"}})
        await add_mirror(it, grubConfig={"defaultGrubOptions": ['GRUB_CMDLINE_LINUX="quiet"']})
        await it.ask("HostReplace")
        status = await it.ended("HostReplace", within_s=STARTS_S)
        assert (status["phase"], status["reason"]) == ("Failed", "ProfileInvalid"), status
        assert "spec.grubConfig.defaultGrubOptions[0]: a signed image starts with" in status["message"]
        assert it.machine.boots == []
        assert first.stat().st_blocks == second.stat().st_blocks == 0


@needs_kubectl
async def test_a_layout_without_room_for_the_signed_kernel_is_refused(
    net: Segment, image: Path, tmp_path: Path
) -> None:
    first, second = (blank_disk(tmp_path, 5 << 30, name) for name in ("first", "second"))
    async with rack(secure(image, first, second), net, tmp_path) as it:
        await prepare(it, image, image / "keys", {**BY_HTTP, "profileRef": {"name": "mirror"}})
        devices = copy.deepcopy(MIRROR["devices"])
        devices[1]["partitions"][0]["size"] = "20Mi"
        await add_mirror(it, devices=devices)
        await it.ask("HostReplace")
        status = await it.ended("HostReplace", within_s=REPLACES_S)
        assert status["phase"] == "Failed", status
        assert "spec.devices[1].partitions[0].size: the loader of this image has " in status["message"]
        assert "and the partition has 20Mi" in status["message"]
        assert first.stat().st_blocks == second.stat().st_blocks == 0


@needs_kubectl
@pytest.mark.parametrize("image", ["signed", "general-signed", "arm64-signed"], indirect=True)
async def test_a_signed_installer_starts_from_virtual_media_without_dhcp(
    net: Segment, image: Path, tmp_path: Path
) -> None:
    """The words of the boot lie beside the signed program; what they lead to is believed by its signature alone."""
    hardware = secure(image, blank_disk(tmp_path, 5 << 30), has_bmc_drive=True)
    async with media_rack(hardware, net, tmp_path) as it:
        await prepare(it, image, image / "keys", MEDIA, network=static_network(net, MAC))
        await it.ask("HostReplace")
        status = await it.ended("HostReplace", within_s=REPLACES_S)
        assert status["phase"] == "Complete", status
        assert seen(status) >= SEEN - {"the host fetched its boot loader"}
        assert it.machine.boots == ["Cd", "Hdd"]
        machine = await it.up.get("machine", MACHINE)
        assert machine["status"]["hardware"]["firmware"]["secureBoot"] is True
        assert it.bmc.bmc.systems[0].image is None


@needs_kubectl
async def test_virtual_media_of_a_site_with_another_key_changes_nothing(
    net: Segment, image: Path, tmp_path: Path
) -> None:
    disk = blank_disk(tmp_path, 5 << 30)
    async with media_rack(secure(image, disk, has_bmc_drive=True), net, tmp_path) as it:
        await prepare(it, image, other_keys(tmp_path / "other"), MEDIA, network=static_network(net, MAC))
        await it.ask("HostReplace")
        await it.machine.shows("an answer that the site has not signed", within_s=STARTS_S)
        await it.machine.shows("the installation failed", within_s=STARTS_S)
        assert disk.stat().st_blocks == 0


@pytest.mark.parametrize("image", ["signed", "arm64-signed"], indirect=True)
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
    async with (
        served(net, MAC, {INSTALLER: bytes(program)}, tmp_path / "served", LOADERS) as it_has,
        bench(secure(image, keys=keys), net, tmp_path / "machine") as it,
    ):
        await it.power_on(BootTarget.UEFI_HTTP)
        await it.machine.shows("Access Denied", within_s=DENIES_S)
        assert "Linux" not in it.machine.console()
    assert it_has.by_http == [INSTALLER]
