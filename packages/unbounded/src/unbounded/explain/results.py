"""Results of the library: an explanation, and the release of the program that gives it."""

from __future__ import annotations

from importlib.metadata import version
from typing import Final

import msgspec

from unbounded.explain.links import ExplainLink, UnreadFact
from unbounded.explain.timeline import OperationTimeline

RELEASE: Final = version("unbounded")


class Explanation(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The chain from an object to the first cause of what blocks it.

    Attributes:
        links: the object first; the last one is the first cause.
        settled: nothing blocks the object any more.
        complete: nothing is left out.
        timeline: of an operation that was claimed; null for other objects, and in answers of the former release.
        unread: what is left out, because the reader may not read it, or the server does not answer.
        read_at: RFC 3339, by the clock of the program that answers.
        version: release of that program.
    """

    links: tuple[ExplainLink, ...]
    settled: bool
    timeline: OperationTimeline | None = None
    complete: bool = True
    unread: tuple[UnreadFact, ...] = ()
    read_at: str = ""
    version: str = RELEASE
