"""The answer to one DHCP packet: leases (RFC 2131), proxyDHCP (PXE 2.1, section 2.2), and the boot file of the client.

Pure: no socket, no clock.

proxyDHCP gives boot files to clients that lease their address from a foreign DHCP server. An offer without an address
answers the DISCOVER on port 67. Firmware that needs more sends a request to port 4011.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import msgspec

from unbounded.metalman.dhcp import packet as opt
from unbounded.metalman.dhcp.model import (
    LEASE_S,
    Arrival,
    DhcpAnswer,
    DhcpClient,
    DhcpFinding,
    DhcpFindingKind,
    DhcpReply,
    DhcpServerMode,
    Loader,
    NoReply,
    NoReplyReason,
    OfferedBoot,
    ReplyRoute,
    ReservationSource,
    WithheldReservation,
    format_address,
)
from unbounded.metalman.dhcp.packet import (
    BROADCAST_FLAG,
    LEAST_MESSAGE_BYTES,
    NOWHERE,
    REPLY_OP,
    REQUEST_OP,
    MalformedDhcpPacket,
    MessageType,
    Packet,
    encode,
)

PXE_CLASS: Final = b"PXEClient"
HTTP_CLASS: Final = b"HTTPClient"
IPXE_USER_CLASS: Final = b"iPXE"
USE_THIS_FILE: Final = bytes((6, 1, 8, 255))  # PXE_DISCOVERY_CONTROL: no menu and no search for other boot servers
LONGEST_FILE: Final = 127
CACHED_FIRMWARES: Final = 64  # kinds of firmware; a site has few


@dataclass(frozen=True, slots=True)
class Firmware:
    """Client architecture (IANA, Processor Architecture Types) with its boot files and the way to name them."""

    name: str
    loaders: tuple[Loader, ...] = ()  # in order of preference
    by_url: bool = False


ARCHITECTURES: Final = {
    0: Firmware("x86 BIOS", (Loader.BIOS,)),
    6: Firmware("x86 UEFI"),
    7: Firmware("x64 UEFI", (Loader.X64,)),
    9: Firmware("x64 UEFI", (Loader.X64,)),  # EBC; firmware for x64 has sent it since RFC 4578
    10: Firmware("arm 32-bit UEFI"),
    11: Firmware("arm 64-bit UEFI", (Loader.ARM64,)),
    15: Firmware("x86 UEFI HTTP", by_url=True),
    16: Firmware("x64 UEFI HTTP", (Loader.HTTP, Loader.X64), by_url=True),
    18: Firmware("arm 32-bit UEFI HTTP", by_url=True),
    19: Firmware("arm 64-bit UEFI HTTP", (Loader.ARM64,), by_url=True),
}
UNKNOWN_FIRMWARE: Final = Firmware("untold", (Loader.X64,))
SCRIPT: Final = Firmware("iPXE", (Loader.IPXE,), by_url=True)


@dataclass(frozen=True, slots=True)
class BootFile:
    """The file of a client: a name for TFTP or a URL."""

    name: str


@dataclass(frozen=True, slots=True)
class NoBootFile:
    """No file of the image fits the client; `architecture` is the client's architecture as text."""

    architecture: str


def client_class(packet: Packet) -> bytes | None:
    """Return the vendor class (option 60) that a reply has to carry; PXE and HTTP boot ignore offers without it."""
    vendor_class = packet.options.get(opt.VENDOR_CLASS, b"")
    if vendor_class.startswith(PXE_CLASS):
        return PXE_CLASS
    return HTTP_CLASS if vendor_class.startswith(HTTP_CLASS) else None


def is_ipxe(packet: Packet) -> bool:
    """Return whether the client is iPXE; its user class comes with and without the length byte of RFC 3004."""
    user_class = packet.options.get(opt.USER_CLASS, b"")
    return opt.IPXE in packet.options or user_class in (IPXE_USER_CLASS, b"\x04" + IPXE_USER_CLASS)


def architectures(packet: Packet) -> tuple[int, ...]:
    """Return the client's numbers from option 93, else the number in its vendor class (`PXEClient:Arch:00007:…`)."""
    return _architectures(packet.options.get(opt.ARCHITECTURE, b""), packet.options.get(opt.VENDOR_CLASS, b""))


