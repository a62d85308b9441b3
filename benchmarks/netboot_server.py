"""A child process with metalman's DHCP, TFTP and HTTP servers, and a boot for every host.

`python -m benchmarks.netboot_server LOADER IMAGE` serves these two files, each by its name.
"""

from __future__ import annotations

import asyncio
import sys
from functools import cache
from ipaddress import IPv4Address
from pathlib import Path

from prometheus_client import CollectorRegistry

from benchmarks import children
from benchmarks.netboot_net import CLIENTS, SERVER
from unbounded.api.machine_status import DiskErasureRecord
from unbounded.kube.process_tuning import raise_gc_threshold
from unbounded.metalman.dhcp import server as dhcp_server
from unbounded.metalman.dhcp.model import (
    DhcpClient,
    DhcpFinding,
    DhcpServerMode,
    Loader,
    OfferedBoot,
    StaticLease,
    address_octets,
)
from unbounded.metalman.http import server as http_server
from unbounded.metalman.http.boot_service import (
    CloudInitEvent,
    FileRejected,
    HardwareReport,
    OnDisk,
    ProgressReport,
    ReportAnswer,
    RescueReport,
)
from unbounded.metalman.tftp import server as tftp_server
from unbounded.metalman.tftp.protocol import MemoryContent, TftpContent, TftpRejection

NOTHING = ReportAnswer(200, {})


class Reservations:
    """A lease for every MAC address: its last octets are the host's number."""

    server = address_octets(SERVER)

    def __init__(self, loader: str) -> None:
        self._boot = OfferedBoot({Loader.X64: loader}, f"http://{SERVER}:8880/boot/{'a' * 26}")
        self._first = int(IPv4Address(CLIENTS.partition("/")[0]))
        self.client = cache(self._client)

    def _client(self, mac: str) -> DhcpClient:
        number = int(mac.replace(":", "")[-6:], 16) % 4000
        address = str(IPv4Address(self._first + 1 + number))
        return DhcpClient(f"m-{number}", StaticLease.of(address, "255.255.0.0", SERVER), self._boot)


class Boots:
    """The image for every host; reports have no effect."""

    def __init__(self, image: Path) -> None:
        facts = image.stat()
        self._image = OnDisk(image, facts.st_size, "image", facts.st_mtime)

    async def file(self, client: str, prefix: str | None, path: str) -> OnDisk | FileRejected:
        return self._image if path == self._image.path.name else FileRejected(404, "not served")

    async def served(self, client: str, prefix: str | None, path: str) -> None: ...

    async def disable(self, client: str, prefix: str) -> ReportAnswer:
        return NOTHING

    async def cloud_init(self, client: str, prefix: str, event: CloudInitEvent) -> ReportAnswer:
        return NOTHING

    async def progress(self, client: str, prefix: str, report: ProgressReport) -> ReportAnswer:
        return NOTHING

    async def hardware(self, client: str, prefix: str, report: HardwareReport) -> ReportAnswer:
        return NOTHING

    async def erasure(self, client: str, prefix: str, report: DiskErasureRecord) -> ReportAnswer:
        return NOTHING

    async def rescue(self, client: str, prefix: str, report: RescueReport) -> ReportAnswer:
        return NOTHING

    async def attest(self, client: str, prefix: str, request: bytes) -> ReportAnswer:
        return NOTHING


class Files:
    """The loader for every host."""

    def __init__(self, loader: Path) -> None:
        self._name, self._content = loader.name, loader.read_bytes()

    async def find(self, client: str, name: str) -> TftpContent | TftpRejection:
        return MemoryContent(self._content) if name == self._name else TftpRejection()


def ignore_finding(_: DhcpFinding) -> None:
    """Ignore a finding of the DHCP server."""


async def main(loader: Path, image: Path) -> None:
    raise_gc_threshold()
    leases = dhcp_server.DhcpServer(
        dhcp_server.DhcpServerSettings(mode=DhcpServerMode.RELAY, bind_address=SERVER),
        Reservations(loader.name),
        ignore_finding,
    )
    files = tftp_server.TftpServer(tftp_server.TftpServerSettings(bind_address=SERVER), Files(loader))
    boots = http_server.HttpServer(
        http_server.HttpServerSettings(bind_address=SERVER), Boots(image), CollectorRegistry()
    )
    async with leases.serving(), files.serving(), boots.serving():
        await children.serve({"http": boots.port})


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), Path(sys.argv[2])))
