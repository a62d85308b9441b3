"""A process of many simulated hosts that boot together: a lease, the loader by TFTP, the image by HTTP.

`python -m benchmarks.netboot_clients JSON` prints the times of each host, as `BootTimes`. Each host has its own address
and reads all that it receives. Its requests are minimal, so that the benchmark measures the servers and not the hosts.
"""

from __future__ import annotations

import selectors
import socket
import sys
import time
from collections.abc import Iterator
from ipaddress import IPv4Address
from typing import Final

import msgspec

from benchmarks.netboot_net import CLIENT, CLIENTS, SERVER
from unbounded.metalman.dhcp import packet as opt
from unbounded.metalman.dhcp.packet import MessageType, Packet, decode, encode

AGAIN_S: Final = 1.0
SILENT_S: Final = 60.0
READ_BYTES: Final = 256 << 10
BLOCK_BYTES: Final = 1428
WINDOW: Final = 8  # as firmware requests


class BootJob(msgspec.Struct, frozen=True, kw_only=True):
    """Work of the hosts. `path` is that of the image; without a `loader` the hosts need no lease and no loader."""

    hosts: int
    port: int
    path: str
    bytes: int
    loader: str = ""
    loader_bytes: int = 0
    again_s: float = 0.0  # for so long, a host with its image requests it again


