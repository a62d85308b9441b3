"""Leases over DHCP (RFC 2131): the answer to one packet. Pure: packets and a `Book` in, an `Answer` out."""

from __future__ import annotations

from typing import Final

import msgspec

from unbounded.metalman.dhcp import options as opt
from unbounded.metalman.dhcp.boot import BootFile, NoBootFile, boot_file, boot_options, header_file
from unbounded.metalman.dhcp.model import (
    LEASE_S,
    Answer,
    Arrival,
    Book,
    Client,
    Finding,
    Mode,
    Reason,
    Reply,
    Silence,
    Trouble,
    Via,
    Withheld,
    shown,
)
from unbounded.metalman.dhcp.options import Malformed
from unbounded.metalman.dhcp.packet import (
    BROADCAST_FLAG,
    LEAST_MESSAGE_BYTES,
    NOWHERE,
    REPLY_OP,
    REQUEST_OP,
    Packet,
    Type,
    encode,
)

LEASE_TIME: Final = LEASE_S.to_bytes(4, "big")
LARGEST_MESSAGE_BYTES: Final = 1500  # limit on the size that a client announces, so that replies are not fragmented


def answer(packet: Packet, arrival: Arrival, book: Book) -> Answer:
    """Decide on the answer to a packet in the modes that lease addresses."""
    if packet.op != REQUEST_OP:
        return Silence(Reason.NOT_A_REQUEST, foreign_server(packet, book))
    if packet.type is None:
        return Silence(Reason.UNSERVED_TYPE)
    if arrival.is_refused(packet):
        return Silence(Reason.UNKNOWN_RELAY)
    if arrival.mode is Mode.RELAY and not _comes_through_a_relay(packet, arrival):
        return Silence(Reason.NOT_RELAYED)
    client = known(packet, book)
    if isinstance(client, Silence):
        return client
    match packet.type:
        case Type.DISCOVER:
            return _granted(Type.OFFER, packet, client, book)
        case Type.REQUEST:
            return _requested(packet, client, book)
        case Type.INFORM:
            return _informed(packet, client, book)
        case Type.DECLINE:
            return _declined(packet, client, book)
        case Type.RELEASE:  # a static lease remains reserved for the client
            return Silence(Reason.RELEASED)
        case _:
            return Silence(Reason.UNSERVED_TYPE)


def known(packet: Packet, book: Book) -> Client | Silence:
    """Return the client that sent the packet, or a `Silence` with the reason why it gets no answer."""
    mac = packet.mac
    if mac is None:
        return Silence(Reason.NOT_ETHERNET)
    client = book.client(mac)
    if client is None:
        return Silence(Reason.UNKNOWN_MAC)
    return Silence(Reason.WITHHELD) if isinstance(client, Withheld) else client


def foreign_server(packet: Packet, book: Book) -> tuple[Finding, ...]:
    """Return a finding if the packet shows that another DHCP server leases addresses on this network."""
    other = packet.options.get(opt.SERVER_ID, b"")
    gives = packet.type is Type.REQUEST or (packet.type in (Type.OFFER, Type.ACK) and packet.yiaddr != NOWHERE)
    if not gives or len(other) != len(NOWHERE) or other in (NOWHERE, book.server):
        return ()
    client = book.client(packet.mac or "")
    text = f"another DHCP server, {shown(other)}, answers on this network"
    return (Finding(Trouble.FOREIGN_SERVER, client.machine if client else "", text),)


def _comes_through_a_relay(packet: Packet, arrival: Arrival) -> bool:
    # A client with an address renews it by unicast from that address, past the relay.
    return packet.giaddr != NOWHERE or packet.ciaddr == arrival.source != NOWHERE


def _requested(packet: Packet, client: Client, book: Book) -> Answer:
    """Answer a REQUEST in one of its four states (RFC 2131 section 4.3.2)."""
    server, wanted = packet.options.get(opt.SERVER_ID), packet.options.get(opt.REQUESTED_ADDRESS)
    if server is not None and server != book.server:  # selecting: the client chose another server's offer
        return Silence(Reason.OTHER_SERVER_CHOSEN, foreign_server(packet, book))
    if wanted is None and packet.ciaddr != NOWHERE:  # renewing or rebinding
        wanted = packet.ciaddr
    if wanted is None:
        return Silence(Reason.REQUEST_WITHOUT_ADDRESS)
    if wanted != client.lease.address:
        return _refused(packet, f"the lease is {shown(client.lease.address)}", book)
    return _granted(Type.ACK, packet, client, book)


def _informed(packet: Packet, client: Client, book: Book) -> Answer:
    if packet.ciaddr == NOWHERE:
        return Silence(Reason.REQUEST_WITHOUT_ADDRESS)
    return _granted(Type.ACK, packet, client, book, with_address=False)


