"""Live data of the console in Chromium: many changes, and servers that go away and come back."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, expect

from tests.console.browser import CHROMIUM, LIMIT_S, Tab, tab
from tests.console.running import Console, console
from tests.console.served import (
    FLEET,
    ROLE_BINDINGS,
    SITES,
    create_lease_reader,
    create_machine,
    create_namespace,
    kubeconfig_at,
    set_status,
    temporary_status,
)
from tests.support.embedded_server import embedded_server, install_crds
from tests.support.proxy import proxy
from tests.support.waiting import eventually
from unbounded.api.core import LEASES, Lease
from unbounded.api.machine import MACHINES
from unbounded.api.names import NAMESPACE
from unbounded.console import live as console_live
from unbounded.console.live import ANSWER_S, LEADER_LEASES, RIGHTS_EVERY_S, LiveData, LiveState
from unbounded.kube.client import HttpApi
from unbounded.kube.config import from_kubeconfig
from unbounded.kube.credentials import AuthInfo, StaticCredentials

pytestmark = [
    pytest.mark.slow,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed: scripts/browser-tools"),
]
RATE = 200  # changes a second, at least
CHANGES = 2400
WRITERS = 8
ATTEMPTS = 4  # a burst in which the machine was busy with other work is made again
REVIEWS = 6  # of rights: several questions
NOTICED_S = RIGHTS_EVERY_S + ANSWER_S + 10.0  # for a silence or its end, on a busy machine
LOST = ".lost-notice"
AGE = "[data-since]:visible"
FAILING = (str(Path(__file__).with_name("failing_page.py")),)


async def test_no_end_state_is_lost_among_200_changes_a_second(
    running: Console, browser: Browser, api: HttpApi
) -> None:
    """Machines turn Failed with one message after another, and end as Failed, as Ready, or are deleted."""
    names = [f"m-{number:03}" for number in range(40)]
    ready, deleted, failed = names[:5], names[5:10], names[10:]
    async with restored(api, names, deleted), tab(browser, await running.next_url()) as found:
        await found.shows(f"{FLEET} Machines")
        rates: list[float] = []
        while len(rates) < ATTEMPTS and max(rates, default=0) < RATE:
            rates.append(await change(api, names, f"in burst {len(rates)}"))
        assert rates[-1] >= RATE, rates
        for name in ready:
            await set_status(api, name, phase="Ready", message=None)
        for name in deleted:
            await api.delete(MACHINES, name)
        first = CHANGES - len(names) + len(ready) + len(deleted)
        last = f"in burst {len(rates) - 1}"
        expected = {name: f"change {number} {last}" for number, name in enumerate(failed, first)}
        await found.shows(f"{FLEET - len(deleted)} Machines, {len(expected)} need attention")
        urgent = found.rows.filter(has=found.page.get_by_text("needs attention", exact=True))
        await expect(urgent.locator("td:last-child")).to_have_text(list(expected.values()))
        shown = [await row.locator("td").all_inner_texts() for row in await found.rows.all()]
        assert {cells[0]: cells[-1] for cells in shown if cells[1] == "needs attention"} == expected
        assert [cells[0] for cells in shown if cells[2] == "Ready"] == ready
        assert not {cells[0] for cells in shown} & set(deleted)


async def change(api: HttpApi, names: list[str], text: str) -> float:
    """Change Machines in turn, each by one writer, so that its last change has the highest number; return the rate."""
    began = time.monotonic()

    async def write(writer: int) -> None:
        for number in range(writer, CHANGES, WRITERS):
            await set_status(api, names[number % len(names)], phase="Failed", message=f"change {number} {text}")

    await asyncio.gather(*map(write, range(WRITERS)))
    return CHANGES / (time.monotonic() - began)


@asynccontextmanager
async def restored(api: HttpApi, names: Iterable[str], deleted: Iterable[str]) -> AsyncIterator[None]:
    """Restore these Machines at the end, also those that were deleted."""
    try:
        yield
    finally:
        for name in deleted:
            await create_machine(api, name, f"site-{int(name.removeprefix('m-')) % SITES}")
        for name in names:
            await set_status(api, name, phase=None, message=None)


async def test_a_reload_shows_what_was_shown(running: Console, browser: Browser) -> None:
    async with tab(browser, await running.next_url()) as found:
        await found.shows("Machines")
        await found.page.get_by_label("Search").fill("m-11")
        await found.shows("1 to 10 of 10 Machines")
        before = await found.page.locator("section").all_inner_texts()
        await found.page.reload()
        await found.shows("1 to 10 of 10 Machines")
        assert await found.page.locator("section").all_inner_texts() == before


async def test_an_interrupted_watch_shows_the_age_of_the_data_and_goes_on(browser: Browser, tmp_path: Path) -> None:
    data = tmp_path / "server"
    async with AsyncExitStack() as stack:
        with embedded_server(data) as kubeconfig:
            await install_crds(kubeconfig)
            async with HttpApi(from_kubeconfig(kubeconfig)) as api:
                await create_machine(api, "before", "rack")
            running = await stack.enter_async_context(console(kubeconfig))
            found = await stack.enter_async_context(tab(browser, await running.url()))
            await found.shows("1 Machine")
            assert not await found.page.get_by_text("the watch is interrupted").is_visible()
        await found.shows("the watch is interrupted")
        await found.shows("before")  # what was read stays, with its age
        age = found.page.locator(AGE)
        before = await age.inner_text()
        assert before.endswith(" s")
        await expect(age).not_to_have_text(before)
        with embedded_server(data) as kubeconfig:
            async with HttpApi(from_kubeconfig(kubeconfig)) as api:
                await create_machine(api, "after", "rack")
                await found.shows("2 Machines")
                await found.shows("after")
                await found.page.get_by_text("the watch is interrupted").first.wait_for(state="hidden")


async def test_a_server_that_falls_silent_shows_the_age_of_the_data_within_seconds(
    kubeconfig: Path, browser: Browser, api: HttpApi, tmp_path: Path
) -> None:
    """Its connections stay open, as those of a stopped process do; the watch never passes anything again."""
    began = time.monotonic()
    async with AsyncExitStack() as stack:
        line = await stack.enter_async_context(proxy(api.config.server))
        own = await stack.enter_async_context(console(kubeconfig_at(kubeconfig, line.url, tmp_path / "kubeconfig")))
        found = await stack.enter_async_context(tab(browser, await own.url()))
        await found.shows("m-041")
        line.stall = True
        await found.shows("no answer in time", within_s=NOTICED_S)
        await found.shows("m-041")
        age_s = int((await found.page.locator(AGE).inner_text()).removesuffix(" s"))
        assert ANSWER_S - 1 < age_s <= time.monotonic() - began
        line.stalled_for_good()
        async with temporary_status(api, "m-041", phase="Failed", message="after the silence"):
            await found.shows("after the silence", within_s=NOTICED_S)
            await found.page.get_by_text("the watch is interrupted").first.wait_for(state="hidden")


async def test_leases_are_watched_in_one_namespace_while_a_page_follows_them(api: HttpApi) -> None:
    await create_namespace(api, NAMESPACE)
    data = LiveData(api, unauthorized=lambda _cause: None)
    live, changes = data.of(LEADER_LEASES), asyncio.Queue[Lease | None]()
    ends = [live.subscribe(lambda _old, new: changes.put_nowait(new)) for _ in range(2)]
    for namespace in ("default", NAMESPACE):
        await api.create(LEASES, {"metadata": {"name": "brief"}, "spec": {}}, namespace=namespace)
    async with asyncio.timeout(LIMIT_S):
        for _ in ends:
            new = await changes.get()
            assert new is not None
            assert new.metadata.namespace == NAMESPACE
    ends[0]()
    assert data.of(LEADER_LEASES) is live
    ends[1]()
    await eventually(lambda: "live leases" not in {one.get_name() for one in asyncio.all_tasks()}, lambda: "it goes on")
    assert live.cache.all() == ()
    data.close()
    for namespace in ("default", NAMESPACE):
        await api.delete(LEASES, "brief", namespace=namespace)


class CountingApi(HttpApi):
    """Counts the reviews of rights."""

    reviews = 0

    async def create(self, *args: Any, **options: Any) -> Any:
        self.reviews += 1
        return await super().create(*args, **options)


async def test_rights_on_one_namespace_are_enough_for_leases(api: HttpApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console_live, "RIGHTS_EVERY_S", 0.1)
    await create_namespace(api, NAMESPACE)
    token = await create_lease_reader(api, "lease-reader")
    config = replace(api.config, credentials=StaticCredentials(AuthInfo(token=token)))
    async with CountingApi(config) as own:
        data = LiveData(own, unauthorized=lambda _cause: None)
        live, states, changed = data.of(LEADER_LEASES), list[LiveState](), asyncio.Event()

        def note() -> None:
            states.append(live.state)
            changed.set()

        live.on_state(note)
        async with asyncio.timeout(LIMIT_S):
            await changed.wait()
            known = own.reviews
            await eventually(lambda: own.reviews >= known + REVIEWS, lambda: f"{own.reviews} reviews")
            changed.clear()
            await api.delete(ROLE_BINDINGS, "lease-reader", namespace=NAMESPACE)
            await changed.wait()
        assert states == [LiveState.LIVE, LiveState.DENIED]
        data.close()


async def test_a_console_that_ends_is_noticed_and_another_one_asks_for_its_address(
    kubeconfig: Path, browser: Browser, api: HttpApi
) -> None:
    async with console(kubeconfig) as first:
        url = await first.url()
        async with tab(browser, url) as found:
            await found.shows("m-041")
            await first.stop()
            await found.page.locator(LOST).get_by_text("Connection lost").wait_for()
            await found.page.locator(LOST).get_by_text(re.compile("data are [1-9][0-9]* s old")).wait_for()
            await found.shows("m-041")  # what was read stays
            assert await found.serious_findings() == []
            port = url.split("/")[2].partition(":")[2]
            async with console(kubeconfig, "--port", port, program=FAILING) as second:
                await second.url()
                await found.shows("No session")  # sessions are in the memory of a process
                await found.lacks("m-041")
                await found.page.goto(await second.next_url())
                await found.shows("m-041")
                await _check_failures(found, second, api)
            found.errors.clear()  # Chromium reports the status 401 of the page


async def _check_failures(found: Tab, running: Console, api: HttpApi) -> None:
    """A page that fails, by an event or a refresh, shows nothing old, and names its line of the log."""
    await found.page.goto(f"{found.page.url.rstrip('/')}/failing")
    await found.shows("counted 1")
    await found.page.get_by_role("button", name="Fail").click()
    await _check_failure(found, running, "a button that fails this page")
    await found.page.get_by_role("link", name="Reload the page").click()
    await found.shows("counted 1")
    await create_machine(api, "fails", "rack")
    await _check_failure(found, running, "a Machine that fails this page")
    await found.page.reload()
    await _check_failure(found, running, "a Machine that fails this page")
    await api.delete(MACHINES, "fails")


async def _check_failure(found: Tab, running: Console, cause: str) -> None:
    await found.shows("This page has failed")
    assert "counted" not in await found.page.content()
    text = await found.page.locator("main p").first.inner_text()
    (id_,) = re.findall("as failure ([0-9a-f]{8})", text)
    async with asyncio.timeout(LIMIT_S):
        while cause not in running.printed.partition(f"failure={id_}")[2]:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def test_a_press_without_a_connection_is_not_sent_once_it_is_back(running: Console, browser: Browser) -> None:
    async with tab(browser, await running.next_url()) as found:
        await found.shows("1 to 50 of")
        await found.page.evaluate("() => { window.socket.io.reconnection(false); window.socket.io.engine.close(); }")
        await found.page.locator(LOST).wait_for()
        await found.button("Next").click()
        assert not await found.page.evaluate("window.socket.connected")
        await found.page.evaluate("window.socket.connect()")
        await found.page.locator(LOST).wait_for(state="hidden")
        # messages keep their order: the press before would lead one page further
        await found.button("Next").click()
        await found.shows("51 to 100 of")
        await found.button("Previous").click()
        await found.shows("1 to 50 of")
