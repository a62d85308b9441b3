"""Boot files beside a foreign DHCP server."""

from __future__ import annotations

import pytest

from tests.metalman.support.reservations import FILES, MAC, RELAY, SERVER, FixedBook, asked, book, pxe
from unbounded.metalman.dhcp import options as opt
from unbounded.metalman.dhcp.model import (
    Arrival,
    DhcpFindingKind,
    DhcpReply,
    DhcpServerMode,
    NoReplyReason,
    ReplyRoute,
    WithheldReservation,
)
from unbounded.metalman.dhcp.packet import NOWHERE, MessageType, Packet
from unbounded.metalman.dhcp.proxy import answer

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
    said = answer(packet, arrival, book(files=FILES))
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
        (asked(MessageType.DISCOVER), ON_67, book(files=FILES), NoReplyReason.NOT_FOR_A_PROXY),  # no firmware
        (asked(MessageType.REQUEST, UEFI), ON_67, book(files=FILES), NoReplyReason.NOT_FOR_A_PROXY),
        (asked(MessageType.RELEASE, UEFI), ON_4011, book(files=FILES), NoReplyReason.NOT_FOR_A_PROXY),
        (asked(MessageType.OFFER, UEFI, op=2), ON_67, book(files=FILES), NoReplyReason.NOT_A_REQUEST),
        (asked(MessageType.DISCOVER, UEFI), ON_67, book(), NoReplyReason.NO_BOOT_WANTED),
        (asked(MessageType.DISCOVER, UEFI), ON_67, FixedBook(), NoReplyReason.UNKNOWN_MAC),
        (
            asked(MessageType.DISCOVER, UEFI),
            ON_67,
            FixedBook({MAC: WithheldReservation("m1", "")}),
            NoReplyReason.WITHHELD,
        ),
        (asked(MessageType.DISCOVER, pxe(6)), ON_67, book(files=FILES), NoReplyReason.NO_BOOT_FILE),
    ],
)
def test_a_proxy_says_nothing_to_others(
    packet: Packet, arrival: Arrival, known: FixedBook, reason: NoReplyReason
) -> None:
    said = answer(packet, arrival, known)
    assert not isinstance(said, DhcpReply)
    assert said.reason is reason
    assert [one.kind for one in said.findings] == [DhcpFindingKind.NO_BOOT_FILE] * (
        reason is NoReplyReason.NO_BOOT_FILE
    )
