"""Boot files beside a foreign DHCP server."""

from __future__ import annotations

import pytest

from tests.metalman.support.net_book import FILES, MAC, RELAY, SERVER, FixedBook, asked, book, pxe
from unbounded.metalman.dhcp import options as opt
from unbounded.metalman.dhcp.model import Arrival, Mode, Reason, Reply, Trouble, Via, Withheld
from unbounded.metalman.dhcp.packet import NOWHERE, Packet, Type
from unbounded.metalman.dhcp.proxy import answer

ON_67, ON_4011 = Arrival(Mode.PROXY), Arrival(Mode.PROXY, boot_port=True)
UEFI = pxe(7)


@pytest.mark.parametrize(
    ("packet", "arrival", "kind", "via"),
    [
        (asked(Type.DISCOVER, UEFI), ON_67, Type.OFFER, Via.BROADCAST),
        (asked(Type.DISCOVER, UEFI, giaddr=RELAY), ON_67, Type.OFFER, Via.RELAY),
        (asked(Type.REQUEST, UEFI, ciaddr=b"\n\0\0\t"), ON_4011, Type.ACK, Via.BACK),
        (asked(Type.INFORM, UEFI), ON_4011, Type.ACK, Via.BACK),
    ],
)
def test_a_proxy_names_the_file_and_gives_no_address(packet: Packet, arrival: Arrival, kind: Type, via: Via) -> None:
    said = answer(packet, arrival, book(files=FILES))
    assert isinstance(said, Reply)
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
        (asked(Type.DISCOVER), ON_67, book(files=FILES), Reason.NOT_FOR_A_PROXY),  # no firmware
        (asked(Type.REQUEST, UEFI), ON_67, book(files=FILES), Reason.NOT_FOR_A_PROXY),
        (asked(Type.RELEASE, UEFI), ON_4011, book(files=FILES), Reason.NOT_FOR_A_PROXY),
        (asked(Type.OFFER, UEFI, op=2), ON_67, book(files=FILES), Reason.NOT_A_REQUEST),
        (asked(Type.DISCOVER, UEFI), ON_67, book(), Reason.NO_BOOT_WANTED),
        (asked(Type.DISCOVER, UEFI), ON_67, FixedBook(), Reason.UNKNOWN_MAC),
        (asked(Type.DISCOVER, UEFI), ON_67, FixedBook({MAC: Withheld("m1", "")}), Reason.WITHHELD),
        (asked(Type.DISCOVER, pxe(6)), ON_67, book(files=FILES), Reason.NO_BOOT_FILE),
    ],
)
def test_a_proxy_says_nothing_to_others(packet: Packet, arrival: Arrival, known: FixedBook, reason: Reason) -> None:
    said = answer(packet, arrival, known)
    assert not isinstance(said, Reply)
    assert said.reason is reason
    assert [one.trouble for one in said.findings] == [Trouble.NO_BOOT_FILE] * (reason is Reason.NO_BOOT_FILE)
