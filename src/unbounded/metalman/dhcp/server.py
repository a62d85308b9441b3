"""The DHCP server's shell: sockets on asyncio, bound to an interface or to an address behind relays."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import socket
import struct
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, cast

from unbounded.kube.logs import Log
from unbounded.metalman.dhcp import lease, proxy
from unbounded.metalman.dhcp.frames import datagram
from unbounded.metalman.dhcp.model import Arrival, Book, Finding, Mode, Reason, Reply, Silence, Via, packed, shown
from unbounded.metalman.dhcp.options import Malformed
from unbounded.metalman.dhcp.packet import decode
from unbounded.metalman.tally import Once, Tally

BROADCAST: Final = "255.255.255.255"
RECEIVE_BUFFER_BYTES: Final = 4 << 20  # some thousand packets of hosts that are switched on together
SIOCGIFADDR: Final = 0x8915
ETH_P_IP: Final = 0x0800
Report = Callable[[Finding], None]


class Port(Enum):
    """What a socket is for."""

    LEASES = "leases"
    BOOT = "boot"  # PXE clients ask a proxy here
    OVERHEARD = "overheard"  # what servers, also other ones, broadcast to clients


log = Log("metalman.dhcp")


@dataclass(frozen=True, slots=True)
class Settings:
    """Where a server listens. `interface` is needed in every mode but RELAY."""

    mode: Mode = Mode.INTERFACE
    interface: str | None = None
    bind_address: str = "0.0.0.0"  # noqa: S104 - the reference's default; an interface narrows it
    port: int = 67
    client_port: int = 68
    boot_port: int = 4011


class Server:
    """Answers packets from what a book says; `counts` holds what it did, by reason."""

    def __init__(self, settings: Settings, book: Book, report: Report) -> None:
        clock = asyncio.get_running_loop().time
        self._settings = settings
        self._book = book
        self._report = report
        self._tally = Tally(log, clock)
        self._once = Once(clock)
        self._raw: socket.socket | None = None
        self.ports: dict[Port, int] = {}  # once it serves

    @property
    def counts(self) -> dict[str, int]:
        """How often each thing happened: `answered`, or the reason why not."""
        return dict(self._tally.counts)

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[Server]:
        """Serve while inside; packets are answered from the first moment on.

        Raises:
            OSError: a port is taken, or the interface is not there.
        """
        async with contextlib.AsyncExitStack() as stack:
            wanted = self._settings
            if wanted.interface is not None:
                self._raw = stack.enter_context(contextlib.closing(_raw_socket()))
            await self._listen(stack, wanted.port, Port.LEASES)
            if wanted.mode is Mode.PROXY:
                await self._listen(stack, wanted.boot_port, Port.BOOT)
            if wanted.mode is Mode.INTERFACE:
                await self._overhear(stack)
            log.info(
                "serving DHCP", mode=wanted.mode.value, interface=wanted.interface or "", port=self.ports[Port.LEASES]
            )
            yield self

    async def _overhear(self, stack: contextlib.AsyncExitStack) -> None:
        """Listen to what other servers broadcast to clients. A host that is a DHCP client itself may have the port."""
        try:
            await self._listen(stack, self._settings.client_port, Port.OVERHEARD)
        except OSError as error:
            log.warning("other DHCP servers are noticed only by what clients ask them", error=error)

    async def _listen(self, stack: contextlib.AsyncExitStack, port: int, role: Port) -> None:
        sock = _bound_socket(self._settings, port)
        try:
            transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(
                lambda: _Protocol(self, role), sock=sock
            )
        except BaseException:
            sock.close()
            raise
        stack.callback(transport.close)
        self.ports[role] = transport.get_extra_info("sockname")[1]

    def received(self, data: bytes, source: tuple[str, int], transport: asyncio.DatagramTransport, role: Port) -> None:
        """Decide on one packet and carry it out."""
        try:
            packet = decode(data)
        except Malformed as error:
            self._tally.count(Reason.MALFORMED.value, source=source[0], why=str(error))
            return
        if role is Port.OVERHEARD:
            self._pass_on(lease.foreign_server(packet, self._book))
            return
        arrival = Arrival(self._settings.mode, packed(source[0]), boot_port=role is Port.BOOT)
        decide = proxy.answer if arrival.mode is Mode.PROXY else lease.answer
        answer = decide(packet, arrival, self._book)
        self._pass_on(answer.findings)
        match answer:
            case Silence(reason=reason):
                self._tally.count(reason.value, source=source[0], mac=packet.hardware.hex(":"))
            case Reply():
                self._send(answer, source, transport)

    def _pass_on(self, findings: tuple[Finding, ...]) -> None:
        for finding in findings:
            if self._once.new(finding):
                log.warning("trouble on the network", machine=finding.machine, reason=finding.trouble.value)
                self._report(finding)

    def _send(self, reply: Reply, source: tuple[str, int], transport: asyncio.DatagramTransport) -> None:
        match reply.via:
            case Via.RELAY:
                transport.sendto(reply.payload, (shown(reply.address), self._settings.port))
            case Via.UNICAST:
                transport.sendto(reply.payload, (shown(reply.address), self._settings.client_port))
            case Via.BROADCAST:
                transport.sendto(reply.payload, (BROADCAST, self._settings.client_port))
            case Via.HARDWARE:
                self._send_to_hardware(reply, transport)
            case Via.BACK:
                transport.sendto(reply.payload, source)
        self._tally.counts["answered"] += 1

    def _send_to_hardware(self, reply: Reply, transport: asyncio.DatagramTransport) -> None:
        if self._raw is None or self._settings.interface is None:
            transport.sendto(reply.payload, (BROADCAST, self._settings.client_port))
            return
        frame = datagram(
            reply.payload, (self._book.server, self.ports[Port.LEASES]), (reply.address, self._settings.client_port)
        )
        target = (self._settings.interface, ETH_P_IP, 0, 0, reply.packet.hardware)
        try:
            self._raw.sendto(frame, target)
        except OSError as error:  # the queue is full, or the interface is down: the client asks again
            self._tally.count("not sent", why=str(error))

    def lost(self, error: Exception) -> None:
        """A send that failed later, such as to a host that is not there."""
        self._tally.count("not sent", why=str(error))


class _Protocol(asyncio.DatagramProtocol):
    def __init__(self, server: Server, role: Port) -> None:
        self._server = server
        self._role = role
        self._transport: asyncio.DatagramTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.DatagramTransport, transport)  # asyncio's own is no subclass before 3.12

    def datagram_received(self, data: bytes, addr: tuple[str | Any, int]) -> None:
        if self._transport is not None:
            self._server.received(data, addr, self._transport, self._role)

    def error_received(self, exc: Exception) -> None:
        self._server.lost(exc)


def interface_address(interface: str) -> bytes:
    """The first IPv4 address of an interface, as four octets.

    Raises:
        OSError: there is no such interface, or it has no address.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        asked = struct.pack("256s", interface.encode()[:15])
        return fcntl.ioctl(sock, SIOCGIFADDR, asked)[20:24]


def _bound_socket(settings: Settings, port: int) -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
        if settings.interface is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, settings.interface.encode() + b"\0")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        # Broadcasts reach only sockets that are bound to no address; the interface keeps others out.
        sock.bind(("" if settings.interface is not None else settings.bind_address, port))
    except BaseException:
        sock.close()
        raise
    return sock


def _raw_socket() -> socket.socket:
    sock = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, 0)  # protocol 0: it sends, and is given nothing
    sock.setblocking(False)
    return sock
