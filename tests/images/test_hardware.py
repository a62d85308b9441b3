"""Facts of a machine that the installer reports: of trees of files, as kernel and udev make them, and of devices."""

from __future__ import annotations

import json
import os
import random
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from tests.images.content import FOREIGN, MIB, put
from tests.images.loops import LOOPS, loop_devices
from tests.images.support import UID, Host, needed
from tests.support.software_tpm import needs_tpm, software_tpm
from unbounded.api.hardware import HardwareFacts

pytestmark = pytest.mark.slow

SECURE_BOOT: Final = "firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
ATA: Final = "pci0000:00/0000:00:17.0/ata1/host0/target0:0:0/0:0:0:0"
SAS: Final = "pci0000:17/0000:18:00.0/host1/port-1:0/end_device-1:0/target1:0:4/1:0:4:0"
USB: Final = "pci0000:00/0000:00:14.0/usb2/2-1/2-1:1.0/host3/target3:0:0/3:0:0:0"
VIRTIO_SCSI: Final = "pci0000:00/0000:00:05.0/virtio2/host4/target4:0:1/4:0:1:0"
NVME: Final = "pci0000:3a/0000:3b:00.0/nvme/nvme0"
VIRTIO: Final = "pci0000:00/0000:00:06.0/virtio3"


@pytest.fixture
def host(tmp_path: Path) -> Host:
    needed("blkid")
    return Host(tmp_path / "host")


def tree(folder: Path, files: Mapping[str, str | bytes]) -> None:
    """Write files; a text gets the end of a line, as sysfs has it."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else f"{content}\n".encode())


def link(at: Path, to: Path) -> None:
    to.mkdir(parents=True, exist_ok=True)
    at.parent.mkdir(parents=True, exist_ok=True)
    at.symlink_to(to)


def device(host: Host, path: str, driver: str = "") -> Path:
    """Return a device of sysfs, which has a driver where that is named."""
    made = host.root / "sys/devices" / path
    made.mkdir(parents=True, exist_ok=True)
    if driver:
        link(made / "driver", host.root / "sys/bus/drivers" / driver)
    return made


def attached(host: Host, name: str, path: str, facts: Mapping[str, str], udev: Mapping[str, str] | None = None) -> None:
    """A blank disk that is attached there; `facts` are files of sysfs, and `udev` properties of its database."""
    host.disk(name, 4)
    number = "8:0"
    tree(host.root / "sys/block" / name, {"queue/rotational": "0", "dev": number})
    (host.root / "sys/block" / name / "device").symlink_to(device(host, path))
    tree(host.root / "sys/block" / name, facts)
    lines = "".join(f"E:{key}={value}\n" for key, value in (udev or {}).items())
    (host.root / "udev" / f"b{number}").write_text(f"S:disk/by-id/{name}\nI:1\n{lines}")


async def reported(host: Host, script: str = "", **environment: str) -> dict[str, Any]:
    """Return the facts, which metalman's own types take."""
    code, out = await host.parts(f"{script}\nhardware {UID}", **environment)
    assert code == 0, out
    facts: dict[str, Any] = json.loads(out)
    msgspec.convert(facts, HardwareFacts)
    return facts


