"""A request and its reply as values: a simulator's view of HTTP, without a socket."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

OK: Final = 200


class Delivery(Enum):
    """Delivery of a reply."""

    SENT = "sent"
    DROPPED = "dropped"  # the connection is closed and nothing is sent
    CUT_OFF = "cut off"  # the connection is closed in the middle of the body


@dataclass(frozen=True, slots=True)
class LabRequest:
    """A request. Header names are lower case; the path has no query; path and query are as on the wire."""

    method: str
    path: str
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    query: str = ""


@dataclass(frozen=True, slots=True)
class LabReply:
    """A reply, and its delivery by the network."""

    status: int = OK
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    fate: Delivery = Delivery.SENT
    hold_s: float = 0.0  # delay of the reply
    close: bool = False
