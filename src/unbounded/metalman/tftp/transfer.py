"""One file on its way to a client: which packets go out, by what came in and what time it is. No socket, no clock."""

from __future__ import annotations

from enum import Enum
from typing import Final

from unbounded.metalman.tftp.options import Terms
from unbounded.metalman.tftp.packet import WRAP, Ack, Code, Error, Request, encode_data, encode_error, encode_options
from unbounded.metalman.tftp.ports import Content

MOST_SENDS: Final = 6  # of one packet, before the client counts as gone
LONGEST_WAIT_S: Final = 8.0


class Outcome(Enum):
    """How a transfer ended."""

    DONE = "done"
    ABORTED = "aborted by the client"  # also how firmware ends after it has learned the size
    TIMED_OUT = "timed out"
    UNREADABLE = "file unreadable"


class Transfer:
    """Packets of one transfer. After `outcome` is set it sends no more.

    A repeated acknowledgement asks for nothing, as sending again on it doubles every packet from then on (the
    Sorcerer's Apprentice); one from within the window says what was lost, and the window starts again after it.
    """

    def __init__(self, content: Content, terms: Terms, now: float) -> None:
        self._content = content
        self._terms = terms
        self._last = content.size // terms.block_bytes + 1  # a file of whole blocks ends with an empty one
        self._acked = -1 if terms.said else 0  # the options count as block 0
        self._sent = self._acked
        self._sends = 0
        self.outcome: Outcome | None = None
        self.deadline = now  # when `expired` wants to be called

    def start(self, now: float) -> list[bytes]:
        """The first packets: the options, or the first block."""
        return self._window(now)

    def received(self, packet: Request | Ack | Error, now: float) -> list[bytes]:
        """What a packet of the client asks for."""
        if self.outcome is not None:
            return []
        match packet:
            case Error():
                self.outcome = Outcome.ABORTED
            case Ack(number=number):
                ahead = (number - self._acked) % WRAP
                if 1 <= ahead <= self._sent - self._acked:
                    return self._moved_on(ahead, now)
            case Request():  # a repeat of the first one
                pass
        return []

    def expired(self, now: float) -> list[bytes]:
        """What to send again, if it is time; the wait doubles each time."""
        if self.outcome is not None or now < self.deadline:
            return []
        if self._sends >= MOST_SENDS:
            self.outcome = Outcome.TIMED_OUT
            return [encode_error(Code.UNDEFINED, "no acknowledgement")]
        return self._window(now)

    def _moved_on(self, ahead: int, now: float) -> list[bytes]:
        self._acked += ahead
        self._sends = 0
        if self._acked == self._last:
            self.outcome = Outcome.DONE
            return []
        return self._window(now)

    def _window(self, now: float) -> list[bytes]:
        wait = self._terms.timeout_s * 2**self._sends
        self._sends += 1
        self.deadline = now + max(self._terms.timeout_s, min(wait, LONGEST_WAIT_S))
        if self._acked < 0:
            self._sent = 0
            return [encode_options(self._terms.said)]
        self._sent = min(self._acked + self._terms.window, self._last)
        try:
            return [self._block(block) for block in range(self._acked + 1, self._sent + 1)]
        except OSError:
            self.outcome = Outcome.UNREADABLE
            return [encode_error(Code.UNDEFINED, "the file cannot be read")]

    def _block(self, block: int) -> bytes:
        size = self._terms.block_bytes
        start = (block - 1) * size
        wanted = min(size, self._content.size - start)
        content = self._content.read(start, wanted)
        if len(content) != wanted:  # a short block would end the file, and the client would start half of it
            raise OSError("the file has become shorter")
        return encode_data(block, content)