def server(host: Host) -> None:
    sys = host.root / "sys"
    tree(
        sys,
        {
            "class/dmi/id/sys_vendor": "Dell Inc.",
            "class/dmi/id/product_name": "PowerEdge R650",
            "class/dmi/id/product_serial": " J1QX2Z3 ",
            "class/dmi/id/product_uuid": "4c4c4544-0031-5110-8058-ca4f58325a33",
            "class/dmi/id/bios_vendor": "Dell Inc.",
            "class/dmi/id/bios_version": "1.6.5",
            "class/dmi/id/bios_date": "04/15/2022",
            SECURE_BOOT: b"\x06\0\0\0\1",
            "class/tpm/tpm0/tpm_version_major": "2",
            "devices/system/cpu/cpu8/online": "0",
            "devices/system/cpu/cpufreq/boost": "1",
            "devices/system/node/possible": "0-1",
        },
    )
    for cpu in range(8):  # two sockets with two cores of two threads
        first = cpu // 2 * 2
        topology = {"physical_package_id": str(cpu // 4), "thread_siblings_list": f"{first}-{first + 1}"}
        tree(sys / f"devices/system/cpu/cpu{cpu}/topology", topology)
    for node in (0, 1):
        (sys / f"devices/system/node/node{node}").mkdir()
    cpuinfo = "processor\t: {}\nmodel name\t: Intel(R) Xeon(R) Gold 6338 CPU @ 2.00GHz\n\n"
    tree(
        host.root / "proc",
        {"cpuinfo": "".join(map(cpuinfo.format, range(8))), "meminfo": "MemTotal: 131072 kB\nMemFree: 1 kB"},
    )
    for name, slot, driver, facts in (
        ("eno1", "0000:31:00.0", "ice", {"address": "aa:bb:cc:00:00:01", "carrier": "1", "speed": "25000"}),
        ("eno2", "0000:31:00.1", "ice", {"address": "aa:bb:cc:00:00:02", "carrier": "0", "speed": "-1"}),
        ("eth0", "0000:00:03.0/virtio0", "virtio_net", {"address": "aa:bb:cc:00:00:03", "carrier": "1"}),
        ("eno3", "0000:31:00.2", "ice", {"address": "aa:bb:cc:00:00:04"}),  # its link cannot be read while it is down
    ):
        link(sys / f"class/net/{name}/device", device(host, f"pci0000:30/{slot}", driver))
        tree(sys / f"class/net/{name}", facts)
    for slot, numbers in (
        ("0000:31:00.0", {"acpi_index": "1", "index": "9"}),
        ("0000:31:00.1", {"index": "2", "label": "Onboard LAN"}),
        ("0000:00:03.0", {"index": "7"}),  # of the device of the bus, above that of virtio
    ):
        tree(sys / "devices/pci0000:30" / slot, numbers)
    tree(sys / "class/net/lo", {"address": "00:00:00:00:00:00", "carrier": "1"})
    for slot, kind, vendor, number, driver in (
        ("0000:17:00.0", "0x030200", "0x10de", "0x2330", "nvidia"),
        ("0000:3d:00.0", "0x120000", "0x8086", "0x0b00", ""),
        ("0000:31:00.0", "0x020000", "0x8086", "0x1593", ""),
    ):
        tree(device(host, f"bus/{slot}", driver), {"class": kind, "vendor": vendor, "device": number})
        link(sys / "bus/pci/devices" / slot, sys / "devices/bus" / slot)


async def test_a_server_is_reported_with_all_its_parts(host: Host) -> None:
    server(host)
    facts = await reported(host)
    assert facts.pop("disks") == []
    assert facts == {
        "system": {
            "manufacturer": "Dell Inc.",
            "product": "PowerEdge R650",
            "serialNumber": "J1QX2Z3",
            "uuid": "4c4c4544-0031-5110-8058-ca4f58325a33",
        },
        "firmware": {
            "vendor": "Dell Inc.",
            "version": "1.6.5",
            "date": "04/15/2022",
            "mode": "UEFI",
            "secureBoot": True,
        },
        "cpus": 8,
        "processor": {
            "architecture": os.uname().machine,
            "model": "Intel(R) Xeon(R) Gold 6338 CPU @ 2.00GHz",
            "sockets": 2,
            "cores": 4,
        },
        "memoryBytes": 134217728,
        "numaNodes": 2,
        "nics": [
            {"name": "eno1", "mac": "aa:bb:cc:00:00:01", "driver": "ice", "link": True, "speedMbps": 25000,
             "pciAddress": "0000:31:00.0", "onboardIndex": 1},
            {"name": "eno2", "mac": "aa:bb:cc:00:00:02", "driver": "ice", "link": False, "pciAddress": "0000:31:00.1",
             "onboardIndex": 2},
            {"name": "eno3", "mac": "aa:bb:cc:00:00:04", "driver": "ice", "link": False, "pciAddress": "0000:31:00.2"},
            {"name": "eth0", "mac": "aa:bb:cc:00:00:03", "driver": "virtio_net", "link": True,
             "pciAddress": "0000:00:03.0", "onboardIndex": 7},
        ],
        "tpm": {"version": "2.0"},
        "accelerators": [
            {"pciAddress": "0000:17:00.0", "vendorID": "10de", "deviceID": "2330", "class": "0302", "driver": "nvidia"},
            {"pciAddress": "0000:3d:00.0", "vendorID": "8086", "deviceID": "0b00", "class": "1200"},
        ],
    }  # fmt: skip


async def test_a_machine_that_tells_nothing_is_reported_without_it(host: Host) -> None:
    facts = await reported(host)
    architecture = {"architecture": os.uname().machine}
    empty: dict[str, Any] = {"nics": [], "disks": [], "accelerators": []}
    assert facts == {"firmware": {"mode": "BIOS"}, "processor": architecture, **empty}


@pytest.mark.parametrize(
    ("content", "told"), [(b"\6\0\0\0\0", False), (b"\6\0\0\0\1", True), (b"", None), (None, None)]
)
async def test_secure_boot_is_what_the_firmware_says(host: Host, content: bytes | None, told: bool | None) -> None:
    (host.root / "sys/firmware/efi").mkdir(parents=True)
    if content is not None:
        tree(host.root / "sys", {SECURE_BOOT: content})
    expected = {"mode": "UEFI"} | ({} if told is None else {"secureBoot": told})
    assert (await reported(host))["firmware"] == expected


async def test_a_tpm_of_version_1_2_is_told_from_one_of_2_0(host: Host) -> None:
    tree(host.root / "sys", {"class/tpm/tpm0/tpm_version_major": "1"})
    assert (await reported(host))["tpm"] == {"version": "1.2"}


SOCKET: Final = """
tpm_call() { unhex "$1" | nc.openbsd -N 127.0.0.1 %d | od -An -v -tx1 | tr -d ' \\n'; }
"""
"""A TPM behind a socket, and not a device."""


@needs_tpm
@pytest.mark.parametrize("maker", [True, False])
async def test_certificate_of_the_tpms_key_is_what_its_maker_left_in_it(
    host: Host, tmp_path: Path, maker: bool
) -> None:
    needed("nc.openbsd", "scripts/net-tools gets it")
    tree(host.root / "sys", {"class/tpm/tpm0/tpm_version_major": "2"})
    with software_tpm(tmp_path / "tpm", maker=maker) as tpm:
        told = (await reported(host, SOCKET % tpm.port))["tpm"]
        if not maker:
            assert told == {"version": "2.0"}
            return
        tpm.tools("nvread", "-C", "0x01c00002", "-o", "certificate", "0x01c00002")
    found = x509.load_pem_x509_certificate(told["ekCertificate"].encode())
    der = (tmp_path / "tpm/certificate").read_bytes()
    assert der.startswith(found.public_bytes(Encoding.DER))
    assert max(map(len, told["ekCertificate"].splitlines())) == 64


async def test_a_tpm_that_gives_no_answers_is_reported_without_a_certificate(host: Host) -> None:
    tree(host.root / "sys", {"class/tpm/tpm0/tpm_version_major": "2"})
    for answer in ("", "80010000000a0000018b", "8001000000", "00" * 40, "ff" * 4000):
        assert (await reported(host, f"tpm_call() {{ printf '%s' {answer}; }}"))["tpm"] == {"version": "2.0"}


DISKS: Final[Mapping[str, tuple[str, Mapping[str, str], Mapping[str, str], Mapping[str, object]]]] = {
    # where it is attached, files of sysfs, properties of udev, and what is expected beside size and state
    "sda": (
        ATA,
        {"device/vendor": "ATA     ", "device/model": "Samsung SSD 870 "},
        {"ID_BUS": "ata", "ID_MODEL_ENC": r"Samsung\x20SSD\x20870\x20EVO\x20500GB\x20\x20\x20\x20",
         "ID_SERIAL": "Samsung_SSD_870_EVO_500GB_S62A", "ID_SERIAL_SHORT": "S62A", "ID_WWN": "0x5002538f31"},
        {"bus": "ata", "transport": "ata", "vendor": "ATA", "model": "Samsung SSD 870 EVO 500GB",
         "serialNumber": "S62A", "wwn": "0x5002538f31", "hctl": "0:0:0:0"},
    ),
    "sdb": (
        SAS,
        {"device/vendor": "SEAGATE ", "device/model": "ST1200MM0099    "},
        {"ID_SCSI_SERIAL": "WFK1", "ID_SERIAL_SHORT": "5000c500a1b2c3d4", "ID_WWN": "0x5000c500a1b2c3d4",
         "ID_WWN_WITH_EXTENSION": "0x5000c500a1b2c3d40001"},
        {"bus": "sas", "transport": "sas", "vendor": "SEAGATE", "model": "ST1200MM0099", "serialNumber": "WFK1",
         "wwn": "0x5000c500a1b2c3d4", "hctl": "1:0:4:0"},
    ),
    "sdc": (USB, {"device/vendor": "Kingston", "device/model": "DT"}, {},
            {"bus": "usb", "transport": "usb", "vendor": "Kingston", "model": "DT", "hctl": "3:0:0:0"}),
    "sdd": (VIRTIO_SCSI, {"device/vendor": "QEMU    ", "device/model": "QEMU HARDDISK   "}, {"ID_SCSI_SERIAL": "first"},
            {"bus": "scsi", "transport": "virtio", "vendor": "QEMU", "model": "QEMU HARDDISK",
             "serialNumber": "first", "hctl": "4:0:1:0"}),
    "nvme0n1": (NVME, {"device/model": "KIOXIA CM6     ", "device/serial": "  Z1A0 ", "wwid": "eui.0025385b71b0c1d2",
                 "device/transport": "pcie"},
                {},
                {"bus": "nvme", "transport": "pcie", "model": "KIOXIA CM6", "serialNumber": "Z1A0",
                 "wwn": "eui.0025385b71b0c1d2"}),
    "vda": (VIRTIO, {"device/vendor": "0x1af4", "device/device": "0x0002"}, {},
            {"bus": "virtio", "transport": "virtio"}),
    "mmcblk0": ("platform/fe340000.mmc/mmc_host/mmc0/mmc0:0001", {"device/serial": "0x1234abcd"}, {},
                {"bus": "mmc", "transport": "mmc", "serialNumber": "0x1234abcd"}),
}  # fmt: skip


@pytest.mark.parametrize("name", DISKS)
async def test_a_disk_is_reported_by_what_identifies_it(host: Host, name: str) -> None:
    path, facts, udev, expected = DISKS[name]
    attached(host, name, path, facts, udev)
    basic = {"name": name, "sizeBytes": 4 * MIB, "sectorBytes": 512, "rotational": False, "state": "Blank"}
    assert (await reported(host))["disks"] == [{**basic, **expected}]


HOST: Final = "pci0000:00/0000:00:05.0/host2"
TRANSPORTS: Final[Mapping[str, tuple[str, Mapping[str, str], str | None]]] = {
    # where it is attached, files of sysfs, and what carries its commands
    "fc": (f"{HOST}/rport-2:0-3/target2:0:3/2:0:3:1", {}, "fc"),
    "iscsi": ("platform/host2/session1/target2:0:0/2:0:0:1", {}, "iscsi"),
    "raid": (f"{HOST}/target2:2:0/2:2:0:0", {"../../class/scsi_host/host2/proc_name": "megaraid_sas"}, "raid"),
    "unknown": (f"{HOST}/target2:0:0/2:0:0:0", {"../../class/scsi_host/host2/proc_name": "storvsc"}, None),
}


@pytest.mark.parametrize("case", TRANSPORTS)
async def test_a_disk_is_reported_with_what_carries_its_commands(host: Host, case: str) -> None:
    path, facts, expected = TRANSPORTS[case]
    attached(host, "sda", path, {}, {})
    tree(host.root / "sys/block/sda", facts)
    (disk,) = (await reported(host))["disks"]
    assert (disk.get("transport"), "multipath" in disk) == (expected, False)


@pytest.mark.parametrize(("ways", "expected"), [(("pcie",), "pcie"), (("tcp",), "tcp"), (("pcie", "rdma"), "rdma")])
async def test_an_nvme_disk_is_reported_with_all_its_ways(host: Host, ways: tuple[str, ...], expected: str) -> None:
    attached(host, "nvme0n1", NVME, {}, {})
    tree(host.root / "sys/block/nvme0n1/device", {f"nvme{at}/transport": way for at, way in enumerate(ways)})
    (disk,) = (await reported(host))["disks"]
    assert (disk["transport"], disk.get("multipath")) == (expected, True if len(ways) > 1 else None)


async def test_a_disk_that_multipathd_holds_says_so(host: Host) -> None:
    host.disk("sda")
    host.disk("sdb")
    for name, kind in (("sda", "mpath"), ("sdb", "LVM")):
        (host.root / f"sys/block/{name}/holders/dm-{kind}").mkdir()
        tree(host.root / f"sys/block/dm-{kind}", {"dm/uuid": f"{kind}-3600140"})
    first, second = (await reported(host))["disks"]
    assert (first.get("multipath"), second.get("multipath")) == (True, None)


async def test_a_virtio_disk_has_the_serial_number_of_the_disk_itself(host: Host) -> None:
    host.disk("vda", 4, serial="")
    tree(host.root / "sys/block/vda", {"serial": "disk-7"})
    (disk,) = (await reported(host))["disks"]
    assert disk["serialNumber"] == "disk-7"


async def test_each_disk_has_its_own_names_below_by_id_and_by_path(host: Host) -> None:
    for name in ("sda", "sdaa"):
        host.disk(name, serial=name.upper())
    by_path = host.root / "dev/disk/by-path"
    by_path.mkdir()
    (by_path / "pci-0000:00:17.0-ata-1").symlink_to("../../sda")
    (host.root / "dev/disk/by-id/wwn-0x5000").symlink_to("../../sda")
    (host.root / "dev/disk/by-id/wwn-0x5000-part1").symlink_to("../../sda1")
    first, second = (await reported(host))["disks"]
    assert (first["byID"], first["byPath"]) == (["ata-DISK_SDA", "wwn-0x5000"], ["pci-0000:00:17.0-ata-1"])
    assert (second["byID"], "byPath" in second) == (["ata-DISK_SDAA"], False)


async def test_a_disk_in_a_folder_of_dev_is_reported_by_its_kernel_name(host: Host) -> None:
    put(host.disk("cciss!c0d0", 64, serial="A1"), *FOREIGN["LVM"][0](64 * MIB))
    (disk,) = (await reported(host))["disks"]
    assert (disk["name"], disk["byID"], disk["state"]) == ("cciss!c0d0", ["ata-DISK_A1"], "Foreign")
    assert "TYPE=LVM2_member" in disk["contents"]


async def test_a_foreign_disk_is_reported_with_what_is_on_it(host: Host) -> None:
    put(host.disk("sda", 64), *FOREIGN["LVM"][0](64 * MIB))
    (disk,) = (await reported(host))["disks"]
    assert disk["state"] == "Foreign"
    assert "TYPE=LVM2_member" in disk["contents"]


# Strings of anybody's making


def as_told(raw: bytes) -> str:
    """What a report makes of a file: its first line, in printable ASCII."""
    line = raw.split(b"\n")[0].replace(b"\0", b"").strip(b" \t")[:512]
    return "".join(chr(byte) if 32 <= byte < 127 else " " for byte in line)


async def test_any_bytes_in_a_file_become_a_json_string(host: Host) -> None:
    draw = random.Random(19)
    raws = [b'"', b"\\", b'\\"', b"\\u0022", b"%s%n", b"$(reboot)", b"`id`", b"*", b"-n", b"\xff\xfe", b"\x1b[2J",
            b"a\rb", "Größe ® 漢".encode(), b'x"' * 9000, b"A" * 100_000, b"a" * 600]  # fmt: skip
    raws += [draw.randbytes(draw.randrange(1, 60)) for _ in range(80)]
    raws += [bytes(draw.choices(b"\"\\/{}[]:, ab%$`'", k=draw.randrange(1, 600))) for _ in range(80)]
    for number, raw in enumerate(raws):
        (host.root / f"tmp/raw{number:03}").write_bytes(raw)
    code, out = await host.parts(
        'set +f; for f in "$T"/raw*; do fact "$f"; quoted "$FACT"; printf "%s\\n" "$QUOTED"; done'
    )
    assert code == 0
    assert [json.loads(line) for line in out.splitlines()] == [as_told(raw) for raw in raws]


@pytest.mark.parametrize("raw", [b'A" , "state":"Own', b"\\", b"\xff" * 5000, b'"}]}' * 2000], ids=range(4))
async def test_a_disk_with_hostile_strings_is_a_disk_of_the_report(host: Host, raw: bytes) -> None:
    attached(host, "sda", ATA, {}, {})
    tree(host.root / "sys/block/sda", dict.fromkeys(("device/vendor", "device/model", "device/serial", "wwid"), raw))
    tree(host.root / "sys/class/dmi/id", dict.fromkeys(("sys_vendor", "product_serial", "bios_date"), raw))
    host.disk("sdb", 4)
    facts = await reported(host)
    first, second = facts["disks"]
    told = [first[key] for key in ("vendor", "model", "serialNumber", "wwn")]
    assert (told, first["state"]) == ([as_told(raw)] * 4, "Blank")
    assert second["name"] == "sdb"


async def test_properties_of_udev_that_are_no_text_do_no_harm(host: Host) -> None:
    attached(host, "sda", ATA, {}, {"ID_MODEL_ENC": r"A\x22B\x5cC\x0aD", "ID_SERIAL_SHORT": '"\\', "ID_WWN": "é"})
    (disk,) = (await reported(host))["disks"]
    assert (disk["model"], disk["serialNumber"], disk["wwn"]) == ('A"B\\C D', '"\\', "  ")


# More than a report holds


JUDGED: Final = """
judge() { case $1 in sdk) echo Blank ;; sdcz) echo "Foreign TYPE=xfs" ;; sddz) echo Own ;; *) echo "%s" ;; esac; }
"""


def many(host: Host, number: int) -> None:
    letters = "abcdefghijklmnopqrstuvwxyz"
    names = [*letters, *(a + b for a in letters for b in letters)][:number]
    for name in names:
        folder = host.root / "sys/block" / f"sd{name}"
        tree(folder, {"size": "8388608", "removable": "0", "ro": "0"})
        (host.root / "dev" / f"sd{name}").touch()


async def test_report_without_room_for_all_disks_leaves_out_blank_ones(host: Host) -> None:
    """A blank disk would be the only one, as the others that are blank were not counted."""
    many(host, 131)
    disks = (await reported(host, JUDGED % "Foreign data"))["disks"]
    assert len(disks) == 128
    assert disks[0]["name"] == "sddz"
    assert [disk["name"] for disk in disks if disk["state"] == "Blank"] == []
    code, out = await host.parts('grep -c . "$T/states"')
    assert (code, out) == (0, "131\n")


@pytest.mark.parametrize("limit", [400, 4000])
async def test_report_is_never_larger_than_metalman_takes(host: Host, limit: int) -> None:
    many(host, 20)
    disks = (await reported(host, JUDGED % "Blank", DISKS_BYTES=str(limit)))["disks"]
    assert 1 <= len(disks) < 20 or limit == 4000
    assert len(json.dumps(disks, separators=(",", ":"))) <= limit + 2
    whole = (await reported(host, JUDGED % "Blank"))["disks"]
    assert len(whole) == 20


# The kernel's own trees; lsblk and blkid are what the report is compared with

ROOT: Final = pytest.mark.skipif(os.geteuid() != 0, reason="loop devices and disks are root's to read")
BUSES: Final = {"sata": "ata"}


def printed(*command: str) -> str:
    return subprocess.run((needed(command[0]), *command[1:]), capture_output=True, text=True, check=False).stdout


def lsblk(*devices: str) -> dict[str, dict[str, Any]]:
    told = printed("lsblk", "--json", "--bytes", "--nodeps", "--output-all", *devices)
    return {one["name"]: one for one in json.loads(told)["blockdevices"]}


def agrees(told: Mapping[str, Any], found: Mapping[str, Any]) -> None:
    """Check the facts of a disk against those of lsblk, which reads the same kernel without udev's database."""
    assert (told["sizeBytes"], told["sectorBytes"], told["rotational"]) == (
        *(found["size"], found["log-sec"], found["rota"]),
    )
    for ours, theirs in {"serialNumber": "serial", "wwn": "wwn", "hctl": "hctl", "model": "model"}.items():
        if found[theirs] is not None:
            assert told.get(ours) == found[theirs].strip()
    if found["tran"] is not None:
        assert told.get("bus") == BUSES.get(found["tran"], found["tran"])


@pytest.mark.root
@ROOT
async def test_disks_of_this_system_are_reported_as_lsblk_knows_them(host: Host) -> None:
    facts = await reported(host, "judge() { echo Blank; }", SYS="/sys", DEV="/dev", PROC="/proc", UDEV="/run/udev/data")
    found = lsblk()
    for disk in facts["disks"]:
        agrees(disk, found[disk["name"]])
    assert facts["cpus"] == int(printed("nproc", "--all"))
    lines = Path("/proc/meminfo").read_text().splitlines()
    assert facts["memoryBytes"] == int(lines[0].split()[1]) * 1024


@pytest.mark.root
@ROOT
@pytest.mark.parametrize("sector", [512, 4096])
@pytest.mark.parametrize("what", ["LVM", "XFS", "a DOS partition table", ""])
async def test_loop_device_is_reported_as_lsblk_and_blkid_know_it(
    host: Host, tmp_path: Path, what: str, sector: int
) -> None:
    file = tmp_path / "disk.img"
    with file.open("wb") as made:
        made.truncate(64 * MIB)
    if what:
        put(file, *FOREIGN[what][0](64 * MIB))
    with loop_devices() as attach:
        path = Path(attach(file, "--sector-size", str(sector)))
        (host.root / "sys/block" / path.name).symlink_to(f"/sys/block/{path.name}")
        (host.root / "dev" / path.name).symlink_to(path)
        (disk,) = (await reported(host, LOOPS))["disks"]
        agrees(disk, lsblk(str(path))[path.name])
        signatures = printed("blkid", "-p", "-o", "export", str(path))
    known = [line for line in signatures.splitlines() if line.startswith(("TYPE=", "PTTYPE="))]
    assert (disk["state"] == "Foreign") == bool(what)
    assert bool(known) == bool(what)
    assert all(line in disk["contents"] for line in known)
