"""Tasks of a person in Chromium: from the fleet to the Machines that matter, and a maintenance from begin to end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Browser, expect

from tests.console.browser import CHROMIUM, LIMIT_S, Tab, tab
from tests.console.running import console
from tests.console.served import created, machine_body, temporary_status
from unbounded.api.machine import MACHINES
from unbounded.kube.client import HttpApi
from unbounded.operations.claim_gates import in_maintenance

pytestmark = [
    pytest.mark.slow,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed: scripts/browser-tools"),
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def operator_tab(kubeconfig: Path, browser: Browser, api: HttpApi) -> AsyncIterator[Tab]:
    async with console(kubeconfig, "--allow-operations") as running, tab(browser, await running.next_url()) as found:
        yield found


@pytest.fixture
def operator(operator_tab: Tab) -> Iterator[Tab]:
    """A browser whose console allows operations, for the tests one after another."""
    yield operator_tab
    operator_tab.check()


async def until_maintenance_is(enabled: bool, api: HttpApi, name: str) -> None:
    async with asyncio.timeout(LIMIT_S):
        while in_maintenance(await api.get(MACHINES, name)) is not enabled:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def test_a_bar_of_the_phases_leads_to_their_machines(operator: Tab, api: HttpApi) -> None:
    await operator.visit("/")
    async with temporary_status(api, "m-041", "m-052", phase="Ready"):
        await operator.page.get_by_role("list").get_by_role("link", name="Ready", exact=True).click()
        await operator.page.wait_for_url("**/?phase=Ready")
        await operator.lists(["m-041", "m-052"])
        await operator.shows("1 to 2 of 2 Machines")
        await expect(operator.page.get_by_label("Phase")).to_have_value("Ready")


async def test_a_label_filter_selects_machines(operator: Tab, api: HttpApi) -> None:
    async with (
        created(api, MACHINES, machine_body("racked-1", "site-0", rack="r1")),
        created(api, MACHINES, machine_body("racked-2", "site-0", rack="r2")),
    ):
        await operator.visit("/")
        labels = operator.page.get_by_label("Labels")
        await labels.fill("rack=r1")
        await operator.lists(["racked-1"])
        await operator.shows("1 to 1 of 1 Machine")
        await labels.fill("rack in (r1,r2)")
        await operator.lists(["racked-1", "racked-2"])
        await operator.shows("1 to 2 of 2 Machines")


async def test_maintenance_begins_with_a_drain_and_ends(operator: Tab, api: HttpApi) -> None:
    name = "serviced-1"
    async with created(api, MACHINES, machine_body(name, "site-0")):
        await operator.visit(f"/machine/{name}")
        await operator.button("Drain").click()
        await operator.shows(f"kubectl unbounded machine drain {name}")
        assert not in_maintenance(await api.get(MACHINES, name))  # the plan writes nothing
        await operator.button("Drain").last.click()
        await until_maintenance_is(True, api, name)
        await operator.shows("Done: ")
        await expect(operator.button("Drain")).to_have_count(0)
        await operator.button("End the maintenance").click()
        await operator.shows(f"kubectl unbounded machine return {name}")
        assert in_maintenance(await api.get(MACHINES, name))
        await operator.button("End the maintenance").last.click()
        await until_maintenance_is(False, api, name)
        await expect(operator.button("Drain")).to_have_count(1)
