"""A request and its reply as values, and the lookup of paths: a simulator's view of HTTP, without a socket."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, Generic, TypeVar

ANY: Final = "*"

T = TypeVar("T")
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


@dataclass(slots=True)
class _Node(Generic[T]):
    value: T | None = None
    children: dict[str, _Node[T]] = field(default_factory=dict)


class Routes(Generic[T]):
    """A table of path patterns, as a tree: a lookup takes as many steps as the path has segments."""

    def __init__(self, table: Mapping[str, T], *, ignore_case: bool = False) -> None:
        self._fold = str.lower if ignore_case else str
        self._root: _Node[T] = _Node()
        for pattern, value in table.items():
            node = self._root
            for segment in _segments(pattern):
                node = node.children.setdefault(self._fold(segment), _Node())
            node.value = value

    def find(self, path: str) -> tuple[T, tuple[str, ...]] | None:
        """Return the value of the pattern that a path matches, and the segments at its `*`; ignores a final slash."""
        node, taken = self._root, []
        for segment in _segments(path):
            child = node.children.get(self._fold(segment))
            if child is None:
                child = node.children.get(ANY)
                taken.append(segment)
            if child is None:
                return None
            node = child
        return None if node.value is None else (node.value, tuple(taken))


def _segments(path: str) -> list[str]:
    segments = path.split("/")[1:]
    if segments and not segments[-1]:
        segments.pop()
    return segments
