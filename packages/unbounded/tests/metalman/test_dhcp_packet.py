"""DHCP packets as bytes: what is written is read again, and garbage is refused."""

from __future__ import annotations

import contextlib
import timeit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.metalman.support.reservations import asked, reservations
from unbounded.metalman.dhcp import packet, reply_or_drop
from unbounded.metalman.dhcp.model import Arrival, DhcpServerMode, NoReply
from unbounded.metalman.dhcp.packet import COOKIE, HEADER, MalformedDhcpPacket, MessageType, Packet, decode, encode

codes = st.integers(1, 254).filter(lambda code: code != 52)
addresses = st.binary(min_size=4, max_size=4)
text = st.binary(max_size=60).filter(lambda value: 0 not in value)
packets = st.builds(
    Packet,
    op=st.integers(0, 255),
    hardware_type=st.integers(0, 255),
    hardware=st.binary(max_size=16),
    hops=st.integers(0, 255),
    xid=st.integers(0, 2**32 - 1),
    secs=st.integers(0, 65535),
    flags=st.integers(0, 65535),
    ciaddr=addresses,
    yiaddr=addresses,
    siaddr=addresses,
    giaddr=addresses,
    sname=text,
    file=text,
    options=st.dictionaries(codes, st.binary(max_size=600), max_size=6),
)


@pytest.mark.slow
@given(packets)
def test_a_packet_is_read_as_it_was_written(packet: Packet) -> None:
    assert decode(encode(packet, 65535)) == packet


@pytest.mark.slow
@given(packets, st.integers(576, 1500))
def test_a_packet_never_grows_beyond_what_the_client_takes(packet: Packet, largest: int) -> None:
    with contextlib.suppress(MalformedDhcpPacket):
        data = encode(packet, largest)
        assert len(data) <= largest - 28
        assert decode(data) == packet


@pytest.mark.slow
@given(st.dictionaries(codes, st.binary(max_size=200), max_size=3))
def test_options_go_on_in_the_free_fields_of_the_header(options: dict[int, bytes]) -> None:
    packet = Packet(options={200: bytes(range(250))} | options)
    with contextlib.suppress(MalformedDhcpPacket):
        data = encode(packet)
        assert len(data) <= 548
        assert decode(data) == packet


def test_options_that_need_all_three_areas_arrive_whole() -> None:
    packet = Packet(options={200: bytes(450), 201: b"x" * 30})
    data = encode(packet)
    assert len(data) <= 548
    assert decode(data) == packet
    with pytest.raises(MalformedDhcpPacket, match="do not fit"):
        encode(Packet(options={200: bytes(500)}))
    with pytest.raises(MalformedDhcpPacket, match="do not fit"):
        encode(Packet(options={200: bytes(450)}, file=b"boot", sname=b"server"))


@pytest.mark.slow
@given(st.binary(max_size=700))
def test_garbage_is_refused_or_answered_and_never_a_crash(data: bytes) -> None:
    header = HEADER.pack(1, 1, 6, 0, 1, 0, 0, *[bytes(4)] * 4, b"\x52\x54\0\0\0\1", b"", b"", COOKIE)
    for garbage in (data, header + data, header[:44] + data.ljust(192)[:192] + COOKIE + b"\x34\x01\x03" + data):
        try:
            packet = decode(garbage)
        except MalformedDhcpPacket:
            continue
        for mode in DhcpServerMode:
            for answer in (
                reply_or_drop.answer(packet, Arrival(mode), reservations()),
                reply_or_drop.proxy_answer(packet, Arrival(mode, boot_port=True), reservations()),
            ):
                assert isinstance(answer, NoReply) or answer.packet.xid == packet.xid


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "shorter"),
        (bytes(239), "shorter"),
        (bytes(240), "cookie"),
        (encode(asked(MessageType.DISCOVER))[:240] + b"\x35", "no length"),
        (encode(asked(MessageType.DISCOVER))[:240] + b"\x35\x09\x01", "truncated"),
        (b"\1\1\x11" + encode(asked(MessageType.DISCOVER))[3:], "16 bytes"),
    ],
)
def test_what_is_no_packet_is_refused_with_a_reason(data: bytes, why: str) -> None:
    with pytest.raises(MalformedDhcpPacket, match=why):
        decode(data)


def test_a_missing_end_and_padding_between_options_are_forgiven() -> None:
    header = encode(asked(MessageType.DISCOVER))[:240]
    assert decode(header + b"\0\0\x35\x01\x01\0").type is MessageType.DISCOVER


def test_a_value_in_parts_is_put_together() -> None:
    header = encode(asked(MessageType.DISCOVER))[:240]
    assert decode(header + b"\x43\x02ab\x35\x01\x01\x43\x02cd\xff").options[67] == b"abcd"


def test_short_packets_are_filled_up_for_old_relays() -> None:
    assert len(encode(Packet())) == 300


@pytest.mark.slow
def test_reading_and_writing_cost_little_beside_a_fixed_piece_of_work() -> None:
    data = encode(asked(MessageType.DISCOVER, dict.fromkeys((55, 60, 61, 93, 94, 97), b"12345678")))
    codec = min(timeit.repeat(lambda: encode(decode(data)), number=2000, repeat=5))
    yardstick = min(timeit.repeat(lambda: sum(range(1000)), number=2000, repeat=5))
    assert codec < 10 * yardstick, f"{codec / yardstick:.1f} times"


@pytest.mark.slow
@given(st.binary(max_size=600), addresses, addresses)
def test_a_frame_has_valid_checksums_and_holds_the_payload(payload: bytes, source: bytes, target: bytes) -> None:
    frame = packet.datagram(payload, (source, 67), (target, 68))
    length = len(payload) + 8
    assert packet.checksum(frame[:20]) == 0
    assert packet.checksum(source + target + bytes((0, 17)) + length.to_bytes(2, "big") + frame[20:]) == 0
    assert (frame[28:], frame[2:4]) == (payload, (20 + length).to_bytes(2, "big"))
