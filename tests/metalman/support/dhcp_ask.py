"""Asks for a lease as firmware does, and prints the boot file: `python -m … INTERFACE MAC MACHINE-ID`."""

from __future__ import annotations

import contextlib
import os
import socket
import sys

from tests.metalman.support.net_book import pxe
from unbounded.metalman.dhcp import options as opt
from unbounded.metalman.dhcp.packet import BROADCAST_FLAG, Packet, Type, decode, encode

ANSWER_S = 1.5
ATTEMPTS = 3


def boot_file(interface: str, mac: str, machine_id: str) -> str:
    """The boot file of an OFFER; `none` for an OFFER without, and `silence`."""
    options = {opt.MESSAGE_TYPE: bytes((Type.DISCOVER,)), opt.MACHINE_ID: b"\0" + machine_id.encode().ljust(16)[:16]}
    xid = int.from_bytes(os.urandom(4), "big")
    hardware = bytes.fromhex(mac.replace(":", ""))
    packet = Packet(hardware=hardware, xid=xid, flags=BROADCAST_FLAG, options=options | pxe(7))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, interface.encode() + b"\0")
        sock.settimeout(ANSWER_S)
        sock.bind(("", 68))
        for _ in range(ATTEMPTS):
            sock.sendto(encode(packet), ("255.255.255.255", 67))
            with contextlib.suppress(TimeoutError):
                while True:
                    answer = decode(sock.recv(4096))
                    if answer.xid == xid and answer.type is Type.OFFER:
                        return answer.options.get(opt.BOOT_FILE, b"none").decode()
    return "silence"


if __name__ == "__main__":
    print(boot_file(*sys.argv[1:4]))
