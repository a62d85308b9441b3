"""The position in a connection's bytes: between two requests, in a body, or in a head.

The HTTP library's parser does not expose it. This module derives it from the bytes and the requests that were parsed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from aiohttp.http_parser import RawRequestMessage

from unbounded_apiserver.http.head_cache import HEAD_END

BLANK: Final = b"\r\n"  # allowed before a request


class Framing:
    """The position in the bytes of one connection.

    Attributes:
        missing: bytes of the present request that have not arrived; 0 between requests, None if only its end shows.
    """

    __slots__ = ("_in_head", "_tail", "missing")

    def __init__(self) -> None:
        self.missing: int | None = 0
        self._in_head = False
        self._tail = b""  # the last bytes, where `missing` is None

    def follow(self, data: bytes, messages: Sequence[RawRequestMessage], *, all_read: bool) -> None:
        """Count the bytes that the parser received.

        Args:
            messages: the requests whose heads end in `data`.
            all_read: whether the parser has buffered no bytes.
        """
        joined, at, in_head = self._tail + data, self.missing, self._in_head
        self.missing, self._in_head, self._tail = None, False, joined[-len(HEAD_END) :]
        if not all_read or (at is None and not in_head):
            return
        at = at or 0
        for message in messages:
            end = joined.find(HEAD_END, at if in_head else _past_blank(joined, at))
            if end < 0 or message.chunked or message.upgrade:  # a body in chunks ends like a head
                return
            in_head, at = False, end + len(HEAD_END) + int(message.headers.get("Content-Length", "0"))
        if in_head or _past_blank(joined, at) < len(joined):
            self._in_head = True
        else:
            self.missing, self._tail = max(at - len(joined), 0), b""

    def has_part_of_head(self) -> bool:
        """Return whether another request has begun behind those that were read completely and answered."""
        if self.missing is None:
            self._in_head = self._tail != HEAD_END
            if not self._in_head:
                self.missing, self._tail = 0, b""
        return self._in_head


def _past_blank(data: bytes, at: int) -> int:
    while data[at : at + 1] and data[at : at + 1] in BLANK:
        at += 1
    return at
