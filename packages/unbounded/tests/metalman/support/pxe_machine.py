"""A machine that boots from the network, played by a script: `python -m … '{"interface": …, "mac": …}'`.

It does what firmware, loader, installer and cloud-init do, with the standard library alone: DHCP, TFTP, HTTP, reports.
It prints each step as a line of JSON. With `until` it stops after that step. With `resume`, the URL of a boot, it is
the installer of that boot, which continues; with `installed`, such a URL, the installed system.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import socket
import struct
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any, Final

COOKIE: Final = b"\x63\x82\x53\x63"
DISCOVER, OFFER, REQUEST, ACK = 1, 2, 3, 5
ANSWER_S: Final = 3.0
ATTEMPTS: Final = 10
LIMIT_S: Final = 60.0


def say(step: str, **facts: Any) -> None:
    print(json.dumps({"step": step, **facts}), flush=True)


# DHCP


def dhcp_packet(mac: bytes, xid: bytes, kind: int, *options: tuple[int, bytes]) -> bytes:
    """A request with the broadcast flag, of a UEFI x64 client."""
    head = struct.pack("!BBBB4sHH", 1, 1, 6, 0, xid, 0, 0x8000) + bytes(16) + mac + bytes(10 + 64 + 128)
    told = ((53, bytes([kind])), (93, b"\x00\x07"), (94, b"\x01\x03\x00"), (60, b"PXEClient:Arch:00007"), *options)
    told += ((97, b"\x00" + mac + bytes(10)), (55, bytes([1, 3, 6, 51, 54, 66, 67])))
    return head + COOKIE + b"".join(bytes([code, len(value)]) + value for code, value in told) + b"\xff"


def dhcp_options(packet: bytes) -> dict[int, bytes]:
    found, rest = {}, packet[240:]
    while rest and rest[0] != 255:
        if rest[0] == 0:
            rest = rest[1:]
            continue
        found[rest[0]] = rest[2 : 2 + rest[1]]
        rest = rest[2 + rest[1] :]
    return found


def ask_dhcp(interface: str, mac: bytes) -> tuple[str, dict[int, bytes]]:
    """The address, and the options of the ACK."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, interface.encode() + b"\0")
        sock.bind(("", 68))
        xid = os.urandom(4)
        offer = exchange(sock, mac, xid, DISCOVER, OFFER)
        chosen = (50, offer[16:20]), (54, dhcp_options(offer)[54])
        ack = exchange(sock, mac, xid, REQUEST, ACK, *chosen)
    return socket.inet_ntoa(ack[16:20]), dhcp_options(ack)


def exchange(sock: socket.socket, mac: bytes, xid: bytes, kind: int, wanted: int, *options: tuple[int, bytes]) -> bytes:
    for _ in range(ATTEMPTS):
        sock.sendto(dhcp_packet(mac, xid, kind, *options), ("255.255.255.255", 67))
        for answer in answers(sock):
            if answer[4:8] == xid and dhcp_options(answer).get(53) == bytes([wanted]):
                return answer
    raise SystemExit(f"no answer to DHCP message {kind}")


def answers(sock: socket.socket) -> Iterator[bytes]:
    end = time.monotonic() + ANSWER_S
    while (left := end - time.monotonic()) > 0:
        sock.settimeout(left)
        try:
            yield sock.recv(4096)
        except TimeoutError:
            return


# TFTP


