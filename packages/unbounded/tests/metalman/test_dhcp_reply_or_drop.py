"""Answers of the DHCP server to each packet of RFC 2131."""

from __future__ import annotations

from ipaddress import IPv4Network
from typing import Any

import pytest

from tests.metalman.support.reservations import (
    ADDRESS,
    FILES,
    FOREIGN,
    HARDWARE,
    MAC,
    OTHER,
    RELAY,
    SERVER,
    URL,
    FixedReservations,
    asked,
    pxe,
    reservations,
)
from unbounded.metalman.dhcp import packet as opt
from unbounded.metalman.dhcp.model import (
    Arrival,
    DhcpAnswer,
    DhcpFindingKind,
    DhcpReply,
    DhcpServerMode,
    Loader,
    NoReply,
    NoReplyReason,
    Relays,
    ReplyRoute,
    StaticLease,
    WithheldReservation,
)
from unbounded.metalman.dhcp.packet import BROADCAST_FLAG, NOWHERE, MessageType, Packet, decode
from unbounded.metalman.dhcp.reply_or_drop import answer, proxy_answer

DISCOVER, REQUEST, INFORM, DECLINE, RELEASE = (
    MessageType.DISCOVER,
    MessageType.REQUEST,
    MessageType.INFORM,
    MessageType.DECLINE,
    MessageType.RELEASE,
)
OURS, THEIRS = {opt.SERVER_ID: SERVER}, {opt.SERVER_ID: FOREIGN}
WANTS, WANTS_OTHER = {opt.REQUESTED_ADDRESS: ADDRESS}, {opt.REQUESTED_ADDRESS: OTHER}


def replied(packet: Packet, arrival: Arrival | None = None, known: FixedReservations | None = None) -> DhcpReply:
    said = answer(packet, arrival or Arrival(), known or reservations())
    assert isinstance(said, DhcpReply), said
    assert decode(said.payload) == said.packet
    return said


@pytest.mark.parametrize(
    ("packet", "expected"),
    [
        (asked(DISCOVER), MessageType.OFFER),
        (asked(DISCOVER, WANTS_OTHER), MessageType.OFFER),  # a wish only
        (asked(REQUEST, OURS | WANTS), MessageType.ACK),  # selecting
        (asked(REQUEST, OURS | WANTS_OTHER), MessageType.NAK),
        (asked(REQUEST, OURS), NoReplyReason.REQUEST_WITHOUT_ADDRESS),
        (asked(REQUEST, THEIRS | WANTS), NoReplyReason.OTHER_SERVER_CHOSEN),
        (asked(REQUEST, WANTS), MessageType.ACK),  # init-reboot
        (asked(REQUEST, WANTS_OTHER), MessageType.NAK),
        (asked(REQUEST, ciaddr=ADDRESS), MessageType.ACK),  # renewing and rebinding
        (asked(REQUEST, ciaddr=OTHER), MessageType.NAK),
        (asked(REQUEST), NoReplyReason.REQUEST_WITHOUT_ADDRESS),
        (asked(INFORM, ciaddr=OTHER), MessageType.ACK),
        (asked(INFORM), NoReplyReason.REQUEST_WITHOUT_ADDRESS),
        (asked(RELEASE, OURS, ciaddr=ADDRESS), NoReplyReason.RELEASED),
        (asked(DECLINE, OURS | WANTS), NoReplyReason.DECLINED),
        (asked(MessageType.OFFER), NoReplyReason.UNSERVED_TYPE),
        (Packet(hardware=HARDWARE), NoReplyReason.UNSERVED_TYPE),  # BOOTP
        (asked(DISCOVER, op=2), NoReplyReason.NOT_A_REQUEST),
        (asked(DISCOVER, hardware=HARDWARE[:5]), NoReplyReason.NOT_ETHERNET),
        (asked(DISCOVER, hardware_type=32), NoReplyReason.NOT_ETHERNET),
        (asked(DISCOVER, hardware=b"\x52\x54\0\0\0\2"), NoReplyReason.UNKNOWN_MAC),
    ],
)
def test_each_packet_gets_the_answer_of_rfc_2131(packet: Packet, expected: MessageType | NoReplyReason) -> None:
    said = answer(packet, Arrival(), reservations())
    assert (said.packet.type if isinstance(said, DhcpReply) else said.reason) is expected