@lru_cache(CACHED_FIRMWARES)
def _architectures(listed: bytes, vendor: bytes) -> tuple[int, ...]:
    if listed:
        return tuple(int.from_bytes(listed[at : at + 2], "big") for at in range(0, len(listed) - 1, 2))
    words = vendor.split(b":")
    if len(words) > 2 and words[1] == b"Arch" and words[2].isdigit() and len(words[2]) <= 5:
        return (int(words[2]),)
    return ()


def boot_file(packet: Packet, boot: OfferedBoot) -> BootFile | NoBootFile:
    """Choose the boot file of a client.

    iPXE gets its script. If the image has no script, iPXE gets the firmware's file, which iPXE can start as well.
    """
    numbers = architectures(packet)
    firmwares = [ARCHITECTURES.get(number) or Firmware(f"number {number}") for number in numbers] or [UNKNOWN_FIRMWARE]
    if is_ipxe(packet):
        firmwares.insert(0, SCRIPT)
    for firmware in firmwares:
        for loader in firmware.loaders:
            file = boot.files.get(loader)
            if file:
                return BootFile(boot.url(file) if firmware.by_url else file)
    return NoBootFile(firmwares[-1].name)


def boot_options(packet: Packet, file: BootFile, server: bytes) -> dict[int, bytes]:
    """Return the options that name the boot file."""
    options: dict[int, bytes] = {}
    named = client_class(packet)
    if named:
        options[opt.VENDOR_CLASS] = named
    if named == PXE_CLASS:
        options[opt.VENDOR_OPTIONS] = USE_THIS_FILE
        if opt.MACHINE_ID in packet.options:  # PXE 2.1 requires the server to echo it
            options[opt.MACHINE_ID] = packet.options[opt.MACHINE_ID]
    options[opt.TFTP_SERVER] = format_address(server).encode()
    options[opt.BOOT_FILE] = file.name.encode()
    return options


def header_file(file: BootFile) -> bytes:
    """Return the file name for the packet's `file` field, which older boot ROMs read; empty if the name is too long."""
    name = file.name.encode()
    return name if len(name) <= LONGEST_FILE else b""


LEASE_TIME: Final = LEASE_S.to_bytes(4, "big")
LARGEST_MESSAGE_BYTES: Final = 1500  # limit on the size that a client announces, so that replies are not fragmented


def answer(packet: Packet, arrival: Arrival, reservations: ReservationSource) -> DhcpAnswer:
    """Decide on the answer to a packet in the modes that lease addresses."""
    if packet.op != REQUEST_OP:
        return NoReply(NoReplyReason.NOT_A_REQUEST, foreign_server_findings(packet, reservations))
    if packet.type is None:
        return NoReply(NoReplyReason.UNSERVED_TYPE)
    if arrival.is_from_unknown_relay(packet):
        return NoReply(NoReplyReason.UNKNOWN_RELAY)
    if arrival.mode is DhcpServerMode.RELAY and not _is_relayed(packet, arrival):
        return NoReply(NoReplyReason.NOT_RELAYED)
    client = find_client(packet, reservations)
    if isinstance(client, NoReply):
        return client
    match packet.type:
        case MessageType.DISCOVER:
            return _grant(MessageType.OFFER, packet, client, reservations)
        case MessageType.REQUEST:
            return _answer_request(packet, client, reservations)
        case MessageType.INFORM:
            return _answer_inform(packet, client, reservations)
        case MessageType.DECLINE:
            return _answer_decline(packet, client, reservations)
        case MessageType.RELEASE:  # a static lease remains reserved for the client
            return NoReply(NoReplyReason.RELEASED)
        case _:
            return NoReply(NoReplyReason.UNSERVED_TYPE)


def find_client(packet: Packet, reservations: ReservationSource) -> DhcpClient | NoReply:
    """Return the client that sent the packet, or a `NoReply` with the reason why it gets no answer."""
    mac = packet.mac
    if mac is None:
        return NoReply(NoReplyReason.NOT_ETHERNET)
    client = reservations.client(mac)
    if client is None:
        return NoReply(NoReplyReason.UNKNOWN_MAC)
    return NoReply(NoReplyReason.WITHHELD) if isinstance(client, WithheldReservation) else client


