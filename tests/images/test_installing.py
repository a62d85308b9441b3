"""The installer on real block devices: what it writes has partitions, and on one of them cloud-init's seed."""

from __future__ import annotations

import hashlib
import os
import struct
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.images.content import FOREIGN, MIB, SECTOR, TABLE, packed, put
from tests.images.loops import Attach, Disk, loop_devices, loop_disk, planted, system, that_takes_loops
from tests.images.support import TOP, UID, Host, needed, site
from unbounded.metalman.disk_choice import DiskSelection

pytestmark = [
    pytest.mark.slow,
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="loop devices and mounts need root"),
]

AGENT = "unbounded-agent"
LARGE = 4096  # bytes of a sector of a 4Kn disk


@pytest.fixture
def host(tmp_path: Path) -> Host:
    for tool in ("blkid", "zstd"):
        needed(tool)
    needed("nc.openbsd", "scripts/net-tools gets it")
    return Host(tmp_path / "host")


@pytest.fixture
def attach() -> Iterator[Attach]:
    with loop_devices() as made:
        yield made


@pytest.fixture
def disk(host: Host, tmp_path: Path, attach: Attach) -> Disk:
    return loop_disk(host, tmp_path, attach)


def debugfs(part: Path, command: str) -> str:
    ran = subprocess.run([needed("debugfs"), "-R", command, str(part)], capture_output=True, text=True, check=False)
    return ran.stdout + ran.stderr


async def install(
    host: Host,
    disk: Disk,
    data: bytes,
    *,
    part: str = "installed",
    kept: float = 1.0,
    agent: bytes | None = None,
    said: bytes | None = None,
) -> tuple[int, list[str], dict[str, str]]:
    """Install; return the exit code, the reported failures, and the disk's content besides the image, if there is any.

    Args:
        kept: the existing share of the packed image.
        agent: the image has it; said: the content of its expected digest.
    """
    async with site() as where:
        where.selection = DiskSelection(target=f"/dev/{disk.name}")
        if agent is not None:
            digest = hashlib.sha256(agent if said is None else said).hexdigest()
            where.files |= {AGENT: agent, f"{AGENT}.sha256": f"{digest}  {AGENT}\n".encode()}
        whole = packed(data, "zst")
        where.image(whole[: int(len(whole) * kept)], "disk.img.zst")
        code, out = await host.install(where, INSTALLER=str(that_takes_loops(host)))
        failures = [f"{one['stage']}: {one['message']}" for one in where.reports if one["failed"]]
        assert (code == 0) == (where.disabled == 1), out
        if code == 0:
            assert where.reports[-1]["stage"] == "Written"
            assert where.reports[-1]["percent"] == 100
        return code, failures, planted(disk.part, host.root / part) if code == 0 else {}


async def test_an_installed_disk_has_its_partitions_and_the_seed(host: Host, disk: Disk, tmp_path: Path) -> None:
    code, failures, there = await install(host, disk, system(tmp_path))
    assert (code, failures) == (0, [])
    assert there == {
        "etc/cloud/cloud.cfg.d/99-unbounded-seed.cfg": "datasource_list: [ NoCloud, None ]\n",
        **{f"var/lib/cloud/seed/nocloud/{name}": f"{name}\n" for name in ("meta-data", "user-data", "vendor-data")},
    }


async def test_the_agent_of_the_image_is_put_where_it_is_started_from(host: Host, disk: Disk, tmp_path: Path) -> None:
    agent = b"#!/bin/sh\n" + b"# and so on\n" * 50_000
    code, failures, there = await install(host, disk, system(tmp_path), agent=agent)
    assert (code, failures) == (0, [])
    assert there[f"usr/local/bin/{AGENT}"] == agent.decode()
    assert "Mode:  0755" in debugfs(disk.part, f"stat /usr/local/bin/{AGENT}")


async def test_agent_with_a_wrong_digest_fails_before_the_disk_is_written(
    host: Host, disk: Disk, tmp_path: Path
) -> None:
    before = Path("/dev", disk.name).read_bytes()
    code, failures, _ = await install(host, disk, system(tmp_path), agent=b"changed", said=b"meant")
    assert code == 1
    wrong, right = (hashlib.sha256(one).hexdigest() for one in (b"changed", b"meant"))
    assert failures == [f"Preparing: {AGENT} has the SHA-256 {wrong}, and {AGENT}.sha256 says {right}"]
    assert Path("/dev", disk.name).read_bytes() == before


@pytest.mark.parametrize("other", ["", "disk.img.zst", AGENT])
async def test_a_signed_installer_writes_the_files_alone_that_it_was_built_with(
    host: Host, disk: Disk, tmp_path: Path, other: str
) -> None:
    """metalman and the registry agree on the others."""
    before = Path("/dev", disk.name).read_bytes()
    data, agent = system(tmp_path), b"#!/bin/sh\n"
    digests = {name: hashlib.sha256(content).hexdigest() for name, content in
               (("disk.img.zst", packed(data, "zst")), (AGENT, agent))}  # fmt: skip
    expected = digests | ({other: "0" * 64} if other else {})
    host.expects(expected)
    code, failures, _ = await install(host, disk, data, agent=agent)
    if not other:
        assert (code, failures) == (0, [])
        return
    assert code == 1
    assert failures[0].startswith(f"Preparing: {other} has the SHA-256 {digests[other]}, and the signed installer was ")
    assert Path("/dev", disk.name).read_bytes() == before


