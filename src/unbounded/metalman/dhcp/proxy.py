"""proxyDHCP (PXE 2.1, section 2.2): boot files for clients that lease their address from a foreign DHCP server.

An offer without an address answers the DISCOVER on port 67. Firmware that needs more sends a request to port 4011.
"""

from __future__ import annotations

from unbounded.metalman.dhcp import options as opt
from unbounded.metalman.dhcp.boot import BootFile, boot_file, boot_options, client_class
from unbounded.metalman.dhcp.lease import known, no_boot_file, reply_to, sent
from unbounded.metalman.dhcp.model import Answer, Arrival, Book, Reason, Silence, Via
from unbounded.metalman.dhcp.packet import NOWHERE, REQUEST_OP, Packet, Type


def answer(packet: Packet, arrival: Arrival, book: Book) -> Answer:
    """Decide on a proxy's answer: never an address, and no answer unless the Machine is to boot from the network."""
    if packet.op != REQUEST_OP:
        return Silence(Reason.NOT_A_REQUEST)
    kind = _reply_type(packet, arrival)
    if kind is None or client_class(packet) is None:
        return Silence(Reason.NOT_FOR_A_PROXY)
    if arrival.is_refused(packet):
        return Silence(Reason.UNKNOWN_RELAY)
    client = known(packet, book)
    if isinstance(client, Silence):
        return client
    if client.boot is None:
        return Silence(Reason.NO_BOOT_WANTED)
    file = boot_file(packet, client.boot)
    if not isinstance(file, BootFile):
        return Silence(Reason.NO_BOOT_FILE, (no_boot_file(client, file.architecture),))
    said = {opt.MESSAGE_TYPE: bytes((kind,)), opt.SERVER_ID: book.server}
    reply = reply_to(packet, said | boot_options(packet, file, book.server), server=book.server, file=file)
    return sent(packet, reply, *_way(packet, arrival))


def _reply_type(packet: Packet, arrival: Arrival) -> Type | None:
    if arrival.boot_port:
        return Type.ACK if packet.type in (Type.REQUEST, Type.INFORM, Type.DISCOVER) else None
    return Type.OFFER if packet.type is Type.DISCOVER else None


def _way(packet: Packet, arrival: Arrival) -> tuple[Via, bytes]:
    if arrival.boot_port:  # the client has an address by now
        return Via.BACK, NOWHERE
    return (Via.BROADCAST, NOWHERE) if packet.giaddr == NOWHERE else (Via.RELAY, packet.giaddr)
