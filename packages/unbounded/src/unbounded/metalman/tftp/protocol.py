"""The TFTP protocol: packets to and from bytes, and the transfer of one file. No socket and no clock.

Packets follow RFC 1350 section 5. Options (RFC 2347) are block size, timeout, size and window.
A transfer takes packets and times, and returns packets. The port `TftpFiles` supplies the files of a client.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import Final, Protocol

LONGEST_REQUEST_BYTES: Final = 512  # RFC 2347
WRAP: Final = 65536


class ErrorCode(IntEnum):
    """Error codes."""

    UNDEFINED = 0
    NOT_FOUND = 1
    ACCESS = 2
    ILLEGAL = 4
    OPTIONS = 8


class MalformedTftpPacket(Exception):
    """Bytes that are not a TFTP packet of a client; the message has the reason."""


@dataclass(frozen=True, slots=True)
class TftpRequest:
    """Request to read or write a file; mode and option names are in lower case."""

    write: bool
    name: str
    mode: str
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Ack:
    """Acknowledgement of all blocks up to `number`, which is the wire's number and wraps."""

    number: int


@dataclass(frozen=True, slots=True)
class ErrorPacket:
    """Error packet, by which the other side ends the transfer."""

    code: int
    text: str


def decode(data: bytes) -> TftpRequest | Ack | ErrorPacket:
    """Parse a packet of a client.

    Raises:
        MalformedTftpPacket: the bytes are not a request, an acknowledgement or an error.
    """
    kind = int.from_bytes(data[:2], "big")
    if len(data) < 4:
        raise MalformedTftpPacket("shorter than any packet")
    match kind:
        case 1 | 2:
            return _request(data)
        case 4:
            return Ack(int.from_bytes(data[2:4], "big"))
        case 5:
            return ErrorPacket(int.from_bytes(data[2:4], "big"), data[4:].partition(b"\0")[0].decode(errors="replace"))
    raise MalformedTftpPacket(f"packet of kind {kind}")


def _request(data: bytes) -> TftpRequest:
    if len(data) > LONGEST_REQUEST_BYTES:
        raise MalformedTftpPacket("a request of more than 512 bytes")
    *words, rest = data[2:].split(b"\0")
    if rest or len(words) < 2:
        raise MalformedTftpPacket("a request that does not end with a zero byte")
    texts = [word.decode(errors="replace") for word in words]
    options: dict[str, str] = {}
    for name, value in zip(texts[2::2], texts[3::2], strict=False):
        options.setdefault(name.lower(), value)
    return TftpRequest(write=data[1] == WRQ, name=texts[0], mode=texts[1].lower(), options=options)


def encode_data(block: int, content: bytes) -> bytes:
    """Encode a DATA packet; `block` may exceed the wire's number, which wraps."""
    return b"\0\x03" + (block % WRAP).to_bytes(2, "big") + content


def encode_options(agreed: Mapping[str, str]) -> bytes:
    """Encode an OACK packet."""
    return b"\0\x06" + b"".join(f"{name}\0{value}\0".encode() for name, value in agreed.items())


def encode_error(code: ErrorCode, text: str) -> bytes:
    """Encode an ERROR packet."""
    return b"\0\x05" + code.to_bytes(2, "big") + text.encode() + b"\0"


LONGEST_NAME: Final = 400


def normalized_name(name: str) -> str | None:
    r"""Return the name without leading, double and back slashes and without `.`; None if it points out of its folder.

    Firmware requests `/x`, shim `//x`, and some loaders `\x`.
    """
    parts = [part for part in name.replace("\\", "/").split("/") if part not in ("", ".")]
    if not parts or ".." in parts or len(name) > LONGEST_NAME or not name.isprintable():
        return None
    return "/".join(parts)


RRQ, WRQ, DATA, ACK, ERROR, OACK = range(1, 7)

DEFAULT_BLOCK_BYTES: Final = 512
LEAST_BLOCK_BYTES: Final = 8
LARGEST_BLOCK_BYTES: Final = 65464
LARGEST_WINDOW: Final = 64  # blocks; larger ones overrun the receive buffers of boot firmware
DEFAULT_TIMEOUT_S: Final = 1


@dataclass(frozen=True, slots=True)
class NegotiatedOptions:
    """Negotiated options of a transfer; `acknowledged` are those of the OACK, which is left out if there are none."""

    block_bytes: int = DEFAULT_BLOCK_BYTES
    window: int = 1
    timeout_s: int = DEFAULT_TIMEOUT_S
    acknowledged: Mapping[str, str] = field(default_factory=dict)


def negotiate(requested: Mapping[str, str], size: int) -> NegotiatedOptions:
    """Negotiate the options for a file of `size` bytes. Options that are unknown or out of range are ignored.

    Block size and window may be smaller than requested (RFC 2348, RFC 7440); the timeout may not (RFC 2349).
    """
    message: dict[str, str] = {}
    block = _number(requested.get("blksize"))
    if block is not None and block >= LEAST_BLOCK_BYTES:
        message["blksize"] = str(min(block, LARGEST_BLOCK_BYTES))
    timeout = _number(requested.get("timeout"))
    if timeout is not None and 1 <= timeout <= 255:
        message["timeout"] = str(timeout)
    if _number(requested.get("tsize")) is not None:
        message["tsize"] = str(size)
    window = _number(requested.get("windowsize"))
    if window is not None and 1 <= window <= 65535:
        message["windowsize"] = str(min(window, LARGEST_WINDOW))
    return NegotiatedOptions(
        block_bytes=int(message.get("blksize", DEFAULT_BLOCK_BYTES)),
        window=int(message.get("windowsize", 1)),
        timeout_s=int(message.get("timeout", DEFAULT_TIMEOUT_S)),
        acknowledged={name: message[name] for name in requested if name in message},
    )