async def test_host_reimages_its_own_install_and_rejects_another_machines(
    host: Host, disk: Disk, tmp_path: Path
) -> None:
    data = system(tmp_path)
    assert (await install(host, disk, data))[0] == 0
    assert (await install(host, disk, data, part="again"))[:2] == (0, [])
    host.arguments["machine_uid"] = UID.replace("0b5e", "ffff")
    code, failures, _ = await install(host, disk, data)
    assert code == 1
    assert failures[0].startswith(f"ChoosingDisk: targetDisk /dev/{disk.name} holds data of others; ")
    assert f"installed for Machine rack1-01 with UID {UID}" in failures[0]


async def test_an_image_without_cloud_init_is_found_out(host: Host, disk: Disk, tmp_path: Path) -> None:
    code, failures, _ = await install(host, disk, system(tmp_path, cloud_init=False))
    assert code == 1
    assert failures == ["Seeding: the image has no partition with cloud-init (no /etc/cloud)"]
    assert Path("/dev", disk.name).read_bytes()[:SECTOR] == bytes(SECTOR)  # and starts nothing without a seed


async def test_a_truncated_image_leaves_no_disk_that_starts(host: Host, disk: Disk, tmp_path: Path) -> None:
    code, failures, _ = await install(host, disk, system(tmp_path), kept=0.6)
    assert code == 1
    assert failures[0].startswith("Writing: the image could not be unpacked")
    assert Path("/dev", disk.name).read_bytes()[:SECTOR] == bytes(SECTOR)


async def test_image_larger_than_the_disk_is_rejected_before_erasure(host: Host, disk: Disk, tmp_path: Path) -> None:
    before = Path("/dev", disk.name).read_bytes()
    code, failures, _ = await install(host, disk, system(tmp_path) + bytes(30 * MIB))
    assert code == 1
    assert failures[0].startswith(f"ChoosingDisk: targetDisk /dev/{disk.name} cannot be written; ")
    assert f"{disk.name} (41 MB): too small for the image, which has 48 MB" in failures[0]
    assert Path("/dev", disk.name).read_bytes() == before


async def test_too_large_compressed_image_is_rejected_before_erasure(host: Host, disk: Disk, tmp_path: Path) -> None:
    """gzip does not have the size. A former fault: the disk was erased before it was found to be too small."""
    before, data = Path("/dev", disk.name).read_bytes(), system(tmp_path) + bytes(30 * MIB)
    async with site() as where:
        where.selection = DiskSelection(target=f"/dev/{disk.name}")
        where.image(packed(data, "gz"), "disk.img.gz")
        where.files["disk.img.gz.size"] = f"{len(data)}\n".encode()
        code, _ = await host.install(where, INSTALLER=str(that_takes_loops(host)))
    (failed,) = (one for one in where.reports if one["failed"])
    assert code == 1
    assert failed["stage"] == "ChoosingDisk"
    assert f"{disk.name} (41 MB): too small for the image, which has 48 MB" in failed["message"]
    assert Path("/dev", disk.name).read_bytes() == before


def known(device: str) -> str:
    return subprocess.run([needed("blkid"), "-p", device], capture_output=True, text=True, check=True).stdout


async def install_large(host: Host, disk: Disk, images: dict[str, bytes]) -> tuple[int, list[str]]:
    """Install from images by name; return the exit code and the reported failures."""
    async with site() as where:
        where.selection = DiskSelection(target=f"/dev/{disk.name}")
        for name, data in images.items():
            where.image(packed(data, "zst"), name)
        code, _ = await host.install(where, INSTALLER=str(that_takes_loops(host)))
        return code, [f"{one['stage']}: {one['message']}" for one in where.reports if one["failed"]]


