"""How a chain is shown: a few lines for people, or plain data."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any, Final

from unbounded.cli.printable import one_line
from unbounded.cli.view import age
from unbounded.cli.why.links import Link

WIDTH: Final = 100


def lines(links: Sequence[Link], now: datetime) -> list[str]:
    """One paragraph for each link, each cause below what it holds up; then what happens next, and what to do."""
    shown: list[str] = []
    for depth, link in enumerate(links):
        head = "because " if depth else ""
        shown += _wrapped(f"{head}{link.about} {link.what}", depth)
        shown += [_indent(depth + 1) + word for word in _times(link, now)]
    steps = [link for link in links if link.next_step]
    for link in dict.fromkeys((steps[0], steps[-1])) if steps else ():
        shown += _wrapped(f"next: {link.about}: {link.next_step}", 0)
    shown += _fixes(links)
    return [one_line(line) for line in shown]


def _fixes(links: Sequence[Link]) -> Iterator[str]:
    """What undoes the cause, the last link's first."""
    seen: set[str] = set()
    for link in reversed(links):
        for fix in link.fixes:
            if fix.command not in seen:
                seen.add(fix.command)
                yield f"try:  {fix.command}"
                yield f"      # {fix.does}"


def _times(link: Link, now: datetime) -> Iterator[str]:
    if link.held_by:
        yield f"held by {link.held_by}"
    if link.since:
        yield f"since {link.since}{_ago(link.since, now)}"
    if link.until:
        yield f"until {link.until}"


def _ago(since: str, now: datetime) -> str:
    try:
        return f" ({age(since, now)} by the clock here)"
    except ValueError:
        return ""


def _indent(depth: int) -> str:
    return "  " * depth


def _wrapped(text: str, depth: int) -> list[str]:
    first, rest = _indent(depth), _indent(depth + 1)
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    )


def plain(links: Sequence[Link]) -> dict[str, Any]:
    """As JSON and YAML have it."""
    return {"links": [plain_link(link) for link in links]}


def plain_link(link: Link) -> dict[str, Any]:
    """One link, with names as the API has them."""
    return {
        "about": link.about,
        "what": link.what,
        "heldBy": link.held_by,
        "since": link.since,
        "until": link.until,
        "next": link.next_step,
        "fixes": [{"command": fix.command, "does": fix.does} for fix in link.fixes],
    }
