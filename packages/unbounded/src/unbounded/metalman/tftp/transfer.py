"""Transfer of one file to a client: packets and times in, packets out. No socket and no clock.

The port `TftpFiles` supplies the files of a client.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final, Protocol

from unbounded.metalman.tftp.packet import (
    WRAP,
    Ack,
    ErrorCode,
    ErrorPacket,
    NegotiatedOptions,
    TftpRequest,
    encode_data,
    encode_error,
    encode_options,
)

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