def test_an_offer_holds_the_lease() -> None:
    offer = replied(asked(DISCOVER, secs=3)).packet
    assert (offer.op, offer.yiaddr, offer.hardware, offer.xid, offer.siaddr) == (2, ADDRESS, HARDWARE, 7, NOWHERE)
    assert offer.options == {
        opt.MESSAGE_TYPE: bytes((MessageType.OFFER,)),
        opt.SERVER_ID: SERVER,
        opt.LEASE_SECONDS: (86400).to_bytes(4, "big"),
        opt.SUBNET_MASK: bytes((255, 255, 255, 0)),
        opt.ROUTER: SERVER,
        opt.DNS_SERVERS: bytes((10, 0, 0, 53, 1, 1, 1, 1)),
    }


def test_an_inform_is_told_everything_but_an_address() -> None:
    told = replied(asked(INFORM, ciaddr=OTHER))
    assert (told.packet.yiaddr, told.packet.ciaddr) == (NOWHERE, OTHER)
    assert opt.LEASE_SECONDS not in told.packet.options
    assert opt.DNS_SERVERS in told.packet.options
    assert (told.via, told.address) == (ReplyRoute.UNICAST, OTHER)


@pytest.mark.parametrize(
    ("fields", "via", "address"),
    [
        ({}, ReplyRoute.HARDWARE, ADDRESS),
        ({"flags": BROADCAST_FLAG}, ReplyRoute.BROADCAST, NOWHERE),
        ({"giaddr": RELAY, "flags": BROADCAST_FLAG}, ReplyRoute.RELAY, RELAY),
        ({"ciaddr": ADDRESS, "flags": BROADCAST_FLAG}, ReplyRoute.UNICAST, ADDRESS),
        ({"ciaddr": ADDRESS, "giaddr": RELAY}, ReplyRoute.RELAY, RELAY),
    ],
)
def test_an_answer_finds_its_client(fields: dict[str, Any], via: ReplyRoute, address: bytes) -> None:
    said = replied(asked(REQUEST, {} if "ciaddr" in fields else WANTS, **fields))
    assert (said.via, said.address) == (via, address)


@pytest.mark.parametrize(("giaddr", "via"), [(NOWHERE, ReplyRoute.BROADCAST), (RELAY, ReplyRoute.RELAY)])
def test_a_nak_is_broadcast_at_the_client(giaddr: bytes, via: ReplyRoute) -> None:
    nak = replied(asked(REQUEST, ciaddr=OTHER, giaddr=giaddr))
    assert (nak.via, nak.packet.yiaddr, nak.packet.ciaddr) == (via, NOWHERE, NOWHERE)
    assert bool(nak.packet.flags & BROADCAST_FLAG) == (via is ReplyRoute.RELAY)
    assert nak.packet.options[opt.MESSAGE] == b"the lease is 10.0.0.50"


def test_client_and_relay_get_back_what_they_sent_along() -> None:
    said = {opt.CLIENT_ID: b"\1abc", opt.RELAY_AGENT: b"\1\4eth0"}
    for packet in (asked(DISCOVER, said, giaddr=RELAY), asked(REQUEST, said | WANTS_OTHER, giaddr=RELAY)):
        options = replied(packet).packet.options
        assert options[opt.CLIENT_ID] == b"\1abc"
        assert list(options.items())[-1] == (opt.RELAY_AGENT, b"\1\4eth0")


@pytest.mark.parametrize(
    ("packet", "source", "served"),
    [
        (asked(DISCOVER), NOWHERE, False),
        (asked(DISCOVER, giaddr=RELAY), RELAY, True),
        (asked(REQUEST, ciaddr=ADDRESS), ADDRESS, True),  # renewed past the relay
        (asked(REQUEST, ciaddr=ADDRESS), OTHER, False),
    ],
)
def test_behind_relays_only_what_can_have_come_from_there_is_served(
    packet: Packet, source: bytes, served: bool
) -> None:
    said = answer(packet, Arrival(DhcpServerMode.RELAY, source), reservations())
    assert said == NoReply(NoReplyReason.NOT_RELAYED) if not served else isinstance(said, DhcpReply)


