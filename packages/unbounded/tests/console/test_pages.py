"""The pages of one object and of many in Chromium, against an embedded API server and a console process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any, Final, TypeVar

import pytest
import pytest_asyncio
from playwright.async_api import Browser, expect

from tests.console.browser import CHROMIUM, LIMIT_S, Tab, late_changes, tab
from tests.console.hostile import (
    NAME,
    PAYLOADS,
    PLANNED,
    check_nothing_ran,
    check_texts,
    hostile_objects,
    hostile_policy,
    texts,
)
from tests.console.running import Console, console
from tests.console.served import (
    ROLES,
    bmc_spec,
    create_reader,
    created,
    kubeconfig_of,
    temporary_status,
)
from tests.console.staging import MACHINE, OPERATION, PAGES, SITE
from unbounded.api.configuration import MACHINE_CONFIGURATIONS
from unbounded.api.container_cloud.cluster import CLUSTERS, MACHINE_POOLS
from unbounded.api.container_cloud.host import BARE_METAL_HOSTS
from unbounded.api.core import LEASES, NODES
from unbounded.api.disruption import MACHINE_DISRUPTION_BUDGETS
from unbounded.api.machine import MACHINES
from unbounded.api.meta import Kind
from unbounded.api.names import GROUP, NAMESPACE
from unbounded.api.operation import MACHINE_OPERATIONS
from unbounded.kube.client import HttpApi
from unbounded.kube.clock import rfc3339, utc_now
from unbounded.operations.claim_gates import is_paused

pytestmark = [
    pytest.mark.slow,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed: scripts/browser-tools"),
]
T = TypeVar("T")
NUMBERS: Final = count(20)  # of Machines that no test has had before
PANEL: Final = "[aria-label=Confirmation]"


@pytest.mark.parametrize("name", PAGES)
async def test_a_page_shows_its_object_to_everybody(name: str, admin: Tab) -> None:
    """On wide and narrow screens, light and dark, by keyboard, and to a screen reader."""
    path, text = PAGES[name]
    await admin.visit(path)
    await admin.shows(text)
    await expect(admin.page.locator("h1")).to_have_count(1)
    assert await admin.findings_on_all_screens() == []
    assert await admin.keyboard_findings() == []


async def test_a_node_is_shown_to_everybody(admin: Tab, staged: HttpApi) -> None:
    info = {
        "kubeletVersion": "v1.34.2",
        "containerRuntimeVersion": "containerd://2.1.4",
        "osImage": "Debian GNU/Linux 12 (bookworm)",
    }
    message = "container runtime network not ready: NetworkReady=false reason:NetworkPluginNotReady " * 3
    status = {
        "nodeInfo": info,
        "addresses": [{"type": "InternalIP", "address": f"2001:db8:0:1:ffff:ffff:ffff:{one}"} for one in range(4)],
        "conditions": [
            {"type": "Ready", "status": "False", "reason": "KubeletNotReady", "message": message},
            {"type": "MemoryPressure", "status": "True", "reason": "KubeletHasInsufficientMemory"},
        ],
    }
    taints = [{"key": f"example.com/a-rather-long-name-of-a-taint-{one}", "effect": "NoSchedule"} for one in range(3)]
    body = {"metadata": {"name": MACHINE}, "spec": {"unschedulable": True, "taints": taints}}
    async with created(staged, NODES, body, status=status):
        await admin.visit(f"/machine/{MACHINE}")
        for text in ("containerd://2.1.4", "disabled: it is cordoned", "KubeletHasInsufficientMemory"):
            await admin.shows(text)
        assert await admin.findings_on_all_screens() == []
        assert await admin.keyboard_findings() == []
    await admin.lacks("containerd://2.1.4")


async def test_the_fleet_is_reached_by_keyboard(admin: Tab) -> None:
    await admin.visit("/")
    await admin.shows(MACHINE)
    assert await admin.keyboard_findings() == []


async def test_the_checks_by_keyboard_find_what_is_missing(admin: Tab) -> None:
    await admin.visit("/rollouts")
    await admin.shows("HostReboot holder-1")
    await admin.page.evaluate(
        """() => {
            const [first, second, third] = document.querySelectorAll("nav a");
            first.tabIndex = -1;
            second.style.outline = "none";
            third.textContent = "";
        }"""
    )
    found = await admin.keyboard_findings()
    assert [one.partition(":")[0] for one in found] == ["not reached", "no visible focus", "no name"]


async def test_the_check_of_the_layout_finds_what_is_blank_or_overlaps(admin: Tab) -> None:
    await admin.visit("/rollouts")
    await admin.shows("HostReboot holder-1")
    assert await admin.layout_findings() == []
    await admin.page.evaluate(
        """() => {
            const [blank, moved] = document.querySelectorAll("main section");
            blank.querySelectorAll("p, div").forEach((one) => one.remove());
            moved.style.marginTop = "-30px";
            const [first, second] = document.querySelectorAll("nav a");
            second.style.marginLeft = `-${first.offsetWidth}px`;
        }"""
    )
    found = await admin.layout_findings()
    assert {one.partition(":")[0] for one in found} == {"blank", "cards overlap", "texts overlap"}


async def test_pages_without_data_are_for_everybody(running: Console, browser: Browser) -> None:
    """An unknown page, and that of a browser without a session."""
    async with tab(browser, await running.next_url()) as found:
        await found.visit("/nothing")
        for text in ("No such page", "No session"):
            await found.shows(text)
            assert await found.findings_on_all_screens() == []
            assert await found.keyboard_findings() == []
            await found.page.context.clear_cookies()
            await found.visit("/")
        found.errors.clear()  # Chromium reports the status of the pages


@dataclass(frozen=True)
class StatusChange:
    """A change of an object's status, with the text that a page shows for it; without a text it is taken back."""

    path: str
    kind: Kind[Any]
    name: str
    status: Callable[[str | None], dict[str, Any]]
    namespace: str = ""
    shown: Callable[[str], str] = str

    async def write(self, api: HttpApi, text: str | None) -> None:
        body = {"status": self.status(text)}
        await api.patch(self.kind, self.name, body, namespace=self.namespace, subresource="status")


