"""An open page without a browser: how it ends."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest
from nicegui import Client, ui

from unbounded.api.machine import MACHINES
from unbounded.console import view as console_view
from unbounded.console.live import LiveKind, LiveState, Selection
from unbounded.console.sessions import MAX_PAGES, BrowserSession, BrowserSessions
from unbounded.console.view import View
from unbounded.console.widgets import TextElement
from unbounded.kube.client import HttpApi


class NoApi:
    """An API that no test calls."""


@pytest.fixture
def session() -> BrowserSession:
    return BrowserSessions(idle_s=60, absolute_s=600, now=lambda: 0.0).begin("t", "t", cast("HttpApi", NoApi()))


def new_view(session: BrowserSession) -> tuple[View, Client]:
    client = Client(ui.page("/"))
    return View(session, client, {}), client


async def test_a_page_that_no_browser_opens_ends(session: BrowserSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console_view, "UNOPENED_S", 0.0)
    (unopened, first), (opened, second) = new_view(session), new_view(session)
    second.tab_id = "a browser"
    for one in (unopened, opened):
        one.end_unopened()
    await asyncio.sleep(0.01)
    assert (first.is_deleted, second.is_deleted) == (True, False)
    assert list(session.pages.values()) == [opened]
    second.delete()


async def test_a_retired_page_shows_nothing_else_and_does_no_work(session: BrowserSession) -> None:
    view, client = new_view(session)
    with client:
        ui.element("p")
    ended = asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    view.spawn(work())
    await asyncio.sleep(0)
    others = [new_view(session)[1] for _ in range(MAX_PAGES)]
    async with asyncio.timeout(10):
        await ended.wait()
    shown = [one.text for one in client.content.descendants() if isinstance(one, TextElement)]
    assert shown == [
        "This page has ended",
        f"It has ended, as {MAX_PAGES} newer pages are open. Reload it to continue.",
        "Reload the page",
    ]
    for one in (client, *others):
        one.delete()


async def test_a_page_that_ended_while_it_was_made_follows_nothing(session: BrowserSession) -> None:
    """Such as one that waits for a slow API server as its user logs out."""
    view, client = new_view(session)
    live = session.user.live
    before = asyncio.all_tasks()
    client.delete()
    live.close()  # as the last session of the user ends
    done: list[str] = []

    async def work() -> None:
        done.append("work")

    refresher = view.follow([MACHINES], lambda: done.append("refresh"))
    view.at_end(lambda: done.append("end"))
    await asyncio.wait({view.spawn(work())})
    refresher.note()
    await asyncio.sleep(0.01)
    assert done == ["refresh", "end"]
    assert (live.of(MACHINES).state, live.of(MACHINES).cause) == (LiveState.DENIED, "the session has ended")
    assert asyncio.all_tasks() == before
    assert view.followed == []


def test_a_watcher_of_the_state_that_fails_keeps_no_other_from_it(caplog: pytest.LogCaptureFixture) -> None:
    live = LiveKind(cast("HttpApi", NoApi()), Selection(MACHINES), refused=lambda _error: None)
    states: list[LiveState] = []

    def fails() -> None:
        raise ValueError("a bug")

    live.on_state(fails)
    live.on_state(lambda: states.append(live.state))
    live.deny("gone")
    assert states == [LiveState.DENIED]
    assert "a bug" in caplog.text


async def test_a_failed_page_shows_nothing_old_and_names_its_log_line(
    session: BrowserSession, caplog: pytest.LogCaptureFixture
) -> None:
    view, client = new_view(session)
    with client:
        TextElement("p", "old")

    async def fails() -> None:
        raise ValueError("a bug")

    await asyncio.wait({view.spawn(fails())})
    shown = [one.text for one in client.content.descendants() if isinstance(one, TextElement)]
    (record,) = caplog.records
    id_ = vars(record)["fields"]["failure"]
    assert shown == [
        "This page has failed",
        f"The console has logged the cause, as failure {id_}. What was asked for last may have been done.",
        "Reload the page",
    ]
    assert "a bug" in caplog.text
    client.delete()
