"""Lines on data of a page that are not live: how old they are, or why there are none. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from unbounded.console.live import LiveKind, LiveState
from unbounded.console.view import FollowedData


@dataclass(frozen=True)
class DataLine:
    """A line above a page.

    Attributes:
        since: the page shows the time from then on behind the text.
        is_denied: the user may not read the data.
    """

    text: str
    since: datetime | None = None
    is_denied: bool = False


def data_lines(followed: Sequence[FollowedData]) -> tuple[DataLine, ...]:
    """Return the lines on the data of a page; none where all are live."""
    return (*_interrupted(followed), *_unwatched(followed), *dict.fromkeys(_unknown(followed)))


def _interrupted(followed: Sequence[FollowedData]) -> Iterator[DataLine]:
    stale = [one.live for one in followed if one.live.state is LiveState.STALE]
    if stale:
        cause = next(filter(None, (one.cause for one in stale)), "no cause is known")
        text = f"{_names(stale)}: the watch is interrupted ({cause}). Age of the data: "
        yield DataLine(text, min(one.since or one.heard_at for one in stale))


def _unwatched(followed: Sequence[FollowedData]) -> Iterator[DataLine]:
    read = [one.read_at for one in followed if one.read_at is not None]
    if read:
        names = _names(one.live for one in followed if one.read_at is not None)
        yield DataLine(f"{names}: you may read these objects, but not watch them. Age of the data: ", min(read))


def _unknown(followed: Iterable[FollowedData]) -> Iterator[DataLine]:
    for one in followed:
        live, kind = one.live, one.live.kind.kind
        if not one.is_main:
            continue
        if live.state is LiveState.DENIED:
            yield DataLine(f"{kind}: you may not read these objects: {live.cause}", is_denied=True)
        elif live.state is LiveState.LOADING and live.cause:
            yield DataLine(f"{kind}: {live.cause}")


def _names(found: Iterable[LiveKind[Any]]) -> str:
    return ", ".join(dict.fromkeys(one.kind.kind for one in found))