def _condition(text: str | None, **fields: Any) -> list[dict[str, Any]]:
    return [{"type": "Ready", "message": text, **fields}] if text else []


HOST: Final = (BARE_METAL_HOSTS, "host-1", lambda text: {"errorMessage": text}, "ns-1")
STATUS_CHANGES: Final = {
    "fleet": StatusChange(f"/?text={MACHINE}", MACHINES, MACHINE, lambda text: {"reason": text}),
    "machine": StatusChange(f"/machine/{MACHINE}", MACHINES, MACHINE, lambda text: {"message": text}),
    "node of a machine": StatusChange(
        f"/machine/{MACHINE}", NODES, MACHINE, lambda text: {"conditions": _condition(text, status="False")}
    ),
    "kubelet of a machine": StatusChange(
        f"/machine/{MACHINE}",
        NODES,
        MACHINE,
        lambda text: {"nodeInfo": {"kubeletVersion": text}},
    ),
    "budget of a machine": StatusChange(
        f"/machine/{MACHINE}",
        MACHINE_DISRUPTION_BUDGETS,
        "rack1",
        lambda text: {"allowed": int(text or 0)},
        shown=lambda text: f"{text} more may be unavailable",
    ),
    "operation": StatusChange(f"/operation/{OPERATION}", MACHINE_OPERATIONS, OPERATION, lambda text: {"message": text}),
    "rollouts": StatusChange(
        "/rollouts", MACHINE_CONFIGURATIONS, "workers", lambda text: {"rollout": {"message": text}}
    ),
    "site": StatusChange(f"/site/{SITE}", MACHINES, MACHINE, lambda text: {"netboot": {"message": text}}),
    "hosts": StatusChange("/hosts", *HOST),
    "host": StatusChange("/host/ns-1/host-1", *HOST),
    "pool of a cluster": StatusChange(
        "/cluster/ns-1/cluster-1",
        MACHINE_POOLS,
        "pool-1",
        lambda text: {"replicas": int(text or 0)},
        "ns-1",
    ),
    "cluster": StatusChange(
        "/cluster/ns-1/cluster-1",
        CLUSTERS,
        "cluster-1",
        lambda text: {"providerStatus": {"conditions": _condition(text, ready=False)}},
        "ns-1",
    ),
}