def foreign_server_findings(packet: Packet, reservations: ReservationSource) -> tuple[DhcpFinding, ...]:
    """Return a finding if the packet shows that another DHCP server leases addresses on this network."""
    other = packet.options.get(opt.SERVER_ID, b"")
    gives = packet.type is MessageType.REQUEST or (
        packet.type in (MessageType.OFFER, MessageType.ACK) and packet.yiaddr != NOWHERE
    )
    if not gives or len(other) != len(NOWHERE) or other in (NOWHERE, reservations.server):
        return ()
    client = reservations.client(packet.mac or "")
    text = f"another DHCP server, {format_address(other)}, answers on this network"
    return (DhcpFinding(DhcpFindingKind.FOREIGN_SERVER, client.machine if client else "", text),)


def _is_relayed(packet: Packet, arrival: Arrival) -> bool:
    # A client with an address renews it by unicast from that address, past the relay.
    return packet.giaddr != NOWHERE or packet.ciaddr == arrival.source != NOWHERE


def _answer_request(packet: Packet, client: DhcpClient, reservations: ReservationSource) -> DhcpAnswer:
    """Answer a REQUEST in one of its four states (RFC 2131 section 4.3.2)."""
    server, desired = packet.options.get(opt.SERVER_ID), packet.options.get(opt.REQUESTED_ADDRESS)
    if server is not None and server != reservations.server:  # selecting: the client chose another server's offer
        return NoReply(NoReplyReason.OTHER_SERVER_CHOSEN, foreign_server_findings(packet, reservations))
    if desired is None and packet.ciaddr != NOWHERE:  # renewing or rebinding
        desired = packet.ciaddr
    if desired is None:
        return NoReply(NoReplyReason.REQUEST_WITHOUT_ADDRESS)
    if desired != client.lease.address:
        return _refuse(packet, f"the lease is {format_address(client.lease.address)}", reservations)
    return _grant(MessageType.ACK, packet, client, reservations)


def _answer_inform(packet: Packet, client: DhcpClient, reservations: ReservationSource) -> DhcpAnswer:
    if packet.ciaddr == NOWHERE:
        return NoReply(NoReplyReason.REQUEST_WITHOUT_ADDRESS)
    return _grant(MessageType.ACK, packet, client, reservations, with_address=False)


def _answer_decline(packet: Packet, client: DhcpClient, reservations: ReservationSource) -> DhcpAnswer:
    declined = packet.options.get(opt.REQUESTED_ADDRESS)
    if packet.options.get(opt.SERVER_ID) != reservations.server or declined != client.lease.address:
        return NoReply(NoReplyReason.DECLINED)
    text = f"{format_address(client.lease.address)} is in use by another host: {client.machine} declined it"
    return NoReply(NoReplyReason.DECLINED, (DhcpFinding(DhcpFindingKind.ADDRESS_IN_USE, client.machine, text),))


def _grant(
    kind: MessageType, packet: Packet, client: DhcpClient, reservations: ReservationSource, *, with_address: bool = True
) -> DhcpAnswer:
    lease = client.lease
    options = {opt.MESSAGE_TYPE: bytes((kind,)), opt.SERVER_ID: reservations.server}
    if with_address:
        options[opt.LEASE_SECONDS] = LEASE_TIME
    options[opt.SUBNET_MASK] = lease.mask
    if lease.gateway is not None:
        options[opt.ROUTER] = lease.gateway
    if lease.dns:
        options[opt.DNS_SERVERS] = b"".join(lease.dns)
    file = None if client.boot is None else boot_file(packet, client.boot)
    if isinstance(file, BootFile):
        options |= boot_options(packet, file, reservations.server)
    reply = build_reply(
        packet,
        options,
        server=reservations.server,
        file=file if isinstance(file, BootFile) else None,
        yiaddr=lease.address if with_address else NOWHERE,
    )
    findings = (no_boot_file_finding(client, file.architecture),) if isinstance(file, NoBootFile) else ()
    via, address = _route(packet, lease.address)
    return encode_reply(packet, reply, via, address, findings)


def no_boot_file_finding(client: DhcpClient, architecture: str) -> DhcpFinding:
    """Return the finding for a client that boots without a file, as the image has none for its architecture."""
    text = f"the netboot image has no boot file for architecture {architecture}"
    return DhcpFinding(DhcpFindingKind.NO_BOOT_FILE, client.machine, text)