def tftp(server: str, name: str) -> bytes:
    """Return a file; raise OSError with the server's error."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.settimeout(ANSWER_S)
        request = b"\x00\x01" + name.encode() + b"\x00octet\x00blksize\x001400\x00"
        peer: tuple[str, int] = (server, 69)
        sock.sendto(request, peer)
        content, block, size = b"", 0, 512
        while True:
            packet, peer = sock.recvfrom(4096)
            kind, number = struct.unpack("!HH", packet[:4])
            if kind == 5:
                raise OSError(packet[4:].rstrip(b"\0").decode())
            if kind == 6:
                size = int(packet.split(b"\0")[2]) if b"blksize" in packet else size
                sock.sendto(b"\x00\x04\x00\x00", peer)
            elif kind == 3 and number == (block + 1) % 65536:
                block, content = block + 1, content + packet[4:]
                sock.sendto(b"\x00\x04" + struct.pack("!H", number), peer)
                if len(packet) - 4 < size:
                    return content


# HTTP


def http(url: str, body: dict[str, Any] | None = None) -> tuple[int, bytes]:
    """Return the answer; repeat the request after a 503, as in the protocol, and while the server is unreachable."""
    end = time.monotonic() + LIMIT_S
    while True:
        request = urllib.request.Request(
            url, data=None if body is None else json.dumps(body).encode(), headers={"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            if error.code != 503 or time.monotonic() > end:
                return error.code, error.read()
            time.sleep(min(1.0, float(error.headers.get("Retry-After", 1))))
        except urllib.error.URLError:
            if time.monotonic() > end:
                raise
            time.sleep(0.2)


def wanted(url: str, body: dict[str, Any] | None = None) -> bytes:
    code, content = http(url, body)
    if code not in (200, 204):
        raise SystemExit(f"{url}: {code} {content[:300]!r}")
    return content


# The machine


def boot(asked: dict[str, Any]) -> None:
    until = asked.get("until", "")
    for step in course(asked):
        if step == until:
            return


def course(asked: dict[str, Any]) -> Iterator[str]:
    if "installed" in asked:
        return first_start(asked["installed"])
    if "resume" in asked:
        return install(asked["resume"])
    return machine(asked["interface"], bytes.fromhex(asked["mac"].replace(":", "")))


def machine(interface: str, mac: bytes) -> Iterator[str]:
    address, options = ask_dhcp(interface, mac)
    server, loader = options.get(66, b"").decode(), options.get(67, b"").decode()
    say("leased", address=address, server=server, loader=loader)
    subprocess.run(["ip", "addr", "flush", "dev", interface], check=True)
    subprocess.run(["ip", "addr", "add", f"{address}/24", "dev", interface], check=True)
    subprocess.run(["ip", "route", "replace", "default", "via", socket.inet_ntoa(options[3][:4])], check=True)
    if not loader:
        say("booted from disk")
        return
    yield "leased"
    content = tftp(server, loader)
    say("loader", digest=hashlib.sha256(content).hexdigest())
    yield "loader"
    config = tftp(server, "/grub/grub.cfg").decode()
    say("config", text=config)
    kernel = tftp(server, "//vmlinuz")
    tftp(server, "initrd")
    found = re.search(r"unbounded\.serve_url=(\S+)", config)
    if found is None:
        raise SystemExit(f"no serve_url in {config!r}")
    url = found[1]
    say("kernel", bytes=len(kernel), url=url)
    yield "kernel"
    yield from install(url)


def install(url: str) -> Iterator[str]:
    wanted(f"{url}/progress", {"stage": "started", "percent": 0, "message": "looking for the disk"})
    say("installer")
    disk = {"name": "sda", "sizeBytes": 480_000_000_000, "sectorBytes": 512, "state": "Blank", "byID": ["wwn-0xa1"]}
    hardware = {"cpus": 4, "memoryBytes": 8 << 30, "disks": [disk]}
    say("chosen", answer=json.loads(wanted(f"{url}/hardware", {"final": True, "hardware": hardware})))
    yield "installer"
    image = wanted(f"{url}/disk.img.gz")
    for percent in (10, 55, 100):
        wanted(f"{url}/progress", {"stage": "writing", "percent": percent, "message": "writing"})
    say("image", digest=hashlib.sha256(image).hexdigest(), bytes=len(image))
    yield "image"
    say("disable by GET", code=http(f"{url}/pxe/disable")[0])
    say("disabled", answer=wanted(f"{url}/pxe/disable", {}).decode())
    yield "disabled"
    say("user-data", text=wanted(f"{url}/cloud-init/user-data").decode())
    yield from first_start(url)


def first_start(url: str) -> Iterator[str]:
    for name in ("init-local", "modules-final"):
        for kind in ("start", "finish"):
            event = {"name": name, "description": name, "event_type": kind, "origin": "cloudinit", "timestamp": 1.5}
            wanted(f"{url}/cloudinit/log", event | ({"result": "SUCCESS"} if kind == "finish" else {}))
    say("cloud-init done")
    yield "cloud-init done"


if __name__ == "__main__":
    boot(json.loads(sys.argv[1]))