class BootTimes(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds until each host had its lease, from there to its loader, and from the start of downloads to its image.

    `cpu_s` is of this process, while images were downloaded.
    """

    leases_s: list[float]
    loaders_s: list[float]
    images_s: list[float]
    cpu_s: float


def main(job: BootJob) -> BootTimes:
    addresses = [str(IPv4Address(CLIENTS.partition("/")[0]) + 1 + number) for number in range(job.hosts)]
    leases, loaders = [0.0], [0.0]
    if job.loader:
        leases = _leases(addresses)
        loaders = _loaders(addresses, job)
    before = time.process_time()
    images = _images(addresses, job)
    return BootTimes(leases_s=leases, loaders_s=loaders, images_s=images, cpu_s=time.process_time() - before)


# A lease, through a relay


def _leases(addresses: list[str]) -> list[float]:
    relay = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    relay.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
    relay.bind((CLIENT, 67))
    relay.settimeout(AGAIN_S)
    start, taken, offered = time.perf_counter(), dict[int, float](), dict[int, bytes]()
    while len(taken) < len(addresses):
        if time.perf_counter() - start > SILENT_S:
            raise TimeoutError(f"{len(addresses) - len(taken)} hosts got no lease")
        for number in range(len(addresses)):  # hosts without an answer send again
            if number not in taken:
                relay.sendto(_request(number, offered.get(number)), (SERVER, 67))
        while len(taken) < len(addresses):
            try:
                packet = decode(relay.recv(2000))
            except TimeoutError:
                break
            if packet.type is MessageType.OFFER and packet.xid not in offered:
                offered[packet.xid] = packet.yiaddr
                relay.sendto(_request(packet.xid, packet.yiaddr), (SERVER, 67))
            elif packet.type is MessageType.ACK:
                if packet.yiaddr != IPv4Address(addresses[packet.xid]).packed:
                    raise ValueError("the lease of another host")
                taken.setdefault(packet.xid, time.perf_counter() - start)
    relay.close()
    return list(taken.values())


def _request(number: int, offered: bytes | None) -> bytes:
    fields = {
        opt.MESSAGE_TYPE: bytes((MessageType.DISCOVER if offered is None else MessageType.REQUEST,)),
        opt.VENDOR_CLASS: b"PXEClient:Arch:00007:UNDI:003016",
        opt.ARCHITECTURE: (7).to_bytes(2, "big"),
    }
    if offered is not None:
        fields |= {opt.REQUESTED_ADDRESS: offered, opt.SERVER_ID: IPv4Address(SERVER).packed}
    hardware = bytes.fromhex("525400") + number.to_bytes(3, "big")
    return encode(Packet(hardware=hardware, xid=number, giaddr=IPv4Address(CLIENT).packed, options=fields))


# The loader


class _Loading:
    """One host's transfer. It acknowledges each window, and repeats its acknowledgement after a silence."""

    def __init__(self, address: str, job: BootJob) -> None:
        self.sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.sock.bind((address, 0))
        self.sock.setblocking(False)
        self._request = b"\0\1%s\0octet\0blksize\0%d\0windowsize\0%d\0" % (job.loader.encode(), BLOCK_BYTES, WINDOW)
        self._size = job.loader_bytes
        self._peer = (SERVER, 69)
        self._last = 0
        self._acked = -1
        self.sent_at = 0.0
        self.got = 0
        self.done = False

    def send(self, now: float) -> None:
        self.sent_at = now
        if self._peer[1] == 69:
            self.sock.sendto(self._request, self._peer)
        else:
            self._acked = self._last
            self.sock.sendto(b"\0\4" + (self._last % 65536).to_bytes(2, "big"), self._peer)

    def receive(self, now: float) -> None:
        while not self.done:
            try:
                data, self._peer = self.sock.recvfrom(2000)
            except BlockingIOError:
                return
            if data[1] == 6:
                self.send(now)
            elif data[1] != 3:
                raise ValueError(f"TFTP error: {data!r}")
            elif int.from_bytes(data[2:4], "big") == (self._last + 1) % 65536:
                self._last += 1
                self.got += len(data) - 4
                self.done = len(data) - 4 < BLOCK_BYTES
                if self.done or self._last - self._acked == WINDOW:
                    self.send(now)
        if self.got != self._size:
            raise ValueError(f"a loader of {self.got} bytes")


def _loaders(addresses: list[str], job: BootJob) -> list[float]:
    start, times = time.perf_counter(), list[float]()
    with selectors.DefaultSelector() as selector:
        for address in addresses:
            loading = _Loading(address, job)
            selector.register(loading.sock, selectors.EVENT_READ, loading)
            loading.send(start)
        for loading in _ready(selector, len(addresses)):
            now = time.perf_counter()
            loading.receive(now)
            if loading.done:
                times.append(now - start)
                selector.unregister(loading.sock)
                loading.sock.close()
    return times


def _ready(selector: selectors.BaseSelector, hosts: int) -> Iterator[_Loading]:
    """Yield the transfers with new data until all are done; after a silence, a transfer repeats its last packet."""
    start = time.perf_counter()
    while selector.get_map():
        for key, _ in selector.select(AGAIN_S):
            yield key.data
        now = time.perf_counter()
        if now - start > SILENT_S * 4:
            raise TimeoutError(f"{len(selector.get_map())} of {hosts} hosts got no loader")
        for key in list(selector.get_map().values()):
            if now - key.data.sent_at > AGAIN_S:
                key.data.send(now)


# The image


class _Downloads:
    """Connections that read images; a host's time is that of its last image."""

    def __init__(self, job: BootJob) -> None:
        self._job = job
        self._request = f"GET {job.path} HTTP/1.1\r\nHost: {SERVER}\r\nConnection: close\r\n\r\n".encode()
        self._room = memoryview(bytearray(READ_BYTES))
        self._got: dict[int, int] = {}
        self._selector = selectors.DefaultSelector()
        self._start = time.perf_counter()
        self.times: list[float] = []

    def begin(self, address: str) -> None:
        sock = socket.socket()
        sock.bind((address, 0))
        sock.connect((SERVER, self._job.port))
        sock.sendall(self._request)
        sock.setblocking(False)
        self._selector.register(sock, selectors.EVENT_READ, (sock, address))
        self._got[sock.fileno()] = 0

    def run(self) -> None:
        """Read until all are complete."""
        while self._selector.get_map():
            events = self._selector.select(SILENT_S)
            if not events:
                raise TimeoutError(f"{len(self._selector.get_map())} hosts got no image")
            for key, _ in events:
                sock, address = key.data
                count = sock.recv_into(self._room)
                self._got[key.fd] += count
                if not count:
                    self._end(sock, address)

    def _end(self, sock: socket.socket, address: str) -> None:
        got = self._got.pop(sock.fileno())
        if got < self._job.bytes:
            raise ValueError(f"an image of {got} bytes")
        self._selector.unregister(sock)
        sock.close()
        now = time.perf_counter() - self._start
        if now < self._job.again_s:
            self.begin(address)
        else:
            self.times.append(now)


def _images(addresses: list[str], job: BootJob) -> list[float]:
    downloads = _Downloads(job)
    for address in addresses:
        downloads.begin(address)
    downloads.run()
    return downloads.times


if __name__ == "__main__":
    print(msgspec.json.encode(main(msgspec.json.decode(sys.argv[1].encode(), type=BootJob))).decode())
