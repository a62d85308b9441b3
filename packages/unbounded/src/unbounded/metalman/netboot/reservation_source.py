"""Knowledge of the DHCP server: static leases always, boot files only for a requested boot whose image is on disk."""

from __future__ import annotations

from typing import Protocol

from unbounded.metalman.dhcp import options as opt
from unbounded.metalman.dhcp.model import Arrival, DhcpClient, DhcpReply, OfferedBoot, WithheldReservation
from unbounded.metalman.dhcp.packet import REQUEST_OP, Packet
from unbounded.metalman.netboot.boot_index import BootIndex
from unbounded.metalman.netboot.model import BootRequest, BootWindow
from unbounded.metalman.netboot.ports import BootImages


class DhcpBootObserver(Protocol):
    """Observer of boots that the DHCP server reports to."""

    def served(
        self, request: BootRequest
    ) -> BootImages | None: ...  # the images of a boot; None if they are not on disk

    def record_machine_id(
        self, request: BootRequest, machine_id: bytes
    ) -> None: ...  # option 97 of a packet from the boot's MAC

    def record_offer(self, request: BootRequest) -> None: ...  # the server sends a reply with a boot file


class NetbootReservations:
    """`ReservationSource` and `PacketObserver` of the DHCP server.

    Its URLs have no prefix: the whole segment can read option 67, and the HTTP server identifies a client that fetches
    the loader by its address. Only the rendered configuration of the loader contains the prefix.

    Args:
        server: the server's own address, as clients reach it; four octets.
        serve_url: URL of the HTTP server, as Machines reach it.
    """

    def __init__(self, index: BootIndex, boots: DhcpBootObserver, *, server: bytes, serve_url: str) -> None:
        self.server = server
        self._index = index
        self._boots = boots
        self._serve_url = serve_url

    def client(self, mac: str) -> DhcpClient | WithheldReservation | None:
        """Return the Machine with this MAC (lower case, with colons)."""
        entry = self._index.by_mac(mac)
        if entry is None or isinstance(entry, WithheldReservation):
            return entry
        return DhcpClient(entry.machine, entry.lease, self._boot(entry.machine))

    def packet_received(self, packet: Packet, arrival: Arrival) -> None:
        """Record the machine id of a packet before the server decides on the packet."""
        machine_id = packet.options.get(opt.MACHINE_ID)
        if machine_id is None or packet.op != REQUEST_OP or not arrival.is_from_own_network(packet):
            return
        request = self._of(packet)
        if request is not None:
            self._boots.record_machine_id(request, machine_id)

    def reply_sent(self, packet: Packet, reply: DhcpReply) -> None:
        """Record that the server sends a boot file."""
        if opt.BOOT_FILE in reply.packet.options:
            request = self._of(packet)
            if request is not None:
                self._boots.record_offer(request)

    def _of(self, packet: Packet) -> BootRequest | None:
        """Return the boot in window INSTALLING of the Machine with the packet's MAC."""
        entry = self._index.by_mac(packet.mac or "")
        request = (
            None if entry is None or isinstance(entry, WithheldReservation) else self._index.request_of(entry.machine)
        )
        return request if request is not None and request.window is BootWindow.INSTALLING else None

    def _boot(self, machine: str) -> OfferedBoot | None:
        request = self._index.request_of(machine)
        if request is None or request.window is not BootWindow.INSTALLING:
            return None
        served = self._boots.served(request)
        return None if served is None else OfferedBoot(served.loaders, self._serve_url)
