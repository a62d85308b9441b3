"""The frame of all pages: skip link, navigation, user, the state of the data, and the main part."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from nicegui import ui

from unbounded.api.meta import Kind
from unbounded.console import urls
from unbounded.console.live import LiveKind, LiveState
from unbounded.console.pages import PAGES, PageRoute
from unbounded.console.view import View
from unbounded.console.widgets import Link, LiveRegion, PageState, TextElement, box, set_attribute, set_class

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
        TextElement("span", view.session.user.name, "user")
        view.state = PageState(theme, THEME_COOKIE)
        _log_out()
    with box("main", "page") as main:
        main.props["id"] = MAIN
        main.props["tabindex"] = "-1"
        banners = box("div", "stack")
        view.region = LiveRegion()
        view.on_follow = lambda kind: _banner(view, banners, kind)
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


def _banner(view: View, parent: Any, kind: Kind[Any]) -> None:
    """Show the state of the data of a kind, unless it is live."""
    live: LiveKind[Any] = view.live.of(kind)
    with parent, box("div", "banner hidden") as banner:
        text = TextElement("span")
        age = TextElement("span")

    def refresh() -> None:
        is_bad = live.state in (LiveState.STALE, LiveState.DENIED) or bool(live.cause)
        was_hidden = "hidden" in banner.classes
        set_class(banner, "hidden", not is_bad)
        set_class(banner, "denied", live.state is LiveState.DENIED)
        text.set(_state_text(live))
        since = live.since
        set_attribute(age, "data-since", None if since is None else str(int(since.timestamp() * 1000)))
        if is_bad:
            view.announce(text.text)
        elif not was_hidden:
            view.announce(f"{kind.kind}: live")

    view.watch_state(live, refresh)


def _state_text(live: LiveKind[Any]) -> str:
    match live.state:
        case LiveState.STALE:
            return f"{live.kind.kind}: the watch is interrupted ({live.cause}). Age of the data: "
        case LiveState.DENIED:
            return f"{live.kind.kind}: you may not read these objects: {live.cause}"
        case _:
            return f"{live.kind.kind}: {live.cause}" if live.cause else ""