def _declined(packet: Packet, client: Client, book: Book) -> Answer:
    declined = packet.options.get(opt.REQUESTED_ADDRESS)
    if packet.options.get(opt.SERVER_ID) != book.server or declined != client.lease.address:
        return Silence(Reason.DECLINED)
    text = f"{shown(client.lease.address)} is in use by another host: {client.machine} declined it"
    return Silence(Reason.DECLINED, (Finding(Trouble.ADDRESS_IN_USE, client.machine, text),))


def _granted(kind: Type, packet: Packet, client: Client, book: Book, *, with_address: bool = True) -> Answer:
    lease = client.lease
    said = {opt.MESSAGE_TYPE: bytes((kind,)), opt.SERVER_ID: book.server}
    if with_address:
        said[opt.LEASE_SECONDS] = LEASE_TIME
    said[opt.SUBNET_MASK] = lease.mask
    if lease.gateway is not None:
        said[opt.ROUTER] = lease.gateway
    if lease.dns:
        said[opt.DNS_SERVERS] = b"".join(lease.dns)
    file = None if client.boot is None else boot_file(packet, client.boot)
    if isinstance(file, BootFile):
        said |= boot_options(packet, file, book.server)
    reply = reply_to(
        packet,
        said,
        server=book.server,
        file=file if isinstance(file, BootFile) else None,
        yiaddr=lease.address if with_address else NOWHERE,
    )
    findings = (no_boot_file(client, file.architecture),) if isinstance(file, NoBootFile) else ()
    via, address = _way(packet, lease.address)
    return sent(packet, reply, via, address, findings)


def no_boot_file(client: Client, architecture: str) -> Finding:
    """Return the finding for a client that boots without a file, as the image has none for its architecture."""
    text = f"the netboot image has no boot file for architecture {architecture}"
    return Finding(Trouble.NO_BOOT_FILE, client.machine, text)


def _refused(packet: Packet, why: str, book: Book) -> Answer:
    said = {opt.MESSAGE_TYPE: bytes((Type.NAK,)), opt.SERVER_ID: book.server, opt.MESSAGE: why.encode()}
    reply = reply_to(packet, said, ciaddr=NOWHERE)
    # the relay has to broadcast the NAK: the client's address may belong to another network
    if packet.giaddr != NOWHERE:
        reply = msgspec.structs.replace(reply, flags=packet.flags | BROADCAST_FLAG)
        return sent(packet, reply, Via.RELAY, packet.giaddr)
    return sent(packet, reply, Via.BROADCAST)


def reply_to(
    packet: Packet,
    said: dict[int, bytes],
    *,
    server: bytes = NOWHERE,
    file: BootFile | None = None,
    yiaddr: bytes = NOWHERE,
    ciaddr: bytes | None = None,
) -> Packet:
    """Build a reply with the fields that RFC 2131 section 4.3.1 copies from the request, and its client and relay
    options.
    """
    # RFC 6842; RFC 3046 section 2.2, which requires the relay option to be the last
    for code in (opt.CLIENT_ID, opt.RELAY_AGENT):
        if code in packet.options:
            said[code] = packet.options[code]
    return Packet(
        op=REPLY_OP,
        hardware_type=packet.hardware_type,
        hardware=packet.hardware,
        xid=packet.xid,
        flags=packet.flags,
        ciaddr=packet.ciaddr if ciaddr is None else ciaddr,
        yiaddr=yiaddr,
        siaddr=server if file else NOWHERE,
        giaddr=packet.giaddr,
        sname=shown(server).encode() if file else b"",
        file=header_file(file) if file else b"",
        options=said,
    )


def _way(packet: Packet, lease: bytes) -> tuple[Via, bytes]:
    """Return the route of an OFFER or ACK (RFC 2131 section 4.1)."""
    if packet.giaddr != NOWHERE:
        return Via.RELAY, packet.giaddr
    if packet.ciaddr != NOWHERE:
        return Via.UNICAST, packet.ciaddr
    if packet.flags & BROADCAST_FLAG:
        return Via.BROADCAST, NOWHERE
    return Via.HARDWARE, lease


def sent(
    packet: Packet, reply: Packet, via: Via, address: bytes = NOWHERE, findings: tuple[Finding, ...] = ()
) -> Answer:
    """Encode the reply within the size that the client accepts; a `Silence` if it does not fit."""
    said = packet.options.get(opt.MAX_MESSAGE_BYTES, b"")
    room = int.from_bytes(said, "big") if len(said) == 2 else LEAST_MESSAGE_BYTES
    try:
        payload = encode(reply, min(room, LARGEST_MESSAGE_BYTES))
    except Malformed:
        return Silence(Reason.REPLY_TOO_LONG, findings)
    return Reply(packet=reply, payload=payload, via=via, address=address, findings=findings)
