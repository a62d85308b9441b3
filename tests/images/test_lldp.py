"""Switch ports in the installer's report: recorded and hostile frames of LLDP, and a real lldpd on the wire."""

from __future__ import annotations

import asyncio
import json
import os
import random
import struct
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from tests.images.lldp import FRAME, LEAF
from tests.images.support import OWN_MOUNTS, UID, Host, Site, needed, site
from unbounded.api.hardware import LLDPNeighbour

pytestmark = pytest.mark.slow

HEADER: Final = FRAME[:14]
END: Final = b"\0\0"


def capture(*frames: bytes) -> bytes:
    """Return a file as tcpdump writes it."""
    heads = (struct.pack("<IIII", 0, 0, len(frame), len(frame)) for frame in frames)
    head = struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 1514, 1)
    return head + b"".join(one + frame for one, frame in zip(heads, frames, strict=True))


def tlv(kind: int, value: bytes, length: int | None = None) -> bytes:
    return struct.pack(">H", kind << 9 | (len(value) if length is None else length)) + value


def frame(chassis: bytes, port: bytes, *more: bytes, ttl: bytes = b"\0\x78", end: bytes = END) -> bytes:
    return HEADER + tlv(1, chassis) + tlv(2, port) + tlv(3, ttl) + b"".join(more) + end


@pytest.fixture
def host(tmp_path: Path) -> Host:
    needed("blkid")
    return Host(tmp_path / "host")


def nic(host: Host, name: str, heard: bytes | None, carrier: str = "1") -> None:
    folder = host.root / "sys/class/net" / name
    (folder / "device").mkdir(parents=True)
    (folder / "carrier").write_text(f"{carrier}\n")
    (folder / "address").write_text("aa:bb:cc:00:00:01\n")
    (host.root / "tmp/lldp").mkdir(exist_ok=True)
    (host.root / "tmp/lldp.since").write_text("100\n")
    if heard is not None:
        (host.root / "tmp/lldp" / name).write_bytes(heard)


async def neighbours(host: Host, *captures: bytes) -> list[dict[str, Any]]:
    """Return what a report has of each capture."""
    folder = host.root / "tmp/lldp"
    folder.mkdir(exist_ok=True)
    for number, content in enumerate(captures):
        (folder / f"eth{number:04}").write_bytes(content)
    code, out = await host.parts('set +f; for f in "$LLDP"/*; do object lldp_facts "${f##*/}"; echo; done')
    assert code == 0, out
    found = [json.loads(line) for line in out.splitlines()]
    assert len(found) == len(captures)
    for one in found:
        msgspec.convert(one, LLDPNeighbour)
    return found


async def test_the_frame_of_a_real_switch_is_reported_with_its_nic(host: Host) -> None:
    nic(host, "eno1", capture(FRAME))
    nic(host, "eno2", None)
    code, out = await host.parts(f"hardware {UID}")
    assert code == 0, out
    first, second = json.loads(out)["nics"]
    assert first["lldp"] == LEAF
    assert "lldp" not in second