async def test_disk_with_large_sectors_gets_the_image_that_is_made_for_them(
    host: Host, tmp_path: Path, attach: Attach
) -> None:
    disk = loop_disk(host, tmp_path, attach, sector=LARGE)
    large = system(tmp_path / "large", sector=LARGE)
    images = {"disk.img.zst": system(tmp_path / "small"), "disk.img.4k.zst": large}
    assert await install_large(host, disk, images) == (0, [])
    start = Path("/dev", disk.name).read_bytes()[:MIB]
    assert start[: MIB // 2] == large[: MIB // 2]
    assert f'PTUUID="{TABLE}"' in known(f"/dev/{disk.name}")
    assert (await host.parts(f"judge {disk.name} {UID}"))[1] == "Own\n"
    assert len(planted(disk.part, host.root / "installed")) == 4
    assert await install_large(host, disk, images) == (0, [])


async def test_disk_with_large_sectors_is_refused_for_an_image_without_one_for_them(
    host: Host, tmp_path: Path, attach: Attach
) -> None:
    disk = loop_disk(host, tmp_path, attach, sector=LARGE)
    code, (failure,) = await install_large(host, disk, {"disk.img.zst": system(tmp_path / "small")})
    assert code == 1
    assert "sectors of 4096 bytes, and the image has no disk.img.4k.zst" in failure
    assert not any(Path("/dev", disk.name).read_bytes())


async def test_image_for_other_sectors_does_not_start(host: Host, tmp_path: Path, attach: Attach) -> None:
    disk = loop_disk(host, tmp_path, attach, sector=LARGE)
    small = system(tmp_path / "small")
    code, (failure,) = await install_large(host, disk, {"disk.img.zst": small, "disk.img.4k.zst": small})
    assert code == 1
    assert failure == "Writing: the image is made for disks with sectors of 512 bytes, and this one has 4096"
    assert Path("/dev", disk.name).read_bytes()[:LARGE] == bytes(LARGE)


@pytest.mark.parametrize("sector", [SECTOR, LARGE])
def test_disk_image_has_a_table_for_its_sectors(tmp_path: Path, attach: Attach, sector: int) -> None:
    for name, mib in {"esp": 3, "root": 5}.items():
        (tmp_path / name).write_bytes(os.urandom(mib * MIB))
    image = tmp_path / "disk.img"
    paths = [str(path) for path in (image, tmp_path / "esp", tmp_path / "root")]
    subprocess.run([str(TOP / "images/common/disk-image"), "--sector", str(sector), *paths], check=True)
    device = attach(image, "--sector-size", str(sector))
    assert 'PTTYPE="gpt"' in known(device)  # which it says only with the right sums
    with Path(device).open("rb") as disk, image.open("rb") as file:
        disk.seek(2 * sector)
        parts = [struct.unpack_from("<QQ", disk.read(128), 32) for _ in range(2)]
        assert [(first * sector, (last + 1) * sector) for first, last in parts] == [(MIB, 4 * MIB), (4 * MIB, 9 * MIB)]
        disk.seek(-sector, os.SEEK_END)
        assert disk.read(8) == b"EFI PART"
        file.seek(4 * MIB)
        assert file.read(5 * MIB) == (tmp_path / "root").read_bytes()


async def test_a_host_without_a_tpm_fails_before_its_disk_is_written(host: Host, disk: Disk, tmp_path: Path) -> None:
    """It was written, started, and then had no token to join with."""
    before = Path("/dev", disk.name).read_bytes()
    host.arguments["tpm"] = "required"
    code, failures, _ = await install(host, disk, system(tmp_path))
    assert code == 1
    assert failures[0].startswith("Preparing: this host has no TPM 2.0, ")
    assert failures[0].endswith("or name a token in spec.kubernetes.bootstrapTokenRef")
    assert Path("/dev", disk.name).read_bytes() == before
    (host.root / "dev/tpm0").touch()  # of version 1.2
    assert (await install(host, disk, system(tmp_path / "again")))[0] == 1
    (host.root / "dev/tpmrm0").touch()
    assert (await install(host, disk, system(tmp_path / "with")))[:2] == (0, [])


@pytest.fixture
def real(host: Host, tmp_path: Path, attach: Attach) -> Callable[..., Path]:
    """Makes a disk of the host that is a loop device, with something on it: the device."""

    def make(name: str, what: str = "", mib: int = 64) -> Path:
        file = tmp_path / f"{name}.img"
        with file.open("wb") as made:
            made.truncate(mib * MIB)
        if what:
            put(file, *FOREIGN[what][0](mib * MIB))
        return host.disk(name, mib, device=Path(attach(file)))

    return make


@pytest.mark.parametrize("what", FOREIGN)
async def test_foreign_data_on_a_device_is_seen_and_left_alone(
    host: Host, real: Callable[..., Path], what: str
) -> None:
    device = real("sda", what)
    before = device.read_bytes()
    _, state = await host.parts(f"judge sda {UID}")
    assert state.startswith("Foreign "), state
    assert FOREIGN[what][1] in state
    assert device.read_bytes() == before


@pytest.mark.parametrize("names", [("sda", "sdb"), ("sdb", "sda")])
@pytest.mark.parametrize("what", ["LVM", "RAID 1.2"])
async def test_a_blank_device_is_known_beside_a_foreign_one(
    host: Host, real: Callable[..., Path], names: tuple[str, str], what: str
) -> None:
    foreign, blank = names
    real(foreign, what)
    real(blank, mib=8)
    _, states = await host.parts(f'hardware {UID} >/dev/null; cat "$T/states"')
    assert dict(line.split()[:4:3] for line in states.splitlines()) == {foreign: "Foreign", blank: "Blank"}
