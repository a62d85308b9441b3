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
from typing import Final

from unbounded.kube.logs import Log
from unbounded.kube.rejection_counters import RejectionCounters, RepeatFilter
from unbounded.metalman.dhcp import model, reply_or_drop
from unbounded.metalman.dhcp.packet import MalformedDhcpPacket, datagram, decode
from unbounded.metalman.sockets import udp_socket

BROADCAST: Final = "255.255.255.255"
RECEIVE_BUFFER_BYTES: Final = 4 << 20  # some thousand packets, as when many hosts are switched on together
LARGEST_BYTES: Final = 9000
MOST_IN_A_TURN: Final = 32  # packets; then other tasks of the loop run
SIOCGIFADDR: Final = 0x8915
ETH_P_IP: Final = 0x0800
Report = Callable[[model.DhcpFinding], None]


class SocketRole(Enum):
    """Purpose of a socket."""

    LEASES = "leases"
    BOOT = "boot"  # requests of PXE clients to a proxy
    OVERHEARD = "overheard"  # broadcasts of servers to clients, foreign servers included


log = Log("metalman.dhcp")


@dataclass(frozen=True, slots=True)
class DhcpServerSettings:
    """Listening addresses of a server and the relays that it accepts. Every mode but RELAY requires `interface`."""

    mode: model.DhcpServerMode = model.DhcpServerMode.INTERFACE
    interface: str | None = None
    bind_address: str = "0.0.0.0"  # noqa: S104 - the reference's default; an interface narrows it
    port: int = 67
    client_port: int = 68
    boot_port: int = 4011
    relays: model.Relays = model.NO_RELAYS


