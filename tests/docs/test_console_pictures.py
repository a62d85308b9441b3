"""The tour of docs/console.md in Chromium, and docs/screenshots/console-*.webp, which show its steps and other views.

`make screenshots` writes the pictures anew.
"""

from __future__ import annotations

import base64
import os
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import pytest
from playwright.async_api import Locator, expect

from tests.cli.running import KUBECTL
from tests.console.browser import CHROMIUM, Tab, chromium, tab
from tests.console.running import URL, cluster_console
from tests.docs.runner import DOCS, STOPS_S
from tests.e2e.plane import Plane, plane
from tests.support.paths import ROOT
from unbounded.api.disruption import MACHINE_DISRUPTION_BUDGETS
from unbounded.api.names import LABEL_SITE
from unbounded.api.operation import MACHINE_OPERATIONS

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300, func_only=True),
    pytest.mark.skipif(KUBECTL is None, reason="kubectl is not installed"),
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed: scripts/browser-tools"),
]
FOLDER: Final = DOCS / "screenshots"
LARGEST: Final = 80_000  # bytes
QUALITY: Final = 70
HEIGHT: Final = 860
REBOOT: Final = "Reboot the host"
CLUSTER_HEIGHT: Final = 680
LOG_IN_HEIGHT: Final = 420
PROVIDER: Final = ("--oidc-issuer-url", "https://idp.example.com", "--oidc-client-id", "kubernetes")
PICTURES: Final = (
    *("fleet", "machine", "operation", "blocked", "actions", "rollouts", "site"),
    *("hosts", "host", "cluster", "login"),
)


@dataclass
class Tour:
    """A browser on the tour, and the folder of the pictures."""

    it: Plane
    found: Tab
    folder: Path

    async def follow(self, *names: str) -> None:
        """Follow links by their names: the pages of the navigation, and what they list."""
        for name in names:
            await self.found.page.get_by_role("link", name=name, exact=True).last.click()

    def button(self, name: str) -> Locator:
        return self.found.button(name).last

    async def confirm(self, name: str) -> None:
        """Press the button of an action, and that of its panel once the plan is there."""
        await self.button(name).click()
        await self.found.shows("Nothing was changed yet.")
        await self.button(name).click()

    async def take(self, name: str, *texts: str, height: int = HEIGHT) -> None:
        """Wait for texts, and write the picture of the top of the page. Nothing in it is blank or overlaps."""
        for text in texts:
            await self.found.shows(text, within_s=30)
        assert await self.found.layout_findings() == [], name
        self.found.check()
        page = self.found.page
        await page.mouse.move(0, 0)
        height = min(height, await page.evaluate("document.documentElement.scrollHeight"))
        clip = {"x": 0, "y": 0, "width": 1280, "height": height, "scale": 1}
        chrome = await page.context.new_cdp_session(page)
        options = {"format": "webp", "quality": QUALITY, "clip": clip}
        taken = base64.b64decode((await chrome.send("Page.captureScreenshot", options))["data"])
        assert len(taken) < LARGEST, name
        (self.folder / f"console-{name}.webp").write_bytes(taken)


async def follow_one_machine(tour: Tour) -> None:
    """Steps 1 to 4: the fleet, a Machine, its operation, and a reboot."""
    found = tour.found
    await tour.take("fleet", "3 Machines", "lab-01")
    await found.page.keyboard.press("/")
    await found.page.keyboard.type("lab-01")
    await found.lists(["lab-01"])
    await tour.follow("lab-01")
    await tour.take("machine", "Objects around it", "nothing blocks it", "History")
    await found.page.get_by_role("link", name="lab-01-host-reboot-").last.click()
    await found.shows("the host was On")
    await found.page.go_back()
    await tour.confirm(REBOOT)
    await found.page.get_by_role("link", name="Show lab-01-host-reboot-").click()
    await found.page.wait_for_url("**/operation/**")
    await found.shows("the host was On", within_s=60)
    await tour.take("operation", "WaitingOn", "the host was Off")


async def pause_and_ask(tour: Tour) -> None:
    """Steps 5 and 6: a pause that blocks a reboot, and a replacement that is not made."""
    found = tour.found
    await tour.follow("Fleet", "lab-02")
    await tour.confirm("Pause operations")
    await found.shows("Done: paused.")
    await tour.button(REBOOT).click()
    await found.shows("would wait")
    await tour.button(REBOOT).click()
    await found.page.get_by_role("link", name="Show lab-02-host-reboot-").click()
    await found.page.wait_for_url("**/operation/**")
    await tour.take("blocked", "because ", "kubectl unbounded machine resume lab-02")
    await tour.follow("Fleet", "lab-03")
    await tour.button("Replace").click()
    await tour.take("actions", "this loses everything", "Type lab-03 to continue", "The same on the command line")
    await tour.button("Do nothing").click()
    await expect(found.button("Replace")).to_have_count(1)


