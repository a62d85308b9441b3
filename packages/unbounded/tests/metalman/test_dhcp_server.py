"""The DHCP server's shell over loopback: what needs no interface of its own."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator

import pytest

from tests.metalman.support.reservations import FILES, MAC, URL, FixedReservations, asked, pxe
from tests.support.waiting import eventually
from unbounded.metalman.dhcp import packet as opt
from unbounded.metalman.dhcp.model import (
    DhcpClient,
    DhcpFinding,
    DhcpFindingKind,
    DhcpServerMode,
    OfferedBoot,
    StaticLease,
    address_octets,
)
from unbounded.metalman.dhcp.packet import MessageType, Packet, decode, encode
from unbounded.metalman.dhcp.server import DhcpServer, DhcpServerSettings, SocketRole, interface_address

HERE = address_octets("127.0.0.1")


def local_reservations() -> FixedReservations:
    lease = StaticLease.of("127.0.0.1", "255.0.0.0")
    return FixedReservations({MAC: DhcpClient("m1", lease, OfferedBoot(FILES, URL))}, HERE)


@pytest.fixture
def client() -> Iterator[socket.socket]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind(("127.0.0.1", 0))
        sock.setblocking(False)
        yield sock


def settings(client: socket.socket, mode: DhcpServerMode) -> DhcpServerSettings:
    return DhcpServerSettings(mode, bind_address="127.0.0.1", port=0, boot_port=0, client_port=client.getsockname()[1])


async def heard(client: socket.socket) -> Packet:
    async with asyncio.timeout(10):
        return decode(await asyncio.get_running_loop().sock_recv(client, 2000))


def ignore(_: DhcpFinding) -> None:
    """Ignore a finding."""


async def test_a_renewal_is_answered_at_the_clients_address(client: socket.socket) -> None:
    async with DhcpServer(settings(client, DhcpServerMode.RELAY), local_reservations(), ignore).serving() as server:
        client.sendto(encode(asked(MessageType.REQUEST, ciaddr=HERE)), ("127.0.0.1", server.ports[SocketRole.LEASES]))
        assert (await heard(client)).type is MessageType.ACK
        assert server.counts == {"answered": 1}


async def test_a_proxy_answers_on_its_boot_port_where_the_question_came_from(client: socket.socket) -> None:
    async with DhcpServer(settings(client, DhcpServerMode.PROXY), local_reservations(), ignore).serving() as server:
        client.sendto(
            encode(asked(MessageType.REQUEST, pxe(7), ciaddr=HERE)), ("127.0.0.1", server.ports[SocketRole.BOOT])
        )
        assert (await heard(client)).options[opt.BOOT_FILE] == b"shimx64.efi"
        client.sendto(
            encode(asked(MessageType.REQUEST, pxe(7), ciaddr=HERE)), ("127.0.0.1", server.ports[SocketRole.LEASES])
        )
        await eventually(lambda: server.counts == {"answered": 1, "not for a proxy": 1})


async def test_flood_of_odd_packets_is_counted_and_service_continues(client: socket.socket) -> None:
    found: list[DhcpFinding] = []
    async with DhcpServer(
        settings(client, DhcpServerMode.RELAY), local_reservations(), found.append
    ).serving() as server:
        to = ("127.0.0.1", server.ports[SocketRole.LEASES])
        for number in range(300):
            client.sendto(b"\xff" * number, to)
            client.sendto(encode(asked(MessageType.DISCOVER, hardware=number.to_bytes(6, "big"), giaddr=HERE)), to)
            client.sendto(encode(asked(MessageType.REQUEST, pxe(6), ciaddr=HERE)), to)
        await eventually(lambda: server.counts == {"malformed": 300, "unknown MAC": 300, "answered": 300})
        assert [(one.machine, one.kind) for one in found] == [("m1", DhcpFindingKind.NO_BOOT_FILE)]


async def test_a_reply_that_cannot_be_sent_is_counted(client: socket.socket) -> None:
    async with DhcpServer(settings(client, DhcpServerMode.RELAY), local_reservations(), ignore).serving() as server:
        broadcast = bytes((255, 255, 255, 255))  # which the socket may not send to
        data = encode(asked(MessageType.REQUEST, {opt.REQUESTED_ADDRESS: HERE}, giaddr=broadcast))
        client.sendto(data, ("127.0.0.1", server.ports[SocketRole.LEASES]))
        await eventually(lambda: server.counts.get("not sent") == 1)


async def test_an_interface_that_is_not_there_is_an_error_at_the_start() -> None:
    with pytest.raises(OSError, match="No such device"):
        interface_address("nosuch0")
    with pytest.raises(OSError, match=r"No such device|not permitted"):
        async with DhcpServer(DhcpServerSettings(interface="nosuch0", port=0), local_reservations(), ignore).serving():
            pass
    assert interface_address("lo") == HERE
