"""The network of a host and of its installer, from outside: a bond with one cable pulled, a tagged VLAN, no DHCP."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import socket
import struct
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest

from tests.boot.installing import ScsiDisk, installing, uefi
from tests.fetch.registries import served
from tests.images.content import SECTOR, packed
from tests.images.loops import system
from tests.images.support import Host, busybox, needed, site
from tests.metalman.support.networks import network
from tests.support.qemu import Segment
from tests.support.qemu.monitor import Monitor
from tests.support.qemu.segment import ip
from tests.support.qemu.tools import built, command
from unbounded.api.machine_spec import DHCPLease
from unbounded.metalman.host_network import installer_network, network_faults, render_network

pytestmark = [pytest.mark.slow, pytest.mark.soak, pytest.mark.root, pytest.mark.timeout(1800)]

INSTALLS_S: Final = 1200.0
STARTS_S: Final = 1200.0  # an emulated machine, beside others
ANSWERS_S: Final = 30.0
MACS: Final = ("52:54:00:00:01:01", "52:54:00:00:01:02")
HOST: Final = "192.0.2.10"
HOST_IN_VLAN: Final = "198.51.100.10"
PEER_IN_VLAN: Final = "198.51.100.1"
MOST_FRAMES: Final = 200
ETH_P_ALL: Final = 0x0003
ETH_P_ARP: Final = 0x0806
ETH_P_8021Q: Final = 0x8100
SOL_PACKET: Final = 263
PACKET_AUXDATA: Final = 8
TP_STATUS_VLAN_VALID: Final = 1 << 4
# struct tpacket_auxdata: status, len, snaplen, mac, net, vlan_tci, vlan_tpid
AUXDATA: Final = struct.Struct("=IIIHHHH")
# linux/if_tun.h
TUNSETIFF: Final = 0x400454CA
IFF_TAP: Final = 0x0002
IFF_NO_PI: Final = 0x1000
NETWORK: Final[dict[str, Any]] = {
    "ethernets": [{"name": "one", "mac": MACS[0], "setName": "lan0"}, {"name": "two", "mac": MACS[1]}],
    "bonds": [
        {
            "name": "bond0",
            "interfaces": ["one", "two"],
            "parameters": {"mode": "active-backup"},
            "addresses": [f"{HOST}/24"],
            "routes": [{"to": "default", "via": "192.0.2.1"}],
        }
    ],
    "vlans": [{"name": "vlan10", "id": 10, "link": "bond0", "addresses": [f"{HOST_IN_VLAN}/24"]}],
}
USER_DATA: Final = """#cloud-config
runcmd:
- [sh, -c, "(ip -brief addr; networkctl --no-pager) >/dev/ttyS0"]
"""


@dataclass
class Started:
    """The installed host while it runs, with its two cards on the segment."""

    process: subprocess.Popen[bytes]
    monitor: Monitor
    console: Path

    async def pull(self, card: int, *, plugged: bool = False) -> None:
        """Pull the cable of a card, or plug it in again."""
        await self.monitor.execute("set_link", name=f"net{card}", up=plugged)

    async def answers(self, address: str, *, within_s: float) -> None:
        """Wait until the host answers at an address.

        Raises:
            AssertionError: it did not in time, or the machine ended; holds the console's end.
        """
        clock = asyncio.get_running_loop().time
        until = clock() + within_s
        while not await pings(address):
            if clock() > until or self.process.poll() is not None:
                text = self.console.read_text(errors="replace")[-6000:]
                raise AssertionError(f"no answer of {address} within {within_s:g} s\n{text}")


async def pings(address: str) -> bool:
    process = await asyncio.create_subprocess_exec(
        *(busybox(), "ping", "-c", "1", "-W", "1", address), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    if await process.wait() == 0:
        return True
    await asyncio.sleep(0.5)
    return False


@asynccontextmanager
async def started(disk: ScsiDisk, net: Segment, folder: Path) -> AsyncIterator[Started]:
    """Start the host from its disk."""
    for at in range(len(MACS)):
        net.plug(f"tap{at}")
    monitor = Monitor()
    process = _process(disk, folder, monitor)
    try:
        yield Started(process, monitor, folder / "started")
    finally:
        process.kill()
        process.wait(30)
        monitor.close()


def _process(disk: ScsiDisk, folder: Path, monitor: Monitor) -> subprocess.Popen[bytes]:
    cards = [
        part
        for at, mac in enumerate(MACS)
        for part in (
            *("-netdev", f"tap,id=net{at},ifname=tap{at},script=no,downscript=no"),
            *("-device", f"virtio-net-pci,netdev=net{at},mac={mac},romfile="),
        )
    ]
    line = monitor.theirs.fileno()
    with monitor.theirs, (folder / "started.log").open("wb") as log:
        return subprocess.Popen(
            [
                *(command("setpriv"), "--pdeathsig", "KILL", command("qemu-system-x86_64")),
                *("-machine", "q35", "-accel", "tcg", "-m", "768", "-display", "none", "-vga", "none", "-nodefaults"),
                *("-no-reboot", "-serial", f"file:{folder / 'started'}", "-device", "virtio-rng-pci"),
                *("-chardev", f"socket,id=monitor,fd={line}", "-mon", "chardev=monitor,mode=control"),
                *("-device", "virtio-scsi-pci,id=scsi0", *disk.drive),
                *("-device", json.dumps({**disk.device, "bootindex": 1})),
                *uefi(folder),
                *cards,
            ],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=[line],
        )


async def installed(folder: Path) -> ScsiDisk:
    """Return a disk with Debian, on which the installer's own code has planted the network as metalman renders it."""
    image = built("host-debian12/disk/disk.img.zst")
    if image is None:
        pytest.skip("the image of Debian is not built; scripts/host-image does")
    declared = network(NETWORK)
    assert network_faults(declared) == ()
    disk, root, host = ScsiDisk("only", folder / "only.img"), folder / "root", Host(folder / "installer")
    _run(needed("zstd"), "-q", "-d", "--sparse", str(image), "-o", str(disk.file))
    seed = host.root / "tmp" / "seed"
    seed.mkdir()
    (seed / "meta-data").write_text("instance-id: rack1-01\nlocal-hostname: rack1-01\n")
    (seed / "user-data").write_text(USER_DATA)
    (seed / "network-config").write_bytes(render_network(declared))
    root.mkdir()
    _run(needed("mount"), "-o", f"loop,offset={_second_partition(disk.file)}", str(disk.file), str(root))
    try:
        code, out = await host.parts(f"plant_in {root}")
        assert code == 0, out
    finally:
        _run(needed("umount"), str(root))
    return disk