def _number(text: str | None) -> int | None:
    """Parse a decimal number of at most ten digits; None for any other text."""
    if text is None or not (text.isascii() and text.isdigit()) or len(text) > 10:
        return None
    return int(text)


MOST_SENDS: Final = 6  # of one packet, before the client counts as lost
LONGEST_WAIT_S: Final = 8.0


class TransferOutcome(Enum):
    """Outcome of a transfer."""

    DONE = "done"
    ABORTED = "aborted by the client"  # some firmware aborts on purpose once it knows the size
    TIMED_OUT = "timed out"
    UNREADABLE = "file unreadable"


class TftpTransfer:
    """State of one transfer. Once `outcome` is set, the transfer sends no more packets.

    A repeated acknowledgement causes no packet. A retransmission for each of them would double every packet from then
    on (the Sorcerer's Apprentice syndrome). An acknowledgement from within the window shows the first lost block; the
    window restarts after the acknowledged one.
    """

    def __init__(self, content: TftpContent, terms: NegotiatedOptions, now: float) -> None:
        self._content = content
        self._terms = terms
        # a file whose size is a multiple of the block size ends with an empty block
        self._last = content.size // terms.block_bytes + 1
        self._acked = -1 if terms.acknowledged else 0  # the options count as block 0
        self._sent = self._acked
        self._sends = 0
        self.outcome: TransferOutcome | None = None
        self.deadline = now  # time at which the caller has to call `expired`

    def start(self, now: float) -> list[bytes]:
        """Return the first packets: the OACK, or the first window of blocks."""
        return self._window(now)

    def packet_received(self, packet: TftpRequest | Ack | ErrorPacket, now: float) -> list[bytes]:
        """Return the packets that answer a packet of the client."""
        if self.outcome is not None:
            return []
        match packet:
            case ErrorPacket():
                self.outcome = TransferOutcome.ABORTED
            case Ack(number=number):
                ahead = (number - self._acked) % WRAP
                if 1 <= ahead <= self._sent - self._acked:
                    return self._advance(ahead, now)
            case TftpRequest():  # a repetition of the first request
                pass
        return []

    def timer_expired(self, now: float) -> list[bytes]:
        """Return the packets to send again once the deadline has passed; the timeout doubles each time."""
        if self.outcome is not None or now < self.deadline:
            return []
        if self._sends >= MOST_SENDS:
            self.outcome = TransferOutcome.TIMED_OUT
            return [encode_error(ErrorCode.UNDEFINED, "no acknowledgement")]
        return self._window(now)

    def _advance(self, ahead: int, now: float) -> list[bytes]:
        self._acked += ahead
        self._sends = 0
        if self._acked == self._last:
            self.outcome = TransferOutcome.DONE
            return []
        return self._window(now)

    def _window(self, now: float) -> list[bytes]:
        wait = self._terms.timeout_s * 2**self._sends
        self._sends += 1
        self.deadline = now + max(self._terms.timeout_s, min(wait, LONGEST_WAIT_S))
        if self._acked < 0:
            self._sent = 0
            return [encode_options(self._terms.acknowledged)]
        self._sent = min(self._acked + self._terms.window, self._last)
        try:
            return [self._block(block) for block in range(self._acked + 1, self._sent + 1)]
        except OSError:
            self.outcome = TransferOutcome.UNREADABLE
            return [encode_error(ErrorCode.UNDEFINED, "the file cannot be read")]

    def _block(self, block: int) -> bytes:
        size = self._terms.block_bytes
        start = (block - 1) * size
        desired = min(size, self._content.size - start)
        content = self._content.read(start, desired)
        if len(content) != desired:  # a short block would end the file, and the client would start an incomplete one
            raise OSError("the file became shorter")
        return encode_data(block, content)


class TftpContent(Protocol):
    """Bytes of a file, which do not change during a transfer."""

    @property
    def size(self) -> int: ...

    def read(self, at: int, count: int) -> bytes: ...  # from memory or the page cache: does not block for long

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class TftpRejection:
    """Error that a client gets instead of a file."""

    code: ErrorCode = ErrorCode.NOT_FOUND
    text: str = "File not found"


class TftpFiles(Protocol):
    """Source of files by the client's address and a normalized name (see `names.normalized_name`)."""

    async def find(self, client: str, name: str) -> TftpContent | TftpRejection: ...


@dataclass(frozen=True, slots=True)
class MemoryContent:
    """Content in memory."""

    content: bytes

    @property
    def size(self) -> int:
        return len(self.content)

    def read(self, at: int, count: int) -> bytes:
        return self.content[at : at + count]

    def close(self) -> None:
        """Do nothing: there is no resource to release."""


def netascii(content: bytes) -> bytes:
    """Convert text to the mode `netascii`: lines end with CR LF, and a lone CR becomes CR NUL (RFC 764)."""
    return content.replace(b"\r", b"\r\0").replace(b"\n", b"\r\n")
