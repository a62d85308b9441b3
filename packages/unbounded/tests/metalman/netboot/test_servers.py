"""The servers of network boot in one process: their report of an unavailable port, and their counters."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.support.memory_api import MemoryApi
from unbounded.kube.process import Runtime, StartupError
from unbounded.metalman.dhcp.model import DhcpClient, DhcpFinding, DhcpServerMode, WithheldReservation, address_octets
from unbounded.metalman.netboot.servers import KernelNetwork, NetbootServers, Reachability, reach, why_not
from unbounded.metalman.settings import DhcpMode, FlagNames, NetbootSettings
from unbounded.metalman.tftp.protocol import TftpContent, TftpRejection

BEHIND_RELAYS = Reachability(address_octets("127.0.0.1"), DhcpServerMode.RELAY, None, "http://127.0.0.1:8880")


class NoFiles:
    async def find(self, client: str, name: str) -> TftpContent | TftpRejection:
        return TftpRejection()


class EmptyBook:
    server = address_octets("127.0.0.1")

    def client(self, mac: str) -> DhcpClient | WithheldReservation | None:
        return None


def ignored(finding: DhcpFinding) -> None:
    raise AssertionError(finding)


def servers(runtime: Runtime | None = None, reach: Reachability = BEHIND_RELAYS, **said: int) -> NetbootServers:
    settings = NetbootSettings(bind_address="127.0.0.1", **said)  # type: ignore[arg-type]
    return NetbootServers(runtime or Runtime(MemoryApi()), settings, reach)


@pytest.fixture
def taken() -> Iterator[int]:
    """A UDP port that is in use."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind(("127.0.0.1", 0))
        yield sock.getsockname()[1]


async def test_a_tftp_port_that_is_taken_is_named_with_its_flag(taken: int) -> None:
    with pytest.raises(StartupError, match=f"TFTP cannot listen on 127.0.0.1 port {taken}: .* another --tftp-port"):
        async with servers(tftp_port=taken).tftp(NoFiles()):
            pass


async def test_a_dhcp_port_that_is_taken_is_named_with_its_flag(taken: int) -> None:
    with pytest.raises(StartupError, match=f"DHCP cannot listen on 127.0.0.1 port {taken}: .* another --dhcp-port"):
        await servers(dhcp_port=taken).dhcp(EmptyBook(), ignored)


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.EADDRNOTAVAIL, "this machine does not have that address; correct --bind-address"),
        (errno.EACCES, "need root or CAP_NET_BIND_SERVICE; or choose another --tftp-port"),
        (errno.EPERM, "an interface needs root or CAP_NET_RAW; without them, omit --pxe-interface"),
        (errno.ENODEV, "interface br0 does not exist any more; correct --pxe-interface"),
        (errno.EIO, "(--tftp-port): Input/output error"),
    ],
)
def test_why_a_server_cannot_listen_is_said_with_a_remedy(number: int, words: str) -> None:
    settings = NetbootSettings(interface="br0", flags=FlagNames(interface="--pxe-interface"))
    assert words in why_not("TFTP", settings, 69, "--tftp-port", OSError(number, os.strerror(number)))


@pytest.mark.parametrize(
    ("mode", "leads"), [(DhcpServerMode.INTERFACE, True), (DhcpServerMode.PROXY, True), (DhcpServerMode.RELAY, False)]
)
def test_dhcp_needs_the_leader_only_on_a_local_segment(mode: DhcpServerMode, leads: bool) -> None:
    assert servers(reach=Reachability(address_octets("127.0.0.1"), mode, None, "")).dhcp_leads is leads


async def test_what_a_server_has_counted_is_scraped_and_outlives_it() -> None:
    runtime = Runtime(MemoryApi())
    made = servers(runtime, tftp_port=0)
    for _ in range(2):
        async with made.tftp(NoFiles()) as server:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
                sock.setblocking(False)
                loop = asyncio.get_running_loop()
                await loop.sock_sendto(sock, b"\x00\x01grub.cfg\x00octet\x00", ("127.0.0.1", server.port))
                async with asyncio.timeout(10):
                    assert (await loop.sock_recv(sock, 600))[:4] == b"\x00\x05\x00\x01"
    assert b'unbounded_netboot_tftp_requests_total{result="refused"} 2.0' in runtime.metrics.text()


