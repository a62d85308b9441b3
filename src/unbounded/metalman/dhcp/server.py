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
from unbounded.metalman.dhcp import lease, proxy
from unbounded.metalman.dhcp.frames import datagram
from unbounded.metalman.dhcp.model import (
    NO_RELAYS,
    Arrival,
    Book,
    Finding,
    Listener,
    Mode,
    Reason,
    Relays,
    Reply,
    Silence,
    Via,
    shown,
)
from unbounded.metalman.dhcp.options import Malformed
from unbounded.metalman.dhcp.packet import decode
from unbounded.metalman.sockets import udp_socket
from unbounded.metalman.tally import Once, Tally

BROADCAST: Final = "255.255.255.255"
RECEIVE_BUFFER_BYTES: Final = 4 << 20  # some thousand packets, as when many hosts are switched on together
LARGEST_BYTES: Final = 9000
MOST_IN_A_TURN: Final = 32  # packets; then other tasks of the loop run
SIOCGIFADDR: Final = 0x8915
ETH_P_IP: Final = 0x0800
Report = Callable[[Finding], None]


class Port(Enum):
    """Purpose of a socket."""

    LEASES = "leases"
    BOOT = "boot"  # requests of PXE clients to a proxy
    OVERHEARD = "overheard"  # broadcasts of servers to clients, foreign servers included


log = Log("metalman.dhcp")


@dataclass(frozen=True, slots=True)
class Settings:
    """Listening addresses of a server and the relays that it accepts. Every mode but RELAY requires `interface`."""

    mode: Mode = Mode.INTERFACE
    interface: str | None = None
    bind_address: str = "0.0.0.0"  # noqa: S104 - the reference's default; an interface narrows it
    port: int = 67
    client_port: int = 68
    boot_port: int = 4011
    relays: Relays = NO_RELAYS


class Server:
    """Answer packets from the knowledge of a `Book`; `counts` has the number of answers and of drops by reason."""

    def __init__(self, settings: Settings, book: Book, report: Report, listener: Listener | None = None) -> None:
        clock = asyncio.get_running_loop().time
        self._settings = settings
        self._book = book
        self._report = report
        self._listener = listener
        self._tally = Tally(log, clock)
        self._once = Once(clock)
        self._raw: socket.socket | None = None
        self.ports: dict[Port, int] = {}  # filled once the server listens

    @property
    def counts(self) -> dict[str, int]:
        """Number of packets by result: `answered`, or the reason for no answer."""
        return dict(self._tally.counts)

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[Server]:
        """Serve inside of the context, from its first moment on.

        Raises:
            OSError: a port is taken, or the interface does not exist.
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
        """Listen to broadcasts of other servers to clients.

        If the host is a DHCP client itself, the port may be taken.
        """
        try:
            await self._listen(stack, self._settings.client_port, Port.OVERHEARD)
        except OSError as error:
            log.warning("other DHCP servers are noticed only by what clients ask them", error=error)

    async def _listen(self, stack: contextlib.AsyncExitStack, port: int, role: Port) -> None:
        sock = stack.enter_context(contextlib.closing(_bound_socket(self._settings, port)))
        loop = asyncio.get_running_loop()
        loop.add_reader(sock, self._readable, sock, role)
        stack.callback(loop.remove_reader, sock)
        self.ports[role] = sock.getsockname()[1]

    def _readable(self, sock: socket.socket, role: Port) -> None:
        """Read pending packets. asyncio's own datagram transport reads one in a turn of the loop, in buffers of 256
        KiB.
        """
        for _ in range(MOST_IN_A_TURN):
            try:
                data, source = sock.recvfrom(LARGEST_BYTES)
            except BlockingIOError:
                return
            except OSError as error:  # caused by an earlier packet of ours, such as one to an unreachable host
                self._lost(error)
            else:
                self._received(data, source, sock, role)

    def _received(self, data: bytes, source: tuple[str, int], sock: socket.socket, role: Port) -> None:
        """Decide on one packet and send the answer."""
        try:
            packet = decode(data)
        except Malformed as error:
            self._tally.count(Reason.MALFORMED.value, source=source[0], why=str(error))
            return
        if role is Port.OVERHEARD:
            self._pass_on(lease.foreign_server(packet, self._book))
            return
        arrival = Arrival(
            self._settings.mode, socket.inet_aton(source[0]), role is Port.BOOT, relays=self._settings.relays
        )
        if self._listener is not None:
            self._listener.heard(packet, arrival)
        decide = proxy.answer if arrival.mode is Mode.PROXY else lease.answer
        answer = decide(packet, arrival, self._book)
        self._pass_on(answer.findings)
        match answer:
            case Silence(reason=reason):
                self._tally.count(reason.value, source=source[0], mac=packet.hardware.hex(":"))
            case Reply():
                self._send(answer, source, sock)
                if self._listener is not None:
                    self._listener.answered(packet, answer)

    def _pass_on(self, findings: tuple[Finding, ...]) -> None:
        for finding in findings:
            if self._once.new(finding):
                log.warning("trouble on the network", machine=finding.machine, reason=finding.trouble.value)
                self._report(finding)

    def _send(self, reply: Reply, source: tuple[str, int], sock: socket.socket) -> None:
        try:
            match reply.via:
                case Via.RELAY:
                    sock.sendto(reply.payload, (shown(reply.address), self._settings.port))
                case Via.UNICAST:
                    sock.sendto(reply.payload, (shown(reply.address), self._settings.client_port))
                case Via.BROADCAST:
                    sock.sendto(reply.payload, (BROADCAST, self._settings.client_port))
                case Via.HARDWARE:
                    self._send_to_hardware(reply, sock)
                case Via.BACK:
                    sock.sendto(reply.payload, source)
        except OSError as error:  # the queue is full, or the interface is down: the client sends its packet again
            self._lost(error)
        else:
            self._tally.counts["answered"] += 1

    def _send_to_hardware(self, reply: Reply, sock: socket.socket) -> None:
        if self._raw is None or self._settings.interface is None:
            sock.sendto(reply.payload, (BROADCAST, self._settings.client_port))
            return
        frame = datagram(
            reply.payload, (self._book.server, self.ports[Port.LEASES]), (reply.address, self._settings.client_port)
        )
        self._raw.sendto(frame, (self._settings.interface, ETH_P_IP, 0, 0, reply.packet.hardware))

    def _lost(self, error: OSError) -> None:
        self._tally.count("not sent", why=str(error))


def interface_address(interface: str) -> bytes:
    """Return the first IPv4 address of an interface, as four octets.

    Raises:
        OSError: the interface does not exist or has no address.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        asked = struct.pack("256s", interface.encode()[:15])
        return fcntl.ioctl(sock, SIOCGIFADDR, asked)[20:24]


def _bound_socket(settings: Settings, port: int) -> socket.socket:
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
