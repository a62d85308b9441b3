"""TFTP without sockets: what is agreed on, and that a file arrives whatever the network does."""

from __future__ import annotations

import random
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unbounded.metalman.tftp.protocol import (
    MOST_SENDS,
    Ack,
    ErrorPacket,
    MalformedTftpPacket,
    MemoryContent,
    NegotiatedOptions,
    TftpRequest,
    TftpTransfer,
    TransferOutcome,
    decode,
    encode_data,
    negotiate,
    netascii,
    normalized_name,
)


def number(packet: bytes) -> int:
    return int.from_bytes(packet[2:4], "big")


class Receiver:
    """A client as RFC 7440 describes it: it takes blocks in order and acknowledges the last one of a window."""

    def __init__(self, terms: NegotiatedOptions) -> None:
        self.terms = terms
        self.content = bytearray()
        self.blocks = 0
        self.in_window = 0
        self.ended = False

    def takes(self, packet: bytes) -> list[int]:
        """The numbers that are acknowledged when this packet arrives."""
        if packet[1] == 6:
            return [0] if not self.blocks else []
        assert packet[1] == 3
        if number(packet) != (self.blocks + 1) % 65536:  # a gap, or a repetition: acknowledge the last block
            self.in_window = 0
            return [self.blocks]
        self.blocks += 1
        self.in_window += 1
        self.content += packet[4:] if not self.ended else b""
        self.ended = self.ended or len(packet) - 4 < self.terms.block_bytes
        if self.ended or self.in_window == self.terms.window:
            self.in_window = 0
            return [self.blocks]
        return []


def carry(transfer: TftpTransfer, receiver: Receiver, rng: random.Random, *, loss: float, repeat: float) -> int:
    """Carry packets until the transfer ends, with the network's misdeeds; how many packets were sent."""
    now, sent = 0.0, 0
    flying = list(transfer.start(now))
    while transfer.outcome is None:
        sent += len(flying)
        acks = [ack for packet in flying for ack in (receiver.takes(packet) if rng.random() >= loss else [])]
        flying = []
        for ack in acks:
            for _ in range((rng.random() >= loss) + (rng.random() < repeat)):
                flying += transfer.packet_received(Ack(ack % 65536), now)
        if not flying and transfer.outcome is None:
            now = transfer.deadline
            flying = transfer.timer_expired(now)
            if transfer.outcome is not None:
                break
    return sent


@pytest.mark.slow
@given(st.integers(0, 3000), st.sampled_from([8, 100, 512]), st.integers(1, 20), st.integers(0, 2**32), st.booleans())
def test_any_loss_and_repetition_still_delivers_the_file(
    size: int, block: int, window: int, seed: int, with_options: bool
) -> None:
    rng = random.Random(seed)
    content = rng.randbytes(size)
    terms = NegotiatedOptions(
        block_bytes=block, window=window, acknowledged={"blksize": str(block)} if with_options else {}
    )
    transfer, receiver = TftpTransfer(MemoryContent(content), terms, 0.0), Receiver(terms)
    carry(transfer, receiver, rng, loss=0.1, repeat=0.2)
    if transfer.outcome is TransferOutcome.TIMED_OUT:  # six losses in a row, or the last acknowledgement's
        assert content.startswith(bytes(receiver.content))
    else:
        assert (transfer.outcome, bytes(receiver.content)) == (TransferOutcome.DONE, content)


@pytest.mark.slow
@pytest.mark.parametrize("window", [1, 7])
def test_a_file_goes_on_after_block_65535(window: int) -> None:
    content = bytes(range(256)) * 4100  # 131,200 blocks of 8
    terms = NegotiatedOptions(block_bytes=8, window=window)
    transfer, receiver = TftpTransfer(MemoryContent(content), terms, 0.0), Receiver(terms)
    sent = carry(transfer, receiver, random.Random(1), loss=0, repeat=0)
    assert transfer.outcome is TransferOutcome.DONE
    assert bytes(receiver.content) == content
    assert sent == len(content) // 8 + 1


def test_a_repeated_acknowledgement_does_not_repeat_a_block() -> None:
    content = bytes(512 * 40)
    transfer, receiver = TftpTransfer(MemoryContent(content), NegotiatedOptions(), 0.0), Receiver(NegotiatedOptions())
    assert carry(transfer, receiver, random.Random(1), loss=0, repeat=1) == 41


@pytest.mark.parametrize(("size", "lengths"), [(0, [0]), (511, [511]), (512, [512, 0]), (513, [512, 1])])
def test_the_last_block_is_shorter_than_the_others(size: int, lengths: list[int]) -> None:
    transfer = TftpTransfer(MemoryContent(bytes(size)), NegotiatedOptions(), 0.0)
    packets = transfer.start(0)
    for block in range(1, len(lengths) + 1):
        packets += transfer.packet_received(Ack(block), 0)
    assert [len(packet) - 4 for packet in packets] == lengths
    assert transfer.outcome is TransferOutcome.DONE


def test_the_window_starts_again_after_what_has_arrived() -> None:
    transfer = TftpTransfer(MemoryContent(bytes(5120)), NegotiatedOptions(window=4), 0.0)
    assert [number(packet) for packet in transfer.start(0)] == [1, 2, 3, 4]
    assert [number(packet) for packet in transfer.packet_received(Ack(2), 0)] == [3, 4, 5, 6]
    assert transfer.packet_received(Ack(2), 0) == []
    assert transfer.packet_received(Ack(9), 0) == []  # never sent
    assert [number(packet) for packet in transfer.packet_received(Ack(6), 0)] == [7, 8, 9, 10]


