"""A page while it is open: its session, its live data, and its refreshes after changes."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from nicegui import Client, ui

from unbounded.console import urls
from unbounded.console.live import LiveData, LiveKind, LiveSource
from unbounded.console.sessions import BrowserSession
from unbounded.console.widgets import Link, TextElement, box, heading, paragraph
from unbounded.kube.client import HttpApi
from unbounded.kube.logs import Log

if TYPE_CHECKING:
    from nicegui.element import Element

    from unbounded.console.widgets import LiveRegion, PageState

REFRESH_S: Final = 0.2  # at least, between two refreshes of a page
REST: Final = 4.0  # a refresh may use a fifth of the time
FAILURE_BYTES: Final = 4  # of the id of a failure
WITH_PAGE_S: Final = 1.0  # what takes longer follows the page by its websocket; NiceGUI gives a page up after 3 s
UNOPENED_S: Final = 10.0  # a page ends that no browser has opened for so long after it was built

log = Log(__name__)


@dataclass(eq=False)
class FollowedData:
    """Live data that a page shows.

    Attributes:
        is_main: the page reports that the user may not read them.
        read_at: when they were last read, where they cannot be watched; None where they are watched, or not readable.
    """

    live: LiveKind[Any]
    is_main: bool
    read_at: datetime | None = None


class View:
    """An open page.

    Attributes:
        query: of its URL.
        allow_operations: whether the page may offer actions.
        followed: the live data that it shows.
        on_state: called, in the page, when their state has changed.
    """

    def __init__(
        self, session: BrowserSession, client: Client, query: Mapping[str, str], *, allow_operations: bool = False
    ) -> None:
        self.session = session
        self.query = dict(query)
        self.allow_operations = allow_operations
        self.followed: list[FollowedData] = []
        self.region: LiveRegion | None = None
        self.state: PageState | None = None
        self.on_state: Callable[[], None] = lambda: None
        self._client = client
        self._ends: list[Callable[[], None]] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._opened = self._ended = False
        client.on_connect(self._note_opened)
        session.open_page(client.id, self)
        client.on_delete(self._close)

    @property
    def live(self) -> LiveData:
        return self.session.user.live

    @property
    def api(self) -> HttpApi:
        """The API with the rights of the user."""
        return self.session.user.api

    def follow(
        self,
        sources: Iterable[LiveSource[Any]],
        refresh: Callable[[], None],
        is_shown: Mapping[LiveSource[Any], Callable[[Any, Any], bool]] | None = None,
    ) -> Refresher:
        """Call `refresh` now, and after changes of these data: soon after the first, at most five times a second.

        The state after the last change is never left out.

        Args:
            is_shown: by source, a test of a change (old, new) that decides on a refresh; without, each change counts.
        """
        refresher = Refresher(refresh, self._client)
        for source in sources:
            test = (is_shown or {}).get(source)
            changed = refresher.note_change if test is None else refresher.noting(test)
            self.at_end(self.subscribe(FollowedData(self.live.of(source), is_main=True), changed, refresher.note))
        refresh()
        refresher.dirty.clear()
        self.spawn(refresher.run())
        return refresher

    def subscribe(
        self, followed: FollowedData, changed: Callable[[Any, Any], None], on_state: Callable[[], None]
    ) -> Callable[[], None]:
        """Call `changed` for each object now and after each change, and `on_state` after each change of the state.

        The page reports data that are not live. Returns the end of all that, which has to come by the end of the page.
        """
        live = followed.live
        ends = (live.on_state(on_state), live.on_state(self.note_state), live.subscribe(changed))
        self.followed.append(followed)
        self.note_state()

        def end() -> None:
            self.followed.remove(followed)
            for one in ends:
                one()
            self.note_state()

        return end

    def note_state(self) -> None:
        """Report the state of the data anew."""
        with self._client:
            self.on_state()

    def set_url(self, url: str) -> None:
        """Show another address in the browser without loading the page."""
        if self.state is not None:
            self.state.set_url(url)

    def focus(self, element: Element) -> None:
        """Lead the keyboard of the user to an element."""
        if self.state is not None:
            self.state.focus(element)

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run work until the page is closed, or until the returned task is cancelled."""
        task = asyncio.create_task(self._watched(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def draw(self, work: Coroutine[Any, Any, None]) -> None:
        """Draw a part of the page that needs answers of the API server: as a part of the page, or soon after it."""
        await asyncio.wait({self.spawn(self._drawn(work, ui.context.slot.parent))}, timeout=WITH_PAGE_S)

    def at_end(self, call: Callable[[], None]) -> None:
        """Call something when the page is closed; now, where it was closed while it was in the making."""
        if self._ended:
            call()
        else:
            self._ends.append(call)

    def announce(self, text: str) -> None:
        """Have a screen reader read a text."""
        if self.region is not None:
            self.region.say(text)

    def end(self, reason: str) -> None:
        """Show nothing of the session any more, and lead the browser to the log-in."""
        self._empty(reason)
        if not self._client.is_deleted:
            self._client.open(urls.LOGIN)

    def retire(self, reason: str) -> None:
        """Show nothing but why the page has ended, while its session goes on."""
        self._replace(reason, "This page has ended", f"It has ended, as {reason}. Reload it to continue.")

    def fail(self) -> None:
        """Show nothing but that the page has failed, in place of old data; call it where an exception is handled."""
        id_ = log_failure("a page has failed")
        self._replace(
            f"failure {id_}",
            "This page has failed",
            f"The console has logged the cause, as failure {id_}. What was asked for last may have been done.",
        )

    def end_unopened(self) -> None:
        """End the page unless a browser opens its websocket soon."""
        asyncio.get_running_loop().call_later(UNOPENED_S, self._check_opened)

    def _check_opened(self) -> None:
        client = self._client
        if not (self._opened or client.has_socket_connection or client.is_deleted):
            client.delete()

    def _note_opened(self) -> None:
        self._opened = True

    def _replace(self, reason: str, title: str, text: str) -> None:
        """Show a text in place of the page."""
        self._empty(reason)
        if not self._client.is_deleted:
            with self._client, box("main", "page"):
                heading(1, title)
                TextElement("p", text).props["role"] = "alert"
                with box("p"):
                    Link("Reload the page", "").props["href"] = ""  # the address of the page

    @staticmethod
    async def _drawn(work: Coroutine[Any, Any, None], parent: Element) -> None:
        with parent:
            note = paragraph("Being read …", "faint")
            await work
            note.delete()

    async def _watched(self, work: Coroutine[Any, Any, None]) -> None:
        if self._ended:  # while the page was in the making
            work.close()
            return
        try:
            await work
        except asyncio.CancelledError:
            raise
        except Exception:
            self.fail()

    def _empty(self, reason: str) -> None:
        log.debug("page ended", reason=reason)
        self._stop()
        self.region = self.state = None
        if not self._client.is_deleted:
            self._client.content.clear()
            self._client.outbox.message_history.clear()

    def _stop(self) -> None:
        self._ended = True
        for task in tuple(self._tasks):
            task.cancel()
        self.on_state = lambda: None
        ends, self._ends = self._ends, []
        for end in ends:
            end()

    def _close(self) -> None:
        self._stop()
        self.session.pages.pop(self._client.id, None)


class Refresher:
    """Refreshes of a page after changes, coalesced."""

    def __init__(self, refresh: Callable[[], None], client: Client) -> None:
        self.dirty = asyncio.Event()
        self._refresh = refresh
        self._client = client

    def note_change(self, _old: Any, _new: Any) -> None:
        self.dirty.set()

    def noting(self, is_shown: Callable[[Any, Any], bool]) -> Callable[[Any, Any], None]:
        """Return a callback for changes, of which those count that pass the test."""

        def changed(old: Any, new: Any) -> None:
            if is_shown(old, new):
                self.dirty.set()

        return changed

    def note(self) -> None:
        """Have the page refreshed soon."""
        self.dirty.set()

    def now(self) -> None:
        """Refresh at once, such as after a key of the user."""
        self.dirty.clear()
        self._refresh()

    async def run(self) -> None:
        """Refresh after changes until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            await self.dirty.wait()
            self.dirty.clear()
            began = loop.time()
            with self._client:
                self._refresh()
            await asyncio.sleep(max(REFRESH_S, REST * (loop.time() - began)))


def log_failure(text: str, **fields: Any) -> str:
    """Log the exception that is being handled; return an id of the line, for the page."""
    id_ = secrets.token_hex(FAILURE_BYTES)
    log.exception(text, failure=id_, **fields)
    return id_
