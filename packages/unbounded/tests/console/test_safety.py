"""Attacks on the console in Chromium: texts of objects, pages of other sites, and rights that end."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

import pytest
from playwright.async_api import Browser, Page, Route, expect

from tests.console.browser import CHROMIUM, tab
from tests.console.hostile import PAYLOADS, SHOWN, check_nothing_ran, check_texts, hostile_objects, texts
from tests.console.running import Console, console
from tests.console.served import bind, create_reader, kubeconfig_of, set_status, temporary_status, unbind
from unbounded.api.core import SERVICE_ACCOUNTS
from unbounded.cli.manifests import install_container_cloud
from unbounded.console.sessions import MAX_PAGES
from unbounded.kube.client import HttpApi

pytestmark = [
    pytest.mark.slow,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed: scripts/browser-tools"),
]


async def test_texts_of_objects_are_shown_and_never_run(running: Console, browser: Browser, api: HttpApi) -> None:
    messages = {f"m-{number:03}": payload for number, payload in enumerate(PAYLOADS)}
    async with (
        temporary_status(api, *messages, phase="Failed", message=""),
        tab(browser, await running.next_url()) as found,
    ):
        await found.shows("120 Machines")
        for name, payload in messages.items():
            await set_status(api, name, message=payload)
        for _ in ("by the websocket", "as a part of the page"):
            await found.shows(f"{len(PAYLOADS)} need attention")
            causes = found.rows.locator("td:last-child:not(.empty)")
            await expect(causes).to_have_text(list(messages.values()))
            await check_nothing_ran(found, "/")
            await found.page.reload()


async def test_each_page_shows_texts_of_its_object_and_never_runs_them(
    running: Console, browser: Browser, api: HttpApi
) -> None:
    async with hostile_objects(api), tab(browser, await running.next_url()) as found:
        await found.shows("121 Machines")
        for path, fields in SHOWN.items():
            await found.visit(path)
            expected = [text for field in fields for text in texts(field)]
            await check_texts(found, expected, path)
            await found.page.reload()  # by the websocket before, and now as a part of the page
            await check_texts(found, expected, path)


async def test_texts_of_a_query_are_shown_and_never_run(running: Console, browser: Browser, api: HttpApi) -> None:
    await install_container_cloud(api)
    async with tab(browser, await running.next_url()) as found:
        await found.shows("120 Machines")
        names = ("text", "site", "phase", "reason", "labels", "first")
        for first in range(0, len(PAYLOADS), 4):
            payloads = [PAYLOADS[(first + number) % len(PAYLOADS)] for number in range(len(names))]
            query = "&".join(f"{name}={quote(payload)}" for name, payload in zip(names, payloads, strict=True))
            await found.visit(f"/?{query}")
            await found.shows("120 Machines")
            assert await found.page.get_by_label("Search").input_value() == payloads[0]
            for name, payload in zip(("Site", "Phase", "Reason"), payloads[1:], strict=False):
                assert await found.page.get_by_label(name).input_value() == payload
            await check_nothing_ran(found, query)
        for payload in PAYLOADS:
            await found.visit(f"/hosts?namespace={quote(payload)}")
            await check_texts(found, [f"No namespace can have the name {payload}."], payload)


@pytest.mark.parametrize(
    "path", ["/machine/NAME", "/operation/NAME", "/site/NAME", "/host/NAME/NAME", "/cluster/NAME/NAME"]
)
async def test_texts_of_an_address_are_shown_and_never_run(
    path: str, running: Console, browser: Browser, api: HttpApi
) -> None:
    """No page has an address with a slash in a name, encoded or not; those at the end of an address are left out."""
    await install_container_cloud(api)
    async with tab(browser, await running.next_url()) as found:
        await found.shows("120 Machines")
        for payload in PAYLOADS:
            at = path.replace("NAME", quote(payload, safe=""))
            await found.visit(at)
            name = payload.rstrip("/") if path.count("NAME") == 1 else payload
            if "/" in name:
                await found.shows("No such page")
                await check_nothing_ran(found, at)
            else:
                await check_texts(found, [name], at)
                assert name in await found.page.title()


EVIL = """<!doctype html><title>evil</title><iframe id="frame" src="{console}/"></iframe>
<form id="form" method="post" action="{console}/end"></form>"""
SOCKET = """([url]) => new Promise(done => {
  const socket = new WebSocket(url);
  socket.onopen = () => done("open");
  socket.onerror = () => done("refused");
})"""


async def test_a_page_of_another_port_cannot_act_with_the_cookie(running: Console, browser: Browser) -> None:
    """Ports of one host are one site for cookies: the browser sends the cookie of the console."""
    async with await browser.new_context() as context:
        page = await context.new_page()
        await page.goto(await running.next_url())
        await _attack(page, await context.new_page())


async def _attack(page: Page, evil: Page) -> None:
    """Try from a page of another origin what only a page of the console may do."""
    console_at = page.url.rstrip("/")
    await page.get_by_text("50 of 120 Machines").wait_for()
    client = await page.evaluate("window.clientId")

    async def serve(route: Route) -> None:
        await route.fulfill(body=EVIL.format(console=console_at), content_type="text/html")

    evil_at = "http://127.0.0.1:9/"
    await evil.route(f"{evil_at}**", serve)
    sent: list[str | None] = []
    evil.on("request", lambda one: sent.append(one.headers.get("cookie")))
    await evil.goto(evil_at)
    assert [one.url for one in evil.frames] == [evil_at, "chrome-error://chromewebdata/"]  # frame-ancestors 'none'
    url = f"{console_at.replace('http', 'ws')}/_nicegui_ws/socket.io/?EIO=4&transport=websocket&client_id={client}"
    assert await evil.evaluate(SOCKET, [url]) == "refused"
    assert await page.evaluate(SOCKET, [url]) == "open"  # the same from the console's own page
    read = f"fetch('{console_at}/', {{credentials: 'include'}}).then(r => r.text()).catch(() => 'refused')"
    assert await evil.evaluate(read) == "refused"
    async with evil.expect_navigation():
        await evil.evaluate("document.getElementById('form').submit()")
    assert "does not come from a page of the console" in await evil.content()
    await page.reload()
    await page.get_by_text("50 of 120 Machines").wait_for()  # the session goes on


async def test_a_websocket_of_another_session_is_refused(running: Console, browser: Browser) -> None:
    async with tab(browser, await running.next_url()) as first, tab(browser, await running.next_url()) as second:
        await first.shows("120 Machines")
        await second.shows("120 Machines")
        client = await first.page.evaluate("window.clientId")
        origin = second.page.url.rstrip("/")
        url = f"{origin.replace('http', 'ws')}/_nicegui_ws/socket.io/?EIO=4&transport=websocket&client_id={client}"
        assert await second.page.evaluate(SOCKET, [url]) == "refused"
        # nor does a message from one page reach another
        await second.page.evaluate(
            "client => { for (let id = 0; id < 60; id++) for (let one = 0; one < 60; one++)"
            " window.socket.emit('event', {id, client_id: client, listener_id: String(one), args: ['\"m-001\"']}) }",
            client,
        )
        message = {"client_id": client, "tab_id": "t", "document_id": "d", "level": "warning", "message": "canary-log"}
        taken = await second.page.evaluate(
            "message => { window.socket.emit('log', {...message, client_id: window.clientId});"
            " return window.socket.timeout(5000).emitWithAck('handshake', message) }",
            message,
        )
        assert not taken
        assert "canary-log" not in running.printed
        await second.page.get_by_label("Search").fill("m-002")
        await second.shows("1 to 1 of 1 Machine")
        await first.shows("1 to 50 of 120 Machines")
        second.errors.clear()  # Chromium reports the refused websocket


async def test_a_link_on_another_site_opens_a_page_of_the_session(running: Console, browser: Browser) -> None:
    async with tab(browser, await running.next_url()) as found:
        await found.shows("120 Machines")
        origin = found.page.url.rstrip("/")

        async def serve(route: Route) -> None:
            await route.fulfill(body=f'<a href="{origin}/machine/m-003">m-003</a>', content_type="text/html")

        await found.page.context.route("http://chat.example/", serve)
        await found.page.goto("http://chat.example/")
        await found.page.get_by_role("link", name="m-003").click()
        await found.page.get_by_role("heading", name="m-003").wait_for()
        found.strays.clear()  # the page of the other site


async def test_too_many_pages_of_a_session_end_the_first_one(running: Console, browser: Browser) -> None:
    async with tab(browser, await running.next_url()) as found:
        await found.shows("120 Machines")
        for _ in range(MAX_PAGES):
            # a small page: on a busy machine, the first of large ones would end unopened before the last is built
            assert (await found.page.request.get(f"{found.page.url}operation/none")).ok
        await found.shows(f"It has ended, as {MAX_PAGES} newer pages are open. Reload it to continue.")
        await found.lacks("m-007")
        await found.page.reload()
        await found.shows("m-007")


async def test_a_page_follows_lost_and_given_rights_and_ends_with_the_login(
    kubeconfig: Path, browser: Browser, api: HttpApi, tmp_path: Path
) -> None:
    token = await create_reader(api, "reader", "machines", "machineoperations")
    async with (
        console(kubeconfig_of(kubeconfig, token, tmp_path / "kubeconfig")) as own,
        tab(browser, await own.url()) as found,
    ):
        await found.shows("120 Machines")
        await found.shows("m-007")
        await unbind(api, "reader")
        await found.shows("Machine: you may not read these objects")
        await found.lacks("m-007")
        await found.page.reload()
        await found.shows("Machine: you may not read these objects")
        await found.lacks("m-007")
        await bind(api, "reader")
        await found.shows("m-007")
        await found.shows("120 Machines")
        await api.delete(SERVICE_ACCOUNTS, "reader", namespace="default")
        await found.shows("No session")
        await found.lacks("m-007")
        assert await found.page.locator("h1").inner_text() == "No session"
        found.errors.clear()  # Chromium reports the status 401 of the page