async def follow_many(tour: Tour) -> None:
    """Steps 7 and 8: an operation on all Machines, and the site."""
    printed = await tour.it.running.says(r"kubectl --kubeconfig \S+ create -f \S+/reboot-all\.yaml")
    await tour.it.shell.run(printed[0])
    await tour.follow("Rollouts")
    page = tour.found.page
    await page.get_by_role("link", name="reboot-all-").first.click()
    row = page.get_by_role("row").filter(has=page.get_by_role("link", name="lab-02", exact=True))
    await row.get_by_text("paused by annotation").wait_for()
    await tour.follow("Fleet", "lab")
    await page.wait_for_url("**/site/lab")
    await tour.take("site", "runs in the process of the API server", "reachable")


def flags_of_make_run() -> list[str]:
    """Return the flags with which `make run` starts `unbounded up`, but for its folder."""
    recipe = re.search(r"^\t@exec \S+/unbounded up (.*) --data data$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert recipe is not None
    return re.sub(r"\$\(if .* \)", "", recipe[1]).split()


@asynccontextmanager
async def touring(data: Path, *flags: str) -> AsyncIterator[Tour]:
    """A control plane whose console is open in a browser, after its first operation. It ends with Ctrl-C."""
    folder = FOLDER if "UNBOUNDED_SCREENSHOTS" in os.environ else data.parent
    async with plane(data, *flags) as it:
        url = (await it.running.says(URL.pattern))[0]
        await it.running.says(r"operation lab-01-host-reboot-\S+: Complete")
        async with chromium() as browser, tab(browser, url, color_scheme="light") as found:
            yield Tour(it, found, folder)
        assert await it.running.stops() < STOPS_S


async def test_the_tour_shows_what_its_pictures_show(tmp_path: Path) -> None:
    """With what `make run` starts, and nothing that the tour does not mention."""
    async with touring(tmp_path / "data", *flags_of_make_run()) as tour:
        await follow_one_machine(tour)
        await pause_and_ask(tour)
        await follow_many(tour)


async def show_container_cloud(tour: Tour) -> None:
    """Show all hosts and Clusters, a host that others have installed, and a Cluster whose Machine waits."""
    await tour.it.shell.run("kubectl unbounded host adopt lab-03 --externally-provisioned")
    await tour.it.shell.run(f"kubectl apply -f {ROOT}/examples/container-cloud/machine.yaml")
    await tour.follow("Hosts")
    await tour.take("hosts", "default/lab-03", "externally provisioned", "default/master-0", "example-17-3-0")
    await tour.follow("default/lab-03")
    await tour.take("host", "Host default/lab-03", "BMC https://", "Conditions")
    waits = "--for=jsonpath='{.status.execution.waiting.reason}=HostNotAvailable' --timeout=60s"
    await tour.it.shell.run(f"kubectl wait ma/example-control-plane -n example-ns {waits}")
    await tour.follow("Hosts", "example-ns/example-cluster")
    texts = ("Cluster example-ns/example-cluster", "HostNotAvailable", "because ")
    await tour.take("cluster", *texts, height=CLUSTER_HEIGHT)


async def show_log_in(tour: Tour, data: Path) -> None:
    """Show the log-in of the console of a cluster, with a provider."""
    browser, flags = tour.found.page.context.browser, ("--plain-addr", "127.0.0.1:0", *PROVIDER)
    assert browser is not None
    async with (
        cluster_console(data / "kubeconfig", data, *flags) as address,
        tab(browser, f"http://{address}", color_scheme="light") as found,
    ):
        texts = ("Log in with idp.example.com", "Token of the API server")
        await replace(tour, found=found).take("login", *texts, height=LOG_IN_HEIGHT)


async def test_the_pictures_of_other_views(tmp_path: Path) -> None:
    """With a budget, an operation in stages, and hosts of Container Cloud."""
    async with touring(tmp_path / "data", "--lab", "3", "--container-cloud", "--console") as tour:
        everything = {"matchLabels": {LABEL_SITE: "lab"}}
        budget = {"machineSelector": everything, "maxUnavailable": 1}
        await tour.it.api.create(MACHINE_DISRUPTION_BUDGETS, {"metadata": {"name": "lab-racks"}, "spec": budget})
        stages = [{"name": "canary", "size": 1, "soakSeconds": 3600}, {"name": "rest", "size": "100%"}]
        rollout = {"operationKind": "HostReboot", "machineSelector": everything, "strategy": {"stages": stages}}
        await tour.it.api.create(MACHINE_OPERATIONS, {"metadata": {"name": "reboot-in-stages"}, "spec": rollout})
        await tour.follow("Rollouts")
        await tour.take("rollouts", "reboot-in-stages", "Soaking", "lab-racks")
        await show_container_cloud(tour)
        await show_log_in(tour, tmp_path / "data")


def test_each_picture_is_shown_by_a_guide() -> None:
    names = {f"console-{name}.webp" for name in PICTURES}
    assert {path.name for path in FOLDER.glob("console-*")} == names
    guides = "".join(path.read_text() for path in (DOCS / "console.md", *DOCS.glob("console/*.md")))
    assert [name for name in names if f"screenshots/{name})" not in guides] == []
