"""proxyDHCP (PXE 2.1, section 2.2): boot files for clients that lease their address from a foreign DHCP server.

An offer without an address answers the DISCOVER on port 67. Firmware that needs more sends a request to port 4011.
"""

from __future__ import annotations

from unbounded.metalman.dhcp import options as opt
from unbounded.metalman.dhcp.boot import BootFile, boot_file, boot_options, client_class
from unbounded.metalman.dhcp.lease import build_reply, encode_reply, find_client, no_boot_file_finding
from unbounded.metalman.dhcp.model import Arrival, DhcpAnswer, NoReply, NoReplyReason, ReplyRoute, ReservationSource
from unbounded.metalman.dhcp.packet import NOWHERE, REQUEST_OP, MessageType, Packet


def answer(packet: Packet, arrival: Arrival, book: ReservationSource) -> DhcpAnswer:
    """Decide on a proxy's answer: never an address, and no answer unless the Machine is to boot from the network."""
    if packet.op != REQUEST_OP:
        return NoReply(NoReplyReason.NOT_A_REQUEST)
    kind = _reply_type(packet, arrival)
    if kind is None or client_class(packet) is None:
        return NoReply(NoReplyReason.NOT_FOR_A_PROXY)
    if arrival.is_from_unknown_relay(packet):
        return NoReply(NoReplyReason.UNKNOWN_RELAY)
    client = find_client(packet, book)
    if isinstance(client, NoReply):
        return client
    if client.boot is None:
        return NoReply(NoReplyReason.NO_BOOT_WANTED)
    file = boot_file(packet, client.boot)
    if not isinstance(file, BootFile):
        return NoReply(NoReplyReason.NO_BOOT_FILE, (no_boot_file_finding(client, file.architecture),))
    options = {opt.MESSAGE_TYPE: bytes((kind,)), opt.SERVER_ID: book.server}
    reply = build_reply(packet, options | boot_options(packet, file, book.server), server=book.server, file=file)
    return encode_reply(packet, reply, *_route(packet, arrival))


def _reply_type(packet: Packet, arrival: Arrival) -> MessageType | None:
    if arrival.boot_port:
        return (
            MessageType.ACK if packet.type in (MessageType.REQUEST, MessageType.INFORM, MessageType.DISCOVER) else None
        )
    return MessageType.OFFER if packet.type is MessageType.DISCOVER else None


def _route(packet: Packet, arrival: Arrival) -> tuple[ReplyRoute, bytes]:
    if arrival.boot_port:  # the client has an address by now
        return ReplyRoute.BACK, NOWHERE
    return (ReplyRoute.BROADCAST, NOWHERE) if packet.giaddr == NOWHERE else (ReplyRoute.RELAY, packet.giaddr)
