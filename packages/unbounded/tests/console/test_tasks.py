"""Tasks of a person in Chromium: from the fleet to the Machines that matter, and a maintenance from begin to end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Locator, expect

from tests.console.browser import CHROMIUM, Tab, tab
from tests.console.running import console
from tests.console.served import create_machine, set_status
from unbounded.api.machine import MACHINES
from unbounded.kube.client import HttpApi
from unbounded.operations.claim_gates import in_maintenance

pytestmark = [
    pytest.mark.slow,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed: scripts/browser-tools"),
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def operator(kubeconfig: Path, browser: Browser, api: HttpApi) -> AsyncIterator[Tab]:
    """A browser whose console allows operations."""
    async with console(kubeconfig, "--allow-operations") as running, tab(browser, await running.next_url()) as found:
        await found.shows("Machines")
        yield found


def button(found: Tab, name: str) -> Locator:
    return found.page.get_by_role("button", name=name, exact=True)


async def until_maintenance_is(enabled: bool, api: HttpApi, name: str) -> None:
    async with asyncio.timeout(20):
        while in_maintenance(await api.get(MACHINES, name)) is not enabled:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def test_a_bar_of_the_phases_leads_to_their_machines(operator: Tab, api: HttpApi) -> None:
    for name in ("m-041", "m-052"):
        await set_status(api, name, phase="Ready")
    bar = operator.page.get_by_role("list").get_by_role("link", name="Ready", exact=True)
    await bar.click()
    await operator.page.wait_for_url("**/?phase=Ready")
    await operator.shows("1 to 2 of 2 Machines")
    await operator.lists(["m-041", "m-052"])
    assert await operator.page.get_by_label("Phase").input_value() == "Ready"


async def test_a_label_filter_selects_machines(operator: Tab, api: HttpApi) -> None:
    await create_machine(api, "racked-1", "site-0", rack="r1")
    await create_machine(api, "racked-2", "site-0", rack="r2")
    await operator.page.goto("/".join([*operator.page.url.split("/")[:3], ""]))
    labels = operator.page.get_by_label("Labels")
    await labels.fill("rack=r1")
    await operator.shows("1 to 1 of 1 Machine")
    await operator.lists(["racked-1"])
    await labels.fill("rack in (r1,r2)")
    await operator.shows("1 to 2 of 2 Machines")
    await operator.lists(["racked-1", "racked-2"])


async def test_maintenance_begins_with_a_drain_and_ends(operator: Tab, api: HttpApi) -> None:
    await operator.page.goto("/".join([*operator.page.url.split("/")[:3], "machine", "m-060"]))
    await button(operator, "Drain").click()
    await operator.shows("kubectl unbounded machine drain m-060")
    assert not in_maintenance(await api.get(MACHINES, "m-060"))  # the plan writes nothing
    await button(operator, "Drain").last.click()
    await until_maintenance_is(True, api, "m-060")
    await operator.shows("Done: ")
    await expect(button(operator, "Drain")).to_have_count(0)
    await button(operator, "End the maintenance").click()
    await operator.shows("kubectl unbounded machine return m-060")
    assert in_maintenance(await api.get(MACHINES, "m-060"))
    await button(operator, "End the maintenance").last.click()
    await until_maintenance_is(False, api, "m-060")
    await expect(button(operator, "Drain")).to_have_count(1)
