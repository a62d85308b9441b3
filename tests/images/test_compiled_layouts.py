"""Layouts as metalman compiles them, judged by the installer and by sfdisk, and installed from its own HTTP side."""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from prometheus_client import CollectorRegistry

from tests.images.initrd_tools import install_tools, unpacked_initrd
from tests.images.loops import loop_devices, mounted
from tests.images.support import INSTALLER, Host, busybox
from tests.images.test_layout_disks import DISK_MIB, Laid, blkid, laid_on, rootfs, table
from tests.metalman.layout.support import compiled, disk, lines, profile
from tests.metalman.layout.test_compiler import WHOLE
from tests.metalman.support.netboot_objects import lease, machine_body
from tests.metalman.support.netboot_site import LOADERS, netboot_site, put
from unbounded.api.machine import MACHINES
from unbounded.api.profile import MACHINE_PROFILES, MachineProfileSpec
from unbounded.metalman.http.server import HttpServer, HttpServerSettings
from unbounded.metalman.layout.model import DiskLayout
from unbounded.metalman.netboot.model import BootImages, NetbootImage

SCRIPTED: Final = profile(
    grubConfig={"defaultGrubOptions": ['GRUB_CMDLINE_LINUX="console=ttyS1,115200n8 quiet"', "GRUB_TIMEOUT=3"]},
    kernelParameters={
        "sysctl": {"vm.swappiness": "1"},
        "modules": [{"filename": "a.conf", "content": "options a b=1"}],
    },
    fileSystems__3__opts="-L data",
    softRaidDevices__0__metadata="1.2",
)


def both(spec: MachineProfileSpec, first: str = "sda", second: str = "sdc", gib: float = 16) -> DiskLayout:
    """Compile a profile for a disk with sectors of 512 bytes and one with 4096."""
    return compiled(spec, disk(first, gib=gib), disk(second, gib=gib, sector_bytes=4096))


@pytest.mark.parametrize("spec", [profile(), SCRIPTED, profile(WHOLE)], ids=["mirror", "scripted", "whole"])
def test_the_installer_finds_no_fault_in_a_compiled_layout(spec: MachineProfileSpec, tmp_path: Path) -> None:
    text = tmp_path / "layout"
    made = both(spec)
    text.write_text(made.text)
    check = [busybox(), "awk", "-f", str(INSTALLER / "layout.awk"), str(text)]
    assert subprocess.run(check, capture_output=True, text=True, check=False).stdout == ""
    text.write_text(made.text.replace("\nend\n", "\n"))
    assert "cut off" in subprocess.run(check, capture_output=True, text=True, check=False).stdout


@pytest.fixture(scope="module")
def initrd(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpacked_initrd(tmp_path_factory.mktemp("initrd") / "initrd")


@pytest.mark.slow
@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="loop devices need root")
@pytest.mark.parametrize("sector", [512, 4096])
def test_sfdisk_makes_the_compiled_partitions(initrd: Path, tmp_path: Path, sector: int) -> None:
    host = Host(tmp_path / "host")
    install_tools(host, initrd)
    made = both(profile(WHOLE))
    (one,) = (each for each in made.disks if each.disk.sector_bytes == sector)
    wanted = [words[1:] for words in lines(made, "partition") if words[0] == one.id]
    script = "label: gpt\n" + "".join(
        f'{number} : start={start}, size={size}, type={kind}, uuid={uuid}, name="{name}"\n'
        for number, start, size, kind, uuid, name in wanted
    )
    file = tmp_path / "disk"
    with file.open("wb") as sparse:
        sparse.truncate(one.disk.size_bytes or 0)
    with loop_devices() as attach:
        device = attach(file, "--sector-size", str(sector))
        ran = subprocess.run(
            [host.command("sfdisk"), "--no-reread", device], input=script, capture_output=True, text=True, check=False
        )
        assert ran.returncode == 0, ran.stderr
        found = table(host, device)
    assert found == [(int(start), int(size), kind, uuid, name) for _, start, size, kind, uuid, name in wanted]


@pytest.fixture
def laid(tmp_path: Path, initrd: Path) -> Iterator[Laid]:
    with laid_on(tmp_path / "laid", initrd, "ext4", DISK_MIB) as made:
        yield made