RELAYS = Relays((IPv4Network(RELAY),))


@pytest.mark.parametrize("mode", [DhcpServerMode.INTERFACE, DhcpServerMode.RELAY])
def test_where_relays_are_configured_what_others_pass_on_gets_no_answer(mode: DhcpServerMode) -> None:
    ours, theirs = asked(DISCOVER, giaddr=RELAY), asked(DISCOVER, giaddr=OTHER)
    assert isinstance(answer(ours, Arrival(mode, RELAY, relays=RELAYS), reservations()), DhcpReply)
    assert answer(theirs, Arrival(mode, OTHER, relays=RELAYS), reservations()) == NoReply(NoReplyReason.UNKNOWN_RELAY)
    assert isinstance(answer(theirs, Arrival(mode, OTHER), reservations()), DhcpReply)


@pytest.mark.parametrize(
    ("giaddr", "arrival", "counts"),
    [
        (NOWHERE, Arrival(), True),
        (NOWHERE, Arrival(DhcpServerMode.PROXY), True),
        (NOWHERE, Arrival(source=OTHER), False),  # a router may have passed it on
        (NOWHERE, Arrival(source=ADDRESS), False),  # and the sender may have written any source
        (NOWHERE, Arrival(DhcpServerMode.PROXY, boot_port=True), False),
        (NOWHERE, Arrival(DhcpServerMode.RELAY), False),
        (RELAY, Arrival(source=RELAY), False),  # it is not configured
        (RELAY, Arrival(source=RELAY, relays=RELAYS), True),
        (RELAY, Arrival(DhcpServerMode.RELAY, RELAY, relays=RELAYS), True),
        (RELAY, Arrival(DhcpServerMode.RELAY, OTHER, relays=RELAYS), False),
        (OTHER, Arrival(DhcpServerMode.RELAY, RELAY, relays=RELAYS), False),
    ],
)
def test_only_packets_from_the_own_network_count_as_duplicates(giaddr: bytes, arrival: Arrival, counts: bool) -> None:
    assert arrival.is_from_own_network(asked(DISCOVER, giaddr=giaddr)) is counts


@pytest.mark.parametrize(
    ("firmware", "file"),
    [
        (pxe(0), "undionly.kpxe"),
        (pxe(7), "shimx64.efi"),
        (pxe(9), "shimx64.efi"),
        (pxe(11), "shimaa64.efi"),
        (pxe(16, b"HTTPClient"), f"{URL}/ipxe.efi"),
        (pxe(19, b"HTTPClient"), f"{URL}/shimaa64.efi"),
        (pxe(0) | {opt.IPXE: b"\1\1\1"}, f"{URL}/boot.ipxe"),
        (pxe(7) | {opt.USER_CLASS: b"iPXE"}, f"{URL}/boot.ipxe"),
        (pxe(7) | {opt.USER_CLASS: b"\4iPXE"}, f"{URL}/boot.ipxe"),
        ({opt.VENDOR_CLASS: b"PXEClient:Arch:00011:UNDI:003016"}, "shimaa64.efi"),
        (pxe(6) | {opt.ARCHITECTURE: b"\0\6\0\7"}, "shimx64.efi"),  # either will do
        ({}, "shimx64.efi"),
    ],
)
def test_a_wanted_boot_gets_the_file_of_its_architecture(firmware: dict[int, bytes], file: str) -> None:
    reply = replied(asked(DISCOVER, firmware | {opt.MACHINE_ID: b"\0guid"}), known=reservations(files=FILES))
    packet, options = reply.packet, reply.packet.options
    assert options[opt.BOOT_FILE] == packet.file == file.encode()
    assert options[opt.TFTP_SERVER] == packet.sname == b"10.0.0.1"
    assert packet.siaddr == SERVER
    named = firmware.get(opt.VENDOR_CLASS, b"").partition(b":")[0] or None
    assert options.get(opt.VENDOR_CLASS) == named
    assert (opt.MACHINE_ID in options) == (opt.VENDOR_OPTIONS in options) == (named == b"PXEClient")
    assert not reply.findings


