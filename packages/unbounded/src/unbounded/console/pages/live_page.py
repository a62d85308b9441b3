"""The frame of pages that show a `ViewData`: drawn after changes, with what no watch has, such as explanations."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar

from unbounded.api.failures import Failure
from unbounded.api.meta import Kind
from unbounded.console.actions import ConsoleAction
from unbounded.console.live import LiveState
from unbounded.console.models.parts import NotRead, ViewData
from unbounded.console.pages.action_panel import ActionPanel
from unbounded.console.pages.drawing import ViewDrawing
from unbounded.console.view import View
from unbounded.explain.facts import resource_of
from unbounded.kube.logs import Log

T = TypeVar("T")

TICK_S: Final = 1.0
PAUSE_S: Final = 1.0  # at least, between two loads: each is several requests, and a subject may change all the time
AGAIN_S: Final = 15.0  # an explanation observes Leases, which its page does not watch: it is made again after that time
SETTLED_AGAIN_S: Final = 60.0  # likewise, for rights that have ended on what no page watches

log = Log(__name__)


class LivePage:
    """A page of one subject. A subclass calls `begin` at the end of its own `__init__`.

    Args:
        title: shown until the subject is known.
        kinds: the kinds without which the page shows nothing.
        others: further kinds, whose changes it follows.
        subject: name of the object that actions are on; empty for none.
    """

    def __init__(
        self,
        view: View,
        title: str,
        kinds: Iterable[Kind[Any]],
        others: Iterable[Kind[Any]] = (),
        subject: str = "",
    ) -> None:
        self.view = view
        self.title = title
        self.needed = tuple(kinds)
        self._kinds = (*self.needed, *others)
        self._drawing = ViewDrawing()
        self._panel: ActionPanel | None = None
        if subject and view.allow_operations:
            with self._drawing.actions:
                self._panel = ActionPanel(view, subject)
        self._due = asyncio.Event()
        self._unreadable: list[Kind[Any]] = []
        self.rights = 0  # number of their changes; what was read before the last one is dropped
        self._key: object = None
        self._data: ViewData | None = None

    def begin(self) -> None:
        """Draw now, and after each change, until the page is closed."""
        self.view.follow(self._kinds, self.refresh, self.is_shown())
        self.view.spawn(self._load())
        self.view.spawn(self._tick())

    def found(self, kind: Kind[T]) -> Sequence[T] | NotRead:
        """Return the objects of a kind, or why they are not known."""
        live = self.view.live.of(kind)
        if live.state is LiveState.DENIED:
            return NotRead(f"You may not read {resource_of(kind)}.")
        return live.cache.all() if live.cache.synced.is_set() else NotRead("Being read …")

    # ---- what a page defines

    def data(self) -> ViewData | str:
        """Return what the page shows now, or why it shows nothing."""
        raise NotImplementedError

    def is_shown(self) -> Mapping[Kind[Any], Callable[[Any, Any], bool]]:
        """Return, by kind, a test of a change (old, new) that decides whether the page differs."""
        return {}

    def has_aged(self) -> bool:
        """Return whether the page differs without a change of an object: asked every second."""
        return self._data is not None and self._data.runs

    def key(self) -> object:
        """Return a value that differs where `load` has to run again."""
        return None

    async def load(self) -> None:
        """Read what no watch has. Raises Failure, after which it is tried again."""

    def is_settled(self) -> bool:
        """Return whether what was loaded only changes with the key."""
        return True

    def forget(self) -> None:
        """Drop all that was loaded, as the user may not read the subject any more."""

    def subject_uid(self) -> str:
        """Return the UID of the subject; empty where it is not known or does not exist."""
        return ""

    def actions(self) -> Sequence[ConsoleAction]:
        """Return the actions on the subject now."""
        return ()

    # ---- drawing

    def _offer(self, actions: Sequence[ConsoleAction]) -> None:
        if self._panel is not None:
            self._panel.offer(self.subject_uid(), actions)

    def refresh(self) -> None:
        unreadable = [kind for kind in self._kinds if self.view.live.of(kind).state is LiveState.DENIED]
        if unreadable != self._unreadable:  # what was loaded may rest on what may not be read any more
            self._unreadable = unreadable
            self.rights += 1
            self.forget()
            if self._panel is not None:
                self._panel.close()
            self._due.set()
        denied = [kind for kind in unreadable if kind in self.needed]
        if denied:
            self._key, self._data = None, None
            self._drawing.say(self.title, f"You may not read {', '.join(map(resource_of, denied))}.")
            self._offer(())
            return
        found = self.data()
        if isinstance(found, str):
            self._data = None
            self._drawing.say(self.title, found)
            self._offer(())
        else:
            self._data = found
            self._drawing.show(found)
            self._offer(self.actions())
        key = self.key()
        if key != self._key:
            self._key = key
            self._due.set()

    async def _load(self) -> None:
        while True:
            settled = self._key is None or self.is_settled()
            with suppress(TimeoutError):
                async with asyncio.timeout(SETTLED_AGAIN_S if settled else AGAIN_S):
                    await self._due.wait()
            self._due.clear()
            rights = self.rights
            try:
                await self.load()
            except Failure as error:
                log.debug("cannot read what a page shows", error=error)
            if rights != self.rights:
                self.forget()
                self._due.set()
            self.refresh()
            await asyncio.sleep(PAUSE_S)

    async def _tick(self) -> None:
        """Draw anew what changes with time alone, such as durations as long as the subject is at work."""
        while True:
            await asyncio.sleep(TICK_S)
            if self.has_aged():
                self.refresh()