def two_disks(*devices: str) -> dict[str, Any]:
    """Return a profile for two small disks: the root file system on one, data and swap on the other."""
    esp = [{"name": f"efi-{at}", "size": "40Mi", "partflags": ["esp"]} for at in range(2)]
    first, second = ({"byName": Path(device).name} for device in devices)
    return {
        "devices": [
            {"device": first, "partitions": [esp[0], {"name": "root", "size": 0}]},
            {"device": second, "partitions": [esp[1], {"name": "swap", "size": "8Mi"}, {"name": "data", "size": 0}]},
        ],
        "fileSystems": [
            {"fileSystem": "vfat", "partition": "efi-0", "mountPoint": "/boot/efi"},
            {"fileSystem": "vfat", "partition": "efi-1"},
            {"fileSystem": "ext4", "partition": "root", "mountPoint": "/"},
            {"fileSystem": "ext4", "partition": "data", "mountPoint": "/var/lib/data", "opts": "-L data"},
            {"fileSystem": "swap", "partition": "swap"},
        ],
        "kernelParameters": {"sysctl": {"kernel.panic": "10"}},
    }


@pytest.mark.slow
@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="loop devices and mounts need root")
async def test_the_installer_and_metalman_install_a_profile_twice(laid: Laid, tmp_path: Path) -> None:
    first, second = laid.devices
    async with netboot_site(tmp_path / "site") as world:
        await world.api.create(MACHINE_PROFILES, {"metadata": {"name": "two"}, "spec": two_disks(first, second)})
        archive = put(tmp_path / "image", {"rootfs.tar.zst": rootfs()})
        digest = hashlib.sha256((archive / "rootfs.tar.zst").read_bytes()).hexdigest()
        put(archive, {"rootfs.tar.zst.sha256": f"{digest}  rootfs.tar.zst\n"})
        netboot = NetbootImage(tmp_path / "site/netboot/disk", "sha256:1")
        world.images.said = BootImages(netboot, NetbootImage(archive, "sha256:2"), LOADERS)
        made = await world.machine(machine_body(leases=[lease("127.0.0.1")], pxe={"profileRef": {"name": "two"}}))
        async with HttpServer(HttpServerSettings("127.0.0.1", 0), world.site, CollectorRegistry()).serving() as server:
            for name, state in (("replace", "Blank"), ("again", "Own")):
                await world.replace(name=name)
                assert await install(laid, made.metadata.uid, world.prefix(), server.port) == 0
                machine = await world.api.get(MACHINES, "m1")
                assert machine.status.netboot is not None
                assert machine.status.netboot.milestone == "ImageWritten", machine.status.netboot.message
                assert machine.status.hardware is not None
                assert {one.state for one in machine.status.hardware.disks} == {state}
                await world.stage("WaitingLoader", name=name, phase="Complete")
    assert machine.status.layout is not None
    assert machine.status.layout.profile == "two"
    assert [part[4] for part in table(laid.host, first)] == ["efi-0", "root"]
    assert [part[4] for part in table(laid.host, second)] == ["efi-1", "swap", "data"]
    (root,) = blkid(f"{first}p2", "UUID")
    assert blkid(f"{second}p3", "TYPE", "LABEL") == ["ext4", "data"]
    assert blkid(f"{second}p2", "TYPE") == ["swap"]
    with mounted(f"{first}p2", tmp_path / "installed") as installed:
        assert (installed / "etc/fstab").read_text().startswith(f"UUID={root} / ext4 errors=remount-ro 0 1\n")
        assert (installed / "etc/sysctl.d/90-unbounded-profile.conf").read_text() == "kernel.panic = 10\n"
    assert laid.esp(f"{second}p1")["EFI/BOOT/BOOTX64.EFI"] == "shim"


async def install(laid: Laid, uid: str, prefix: str, port: int) -> int:
    """Run the installer; return its exit code."""
    laid.host.arguments = {
        "machine_uid": uid,
        "machine": "m1",
        "serve_url": f"http://127.0.0.1:{port}/boot/{prefix}",
    }
    parts = laid.host.root / "lib"
    code, out = await laid.host.sh(
        f". {parts}/install", INSTALLER=str(parts), SYS="/sys", DEV="/dev", DISKS_SINCE="-1000"
    )
    assert code == 0, out
    return code
