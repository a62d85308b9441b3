"""The page of the fleet in Chromium, against an embedded API server and a console process."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from playwright.async_api import Browser, expect

from tests.console.browser import CHROMIUM, WIDE, late_changes, tab
from tests.console.running import Console
from tests.console.served import FLEET, SITES, create_machine, set_status, temporary_status
from unbounded.api.configuration import MACHINE_CONFIGURATIONS
from unbounded.api.machine import MACHINES
from unbounded.api.names import ANNOTATION_PAUSED, LABEL_SITE
from unbounded.api.operation import MACHINE_OPERATIONS
from unbounded.console.pages.fleet import SITES_SHOWN
from unbounded.kube.client import HttpApi

pytestmark = [
    pytest.mark.slow,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed: scripts/browser-tools"),
]


async def test_a_person_searches_filters_and_turns_pages(running: Console, browser: Browser, api: HttpApi) -> None:
    await set_status(api, "m-077", phase="Failed", reason="NoRoute", message="no route to 192.0.2.77")
    async with tab(browser, await running.next_url()) as found:
        await found.shows(f"{FLEET} Machines, 1 needs attention")
        await found.begins_with("m-077", "m-000")  # what needs attention comes first
        await found.shows("no route to 192.0.2.77")
        await found.page.get_by_role("button", name="Next").click()
        await found.shows("51 to 100 of 120 Machines")
        await found.page.keyboard.press("/")
        await found.page.keyboard.type("m-01")
        await found.shows("1 to 10 of 10 Machines")
        await found.page.get_by_label("Site").select_option("site-1")
        await found.shows("1 to 4 of 4 Machines")
        await found.lists(["m-010", "m-013", "m-016", "m-019"])
        await found.page.reload()  # the address shows the same to others
        await found.shows("1 to 4 of 4 Machines")
        await found.lists(["m-010", "m-013", "m-016", "m-019"])
        await found.visit("/")
        await found.page.get_by_label("Reason").select_option("NoRoute")
        await found.page.wait_for_url("**/?reason=NoRoute")
        await found.shows("1 to 1 of 1 Machine")
        await found.lists(["m-077"])
        await found.page.reload()
        await found.lists(["m-077"])
        await found.page.get_by_label("Labels").fill("a in b")
        await found.shows("labels: ")
    await set_status(api, "m-077", phase=None, reason=None, message=None)


ROLLOUTS = [f"workers-{number}" for number in range(3)]
PLACES = [f"z-{number}" for number in range(SITES_SHOWN)]


@pytest_asyncio.fixture(loop_scope="module")
async def troubled(api: HttpApi) -> AsyncIterator[None]:
    """A fleet with a Machine in each state that needs attention and with more sites, until the test ends."""
    await set_status(api, "m-077", phase="Failed", message="no route")
    await api.patch(MACHINES, "m-011", {"metadata": {"annotations": {ANNOTATION_PAUSED: "true"}}})
    await api.patch(MACHINES, "m-012", {"spec": {"maintenance": {"enabled": True}}})
    spec = {"operationKind": "AgentReset", "machineRef": "m-013"}
    await api.create(MACHINE_OPERATIONS, {"metadata": {"name": "stuck"}, "spec": spec})
    wait = {"reason": "WaitingForBudget", "since": "2026-01-01T00:00:00Z"}
    status = {"phase": "Pending", "message": "rack1 allows 0", "waiting": wait}
    await api.patch(MACHINE_OPERATIONS, "stuck", {"status": status}, subresource="status")
    failed = {"name": "m-014-off", "uid": "u-14", "kind": "HostPowerOff", "phase": "Failed", "message": "no answer"}
    await set_status(api, "m-014", phase="Ready", recentOperations=[failed])
    await _fail_rollouts(api)
    for name in PLACES:
        await create_machine(api, name, f"place-{name}")
    yield
    for name in ROLLOUTS:
        await api.delete(MACHINE_CONFIGURATIONS, name)
    await api.delete(MACHINE_OPERATIONS, "all-racks")
    await set_status(api, "m-014", phase=None, recentOperations=None)
    for name in PLACES:
        await api.delete(MACHINES, name)
    await api.delete(MACHINE_OPERATIONS, "stuck")
    await api.patch(MACHINES, "m-011", {"metadata": {"annotations": {ANNOTATION_PAUSED: None}}})
    await api.patch(MACHINES, "m-012", {"spec": {"maintenance": None}})
    await set_status(api, "m-077", phase=None, message=None)


async def _fail_rollouts(api: HttpApi) -> None:
    """Create three updates that have halted or been rolled back, and an operation with a failed Machine."""
    for name in ROLLOUTS:
        await api.create(MACHINE_CONFIGURATIONS, {"metadata": {"name": name}, "spec": {"template": {}}})
        rolled_back = name == ROLLOUTS[0]  # it has ended, and comes last
        cause = {"machine": "m-021", "message": "its Node has not become Ready within 15 minutes " * 4}
        rollout = {"version": 2, "phase": "RolledBack" if rolled_back else "Halted", "failed": [cause]}
        await api.patch(MACHINE_CONFIGURATIONS, name, {"status": {"rollout": rollout}}, subresource="status")
    spec = {"operationKind": "HostReboot", "machineSelector": {"matchLabels": {LABEL_SITE: "site-0"}}}
    await api.create(MACHINE_OPERATIONS, {"metadata": {"name": "all-racks"}, "spec": spec})
    target = {"machineRef": "m-020", "phase": "Failed", "message": "the BMC refuses"}
    status = {"phase": "InProgress", "targets": [target, {"machineRef": "m-023", "phase": "InProgress"}]}
    await api.patch(MACHINE_OPERATIONS, "all-racks", {"status": status}, subresource="status")


@pytest.mark.usefixtures("troubled")
async def test_states_are_filtered_and_the_first_screen_has_the_list(running: Console, browser: Browser) -> None:
    async with tab(browser, await running.next_url()) as found:
        await found.shows(f"{SITES + len(PLACES) - SITES_SHOWN} more sites")
        await found.begins_with("m-077", "m-014", "m-013", "m-011", "m-012")
        await found.shows("AgentReset stuck: rack1 allows 0")
        await found.shows("HostPowerOff m-014-off failed: no answer")
        rollouts = found.page.get_by_role("region", name="Failing rollouts")
        await expect(rollouts.get_by_role("link").last).to_have_text("1 more")
        await expect(rollouts).to_contain_text("HostReboot: m-020: the BMC refuses")
        *links, _more = await rollouts.get_by_role("link").all_inner_texts()
        assert set(links) == {"all-racks", *ROLLOUTS[1:]}
        assert await found.serious_findings() == []
        top = await found.page.get_by_role("link", name="m-077").bounding_box()
        assert top is not None
        assert top["y"] + top["height"] < WIDE["height"]
        by_state = {"failed": "m-014", "blocked": "m-013", "paused": "m-011", "maintenance": "m-012"}
        for state, name in by_state.items():
            await found.page.get_by_label("State").select_option(state)
            await found.lists([name])
            await found.shows("1 to 1 of 1 Machine")
        await found.page.get_by_role("link", name="1 needs attention").click()
        await found.page.wait_for_url("**/?state=attention")
        await found.lists(["m-077"])
        await found.page.get_by_role("link", name="1 with a failed operation").click()
        await found.page.wait_for_url("**/?state=failed")
        await found.lists(["m-014"])
        await found.page.get_by_role("link", name="all-racks").click()
        await found.page.wait_for_url("**/operation/all-racks")
        await found.shows("the BMC refuses")


async def test_a_change_is_on_the_screen_within_a_second(running: Console, browser: Browser, api: HttpApi) -> None:
    async with tab(browser, await running.next_url()) as found:
        await found.shows("120 Machines")

        async def change(number: int) -> None:
            await set_status(api, "m-001", message=f"this is change number {number}.")

        async with temporary_status(api, "m-001", phase="Failed", message="before"):
            await found.shows("before")
            assert await late_changes(found, change, lambda number: f"this is change number {number}.") == []
        await found.lacks("this is change number")


async def test_an_address_opens_one_session(running: Console, browser: Browser) -> None:
    used = await running.next_url()
    async with tab(browser, used) as found:
        await found.shows("120 Machines")
    async with await browser.new_context() as context:
        page = await context.new_page()
        answer = await page.goto(used)
        assert answer is not None
        assert answer.status == 401
        assert "was used before" in await page.inner_text("body")
        assert await context.cookies() == []
        fleet = await page.goto("/".join([*used.split("/")[:3], ""]))
        assert fleet is not None
        assert fleet.status == 401
        assert "m-0" not in await page.content()


async def test_axe_finds_nothing_serious(running: Console, browser: Browser, api: HttpApi) -> None:
    await set_status(api, "m-002", phase="Failed", reason="NoRoute", message="no route")
    await set_status(api, "m-003", phase="Ready")
    async with tab(browser, await running.next_url()) as found:
        await found.shows("needs attention")
        assert await found.findings_on_all_screens() == []
        await found.page.evaluate("document.documentElement.removeAttribute('lang')")
        assert [one.split(":")[0] for one in await found.serious_findings()] == ["html-has-lang"]  # axe does look
    for name in ("m-002", "m-003"):
        await set_status(api, name, phase=None, reason=None, message=None)


async def test_every_control_is_reached_by_keyboard(running: Console, browser: Browser) -> None:
    async with tab(browser, await running.next_url()) as found:
        await found.shows("120 Machines")
        await found.page.keyboard.press("Tab")
        assert await found.page.evaluate("document.activeElement.textContent") == "Skip to the main part"
        await found.page.keyboard.press("Enter")
        reached: list[str] = []
        while reached[-1:] != ["Next"] and len(reached) < 200:  # each row has links
            await found.page.keyboard.press("Tab")
            reached.append(
                await found.page.evaluate(
                    "(document.activeElement.getAttribute('aria-label') ?? document.activeElement.textContent).trim()"
                )
            )
        assert [one for one in reached if one in {"Search", "State", "Site", "Phase", "Reason", "Labels", "Next"}] == [
            *("Search", "State", "Site", "Phase", "Reason", "Labels", "Next"),
        ]
        assert "site-0" in reached


async def test_headers_forbid_frames_and_foreign_scripts(running: Console, browser: Browser) -> None:
    async with await browser.new_context() as context:
        answer = await (await context.new_page()).goto(await running.next_url())
        assert answer is not None
        headers = await answer.all_headers()
        policy = dict(one.split(" ", 1) for one in headers["content-security-policy"].split("; "))
        nonce = policy["script-src"].split("'nonce-")[1].rstrip("'")
        assert policy["script-src"] == f"'self' 'nonce-{nonce}'"
        assert {policy[name] for name in ("default-src", "frame-ancestors", "base-uri", "object-src")} == {"'none'"}
        assert headers["x-frame-options"] == "DENY"
        assert headers["cache-control"] == "no-store"
        text = await answer.text()
        assert text.count("<script") == text.count(f'<script nonce="{nonce}"') > 3
        again = await context.pages[0].reload()
        assert again is not None
        assert nonce not in await again.text()
        cookie = (await context.cookies())[0]
        assert (cookie.get("httpOnly"), cookie.get("sameSite")) == (True, "Lax")


async def test_an_unknown_page_says_so_and_leads_back(running: Console, browser: Browser) -> None:
    async with tab(browser, await running.next_url()) as found:
        origin = found.page.url.rstrip("/")
        for path in ("nothing", "machine", "_nicegui/nothing", "start"):
            answer = await found.page.goto(f"{origin}/{path}")
            assert answer is not None
            assert answer.status == 404, path
        await found.shows("No such page")
        await found.page.get_by_role("link", name="Fleet").click()
        await found.shows("120 Machines")
        found.errors.clear()  # Chromium reports the status 404