class DhcpServer:
    """Answer packets from a `ReservationSource`; `counts` has the number of answers and of drops by reason."""

    def __init__(
        self,
        settings: DhcpServerSettings,
        reservations: model.ReservationSource,
        report: Report,
        listener: model.PacketObserver | None = None,
    ) -> None:
        clock = asyncio.get_running_loop().time
        self._settings = settings
        self._reservations = reservations
        self._report = report
        self._listener = listener
        self._tally = RejectionCounters(log, clock)
        self._once = RepeatFilter(clock)
        self._raw: socket.socket | None = None
        self.ports: dict[SocketRole, int] = {}  # filled once the server listens

    @property
    def counts(self) -> dict[str, int]:
        """Number of packets by result: `answered`, or the reason for no answer."""
        return dict(self._tally.counts)

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[DhcpServer]:
        """Serve inside of the context, from its first moment on.

        Raises:
            OSError: a port is taken, or the interface does not exist.
        """
        async with contextlib.AsyncExitStack() as stack:
            desired = self._settings
            if desired.interface is not None:
                self._raw = stack.enter_context(contextlib.closing(_raw_socket()))
            await self._listen(stack, desired.port, SocketRole.LEASES)
            if desired.mode is model.DhcpServerMode.PROXY:
                await self._listen(stack, desired.boot_port, SocketRole.BOOT)
            if desired.mode is model.DhcpServerMode.INTERFACE:
                await self._listen_to_broadcasts(stack)
            log.info(
                "serving DHCP",
                mode=desired.mode.value,
                interface=desired.interface or "",
                port=self.ports[SocketRole.LEASES],
            )
            yield self

    async def _listen_to_broadcasts(self, stack: contextlib.AsyncExitStack) -> None:
        """Listen to broadcasts of other servers to clients.

        If the host is a DHCP client itself, the port may be taken.
        """
        try:
            await self._listen(stack, self._settings.client_port, SocketRole.OVERHEARD)
        except OSError as error:
            log.warning("other DHCP servers are detected only by the requests of clients", error=error)

    async def _listen(self, stack: contextlib.AsyncExitStack, port: int, role: SocketRole) -> None:
        sock = stack.enter_context(contextlib.closing(_bound_socket(self._settings, port)))
        loop = asyncio.get_running_loop()
        loop.add_reader(sock, self._read_pending, sock, role)
        stack.callback(loop.remove_reader, sock)
        self.ports[role] = sock.getsockname()[1]

    def _read_pending(self, sock: socket.socket, role: SocketRole) -> None:
        """Read pending packets. asyncio's own datagram transport reads one in a turn of the loop, in buffers of 256
        KiB.
        """
        for _ in range(MOST_IN_A_TURN):
            try:
                data, source = sock.recvfrom(LARGEST_BYTES)
            except BlockingIOError:
                return
            except OSError as error:  # caused by an earlier packet of ours, such as one to an unreachable host
                self._count_socket_error(error)
            else:
                self._handle(data, source, sock, role)

    def _handle(self, data: bytes, source: tuple[str, int], sock: socket.socket, role: SocketRole) -> None:
        """Decide on one packet and send the answer."""
        try:
            packet = decode(data)
        except MalformedDhcpPacket as error:
            self._tally.count(model.NoReplyReason.MALFORMED.value, source=source[0], why=str(error))
            return
        if role is SocketRole.OVERHEARD:
            self._report_findings(reply_or_drop.foreign_server_findings(packet, self._reservations))
            return
        arrival = model.Arrival(
            self._settings.mode, socket.inet_aton(source[0]), role is SocketRole.BOOT, relays=self._settings.relays
        )
        if self._listener is not None:
            self._listener.packet_received(packet, arrival)
        decide = reply_or_drop.proxy_answer if arrival.mode is model.DhcpServerMode.PROXY else reply_or_drop.answer
        answer = decide(packet, arrival, self._reservations)
        self._report_findings(answer.findings)
        match answer:
            case model.NoReply(reason=reason):
                self._tally.count(reason.value, source=source[0], mac=packet.hardware.hex(":"))
            case model.DhcpReply():
                self._send(answer, source, sock)
                if self._listener is not None:
                    self._listener.reply_sent(packet, answer)

    def _report_findings(self, findings: tuple[model.DhcpFinding, ...]) -> None:
        for finding in findings:
            if self._once.allows(finding):
                log.warning("network problem", machine=finding.machine, reason=finding.kind.value)
                self._report(finding)

    def _send(self, reply: model.DhcpReply, source: tuple[str, int], sock: socket.socket) -> None:
        try:
            match reply.via:
                case model.ReplyRoute.RELAY:
                    sock.sendto(reply.payload, (model.format_address(reply.address), self._settings.port))
                case model.ReplyRoute.UNICAST:
                    sock.sendto(reply.payload, (model.format_address(reply.address), self._settings.client_port))
                case model.ReplyRoute.BROADCAST:
                    sock.sendto(reply.payload, (BROADCAST, self._settings.client_port))
                case model.ReplyRoute.HARDWARE:
                    self._send_to_hardware(reply, sock)
                case model.ReplyRoute.BACK:
                    sock.sendto(reply.payload, source)
        except OSError as error:  # the queue is full, or the interface is down: the client sends its packet again
            self._count_socket_error(error)
        else:
            self._tally.counts["answered"] += 1

    def _send_to_hardware(self, reply: model.DhcpReply, sock: socket.socket) -> None:
        if self._raw is None or self._settings.interface is None:
            sock.sendto(reply.payload, (BROADCAST, self._settings.client_port))
            return
        frame = datagram(
            reply.payload,
            (self._reservations.server, self.ports[SocketRole.LEASES]),
            (reply.address, self._settings.client_port),
        )
        self._raw.sendto(frame, (self._settings.interface, ETH_P_IP, 0, 0, reply.packet.hardware))

    def _count_socket_error(self, error: OSError) -> None:
        self._tally.count("not sent", why=str(error))


def interface_address(interface: str) -> bytes:
    """Return the first IPv4 address of an interface, as four octets.

    Raises:
        OSError: the interface does not exist or has no address.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        request = struct.pack("256s", interface.encode()[:15])
        return fcntl.ioctl(sock, SIOCGIFADDR, request)[20:24]


def _bound_socket(settings: DhcpServerSettings, port: int) -> socket.socket:
    # Broadcasts reach only sockets that are not bound to an address; binding to the interface shuts out other networks.
    address = "" if settings.interface is not None else settings.bind_address
    sock = udp_socket(address, port, settings.interface)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, int(settings.interface is not None))
    return sock


def _raw_socket() -> socket.socket:
    sock = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, 0)  # protocol 0: the socket sends, and receives nothing
    sock.setblocking(False)
    return sock