@pytest.mark.parametrize("name", STATUS_CHANGES)
async def test_a_change_is_on_the_page_within_a_second(name: str, admin: Tab, staged: HttpApi) -> None:
    changed = STATUS_CHANGES[name]
    node: AbstractAsyncContextManager[Any] = nullcontext()
    if changed.kind == NODES:
        node = created(staged, NODES, {"metadata": {"name": MACHINE}})

    async def change(number: int) -> None:
        await changed.write(staged, str(1001 + number))

    async with node:
        try:
            await changed.write(staged, "1000")
            await admin.visit(changed.path)
            await admin.shows(changed.shown("1000"))
            assert await late_changes(admin, change, lambda number: changed.shown(str(1001 + number))) == []
        finally:
            await changed.write(staged, None)


COUNT_CHANGES: Final = """() => {
  window.changes = 0;
  new MutationObserver((found) => (window.changes += found.length)).observe(
    document.querySelector("main"), {subtree: true, childList: true, characterData: true, attributes: true});
}"""


async def test_a_site_follows_its_leases_and_changes_for_no_renewal(admin: Tab, staged: HttpApi) -> None:
    name = f"metalman-{SITE}"
    row = admin.page.get_by_role("row").filter(has_text=f"metalman/{SITE}")

    async def lead(holder: str, renewed: datetime) -> None:
        spec = {"holderIdentity": holder, "renewTime": rfc3339(renewed, micro=True)}
        await staged.patch(LEASES, name, {"spec": spec}, namespace=NAMESPACE)

    old = {"holderIdentity": "pod-1", "renewTime": rfc3339(utc_now() - timedelta(hours=1), micro=True)}
    async with created(staged, LEASES, {"metadata": {"name": name}, "spec": old}, namespace=NAMESPACE):
        await admin.visit(f"/site/{SITE}")
        await row.get_by_text("not renewed in the last 30 s").wait_for()
        await admin.shows("The site has no default bootstrap token.")
        await lead("pod-1", utc_now())
        await row.get_by_text("leads").wait_for()

        async def change(number: int) -> None:
            await lead(f"the successor {number}.", utc_now())

        assert await late_changes(admin, change, lambda number: f"the successor {number}.") == []
        await lead("pod-1", utc_now())
        await row.get_by_text("pod-1").wait_for()
        await admin.page.evaluate(COUNT_CHANGES)
        for _ in range(10):
            await lead("pod-1", utc_now())
            await asyncio.sleep(0.1)
        await admin.page.wait_for_timeout(500)
        assert await admin.page.evaluate("window.changes") == 0
        await lead("pod-2", utc_now())
        await row.get_by_text("pod-2").wait_for()
    await row.get_by_text("does not exist: it has never run here").wait_for()


async def test_focus_stays_where_a_page_changes(admin: Tab, staged: HttpApi) -> None:
    await admin.visit(f"/machine/{MACHINE}")
    await admin.page.get_by_role("link", name=SITE, exact=True).first.focus()
    async with temporary_status(staged, MACHINE, reason="HostReboot"):  # one more fact, in front of it
        await admin.page.locator("dt", has_text="Reason").wait_for()
        assert await admin.page.evaluate("document.activeElement.textContent") == SITE


async def test_the_time_of_a_stage_grows_without_a_change(admin: Tab) -> None:
    await admin.visit(f"/operation/{OPERATION}")
    current = admin.page.locator("li[aria-current=step]")
    await current.wait_for()
    before = await current.inner_text()
    assert "at most 2 min" in before
    await admin.page.wait_for_function(
        "before => document.querySelector('li[aria-current=step]').innerText !== before", arg=before
    )