@pytest.mark.parametrize("number", [6, 10, 15, 18, 4711])
def test_an_architecture_without_a_file_gets_its_address_and_a_finding(number: int) -> None:
    reply = replied(asked(DISCOVER, pxe(number)), known=reservations(files=FILES))
    assert reply.packet.yiaddr == ADDRESS
    assert not {opt.BOOT_FILE, opt.TFTP_SERVER, opt.VENDOR_CLASS} & reply.packet.options.keys()
    assert (reply.packet.file, reply.packet.siaddr) == (b"", NOWHERE)
    assert [(one.kind, one.machine) for one in reply.findings] == [(DhcpFindingKind.NO_BOOT_FILE, "m1")]


def test_http_boot_and_ipxe_default_to_the_file_of_the_architecture() -> None:
    known = reservations(files={Loader.X64: "/shimx64.efi"})
    for firmware, file in ((pxe(16, b"HTTPClient"), f"{URL}/shimx64.efi"), (pxe(7) | {opt.IPXE: b""}, "/shimx64.efi")):
        assert replied(asked(DISCOVER, firmware), known=known).packet.options[opt.BOOT_FILE] == file.encode()


def test_machine_without_a_boot_request_gets_no_boot_options() -> None:
    reply = replied(asked(DISCOVER, pxe(7)))
    assert not {opt.BOOT_FILE, opt.TFTP_SERVER, opt.VENDOR_CLASS} & reply.packet.options.keys()
    assert not reply.findings


def test_a_long_url_stands_in_the_option_alone() -> None:
    file = "x" * 200 + ".efi"
    packet = replied(asked(DISCOVER, pxe(16, b"HTTPClient")), known=reservations(files={Loader.HTTP: file})).packet
    assert (packet.options[opt.BOOT_FILE], packet.file) == (f"{URL}/{file}".encode(), b"")


def test_a_reply_that_the_client_has_no_room_for_is_not_sent() -> None:
    packet = asked(DISCOVER, pxe(7) | {opt.RELAY_AGENT: bytes(250), opt.CLIENT_ID: bytes(250)})
    assert answer(packet, Arrival(), reservations(files=FILES)) == NoReply(NoReplyReason.REPLY_TOO_LONG)
    roomy = {opt.MAX_MESSAGE_BYTES: (1400).to_bytes(2, "big")}
    replied(Packet(hardware=HARDWARE, options=packet.options | roomy), known=reservations(files=FILES))


def findings(said: DhcpAnswer) -> list[tuple[DhcpFindingKind, str]]:
    return [(one.kind, one.machine) for one in said.findings]


@pytest.mark.parametrize(
    ("packet", "found"),
    [
        (asked(REQUEST, THEIRS | WANTS), [(DhcpFindingKind.FOREIGN_SERVER, "m1")]),
        (asked(MessageType.OFFER, THEIRS, op=2, yiaddr=OTHER), [(DhcpFindingKind.FOREIGN_SERVER, "m1")]),
        (asked(MessageType.ACK, THEIRS, op=2, yiaddr=OTHER, hardware=bytes(6)), [(DhcpFindingKind.FOREIGN_SERVER, "")]),
        (asked(MessageType.OFFER, THEIRS, op=2), []),  # a proxy gives no address
        (asked(MessageType.OFFER, OURS, op=2, yiaddr=OTHER), []),
        (asked(DECLINE, OURS | WANTS), [(DhcpFindingKind.ADDRESS_IN_USE, "m1")]),
        (asked(DECLINE, THEIRS | WANTS), []),
        (asked(DECLINE, OURS | WANTS_OTHER), []),
    ],
)
def test_trouble_on_the_segment_is_found(packet: Packet, found: list[tuple[DhcpFindingKind, str]]) -> None:
    assert findings(answer(packet, Arrival(), reservations())) == found


