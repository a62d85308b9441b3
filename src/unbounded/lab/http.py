"""A request and its answer as values: what a simulator sees of HTTP, without a socket."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

OK: Final = 200


class Fate(Enum):
    """What becomes of an answer on its way."""

    SENT = "sent"
    DROPPED = "dropped"  # the connection is closed and nothing was sent
    CUT_OFF = "cut off"  # the connection is closed in the middle of the body


@dataclass(frozen=True, slots=True)
class Request:
    """A request. Header names are lower case; the path has no query, and both are as they stood on the wire."""

    method: str
    path: str
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    query: str = ""


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer, and how the network treats it."""

    status: int = OK
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    fate: Fate = Fate.SENT
    hold_s: float = 0.0  # how long the answer is kept back
    close: bool = False