async def test_stages_and_attempts_are_shown_as_the_operation_goes(admin: Tab, staged: HttpApi) -> None:
    """Two attempts and a stage that ended, then the next stage; and at last a record without any history."""
    begun, left = "2030-01-01T00:00:00Z", "2030-01-01T00:01:12Z"
    attempt = {"stage": "ShuttingDown", "action": "GracefulShutdown", "startedAt": begun, "completedAt": left}
    stages = [{"name": "ShuttingDown", "startedAt": begun, "limitSeconds": 120}]
    target = {"machineRef": MACHINE, "phase": "InProgress", "stage": "ShuttingDown", "attempts": 3, "startedAt": begun}
    replies = ({"reply": "NotDone", "reason": "Busy", "message": "try again"}, {"reply": "Unknown"})
    attempts = [{**attempt, "number": number, **reply} for number, reply in enumerate(replies, 1)]

    async def write(**status: Any) -> None:
        await staged.patch(MACHINE_OPERATIONS, OPERATION, {"status": status}, subresource="status")

    before = (await staged.get(MACHINE_OPERATIONS.raw(), OPERATION))["status"]
    page = admin.page
    try:
        await write(targets=[target], history={"stages": stages, "attempts": attempts})
        await admin.visit(f"/operation/{OPERATION}")
        current = page.locator("li[aria-current=step]")
        await expect(current).to_contain_text(f"began {begun}")
        await expect(current).to_contain_text("at most 2 min")
        rows = page.get_by_role("table", name="Attempts").locator("tbody tr")
        await expect(rows).to_have_count(3)
        await expect(rows.first).to_contain_text("try again")
        await expect(rows.last).to_contain_text("none yet")
        stages = [
            {**stages[0], "completedAt": left, "spentSeconds": 72},
            {"name": "WaitingOff", "startedAt": left, "limitSeconds": 300},
        ]
        await write(targets=[{**target, "stage": "WaitingOff"}], history={"stages": stages, "attempts": attempts})
        done = page.locator(".timeline li", has_text="done")
        await expect(done).to_have_count(1)
        await expect(done).to_contain_text(f"began {begun}, 1 min 12 s, at most 2 min")
        await expect(current).to_contain_text(f"began {left}")
        assert await admin.findings_on_all_screens() == []
        await write(history=None)
        await expect(page.locator(".timeline li", has_text="passed, or not needed").first).to_be_visible()
        await expect(current).to_contain_text("WaitingOff")
        await expect(current).not_to_contain_text("began")
        await expect(rows).to_have_count(1)
    finally:
        await write(targets=before["targets"], history=before["history"])


async def test_links_lead_by_keyboard_from_the_fleet_to_an_operation_and_to_a_site(admin: Tab) -> None:
    await admin.visit(f"/?text={MACHINE}")
    for name, path in (
        (MACHINE, f"/machine/{MACHINE}"),
        (f"HostReboot {OPERATION}", f"/operation/{OPERATION}"),
        (MACHINE, f"/machine/{MACHINE}"),
        (SITE, f"/site/{SITE}"),
    ):
        await admin.page.get_by_role("link", name=name, exact=True).first.focus()
        await admin.page.keyboard.press("Enter")
        await admin.page.wait_for_url(f"**{path}")


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("/machine/none", "Machine none does not exist."),
        ("/operation/none", "Operation none does not exist"),
        ("/host/ns-1/none", "This BareMetalHost does not exist."),
        ("/cluster/ns-1/none", "This Cluster does not exist."),
    ],
)
async def test_a_page_of_nothing_says_so(admin: Tab, path: str, text: str) -> None:
    await admin.visit(path)
    await admin.shows(text)


# ---- actions


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def operator_tab(kubeconfig: Path, browser: Browser, staged: HttpApi) -> AsyncIterator[Tab]:
    async with console(kubeconfig, "--allow-operations") as running, tab(browser, await running.next_url()) as found:
        yield found


@pytest.fixture
def operator(operator_tab: Tab) -> Iterator[Tab]:
    """A browser whose console allows operations, for the tests one after another."""
    yield operator_tab
    operator_tab.check()


@pytest_asyncio.fixture(loop_scope="module")
async def brief(staged: HttpApi) -> AsyncIterator[str]:
    """The name of a Machine with a BMC, which lives as long as the test."""
    number = next(NUMBERS)
    async with created(staged, MACHINES, {"metadata": {"name": f"brief-{number}"}, "spec": bmc_spec(number)}) as made:
        yield made.name


async def until(api: HttpApi, kind: Kind[T], name: str, holds: Callable[[T], bool]) -> T:
    """Wait until an object is as desired; return it."""
    async with asyncio.timeout(LIMIT_S):
        while not holds(found := await api.get(kind, name)):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    return found


async def test_a_console_that_only_reads_has_no_actions(admin: Tab) -> None:
    await admin.visit(f"/machine/{MACHINE}")
    await admin.shows("Disk 3")
    assert await admin.button("Pause operations").count() == 0
    assert await admin.button("Replace").count() == 0