def _second_partition(disk: Path) -> int:
    """Return the first byte of the second partition (UEFI 2.10 section 5.3.3)."""
    with disk.open("rb") as file:
        file.seek(2 * SECTOR + 128 + 32)
        return int.from_bytes(file.read(8), "little") * SECTOR


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=300)


@dataclass(frozen=True)
class VlanPeer:
    """A neighbour of the host in its VLANs, by raw frames: the kernel of the test need not know VLANs."""

    net: Segment

    async def hears(self, tag: int, *, within_s: float) -> bool:
        """Return whether the host answers an ARP request in a VLAN, with its tag (RFC 826, IEEE 802.1Q)."""
        clock = asyncio.get_running_loop().time
        until = clock() + within_s
        while clock() < until:
            if self._asked(tag):
                return True
            await asyncio.sleep(0.5)
        return False

    def _asked(self, tag: int) -> bool:
        with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL)) as sock:
            sock.bind((self.net.bridge, 0))
            sock.setsockopt(SOL_PACKET, PACKET_AUXDATA, 1)
            sock.settimeout(1.0)
            mac = sock.getsockname()[4]
            head = struct.pack("!6s6sHHH", b"\xff" * 6, mac, ETH_P_8021Q, tag, ETH_P_ARP)
            peer, host = socket.inet_aton(PEER_IN_VLAN), socket.inet_aton(HOST_IN_VLAN)
            sock.send(head + struct.pack("!HHBBH6s4s6s4s", 1, 0x0800, 6, 4, 1, mac, peer, bytes(6), host))
            try:
                for _ in range(MOST_FRAMES):
                    frame, extra, *_ = sock.recvmsg(2048, socket.CMSG_SPACE(AUXDATA.size))
                    is_reply = frame[12:22] == struct.pack("!HHHBBH", ETH_P_ARP, 1, 0x0800, 6, 4, 2)
                    if is_reply and frame[28:32] == host and _tag(extra) == tag:
                        return True
            except TimeoutError:
                pass
        return False


def _tag(extra: list[tuple[int, int, bytes]]) -> int | None:
    """Return the VLAN tag that the kernel has taken off a frame; None if it had none."""
    for level, kind, data in extra:
        if (level, kind) == (SOL_PACKET, PACKET_AUXDATA):
            status, *_, tci, _tpid = AUXDATA.unpack(data[: AUXDATA.size])
            return int(tci) & 0xFFF if status & TP_STATUS_VLAN_VALID else None
    return None


