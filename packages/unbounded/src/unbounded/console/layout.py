"""The frame of all pages: skip link, navigation, user, the state of the data, and the main part."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from itertools import zip_longest
from typing import Any, Final

from nicegui import ui
from nicegui.element import Element

from unbounded.console import urls
from unbounded.console.live import LiveKind, LiveState
from unbounded.console.pages import PAGES, PageRoute
from unbounded.console.view import FollowedData, View
from unbounded.console.widgets import Link, LiveRegion, PageState, TextElement, box, set_attribute, set_class
from unbounded.kube.visible_text import visible_text

THEME_COOKIE: Final = "unbounded-console-theme"
MAIN: Final = "main"


@contextmanager
def frame(view: View, page: PageRoute, *, theme: str = "auto") -> Iterator[None]:
    """Draw the frame of a page; what is drawn inside of the context is its main part."""
    next(iter(ui.context.client.page_container)).tag = "div"  # Quasar's page is a `main`, and the header is in it
    ui.add_head_html('<link rel="stylesheet" href="/static/console.css">')
    Link("Skip to the main part", f"#{MAIN}", "skip")
    with box("header", "bar-top"):
        Link("Unbounded", urls.FLEET, "brand")
        _navigation(page)
        box("span", "space")
        name = visible_text(view.session.user.name)
        set_attribute(TextElement("span", name, "user clamp"), "title", name)
        view.state = PageState(theme, THEME_COOKIE)
        _log_out()
    with box("main", "page") as main:
        main.props["id"] = MAIN
        main.props["tabindex"] = "-1"
        banners = DataBanners(view, box("div", "stack"))
        view.region = LiveRegion()
        view.on_state = banners.refresh
        yield


def _navigation(current: PageRoute) -> None:
    with box("nav") as navigation:
        navigation.props["aria-label"] = "Pages"
        with box("ul"):
            for page in PAGES:
                if page.in_navigation:
                    with box("li"):
                        link = Link(page.title, page.path)
                        set_attribute(link, "aria-current", "page" if page is current else None)


def _log_out() -> None:
    with box("form") as form:
        form.props["method"] = "post"
        form.props["action"] = urls.END
        TextElement("button", "Log out").props["type"] = "submit"


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
        text = f"{_kinds_of(stale)}: the watch is interrupted ({cause}). Age of the data: "
        yield DataLine(text, min(one.since or one.heard_at for one in stale))


def _unwatched(followed: Sequence[FollowedData]) -> Iterator[DataLine]:
    read = [one.read_at for one in followed if one.read_at is not None]
    if read:
        names = _kinds_of(one.live for one in followed if one.read_at is not None)
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


def _kinds_of(found: Iterable[LiveKind[Any]]) -> str:
    return ", ".join(dict.fromkeys(one.kind.kind for one in found))


class DataBanners:
    """Lines above a page on data that are not live."""

    def __init__(self, view: View, parent: Element) -> None:
        self._view = view
        self._parent = parent
        self._banners: list[_Banner] = []
        self._lines: tuple[DataLine, ...] = ()

    def refresh(self) -> None:
        lines, before = data_lines(self._view.followed), self._lines
        if lines == before:
            return
        self._lines = lines
        with self._parent:
            self._banners += [_Banner() for _ in lines[len(self._banners) :]]
        for banner, line in zip_longest(self._banners, lines):
            banner.show(line)
        texts = [one.text for one in lines if one.text not in {other.text for other in before}]
        self._view.announce(" ".join(texts) if lines else "All data are live.")


class _Banner:
    """A line, hidden as long as there is none to show."""

    def __init__(self) -> None:
        with box("div", "banner hidden") as self._box:
            self._text = TextElement("span")
            self._age = TextElement("span")

    def show(self, line: DataLine | None) -> None:
        since = None if line is None else line.since
        set_class(self._box, "hidden", line is None)
        set_class(self._box, "denied", line is not None and line.is_denied)
        self._text.set("" if line is None else line.text)
        set_attribute(self._age, "data-since", "" if since is None else str(int(since.timestamp() * 1000)))