MAC: Final = bytes.fromhex("02aa00000001")
OTHER: Final = {"chassisID": "leaf", "portID": "1"}
CASES: Final[dict[str, tuple[tuple[bytes, ...], dict[str, str]]]] = {
    "other kinds of IDs": (
        (frame(b"\x05\x01\x0a\0\0\x01", b"\x03" + MAC),),
        {"chassisID": "10.0.0.1", "portID": "02:aa:00:00:00:01"},
    ),
    "an address of IPv6": (
        (frame(b"\x05\x02\xfe\x80", b"\x041"),),
        {"chassisID": "02:fe:80", "portID": "31"},
    ),
    "the last one counts": ((FRAME, frame(b"\x07leaf", b"\x051")), OTHER),
    "a broken one after it does not": ((frame(b"\x07leaf", b"\x051"), FRAME[:40]), OTHER),
    "padding after the end": ((frame(b"\x07leaf", b"\x051") + b"\xff" * 20,), OTHER),
    "no end": ((frame(b"\x07leaf", b"\x051", end=b""),), OTHER),
    "a switch that is leaving": ((frame(b"\x07leaf", b"\x051", ttl=b"\0\0"),), {}),
    "no port": ((HEADER + tlv(1, b"\x07leaf") + tlv(3, b"\0\x78") + END,), {}),
    "two ports": ((frame(b"\x07leaf", b"\x051", tlv(2, b"\x052")),), {}),
    "an empty ID": ((frame(b"\x07", b"\x051"),), {}),
    "a MAC that is too short": ((frame(b"\x04\x02\xaa", b"\x051"),), {"portID": "1"}),
    "a length beyond the frame": ((frame(b"\x07leaf", b"\x051", tlv(5, b"name", 500)),), {}),
    "an end with a length": ((frame(b"\x07leaf", b"\x051", end=b"\0\x05"),), {}),
    "another protocol": ((FRAME[:12] + b"\x08\0" + FRAME[14:],), {}),
    "words for a terminal, JSON and a shell": (
        (frame(b"\x07\x1b[2Jleaf\n\xff", b'\x05"; reboot\\', tlv(4, b"$(id) `id`"), tlv(5, b" portID x")),),
        {"chassisID": "[2Jleaf", "portID": '"; reboot\\', "portDescription": "$(id) `id`", "systemName": "portID x"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
async def test_frames_are_parsed_or_ignored_as_a_whole(host: Host, name: str) -> None:
    frames, expected = CASES[name]
    (found,) = await neighbours(host, capture(*frames))
    assert {key: text.strip() for key, text in found.items()} == expected


async def test_no_bytes_break_the_report(host: Host) -> None:
    draw = random.Random(19)
    captures = [b"", b"\0", capture(FRAME)[:30], capture(FRAME)[:-1], capture(b"\xff" * 1514), capture(*[FRAME] * 300)]
    captures.append(capture(frame(b"\x07" + b'"' * 255, b"\x05" + b"\\" * 255, *[tlv(5, b"\xff" * 511)] * 2)))
    captures.append(capture()[:24] + struct.pack("<IIII", 0, 0, 0xFFFFFFFF, 0) + FRAME)
    for _ in range(60):
        broken = bytearray(FRAME)
        for _ in range(draw.randrange(1, 6)):
            broken[draw.randrange(14, len(broken))] = draw.randrange(256)
        captures.append(capture(bytes(broken[: draw.randrange(len(broken))] if draw.random() < 0.3 else broken)))
    captures += [draw.randbytes(draw.randrange(200)) for _ in range(20)]
    for found in await neighbours(host, *captures):
        assert all(len(text) <= 512 and text.isascii() and text.isprintable() for text in found.values())


TICKS: Final = """
seconds() { echo >>"$T/ticks"; echo $((100 + $(wc -l <"$T/ticks"))); }
report() { :; }
wait_for_neighbours; wc -l <"$T/ticks"
"""
"""A clock that goes on by a second with each look."""


@pytest.mark.parametrize(
    ("nics", "ticks"),
    [
        ({"eno1": (capture(FRAME), "1"), "eno2": (None, "0")}, 1),
        ({"eno1": (capture(FRAME), "1"), "eno2": (b"", "1")}, 35),
        ({"eno1": (capture(FRAME[:30]), "1")}, 35),
        ({}, 1),
    ],
    ids=["all heard", "one is silent", "one is garbled", "no NIC"],
)
async def test_an_inspection_waits_for_each_linked_nic_and_not_for_ever(
    host: Host, nics: dict[str, tuple[bytes | None, str]], ticks: int
) -> None:
    (host.root / "tmp/lldp").mkdir()
    (host.root / "tmp/lldp.since").write_text("100\n")
    (host.root / "tmp/ticks").write_text("")
    for name, (heard, carrier) in nics.items():
        nic(host, name, heard, carrier)
    code, out = await host.parts(TICKS)
    assert code == 0, out
    assert 0 <= int(out) <= ticks
    assert ticks == 1 or int(out) == ticks


async def inspect(host: Host, where: Site, **environment: str) -> list[dict[str, Any]]:
    """Return the NICs that a boot reports before it is switched off."""
    where.answers = [(200, {"status": "ok", "action": "PowerOff"})]
    code, out = await host.install(where, **environment)
    assert code == 3, out
    nics: list[dict[str, Any]] = where.hardware[0]["hardware"]["nics"]
    return nics


async def test_an_inspection_reports_what_was_heard(host: Host) -> None:
    needed("nc.openbsd", "scripts/net-tools gets it")
    nic(host, "eno1", capture(FRAME))
    async with site() as where:
        (found,) = await inspect(host, where)
    assert found["lldp"] == LEAF


# On the wire

WIRE: Final = """
"$IP" link add swp1 type veth peer name eno1
"$IP" link set swp1 address 02:aa:00:00:00:01
for link in lo swp1 eno1; do "$IP" link set $link up; done
cp /etc/passwd /etc/group "$T" && echo '_lldpd:x:990:990::/run/lldpd:/bin/false' >>"$T/passwd"
echo '_lldpd:x:990:' >>"$T/group"
mount --bind "$T/passwd" /etc/passwd && mount --bind "$T/group" /etc/group
mount -t tmpfs run /run && mkdir -p /run/lldpd
lldpd -d -u /run/lldpd/socket -I swp1 -S "a switch" 2>"$T/said" &
switch=$!
listen_for_neighbours
for command in "lldp tx-interval 1" "lldp portidsubtype ifname" "system hostname leaf-7.example" \
    "ports swp1 lldp portdescription 'to rack1-01, port 1'"; do
    for try in 1 2 3 4 5 6 7 8 9 10; do
        eval lldpcli -u /run/lldpd/socket configure "$command" && break || sleep 0.3
    done
done >/dev/null 2>&1
lldpcli -u /run/lldpd/socket resume >/dev/null
for second in 1 2 3 4 5 6 7 8 9 10; do
    [ "$(neighbour eno1 | grep -c 'to rack1-01')" = 0 ] || break
    sleep 1
done
object lldp_facts eno1
stop_listening
kill $switch
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="a network namespace with a switch needs root")
async def test_a_real_lldpd_is_heard_on_the_wire(host: Host) -> None:
    for tool in ("tcpdump", "lldpd", "lldpcli"):
        needed(tool, "scripts/lldp-tools gets it")
    host.within = ("unshare", "--net", *OWN_MOUNTS)
    (host.root / "sys/class/net/eno1/device").mkdir(parents=True)
    async with asyncio.timeout(60):
        code, out = await host.parts(WIRE, IP=needed("ip"))  # busybox's own makes no pairs
    assert code == 0, out
    assert json.loads(out.splitlines()[-1]) == LEAF
