"""Our DHCP, TFTP and HTTP servers on a segment, with the files of one boot."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from prometheus_client import CollectorRegistry

from tests.metalman.support.fixed_boots import FixedBoots
from tests.metalman.support.reservations import FixedReservations
from tests.support.qemu import Segment
from unbounded.metalman.dhcp.model import DhcpClient, DhcpFinding, Loader, OfferedBoot, StaticLease, address_octets
from unbounded.metalman.dhcp.server import DhcpServer
from unbounded.metalman.dhcp.server import DhcpServerSettings as DhcpSettings
from unbounded.metalman.http.server import HttpServer
from unbounded.metalman.http.server import HttpServerSettings as HttpSettings
from unbounded.metalman.tftp.protocol import MemoryContent, TftpContent, TftpRejection
from unbounded.metalman.tftp.server import TftpServer
from unbounded.metalman.tftp.server import TftpServerSettings as TftpSettings

PORT: Final = 8880
ADDRESS: Final = "10.88.0.50"
LOADERS: Final = {
    Loader.BIOS: "undionly.kpxe",
    Loader.X64: "shimx64.efi",
    Loader.HTTP: "ipxe.efi",
    Loader.IPXE: "boot.ipxe",
}


@dataclass
class Served:
    """The served files, and the requests to the TFTP server in their order."""

    files: Mapping[str, bytes]
    boots: FixedBoots
    asked: list[str] = field(default_factory=list)
    findings: list[DhcpFinding] = field(default_factory=list)

    async def find(self, client: str, name: str) -> TftpContent | TftpRejection:
        self.asked.append(name)
        return MemoryContent(self.files[name]) if name in self.files else TftpRejection()

    @property
    def by_tftp(self) -> list[str]:
        """Return the requested files that exist; firmware requests the size first, and so each file twice."""
        return [name for name in dict.fromkeys(self.asked) if name in self.files]

    @property
    def by_http(self) -> list[str]:
        """The files that went out whole, to the address of the lease."""
        told = [each[1:] for each in self.boots.told if each[0] == "served"]
        assert {(client, prefix) for client, prefix, _ in told} <= {(ADDRESS, None)}
        return [str(path) for _, _, path in told]


def url(net: Segment) -> str:
    return f"http://{net.address}:{PORT}"


@asynccontextmanager
async def served(
    net: Segment, mac: str, files: Mapping[str, bytes], folder: Path, loaders: Mapping[Loader, str] = LOADERS
) -> AsyncIterator[Served]:
    """Serve while inside, to one machine."""
    folder.mkdir()
    made = Served(files, FixedBoots(folder))
    for name, content in files.items():
        if "/" not in name:
            made.boots.put(name, content)
    lease = StaticLease.of(ADDRESS, "255.255.255.0", net.address)
    reservations = FixedReservations(
        {mac: DhcpClient("m1", lease, OfferedBoot(loaders, url(net)))}, address_octets(net.address)
    )
    async with (
        HttpServer(HttpSettings(net.address, PORT), made.boots, CollectorRegistry()).serving(),
        DhcpServer(DhcpSettings(interface=net.bridge), reservations, made.findings.append).serving(),
        TftpServer(TftpSettings(bind_address=net.address), made).serving(),
    ):
        yield made