async def test_a_pause_is_planned_shown_as_its_command_and_then_made(
    operator: Tab, staged: HttpApi, brief: str
) -> None:
    await operator.visit(f"/machine/{brief}")
    await operator.button("Pause operations").focus()
    await operator.page.keyboard.press("Enter")
    await operator.shows(f"would patch machine.unbounded-cloud.io/{brief}: paused")
    await operator.shows(f"kubectl unbounded machine pause {brief}")
    assert not is_paused((await staged.get(MACHINES, brief)).metadata.annotations)
    assert await operator.findings_on_all_screens() == []
    await operator.button("Pause operations").last.click()
    await until(staged, MACHINES, brief, lambda one: is_paused(one.metadata.annotations))
    await operator.shows("Done: paused.")
    await operator.button("Resume operations").click()
    resume = operator.page.locator(PANEL).get_by_text(f"kubectl unbounded machine resume {brief}")
    await resume.wait_for()
    await operator.button("Do nothing").click()
    await resume.wait_for(state="detached")
    assert is_paused((await staged.get(MACHINES, brief)).metadata.annotations)


async def test_a_replacement_needs_the_name_of_its_machine_and_can_be_cancelled(
    operator: Tab, staged: HttpApi, brief: str
) -> None:
    await operator.visit(f"/machine/{brief}")
    await operator.button("Replace").click()
    await operator.shows("this loses everything on its disk")
    assert await operator.findings_on_all_screens() == []
    assert await operator.keyboard_findings() == []
    confirm, field = operator.button("Replace").last, operator.page.get_by_label(f"Type {brief} to continue")
    await expect(confirm).to_be_disabled()
    await field.fill("web-02")
    await operator.page.wait_for_timeout(300)
    await expect(confirm).to_be_disabled()
    await field.fill(brief)
    await operator.page.keyboard.press("Enter")
    await operator.page.get_by_role("link", name=f"Show {brief}-replace-").click()
    await operator.page.wait_for_url(f"**/operation/{brief}-replace-*")
    name = operator.page.url.rpartition("/")[2]
    made = await staged.get(MACHINE_OPERATIONS, name)
    assert (made.spec.operation_kind, made.spec.machine_ref) == ("HostReplace", brief)

    await operator.button("Cancel").click()
    await operator.shows(f"kubectl unbounded machine operation cancel {name}")
    await operator.button("Cancel").last.click()
    await until(staged, MACHINE_OPERATIONS, name, lambda one: one.spec.cancel)
    await operator.shows("Done: cancel requested.")


async def test_a_plan_shows_texts_of_its_machine_and_never_runs_them(operator: Tab, staged: HttpApi) -> None:
    """Also a message of a policy of the server, and what the user types."""
    async with hostile_objects(staged):
        await operator.visit(f"/machine/{NAME}")
        await operator.button("Replace").click()
        expected = [text for field in PLANNED for text in texts(field)]
        await check_texts(operator, expected, f"the plan of Machine {NAME}", part=PANEL)
        field = operator.page.get_by_label(f"Type {NAME} to continue")
        for text in PAYLOADS:
            await field.fill(text)
        await operator.page.keyboard.press("Enter")
        await operator.page.wait_for_timeout(300)
        await expect(operator.button("Replace").last).to_be_disabled()
        await check_nothing_ran(operator, "the consent")
        async with hostile_policy(staged):
            await operator.button("End the maintenance").click()
            await check_texts(operator, texts("refusal"), "the refusal of the server", part=PANEL)
            await operator.shows("It would be rejected, so it is not offered.")


async def test_a_plan_ends_with_its_machine(operator: Tab, staged: HttpApi, brief: str) -> None:
    await operator.visit(f"/machine/{brief}")
    for again in (False, True):
        await operator.button("Pause operations").click()
        await operator.shows(f"would patch machine.unbounded-cloud.io/{brief}: paused")
        await expect(operator.button("Pause operations")).to_have_count(2)
        await staged.delete(MACHINES, brief)
        if again:
            await staged.create(MACHINES, {"metadata": {"name": brief}})
            await operator.shows("so its plan is void")
            await expect(operator.button("Pause operations")).to_have_count(1)
        else:
            await operator.shows(f"{brief} was deleted, so its plan is void")
            await expect(operator.button("Pause operations")).to_have_count(0)
            await staged.create(MACHINES, {"metadata": {"name": brief}})
            await operator.button("Close").click()
    assert not is_paused((await staged.get(MACHINES, brief)).metadata.annotations)