@dataclass(frozen=True)
class Links:
    has: Mapping[str, str] = field(default_factory=lambda: {"lo": "127.0.0.1", "eth0": "10.0.0.5", "br0": "10.66.0.1"})
    bare: frozenset[str] = frozenset({"eth9"})
    route: str | None = "10.0.0.5"

    def addresses(self) -> Mapping[str, str]:
        return self.has

    def interfaces(self) -> frozenset[str]:
        return frozenset(self.has) | self.bare

    def outbound(self) -> str | None:
        return self.route


@pytest.mark.parametrize(
    ("said", "server", "mode", "interface", "url"),
    [
        ({}, "10.0.0.5", DhcpServerMode.RELAY, None, "http://10.0.0.5:8880"),
        ({"bind_address": "10.66.0.1"}, "10.66.0.1", DhcpServerMode.RELAY, None, "http://10.66.0.1:8880"),
        ({"interface": "br0"}, "10.66.0.1", DhcpServerMode.INTERFACE, "br0", "http://10.66.0.1:8880"),
        (
            {"interface": "br0", "bind_address": "10.66.0.2"},
            "10.66.0.2",
            DhcpServerMode.INTERFACE,
            "br0",
            "http://10.66.0.2:8880",
        ),
        ({"auto_interface": True}, "10.0.0.5", DhcpServerMode.INTERFACE, "eth0", "http://10.0.0.5:8880"),
        (
            {"auto_interface": True, "bind_address": "10.66.0.1"},
            "10.66.0.1",
            DhcpServerMode.INTERFACE,
            "br0",
            "http://10.66.0.1:8880",
        ),
        (
            {"interface": "br0", "dhcp_mode": DhcpMode.PROXY},
            "10.66.0.1",
            DhcpServerMode.PROXY,
            "br0",
            "http://10.66.0.1:8880",
        ),
        ({"dhcp_mode": DhcpMode.NONE}, "10.0.0.5", None, None, "http://10.0.0.5:8880"),
        ({"serve_url": "http://boot", "http_port": 80}, "10.0.0.5", DhcpServerMode.RELAY, None, "http://boot"),
        ({"http_port": 80}, "10.0.0.5", DhcpServerMode.RELAY, None, "http://10.0.0.5:80"),
    ],
)
def test_what_is_not_said_follows_from_the_network(
    said: dict[str, Any], server: str, mode: DhcpServerMode | None, interface: str | None, url: str
) -> None:
    assert reach(NetbootSettings(**said), Links()) == Reachability(address_octets(server), mode, interface, url)


@pytest.mark.parametrize(
    ("said", "links", "words"),
    [
        ({"interface": "eth7"}, Links(), "--pxe-interface: interface eth7 does not exist; available: br0, eth0, eth9"),
        ({"interface": "eth9"}, Links(), "--pxe-interface: eth9 has no IPv4 address: assign one"),
        (
            {},
            Links(route=None),
            "cannot determine the address of this machine "
            "without a default route: set --bind-address or --pxe-interface",
        ),
        (
            {"auto_interface": True, "bind_address": "10.9.9.9"},
            Links(),
            "--dhcp-auto-interface: no interface has the address 10.9.9.9; name one",
        ),
    ],
)
def test_what_cannot_be_reached_is_refused_with_the_flag_and_a_remedy(
    said: dict[str, Any], links: Links, words: str
) -> None:
    flags = FlagNames(interface="--pxe-interface")
    with pytest.raises(StartupError) as refused:
        reach(NetbootSettings(flags=flags, **said), links)
    assert words in str(refused.value)


def test_the_network_of_this_machine_has_a_loopback() -> None:
    links = KernelNetwork()
    assert "lo" in links.interfaces()
    assert links.addresses()["lo"] == "127.0.0.1"