def test_a_lost_packet_is_sent_again_ever_later_and_then_given_up() -> None:
    transfer = TftpTransfer(MemoryContent(b"x"), NegotiatedOptions(), 0.0)
    first = transfer.start(0)
    times, now = [0.0], 0.0
    while transfer.outcome is None:
        assert transfer.timer_expired(transfer.deadline - 0.001) == []
        now = transfer.deadline
        again = transfer.timer_expired(now)
        times.append(now)
    assert times == [0, 1, 3, 7, 15, 23, 31]
    assert len(times) == MOST_SENDS + 1
    assert first == [encode_data(1, b"x")]
    assert decode(again[0]) == ErrorPacket(0, "no acknowledgement")
    assert transfer.outcome is TransferOutcome.TIMED_OUT
    assert transfer.packet_received(Ack(1), now) == []


def test_an_error_of_the_client_ends_it() -> None:
    transfer = TftpTransfer(MemoryContent(b"x"), NegotiatedOptions(acknowledged={"tsize": "1"}), 0.0)
    assert transfer.start(0) == [b"\0\6tsize\x001\0"]
    assert transfer.packet_received(ErrorPacket(8, "too large"), 0) == []
    assert transfer.outcome is TransferOutcome.ABORTED


def test_a_file_that_shrinks_is_an_error_and_not_a_short_file() -> None:
    class Shrunk(MemoryContent):
        @property
        def size(self) -> int:
            return 5000

    transfer = TftpTransfer(Shrunk(bytes(600)), NegotiatedOptions(), 0.0)
    transfer.start(0)
    assert decode(transfer.packet_received(Ack(1), 0)[0]) == ErrorPacket(0, "the file cannot be read")
    assert transfer.outcome is TransferOutcome.UNREADABLE


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({}, {}),
        ({"blksize": "1468", "tsize": "0"}, {"blksize": "1468", "tsize": "9999"}),
        ({"windowsize": "8", "blksize": "8"}, {"windowsize": "8", "blksize": "8"}),
        ({"windowsize": "65535", "blksize": "99999"}, {"windowsize": "64", "blksize": "65464"}),
        ({"blksize": "7", "windowsize": "0", "timeout": "0"}, {}),
        ({"timeout": "255"}, {"timeout": "255"}),
        ({"timeout": "256", "multicast": "", "blksize": "-1", "tsize": "x"}, {}),
        ({"blksize": "٣٠٠", "windowsize": "1" * 5000}, {}),
    ],
)
def test_options_are_agreed_on_within_their_limits(asked: Mapping[str, str], said: Mapping[str, str]) -> None:
    terms = negotiate(asked, 9999)
    assert list(terms.acknowledged.items()) == list(said.items())
    assert terms.block_bytes == int(said.get("blksize", 512))
    assert terms.window == int(said.get("windowsize", 1))
    assert terms.timeout_s == int(said.get("timeout", 1))


@pytest.mark.parametrize(
    ("data", "packet"),
    [
        (b"\0\1/a\0OCTET\0", TftpRequest(False, "/a", "octet")),
        (b"\0\1a\0octet\0BLKSIZE\x009\0blksize\x008\0x\0", TftpRequest(False, "a", "octet", {"blksize": "9"})),
        (b"\0\2a\0netascii\0", TftpRequest(True, "a", "netascii")),
        (b"\0\4\xff\xff", Ack(65535)),
        (b"\0\5\0\0User aborted", ErrorPacket(0, "User aborted")),
    ],
)
def test_packets_of_clients_are_read(data: bytes, packet: TftpRequest | Ack | ErrorPacket) -> None:
    assert decode(data) == packet


@pytest.mark.parametrize(
    "data", [b"", b"\0\4\0", b"\0\1ab", b"\0\1a\0", b"\0\1a\0octet", b"\0\3\0\1", b"\0\1" + b"a" * 600]
)
def test_what_a_client_cannot_mean_is_refused(data: bytes) -> None:
    with pytest.raises(MalformedTftpPacket):
        decode(data)


@given(st.binary(max_size=100), st.sampled_from([b"", b"\0\1", b"\0\4", b"\0\5"]))
def test_garbage_is_refused_and_never_a_crash(data: bytes, start: bytes) -> None:
    transfer = TftpTransfer(MemoryContent(b"x" * 99), NegotiatedOptions(), 0.0)
    transfer.start(0)
    try:
        packet = decode(start + data)
    except MalformedTftpPacket:
        return
    assert all(len(answer) <= 4 + 512 for answer in transfer.packet_received(packet, 0))
    if isinstance(packet, TftpRequest):
        negotiate(packet.options, 1)
        normalized_name(packet.name)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a", "a"),
        ("/grub//x86_64-efi/./a.mod", "grub/x86_64-efi/a.mod"),
        ("//grubx64.efi", "grubx64.efi"),
        ("\\EFI\\BOOT\\bootx64.efi", "EFI/BOOT/bootx64.efi"),
        ("../etc/passwd", None),
        ("a/..", None),
        ("a\\..\\..\\b", None),
        ("", None),
        ("/", None),
        ("a\nb", None),
        ("a" * 401, None),
        ("a..b", "a..b"),
    ],
)
def test_names_are_made_plain_and_stay_inside(name: str, expected: str | None) -> None:
    assert normalized_name(name) == expected


def test_netascii_ends_lines_as_telnet_does() -> None:
    assert netascii(b"a\nb\rc\r\n") == b"a\r\nb\r\0c\r\0\r\n"