async def test_a_plan_is_void_after_a_further_operation(operator: Tab, staged: HttpApi, brief: str) -> None:
    await operator.visit(f"/machine/{brief}")
    await operator.button("Reboot the host").click()
    await expect(operator.button("Reboot the host")).to_have_count(2)
    other = f"{brief}-from-another-tab"
    request = {"operationKind": "HostReboot", "machineRef": brief}
    async with created(staged, MACHINE_OPERATIONS, {"metadata": {"name": other}, "spec": request}):
        await operator.button("Reboot the host").last.click()
        await operator.shows(f"{other} was requested after this plan: nothing was changed")
        found = [one.name for one in (await staged.list(MACHINE_OPERATIONS)).items if one.spec.machine_ref == brief]
        assert found == [other]
        await operator.button("Plan again").click()
        await expect(operator.button("Reboot the host")).to_have_count(2)
        await operator.button("Reboot the host").last.click()
        await operator.shows(f"Done: operation {brief}-host-reboot-")


async def test_the_last_pressed_action_is_planned(operator: Tab, brief: str) -> None:
    await operator.visit(f"/machine/{brief}")
    await operator.button("Drain").wait_for()
    await operator.page.evaluate(
        """() => {
            const found = [...document.querySelectorAll("button")];
            for (const name of ["Pause operations", "Drain"]) found.find((one) => one.textContent === name).click();
        }"""
    )
    await operator.shows(f"kubectl unbounded machine drain {brief}")
    await expect(operator.button("Drain")).to_have_count(2)
    await expect(operator.button("Pause operations")).to_have_count(1)


async def test_a_plan_is_left_by_keyboard_and_the_focus_is_at_its_button_again(operator: Tab, staged: HttpApi) -> None:
    await operator.visit(f"/machine/{MACHINE}")
    for key in ("Escape", "Enter"):
        await operator.button("Replace").focus()
        await operator.page.keyboard.press("Enter")
        await operator.page.get_by_label(f"Type {MACHINE} to continue").focus()
        await operator.page.keyboard.type("web")
        if key == "Enter":
            await operator.page.keyboard.press(key)  # in the field, with another text
            await operator.page.wait_for_timeout(300)
            await operator.button("Do nothing").focus()
        await operator.page.keyboard.press(key)
        await expect(operator.button("Replace")).to_have_count(1)
        await expect(operator.button("Replace")).to_be_focused()


async def test_a_write_that_has_failed_is_planned_again(
    kubeconfig: Path, browser: Browser, staged: HttpApi, brief: str, tmp_path: Path
) -> None:
    token = await create_reader(staged, "writer", "machines", "machineoperations")
    reads = {"apiGroups": [GROUP], "resources": ["*"], "verbs": ["get", "list", "watch"]}
    writes = {**reads, "verbs": ["*"]}
    await staged.patch(ROLES, "writer", {"rules": [writes]})
    own = console(kubeconfig_of(kubeconfig, token, tmp_path / "writer"), "--allow-operations")
    async with own as process, tab(browser, await process.next_url()) as found:
        await found.visit(f"/machine/{brief}")
        await found.button("Pause operations").click()
        await expect(found.button("Pause operations")).to_have_count(2)
        await staged.patch(ROLES, "writer", {"rules": [reads]})
        await found.button("Pause operations").last.click()
        await found.shows("Failed: ")
        assert not is_paused((await staged.get(MACHINES, brief)).metadata.annotations)
        await staged.patch(ROLES, "writer", {"rules": [writes]})
        await found.button("Plan again").click()
        await expect(found.button("Pause operations")).to_have_count(2)
        await found.button("Pause operations").last.click()
        await found.shows("Done: paused.")


async def test_a_write_that_the_server_refuses_is_not_offered(
    kubeconfig: Path, browser: Browser, staged: HttpApi, tmp_path: Path
) -> None:
    token = await create_reader(staged, "looker", "machines", "machineoperations")
    own = console(kubeconfig_of(kubeconfig, token, tmp_path / "looker"), "--allow-operations")
    async with own as process, tab(browser, await process.next_url()) as found:
        await found.visit(f"/machine/{MACHINE}")
        await found.button("Drain").click()
        await found.shows("the server refuses it")
        await found.shows("It would be rejected, so it is not offered.")
        await expect(found.button("Drain")).to_have_count(1)
    assert (await staged.get(MACHINES, MACHINE)).spec.maintenance is None
