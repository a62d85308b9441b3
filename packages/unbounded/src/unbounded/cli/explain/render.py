"""Output of a chain: a few lines of text, or plain data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any, Final

from unbounded.cli.explain.links import ExplainLink
from unbounded.cli.terminal_text import BOLD, CYAN, DIM, PLAIN, Style, one_line
from unbounded.cli.view import age

WIDTH: Final = 100  # where there is no terminal


def lines(links: Sequence[ExplainLink], now: datetime, style: Style = PLAIN) -> list[str]:
    """Return one paragraph for each link, each cause below what it blocks; then the next step, and the fixes."""
    shown: list[str] = []
    for depth, link in enumerate(links):
        shown += _head(link, depth, style)
        shown += [style.paint(one_line(_indent(depth + 1) + word), DIM) for word in _times(link, now)]
    steps = [link for link in links if link.next_step]
    for link in dict.fromkeys((steps[0], steps[-1])) if steps else ():
        shown += style.wrapped(one_line(f"next: {link.about}: {link.next_step}"), usual=WIDTH)
    shown += _fixes(links, style)
    return shown


def _head(link: ExplainLink, depth: int, style: Style) -> Iterator[str]:
    """Yield the wrapped lines of a link: its subject bold, and the phase behind it in its colour."""
    because = f"{_indent(depth)}{'because ' if depth else ''}"
    first, *rest = style.wrapped(one_line(f"{because}{link.about} {link.what}"), usual=WIDTH)
    _, about, what = first.partition(one_line(link.about))
    phase, colon, words = what.lstrip().partition(":")
    reported = f" {style.phase(phase)}{colon}{words}" if what else ""
    yield f"{because}{style.paint(about, BOLD)}{reported}"
    yield from rest


def _fixes(links: Sequence[ExplainLink], style: Style) -> Iterator[str]:
    """Yield the fixes, those of the last link first."""
    seen: set[str] = set()
    for link in reversed(links):
        for fix in link.fixes:
            if fix.command not in seen:
                seen.add(fix.command)
                yield f"try:  {style.paint(one_line(fix.command), CYAN)}"
                yield style.paint(one_line(f"      # {fix.does}"), DIM)


def _times(link: ExplainLink, now: datetime) -> Iterator[str]:
    if link.held_by:
        yield f"held by {link.held_by}"
    if link.since:
        yield f"since {link.since}{_ago(link.since, now)}"
    if link.until:
        yield f"until {link.until}"


def _ago(since: str, now: datetime) -> str:
    try:
        return f" ({age(since, now)} by the local clock)"
    except ValueError:
        return ""


def _indent(depth: int) -> str:
    return "  " * depth


def plain(links: Sequence[ExplainLink]) -> dict[str, Any]:
    """Return the chain as JSON values."""
    return {"links": [plain_link(link) for link in links]}


def plain_link(link: ExplainLink) -> dict[str, Any]:
    """Return one link as JSON values, with names in the API's style."""
    return {
        "about": link.about,
        "what": link.what,
        "heldBy": link.held_by,
        "since": link.since,
        "until": link.until,
        "next": link.next_step,
        "fixes": [{"command": fix.command, "does": fix.does} for fix in link.fixes],
    }