def test_a_withheld_lease_is_not_served() -> None:
    known = FixedReservations({MAC: WithheldReservation("m1", "also of m2")})
    assert answer(asked(DISCOVER), Arrival(), known) == NoReply(NoReplyReason.WITHHELD)


@pytest.mark.parametrize(
    ("lease", "why"),
    [
        (("10.0.0.5", "255.0.255.0"), "mask"),
        (("10.0.0.5", "0.0.0.255"), "mask"),
        (("10.0.0.5", "255.255.255.0", "10.0.1.1"), "not in 10.0.0.0/24"),
        (("10.0.0.500", "255.255.255.0"), "Octet"),
    ],
)
def test_a_lease_that_cannot_work_is_refused(lease: tuple[str, ...], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        StaticLease.of(*lease)


ON_67, ON_4011 = Arrival(DhcpServerMode.PROXY), Arrival(DhcpServerMode.PROXY, boot_port=True)
UEFI = pxe(7)


@pytest.mark.parametrize(
    ("packet", "arrival", "kind", "via"),
    [
        (asked(MessageType.DISCOVER, UEFI), ON_67, MessageType.OFFER, ReplyRoute.BROADCAST),
        (asked(MessageType.DISCOVER, UEFI, giaddr=RELAY), ON_67, MessageType.OFFER, ReplyRoute.RELAY),
        (asked(MessageType.REQUEST, UEFI, ciaddr=b"\n\0\0\t"), ON_4011, MessageType.ACK, ReplyRoute.BACK),
        (asked(MessageType.INFORM, UEFI), ON_4011, MessageType.ACK, ReplyRoute.BACK),
    ],
)
def test_a_proxy_names_the_file_and_gives_no_address(
    packet: Packet, arrival: Arrival, kind: MessageType, via: ReplyRoute
) -> None:
    said = proxy_answer(packet, arrival, reservations(files=FILES))
    assert isinstance(said, DhcpReply)
    assert (said.packet.type, said.via, said.packet.yiaddr) == (kind, via, NOWHERE)
    assert said.packet.options.keys() == {
        opt.MESSAGE_TYPE,
        opt.SERVER_ID,
        opt.VENDOR_CLASS,
        opt.VENDOR_OPTIONS,
        opt.TFTP_SERVER,
        opt.BOOT_FILE,
    }
    assert (said.packet.file, said.packet.siaddr) == (b"shimx64.efi", SERVER)


@pytest.mark.parametrize(
    ("packet", "arrival", "known", "reason"),
    [
        (asked(MessageType.DISCOVER), ON_67, reservations(files=FILES), NoReplyReason.NOT_FOR_A_PROXY),  # no firmware
        (asked(MessageType.REQUEST, UEFI), ON_67, reservations(files=FILES), NoReplyReason.NOT_FOR_A_PROXY),
        (asked(MessageType.RELEASE, UEFI), ON_4011, reservations(files=FILES), NoReplyReason.NOT_FOR_A_PROXY),
        (asked(MessageType.OFFER, UEFI, op=2), ON_67, reservations(files=FILES), NoReplyReason.NOT_A_REQUEST),
        (asked(MessageType.DISCOVER, UEFI), ON_67, reservations(), NoReplyReason.NO_BOOT_REQUESTED),
        (asked(MessageType.DISCOVER, UEFI), ON_67, FixedReservations(), NoReplyReason.UNKNOWN_MAC),
        (
            asked(MessageType.DISCOVER, UEFI),
            ON_67,
            FixedReservations({MAC: WithheldReservation("m1", "")}),
            NoReplyReason.WITHHELD,
        ),
        (asked(MessageType.DISCOVER, pxe(6)), ON_67, reservations(files=FILES), NoReplyReason.NO_BOOT_FILE),
    ],
)
def test_a_proxy_says_nothing_to_others(
    packet: Packet, arrival: Arrival, known: FixedReservations, reason: NoReplyReason
) -> None:
    said = proxy_answer(packet, arrival, known)
    assert not isinstance(said, DhcpReply)
    assert said.reason is reason
    assert [one.kind for one in said.findings] == [DhcpFindingKind.NO_BOOT_FILE] * (
        reason is NoReplyReason.NO_BOOT_FILE
    )
