"""Reads of live data: what is followed, what is read without a watch, and what its end does."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
import pytest_asyncio
from nicegui import Client, ui

from tests.console.served import ROLES, create_reader, set_status
from unbounded.api.core import CONFIG_MAPS, SECRETS, ConfigMap
from unbounded.api.machine import MACHINES, Machine
from unbounded.console import live as console_live
from unbounded.console import live_reads
from unbounded.console.layout import data_lines
from unbounded.console.live import LiveState, one_object
from unbounded.console.live_reads import LiveReads
from unbounded.console.sessions import BrowserSessions
from unbounded.console.view import View
from unbounded.join.bootstrap_tokens import NAMESPACE as TOKENS
from unbounded.kube.api import Forbidden, NotFound
from unbounded.kube.client import HttpApi
from unbounded.kube.credentials import AuthInfo, StaticCredentials

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]
WITHOUT_WATCH = "ConfigMap: you may read these objects, but not watch them. Age of the data: "


class ReadingPage:
    """A page without a browser that reads live data.

    Attributes:
        changes, losses: how often it was called for each.
    """

    def __init__(self, api: HttpApi) -> None:
        session = BrowserSessions(idle_s=60, absolute_s=600, now=lambda: 0.0).begin("t", "t", api)
        self.client = Client(ui.page("/"))
        self.view = View(session, self.client, {})
        self.changes = self.losses = 0
        self.reads = LiveReads(self.view, self._note_change, self._note_loss)

    def _note_change(self) -> None:
        self.changes += 1

    def _note_loss(self) -> None:
        self.losses += 1

    def close(self) -> None:
        self.client.delete()
        self.view.live.close()


@asynccontextmanager
async def page_of(api: HttpApi) -> AsyncIterator[ReadingPage]:
    found = ReadingPage(api)
    try:
        yield found
    finally:
        found.close()


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


@pytest_asyncio.fixture(loop_scope="module")
async def maps(api: HttpApi) -> AsyncIterator[None]:
    """ConfigMaps c-1 and c-2, which no controller changes; c-3 is deleted if a test has created it."""
    for name in ("c-1", "c-2"):
        await api.create(CONFIG_MAPS, {"metadata": {"name": name, "labels": {"mine": "yes"}}}, namespace="default")
    yield
    for one in (await api.list(CONFIG_MAPS, namespace="default", labels="mine=yes")).items:
        await api.delete(CONFIG_MAPS, one.name, namespace="default")


async def read(page: ReadingPage, name: str) -> ConfigMap:
    return await page.reads.get(CONFIG_MAPS, name, namespace="default")


async def change(api: HttpApi, name: str) -> None:
    await api.patch(CONFIG_MAPS, name, {"data": {"changed": "yes"}}, namespace="default")


async def test_a_change_of_what_was_read_is_noted_and_no_other(api: HttpApi, maps: None) -> None:
    async with page_of(api) as page:
        with page.reads.one_pass():
            assert (await read(page, "c-1")).name == "c-1"
            assert (await page.reads.get(MACHINES, "m-001")).name == "m-001"
            with pytest.raises(NotFound):
                await read(page, "c-3")
        assert page.changes == 0
        await change(api, "c-2")
        for name in ("m-002", "m-001"):  # in the order of one watch
            await set_status(api, name, message="read")
        await until(lambda: page.changes > 0)
        assert page.changes == 1
        await api.create(CONFIG_MAPS, {"metadata": {"name": "c-3", "labels": {"mine": "yes"}}}, namespace="default")
        await until(lambda: page.changes == 2)
        await change(api, "c-1")
        await until(lambda: page.changes == 3)
        assert (await read(page, "c-1")).data == {"changed": "yes"}
        assert (await read(page, "c-3")).name == "c-3"
        for name in ("m-002", "m-001"):
            await set_status(api, name, message=None)


async def test_what_is_not_read_any_more_is_not_followed(api: HttpApi, maps: None) -> None:
    async with page_of(api) as page:
        with page.reads.one_pass():
            for name in ("c-1", "c-2"):
                await read(page, name)
        with page.reads.one_pass():
            await read(page, "c-2")
        await until(lambda: watches("configmaps") == 1)
        with pytest.raises(ValueError), page.reads.one_pass():  # noqa: PT011  # a pass that fails ends nothing
            raise ValueError
        assert watches("configmaps") == 1
    await until(lambda: watches("configmaps") == 0)


def watches(plural: str) -> int:
    return sum(one.get_name() == f"live {plural}" for one in asyncio.all_tasks())


async def test_no_name_becomes_another_selector(api: HttpApi, maps: None) -> None:
    async with page_of(api) as page:
        for name in ("c-1,spec.unschedulable=false", "c-1 ", "C-1", ""):
            with pytest.raises(NotFound):
                await read(page, name)
        for namespace in ("..", "../default", "Default", "a b"):
            with pytest.raises(NotFound):
                await page.reads.get(CONFIG_MAPS, "c-1", namespace=namespace)
        assert watches("configmaps") == 0


async def test_live_data_have_no_secrets(api: HttpApi) -> None:
    values = {"token-id": b"abcdef", "token-secret": b"0123456789abcdef", "expiration": b"2030-01-01T00:00:00Z"}
    data = {key: base64.b64encode(value).decode() for key, value in values.items()}
    body = {"metadata": {"name": "bootstrap-token-abcdef", "labels": {"mine": "yes"}}, "data": data}
    await api.create(SECRETS, body, namespace=TOKENS)
    try:
        async with page_of(api) as page:
            (found,) = (await page.reads.list(SECRETS, namespace=TOKENS, labels="mine=yes")).items
            assert list(found.data) == ["expiration"]
            assert found.value("expiration") == b"2030-01-01T00:00:00Z"
    finally:
        await api.delete(SECRETS, "bootstrap-token-abcdef", namespace=TOKENS)


async def test_what_may_be_read_and_not_watched_has_an_age(
    api: HttpApi, maps: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console_live, "RIGHTS_EVERY_S", 0.1)
    async with user(api, "no-watch", "get") as own, page_of(own) as page:
        view = page.view
        with page.reads.one_pass():
            assert (await read(page, "c-1")).data == {}
        (line,) = data_lines(view.followed)
        assert (line.text, line.is_denied) == (WITHOUT_WATCH, False)
        assert line.since is not None
        await change(api, "c-1")
        assert (await read(page, "c-1")).data == {}  # as read a moment ago
        monkeypatch.setattr(live_reads, "REREAD_S", 0.0)
        assert (await read(page, "c-1")).data == {"changed": "yes"}
        (later,) = data_lines(view.followed)
        assert later.since is not None
        assert later.since > line.since
        before = page.changes
        await api.patch(ROLES, "no-watch", {"rules": rules("get", "list", "watch")})
        await until(lambda: data_lines(view.followed) == ())
        assert page.changes > before
        assert (await read(page, "c-1")).data == {"changed": "yes"}
        assert page.losses == 0
        await api.patch(ROLES, "no-watch", {"rules": rules("create")})
        await until(lambda: page.losses == 1)
        with pytest.raises(Forbidden):
            await read(page, "c-1")
        assert data_lines(view.followed) == ()


async def test_a_right_to_watch_is_enough_for_live_data(
    api: HttpApi, maps: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console_live, "RIGHTS_EVERY_S", 0.05)
    async with user(api, "no-list", "watch") as own, page_of(own) as page:
        assert (await read(page, "c-1")).name == "c-1"
        live = page.view.live.of(one_object(CONFIG_MAPS, "c-1", "default"))
        states = [live.state]
        live.on_state(lambda: states.append(live.state))
        await asyncio.sleep(0.5)  # several questions for the rights
        assert states == [LiveState.LIVE]


async def test_a_user_has_a_limited_number_of_watches_of_parts(
    api: HttpApi, maps: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console_live, "MAX_PARTS", 1)
    async with page_of(api) as page:
        for name in ("c-1", "c-2"):
            assert (await read(page, name)).name == name
        assert watches("configmaps") == 1
        (line,) = data_lines(page.view.followed)
        assert line.text == WITHOUT_WATCH


def rules(*verbs: str) -> list[dict[str, Any]]:
    return [{"apiGroups": [""], "resources": ["configmaps"], "verbs": list(verbs)}]


@asynccontextmanager
async def user(api: HttpApi, name: str, *verbs: str) -> AsyncIterator[HttpApi]:
    """Yield the API of a user with these rights on ConfigMaps alone."""
    token = await create_reader(api, name)
    await api.patch(ROLES, name, {"rules": rules(*verbs)})
    async with HttpApi(replace(api.config, credentials=StaticCredentials(AuthInfo(token=token)))) as own:
        yield own


async def test_a_subscriber_that_fails_keeps_no_other_from_a_change(api: HttpApi) -> None:
    def fail(_old: Machine | None, _new: Machine | None) -> None:
        raise ValueError("a time that no parser takes")

    seen: list[str] = []
    async with page_of(api) as page:
        live = page.view.live.of(MACHINES)
        live.subscribe(fail)
        live.subscribe(lambda _old, new: seen.append(new.name if new else ""))
        await live.settled()
        live.subscribe(fail)  # at objects that are there
        before = len(seen)
        await set_status(api, "m-003", message="seen by the second one")
        await until(lambda: len(seen) > before)
        assert "m-003" in seen
        await set_status(api, "m-003", message=None)
