"""The frame of pages that show a `ViewData`: drawn after changes, with what is derived from further objects.

An explanation is derived from many objects. `LiveReads` follows them, and `load` runs again after a change of one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar

from unbounded.api.failures import Failure
from unbounded.console.actions import ConsoleAction
from unbounded.console.live import LiveSource, LiveState, selection_of
from unbounded.console.live_reads import LiveReads
from unbounded.console.models.parts import NotRead, ViewData
from unbounded.console.pages.action_panel import ActionPanel
from unbounded.console.pages.drawing import ViewDrawing
from unbounded.console.view import Refresher, View
from unbounded.explain.facts import resource_of
from unbounded.kube.logs import Log

T = TypeVar("T")

TICK_S: Final = 1.0
PAUSE_S: Final = 0.25  # at least, between two loads: a subject may change all the time
AGAIN_S: Final = 15.0  # a load is made again after that time, from the data that are held: deadlines pass

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
        kinds: Iterable[LiveSource[Any]],
        others: Iterable[LiveSource[Any]] = (),
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
        self._due = asyncio.Event()  # for a load
        self._due.set()
        self.reads = LiveReads(view, self._due.set, self._drop, self._kinds)
        self._unreadable: list[LiveSource[Any]] = []
        self._rights = 0  # number of their changes; what was loaded before the last one is dropped
        self._data: ViewData | None = None
        self._refresher: Refresher | None = None

    def begin(self) -> None:
        """Draw now, and after each change, until the page is closed."""
        self._refresher = self.view.follow(self._kinds, self.refresh, self.is_shown())
        self.view.spawn(self._load())
        self.view.spawn(self._tick())

    def found(self, source: LiveSource[T]) -> Sequence[T] | NotRead:
        """Return the objects of a source that the page follows, or why they are not known."""
        live = self.view.live.of(source)
        if self.is_denied(source):
            return NotRead(f"You may not read {_resource(source)}.")
        return live.cache.all() if live.cache.synced.is_set() else NotRead("Being read …")

    def is_denied(self, source: LiveSource[Any]) -> bool:
        """Return whether the user may not read a source."""
        return self.view.live.of(source).state is LiveState.DENIED

    # ---- what a page defines

    def data(self) -> ViewData | str:
        """Return what the page shows now, or why it shows nothing."""
        raise NotImplementedError

    def is_shown(self) -> Mapping[LiveSource[Any], Callable[[Any, Any], bool]]:
        """Return, by source, a test of a change (old, new) that decides whether the page differs."""
        return {}

    def has_aged(self) -> bool:
        """Return whether the page differs without a change of an object: asked every second."""
        return self._data is not None and self._data.runs

    async def load(self) -> None:
        """Derive what the page shows beside the objects of its kinds, by `reads` alone: they follow what was read.

        Raises:
            Failure: nothing of it is known.
        """

    def forget(self) -> None:
        """Drop all that was loaded."""

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
        unreadable = [kind for kind in self._kinds if self.is_denied(kind)]
        if unreadable != self._unreadable:  # what was loaded may rest on what may not be read any more
            self._unreadable = unreadable
            self._drop()
        denied = [kind for kind in unreadable if kind in self.needed]
        if denied:
            self._show_note(f"You may not read {', '.join(map(_resource, denied))}.")
            return
        found = self.data()
        if isinstance(found, str):
            self._show_note(found)
            return
        self._data = found
        self._drawing.show(found)
        self._offer(self.actions())

    def _show_note(self, text: str) -> None:
        """Show a text in place of the subject."""
        self._data = None
        self._drawing.say(self.title, text)
        self._offer(())

    def _drop(self) -> None:
        """Drop what was loaded, and a plan, after a change of the user's rights."""
        self._rights += 1
        self.forget()
        if self._panel is not None:
            self._panel.close()
        self._due.set()
        if self._refresher is not None:
            self._refresher.note()

    async def _load(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(AGAIN_S):
                    await self._due.wait()
            self._due.clear()
            if not any(map(self.is_denied, self.needed)):
                await self._load_once()
            self.refresh()
            await asyncio.sleep(PAUSE_S)

    async def _load_once(self) -> None:
        rights = self._rights
        try:
            with self.reads.one_pass():
                await self.load()
        except Failure as error:
            log.debug("cannot read what a page shows", error=error)
            self.forget()
        if rights != self._rights:
            self.forget()
            self._due.set()

    async def _tick(self) -> None:
        """Draw anew what changes with time alone, such as durations as long as the subject is at work."""
        while True:
            await asyncio.sleep(TICK_S)
            if self.reads.has_aged():
                self._due.set()
            if self.has_aged():
                self.refresh()


def _resource(source: LiveSource[Any]) -> str:
    """Return the resource of a source, as the API server names it, with its namespace."""
    selection = selection_of(source)
    where = f" in {selection.namespace}" if selection.namespace else ""
    return f"{resource_of(selection.kind)}{where}"


def is_named(name: str) -> Callable[[Any, Any], bool]:
    """Return the test of a change (old, new) that only those of the object with this name pass."""
    return lambda old, new: any(one is not None and one.name == name for one in (old, new))
