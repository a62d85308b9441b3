"""Request a lease as firmware does, and print the boot file: `python -m … INTERFACE MAC MACHINE-ID [SERVER GIADDR]`.

With the last two it is a forged datagram, to the server's address and as if a relay had passed it on.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys

from tests.metalman.support.reservations import pxe
from unbounded.metalman.dhcp import packet as opt
from unbounded.metalman.dhcp.packet import BROADCAST_FLAG, MessageType, Packet, datagram, decode, encode

ANSWER_S = 1.5
ATTEMPTS = 3
ETH_P_IP = 0x0800


def discover(mac: str, machine_id: str, giaddr: str = "0.0.0.0") -> Packet:
    options = {
        opt.MESSAGE_TYPE: bytes((MessageType.DISCOVER,)),
        opt.MACHINE_ID: b"\0" + machine_id.encode().ljust(16)[:16],
    }
    xid = int.from_bytes(os.urandom(4), "big")
    hardware = bytes.fromhex(mac.replace(":", ""))
    relay = socket.inet_aton(giaddr)
    return Packet(hardware=hardware, xid=xid, flags=BROADCAST_FLAG, giaddr=relay, options=options | pxe(7))


def forge(mac: str, machine_id: str, server: str, giaddr: str) -> None:
    """Send one datagram from whatever address this host has."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind(("", 67))
        sock.sendto(encode(discover(mac, machine_id, giaddr)), (server, 67))


def boot_file(interface: str, mac: str, machine_id: str) -> str:
    """Return the boot file of an OFFER, requested from 0.0.0.0; `none` for an OFFER without one, and `silence`."""
    packet = discover(mac, machine_id)
    frame = datagram(encode(packet), (bytes(4), 68), (b"\xff" * 4, 67))
    with socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, 0) as raw, _listening(interface) as sock:
        for _ in range(ATTEMPTS):
            raw.sendto(frame, (interface, ETH_P_IP, 0, 0, b"\xff" * 6))
            with contextlib.suppress(TimeoutError):
                while True:
                    answer = decode(sock.recv(4096))
                    if answer.xid == packet.xid and answer.type is MessageType.OFFER:
                        return answer.options.get(opt.BOOT_FILE, b"none").decode()
    return "silence"


def _listening(interface: str) -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, interface.encode() + b"\0")
    sock.settimeout(ANSWER_S)
    sock.bind(("", 68))
    return sock


if __name__ == "__main__":
    if len(sys.argv) > 4:
        forge(*sys.argv[2:])
    else:
        print(boot_file(*sys.argv[1:]))