def _refuse(packet: Packet, why: str, reservations: ReservationSource) -> DhcpAnswer:
    options = {
        opt.MESSAGE_TYPE: bytes((MessageType.NAK,)),
        opt.SERVER_ID: reservations.server,
        opt.MESSAGE: why.encode(),
    }
    reply = build_reply(packet, options, ciaddr=NOWHERE)
    # the relay has to broadcast the NAK: the client's address may belong to another network
    if packet.giaddr != NOWHERE:
        reply = msgspec.structs.replace(reply, flags=packet.flags | BROADCAST_FLAG)
        return encode_reply(packet, reply, ReplyRoute.RELAY, packet.giaddr)
    return encode_reply(packet, reply, ReplyRoute.BROADCAST)


def build_reply(
    packet: Packet,
    options: dict[int, bytes],
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
            options[code] = packet.options[code]
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
        sname=format_address(server).encode() if file else b"",
        file=header_file(file) if file else b"",
        options=options,
    )


def _route(packet: Packet, lease: bytes) -> tuple[ReplyRoute, bytes]:
    """Return the route of an OFFER or ACK (RFC 2131 section 4.1)."""
    if packet.giaddr != NOWHERE:
        return ReplyRoute.RELAY, packet.giaddr
    if packet.ciaddr != NOWHERE:
        return ReplyRoute.UNICAST, packet.ciaddr
    if packet.flags & BROADCAST_FLAG:
        return ReplyRoute.BROADCAST, NOWHERE
    return ReplyRoute.HARDWARE, lease


def encode_reply(
    packet: Packet, reply: Packet, via: ReplyRoute, address: bytes = NOWHERE, findings: tuple[DhcpFinding, ...] = ()
) -> DhcpAnswer:
    """Encode the reply within the size that the client accepts; a `NoReply` if it does not fit."""
    maximum = packet.options.get(opt.MAX_MESSAGE_BYTES, b"")
    room = int.from_bytes(maximum, "big") if len(maximum) == 2 else LEAST_MESSAGE_BYTES
    try:
        payload = encode(reply, min(room, LARGEST_MESSAGE_BYTES))
    except MalformedDhcpPacket:
        return NoReply(NoReplyReason.REPLY_TOO_LONG, findings)
    return DhcpReply(packet=reply, payload=payload, via=via, address=address, findings=findings)


def proxy_answer(packet: Packet, arrival: Arrival, reservations: ReservationSource) -> DhcpAnswer:
    """Decide on a proxy's answer: never an address, and no answer unless the Machine is to boot from the network."""
    if packet.op != REQUEST_OP:
        return NoReply(NoReplyReason.NOT_A_REQUEST)
    kind = _reply_type(packet, arrival)
    if kind is None or client_class(packet) is None:
        return NoReply(NoReplyReason.NOT_FOR_A_PROXY)
    if arrival.is_from_unknown_relay(packet):
        return NoReply(NoReplyReason.UNKNOWN_RELAY)
    client = find_client(packet, reservations)
    if isinstance(client, NoReply):
        return client
    if client.boot is None:
        return NoReply(NoReplyReason.NO_BOOT_REQUESTED)
    file = boot_file(packet, client.boot)
    if not isinstance(file, BootFile):
        return NoReply(NoReplyReason.NO_BOOT_FILE, (no_boot_file_finding(client, file.architecture),))
    options = {opt.MESSAGE_TYPE: bytes((kind,)), opt.SERVER_ID: reservations.server}
    reply = build_reply(
        packet, options | boot_options(packet, file, reservations.server), server=reservations.server, file=file
    )
    return encode_reply(packet, reply, *_proxy_route(packet, arrival))


def _reply_type(packet: Packet, arrival: Arrival) -> MessageType | None:
    if arrival.boot_port:
        return (
            MessageType.ACK if packet.type in (MessageType.REQUEST, MessageType.INFORM, MessageType.DISCOVER) else None
        )
    return MessageType.OFFER if packet.type is MessageType.DISCOVER else None


def _proxy_route(packet: Packet, arrival: Arrival) -> tuple[ReplyRoute, bytes]:
    if arrival.boot_port:  # the client has an address by now
        return ReplyRoute.BACK, NOWHERE
    return (ReplyRoute.BROADCAST, NOWHERE) if packet.giaddr == NOWHERE else (ReplyRoute.RELAY, packet.giaddr)