async def test_a_bond_and_a_vlan_with_static_addresses_answer_with_one_cable_pulled(
    net: Segment, tmp_path: Path
) -> None:
    ip(f"addr add 192.0.2.1/24 dev {net.bridge}")
    vlan = VlanPeer(net)
    disk = await installed(tmp_path)
    async with started(disk, net, tmp_path) as host:
        await host.answers(HOST, within_s=STARTS_S)
        assert await vlan.hears(10, within_s=ANSWERS_S)
        assert not await vlan.hears(11, within_s=3)
        for pulled, other in ((0, 1), (1, 0)):
            await host.pull(other, plugged=True)
            await host.pull(pulled)
            await host.answers(HOST, within_s=ANSWERS_S)
            assert await vlan.hears(10, within_s=ANSWERS_S)
        await host.pull(0)  # the last one
        assert not await pings(HOST)


@dataclass
class TaggedSwitch:
    """A switch whose ports to the machine carry one tagged VLAN and nothing else; this system is in that VLAN.

    Args:
        untagged: EtherTypes of frames that the machine sent without the tag.
    """

    folder: Path
    tag: int
    untagged: set[int] = field(default_factory=set)

    def __enter__(self) -> TaggedSwitch:
        self._tap = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(self._tap, TUNSETIFF, struct.pack("16sH22x", b"vlan", IFF_TAP | IFF_NO_PI))
        ip(f"addr add {PEER_IN_VLAN}/24 dev vlan")
        ip("link set vlan up")
        loop = asyncio.get_running_loop()
        loop.add_reader(self._tap, self._to_machine)
        self._ports = [socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) for _ in MACS]
        for at, port in enumerate(self._ports):
            port.bind(str(self.folder / f"port{at}"))
            loop.add_reader(port, self._from_machine, port)
        return self

    def __exit__(self, *_: object) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._tap)
        os.close(self._tap)
        for port in self._ports:
            loop.remove_reader(port)
            port.close()

    @property
    def cards(self) -> list[str]:
        """Return arguments of QEMU: a card at each port."""
        parts = []
        for at, mac in enumerate(MACS):
            own, ours = f"local.path={self.folder}/card{at}", f"remote.path={self.folder}/port{at}"
            parts += ["-netdev", f"dgram,id=port{at},local.type=unix,{own},remote.type=unix,{ours}"]
            parts += ["-device", f"virtio-net-pci,netdev=port{at},mac={mac},romfile="]
        return parts

    def _to_machine(self) -> None:
        frame = os.read(self._tap, 4096)
        tagged = frame[:12] + struct.pack("!HH", ETH_P_8021Q, self.tag) + frame[12:]
        for at, port in enumerate(self._ports):
            with contextlib.suppress(OSError):  # QEMU is not there, or does not read
                port.sendto(tagged, str(self.folder / f"card{at}"))

    def _from_machine(self, port: socket.socket) -> None:
        frame = port.recv(4096)
        kind, tag = struct.unpack_from("!HH", frame, 12)
        if kind != ETH_P_8021Q:
            self.untagged.add(kind)
        elif tag & 0xFFF == self.tag:
            os.write(self._tap, frame[:12] + frame[16:])


async def test_installer_works_in_a_tagged_vlan_on_a_bond_with_one_cable_pulled(net: Segment, tmp_path: Path) -> None:
    """No DHCP, and no untagged network that leads to metalman."""
    lease = DHCPLease(mac=MACS[0], ipv4=HOST_IN_VLAN, subnet_mask="255.255.255.0", gateway=PEER_IN_VLAN)
    words = installer_network([lease], network(NETWORK)).split()
    bond, vlan, leased = (word.partition("=")[2] for word in words)
    disk = ScsiDisk.made(tmp_path, "only")
    with TaggedSwitch(tmp_path, 10) as switch:
        async with site() as where, served(where.answer, PEER_IN_VLAN) as host:
            where.image(packed(system(tmp_path / "image"), "zst"), "disk.img.zst")
            url = f"http://{host}/boot/token"
            async with installing(
                where, tmp_path, (disk,), devices=switch.cards, serve_url=url, bond=bond, vlan=vlan, lease=leased
            ) as machine:
                await machine.reported("Starting", "the installer runs", within_s=INSTALLS_S)
                await machine.pull("port0")
                await machine.reported("Written", "has the image", within_s=INSTALLS_S)
        assert not switch.untagged
    (report, *_) = where.hardware
    assert set(MACS) < {nic["mac"] for nic in report["hardware"]["nics"]}  # each its own, though the bond has one
