"""The pages of one object and of many in Chromium, against an embedded API server and a console process."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final, TypeVar, cast

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Locator, expect

from tests.console.browser import CHROMIUM, NARROW, WIDE, Tab, tab
from tests.console.running import Console, console
from tests.console.served import ROLES, create_namespace, create_reader, kubeconfig_of, set_status
from unbounded.api.configuration import MACHINE_CONFIGURATIONS
from unbounded.api.container_cloud.cluster import CLUSTERS
from unbounded.api.container_cloud.host import BARE_METAL_HOSTS
from unbounded.api.core import LEASES
from unbounded.api.disruption import MACHINE_DISRUPTION_BUDGETS
from unbounded.api.machine import MACHINES
from unbounded.api.meta import Kind
from unbounded.api.names import GROUP, LABEL_SITE, NAMESPACE
from unbounded.api.operation import MACHINE_OPERATIONS
from unbounded.cli.manifests import install_container_cloud
from unbounded.kube.client import HttpApi
from unbounded.kube.clock import rfc3339, utc_now
from unbounded.operations.claim_gates import is_paused

pytestmark = [
    pytest.mark.slow,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed: scripts/browser-tools"),
]
T = TypeVar("T")
LIVE_S: Final = 1.0
CANARY: Final = "canary-7c1f"  # in objects that one user may not read
MACHINE, OPERATION, SITE = "web-01", f"web-01-reboot-{CANARY}", "rack1"
SPEC: Final = {
    "pxe": {
        "image": "registry.example.com/ubuntu:1",
        "redfish": {
            "url": "https://bmc-1.example.com",
            "username": "admin",
            "passwordRef": {"name": "bmc", "namespace": NAMESPACE, "key": "password"},
        },
        "dhcpLeases": [
            {"ipv4": "10.0.0.5", "mac": "52:54:00:00:00:01", "subnetMask": "255.255.255.0", "gateway": "10.0.0.1"}
        ],
    },
}
# each page, its path, and a text that it shows of its object
PAGES: Final = {
    "machine": (f"/machine/{MACHINE}", "Critical"),
    "operation": (f"/operation/{OPERATION}", "waits for the host to shut down"),
    "rollouts": ("/rollouts", "HostReboot holder-1"),
    "site": (f"/site/{SITE}", "ImageWriting"),
    "hosts": ("/hosts", "ns-1/host-1"),
    "host": ("/host/ns-1/host-1", "redfish://192.0.2.1"),
    "cluster": ("/cluster/ns-1/cluster-1", "release-1"),
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def staged(api: HttpApi) -> HttpApi:
    """The API with an object of each kind."""
    now = rfc3339()
    await install_container_cloud(api)
    for namespace in (NAMESPACE, "ns-1"):
        await create_namespace(api, namespace)
    made = await api.create(MACHINES, {"metadata": {"name": MACHINE, "labels": {LABEL_SITE: SITE}}, "spec": SPEC})
    spec = {"operationKind": "HostReboot", "machineRef": MACHINE, "startDeadlineSeconds": 3600}
    operation = await api.create(MACHINE_OPERATIONS, {"metadata": {"name": OPERATION}, "spec": spec})
    uid, executor = operation.metadata.uid, "metalman/rack1"
    hardware = {
        "source": "Installer",
        "at": now,
        "digest": "0" * 64,
        "disks": [{"name": "nvme0n1", "serialNumber": "PHYF001", "sizeBytes": 480 * 10**9}],
        "bmc": {"at": now, "parts": [{"kind": "disk", "name": "Disk 3", "health": "Critical"}]},
    }
    await set_status(
        api,
        MACHINE,
        phase="Rebooting",
        message="HostReboot",
        hardware=hardware,
        power={"state": "On", "at": now},
        netboot={"boot": uid, "milestone": "ImageWriting", "percent": 10, "at": now},
        activeOperation={
            "uid": uid,
            "name": OPERATION,
            "kind": "HostReboot",
            "executor": executor,
            "since": now,
        },
    )
    execution = {
        "executor": executor,
        "incarnation": "p1",
        "machineUID": made.metadata.uid,
        "binding": "b",
        "action": "GracefulShutdown",
        "recordedAt": now,
    }
    target = {"machineRef": MACHINE, "phase": "InProgress", "stage": "ShuttingDown", "attempts": 1, "startedAt": now}
    status = {"phase": "InProgress", "startedAt": now, "targets": [target], "execution": execution}
    await api.patch(MACHINE_OPERATIONS, OPERATION, {"status": status}, subresource="status")
    await _stage_rollouts(api, now)
    await _stage_hosts(api)
    return api


async def _stage_rollouts(api: HttpApi, now: str) -> None:
    body = {"metadata": {"name": "workers"}, "spec": {"template": {}}}
    await api.create(MACHINE_CONFIGURATIONS, body)
    stage = {"name": "canary", "phase": "Soaking", "targets": 2, "completed": 2}
    rollout = {"version": 2, "phase": "InProgress", "stage": "canary", "stages": [stage]}
    await api.patch(MACHINE_CONFIGURATIONS, "workers", {"status": {"rollout": rollout}}, subresource="status")
    selector = {"machineSelector": {"matchLabels": {LABEL_SITE: SITE}}, "maxUnavailable": 1}
    await api.create(MACHINE_DISRUPTION_BUDGETS, {"metadata": {"name": "rack1"}, "spec": selector})
    holder = {"kind": "HostReboot", "name": "holder-1", "uid": "u"}
    grant = {"machine": MACHINE, "machineUID": "u", "holder": holder, "since": now}
    status = {"allowed": 0, "granted": 1, "grants": [grant]}
    await api.patch(MACHINE_DISRUPTION_BUDGETS, "rack1", {"status": status}, subresource="status")


async def _stage_hosts(api: HttpApi) -> None:
    host = {"bmc": {"address": "redfish://192.0.2.1/redfish/v1/Systems/1"}, "bootMACAddress": "52:54:00:00:00:09"}
    await api.create(BARE_METAL_HOSTS, {"metadata": {"name": "host-1"}, "spec": host}, namespace="ns-1")
    value = {
        "apiVersion": "baremetal.k8s.io/v1alpha1",
        "kind": "BaremetalClusterProviderSpec",
        "release": "release-1",
        "maxWorkerUpgradeCount": 1,
    }
    labels = {"kaas.mirantis.com/provider": "baremetal", "kaas.mirantis.com/region": "region-one"}
    cluster = {"metadata": {"name": "cluster-1", "labels": labels}, "spec": {"providerSpec": {"value": value}}}
    await api.create(CLUSTERS, cluster, namespace="ns-1")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def admin(running: Console, browser: Browser, staged: HttpApi) -> AsyncIterator[Tab]:
    """A browser of the administrator, for the tests one after another."""
    async with tab(browser, await running.next_url()) as found:
        yield found


async def visit(found: Tab, path: str) -> None:
    await found.page.goto("/".join(found.page.url.split("/")[:3]) + path)


@pytest.mark.parametrize("name", PAGES)
async def test_a_page_shows_its_object_on_wide_and_narrow_screens(name: str, admin: Tab) -> None:
    path, text = PAGES[name]
    await visit(admin, path)
    await admin.shows(text)
    assert await admin.page.locator("h1").count() == 1
    for size, scheme in ((WIDE, "light"), (NARROW, "dark")):
        await admin.page.set_viewport_size(size)
        await admin.page.emulate_media(color_scheme=cast("Any", scheme))
        assert await admin.serious_findings() == []
        assert await admin.page.evaluate("document.documentElement.scrollWidth") <= size["width"]
    await admin.page.set_viewport_size(WIDE)


async def test_a_change_of_a_machine_is_on_its_page_within_a_second(admin: Tab, staged: HttpApi) -> None:
    await visit(admin, f"/machine/{MACHINE}")
    await admin.shows("Disk 3")
    waits = []
    for number in range(3):
        began = time.monotonic()
        await set_status(staged, MACHINE, message=f"change {number} of the Machine")
        await admin.shows(f"change {number} of the Machine")
        waits.append(time.monotonic() - began)
    assert min(waits) < LIVE_S, waits


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
    await staged.create(LEASES, {"metadata": {"name": name}, "spec": old}, namespace=NAMESPACE)
    await visit(admin, f"/site/{SITE}")
    await row.get_by_text("not renewed in the last 30 s").wait_for()
    await admin.shows("The site has no default bootstrap token.")
    began = time.monotonic()
    await lead("pod-1", utc_now())
    await row.get_by_text("leads").wait_for()
    assert time.monotonic() - began < LIVE_S * 2
    await admin.page.evaluate(COUNT_CHANGES)
    for _ in range(10):
        await lead("pod-1", utc_now())
        await asyncio.sleep(0.1)
    await admin.page.wait_for_timeout(500)
    assert await admin.page.evaluate("window.changes") == 0
    await lead("pod-2", utc_now())
    await row.get_by_text("pod-2").wait_for()
    await staged.delete(LEASES, name, namespace=NAMESPACE)
    await row.get_by_text("does not exist: it has never run here").wait_for()


async def test_focus_stays_where_a_page_changes(admin: Tab, staged: HttpApi) -> None:
    await visit(admin, f"/machine/{MACHINE}")
    await admin.page.get_by_role("link", name=SITE, exact=True).first.focus()
    await set_status(staged, MACHINE, reason="HostReboot")  # one more fact, in front of it
    await admin.page.locator("dt", has_text="Reason").wait_for()
    assert await admin.page.evaluate("document.activeElement.textContent") == SITE


async def test_the_time_of_a_stage_grows_without_a_change(admin: Tab) -> None:
    await visit(admin, f"/operation/{OPERATION}")
    current = admin.page.locator("li[aria-current=step]")
    await current.wait_for()
    before = await current.inner_text()
    assert "at most 2 min" in before
    await admin.page.wait_for_function(
        "before => document.querySelector('li[aria-current=step]').innerText !== before", arg=before, timeout=10_000
    )


async def test_links_lead_by_keyboard_from_the_fleet_to_an_operation_and_to_a_site(admin: Tab) -> None:
    await visit(admin, f"/?text={MACHINE}")
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
    await visit(admin, path)
    await admin.shows(text)


async def test_a_page_shows_nothing_that_its_user_may_not_read(
    kubeconfig: Path, browser: Browser, staged: HttpApi, tmp_path: Path
) -> None:
    """The administrator's page shows the operation; that of a user with other rights never does."""
    token = await create_reader(staged, "reader", "machines")
    own = console(kubeconfig_of(kubeconfig, token, tmp_path / "reader"))
    async with own as process, tab(browser, await process.next_url()) as found:
        await visit(found, f"/operation/{OPERATION}")
        await found.shows("You may not read machineoperations.unbounded-cloud.io.")
        assert "ShuttingDown" not in await found.page.content()
        await visit(found, "/rollouts")
        await found.shows("You may not read machinedisruptionbudgets.unbounded-cloud.io.")
        await found.shows("not all readable")
        assert "No MachineDisruptionBudget exists." not in await found.page.content()
        assert "holder-1" not in await found.page.content()
        assert CANARY not in await found.page.content()
        await visit(found, f"/machine/{MACHINE}")
        await found.shows("Disk 3")
        await found.shows("left out")
        assert CANARY not in await found.page.locator("ul.tree").inner_text()
        await visit(found, f"/site/{SITE}")
        await found.shows("You may not read Secrets in kube-system.")
        await found.shows("You may not read leases.coordination.k8s.io.")


async def test_what_a_user_may_not_read_any_more_leaves_the_page(
    kubeconfig: Path, browser: Browser, staged: HttpApi, tmp_path: Path
) -> None:
    token = await create_reader(staged, "leaver", "machines", "machineoperations")
    own = console(kubeconfig_of(kubeconfig, token, tmp_path / "leaver"), "--allow-operations")
    async with own as process, tab(browser, await process.next_url()) as found:
        await visit(found, f"/machine/{MACHINE}")
        tree = found.page.locator("ul.tree")
        await tree.get_by_text(OPERATION).first.wait_for()
        await button(found, "Drain").click()
        plan = found.page.get_by_text("would patch machine.unbounded-cloud.io")
        await plan.wait_for()
        rules = [{"apiGroups": [GROUP], "resources": ["machines"], "verbs": ["get", "list", "watch"]}]
        await staged.patch(ROLES, "leaver", {"rules": rules})
        await tree.get_by_text(OPERATION).first.wait_for(state="detached")
        await plan.wait_for(state="detached")
        await found.shows("left out", within_s=20)


# ---- actions


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def operator(kubeconfig: Path, browser: Browser, staged: HttpApi) -> AsyncIterator[Tab]:
    """A browser whose console allows operations."""
    async with console(kubeconfig, "--allow-operations") as running, tab(browser, await running.next_url()) as found:
        yield found


async def until(api: HttpApi, kind: Kind[T], name: str, holds: Callable[[T], bool]) -> T:
    """Wait until an object is as desired; return it."""
    async with asyncio.timeout(20):
        while not holds(found := await api.get(kind, name)):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    return found


def button(found: Tab, name: str) -> Locator:
    return found.page.get_by_role("button", name=name, exact=True)


async def test_a_console_that_only_reads_has_no_actions(admin: Tab) -> None:
    await visit(admin, f"/machine/{MACHINE}")
    await admin.shows("Disk 3")
    assert await button(admin, "Pause operations").count() == 0
    assert await button(admin, "Replace").count() == 0


async def test_a_pause_is_planned_shown_as_its_command_and_then_made(operator: Tab, staged: HttpApi) -> None:
    await visit(operator, f"/machine/{MACHINE}")
    await button(operator, "Pause operations").focus()
    await operator.page.keyboard.press("Enter")
    await operator.shows("would patch machine.unbounded-cloud.io/web-01: paused")
    await operator.shows(f"kubectl unbounded machine pause {MACHINE}")
    assert not is_paused((await staged.get(MACHINES, MACHINE)).metadata.annotations)
    assert await operator.serious_findings() == []
    await operator.page.set_viewport_size(NARROW)
    assert await operator.page.evaluate("document.documentElement.scrollWidth") <= NARROW["width"]
    await operator.page.set_viewport_size(WIDE)
    await button(operator, "Pause operations").last.click()
    await until(staged, MACHINES, MACHINE, lambda one: is_paused(one.metadata.annotations))
    await operator.shows("Done: paused.")
    await button(operator, "Resume operations").click()
    await operator.shows("kubectl unbounded machine resume")
    await button(operator, "Do nothing").click()
    await operator.page.get_by_text("kubectl unbounded machine resume").wait_for(state="detached")
    assert is_paused((await staged.get(MACHINES, MACHINE)).metadata.annotations)


async def test_a_replacement_needs_the_name_of_its_machine_and_can_be_cancelled(operator: Tab, staged: HttpApi) -> None:
    await visit(operator, f"/machine/{MACHINE}")
    await button(operator, "Replace").click()
    await operator.shows("this loses everything on its disk")
    confirm = button(operator, "Replace").last
    assert await confirm.is_disabled()
    await operator.page.get_by_label(f"Type {MACHINE} to continue").fill("web-02")
    await operator.page.wait_for_timeout(300)
    assert await confirm.is_disabled()
    await operator.page.get_by_label(f"Type {MACHINE} to continue").fill(MACHINE)
    await operator.page.keyboard.press("Enter")
    link = operator.page.get_by_role("link", name="Show web-01-replace-")
    await link.wait_for()
    await link.click()
    await operator.page.wait_for_url("**/operation/web-01-replace-*")
    name = operator.page.url.rpartition("/")[2]
    made = await staged.get(MACHINE_OPERATIONS, name)
    assert (made.spec.operation_kind, made.spec.machine_ref) == ("HostReplace", MACHINE)

    await button(operator, "Cancel").click()
    await operator.shows(f"kubectl unbounded machine operation cancel {name}")
    await button(operator, "Cancel").last.click()
    await until(staged, MACHINE_OPERATIONS, name, lambda one: one.spec.cancel)
    await operator.shows("Done: cancel requested.")


async def test_a_plan_ends_with_its_machine(operator: Tab, staged: HttpApi) -> None:
    await staged.create(MACHINES, {"metadata": {"name": "brief-1"}})
    await visit(operator, "/machine/brief-1")
    for again in (False, True):
        await button(operator, "Pause operations").click()
        await operator.shows("would patch machine.unbounded-cloud.io/brief-1: paused")
        assert await button(operator, "Pause operations").count() == 2
        await staged.delete(MACHINES, "brief-1")
        if again:
            await staged.create(MACHINES, {"metadata": {"name": "brief-1"}})
            await operator.shows("so its plan is void")
            await expect(button(operator, "Pause operations")).to_have_count(1)
        else:
            await operator.shows("brief-1 was deleted, so its plan is void")
            await expect(button(operator, "Pause operations")).to_have_count(0)
            await staged.create(MACHINES, {"metadata": {"name": "brief-1"}})
            await button(operator, "Close").click()
    assert not is_paused((await staged.get(MACHINES, "brief-1")).metadata.annotations)


async def test_a_plan_is_void_after_a_further_operation(operator: Tab, staged: HttpApi) -> None:
    spec = {**SPEC, "pxe": {**SPEC["pxe"], "dhcpLeases": []}}
    await staged.create(MACHINES, {"metadata": {"name": "brief-4"}, "spec": spec})
    await visit(operator, "/machine/brief-4")
    await button(operator, "Reboot the host").click()
    await expect(button(operator, "Reboot the host")).to_have_count(2)
    request = {"operationKind": "HostReboot", "machineRef": "brief-4"}
    await staged.create(MACHINE_OPERATIONS, {"metadata": {"name": "from-another-tab"}, "spec": request})
    await button(operator, "Reboot the host").last.click()
    await operator.shows("from-another-tab was requested after this plan: nothing was changed")
    found = [one.name for one in (await staged.list(MACHINE_OPERATIONS)).items if one.spec.machine_ref == "brief-4"]
    assert found == ["from-another-tab"]
    await button(operator, "Plan again").click()
    await expect(button(operator, "Reboot the host")).to_have_count(2)
    await button(operator, "Reboot the host").last.click()
    await operator.shows("Done: operation brief-4-host-reboot-")


async def test_the_last_pressed_action_is_planned(operator: Tab, staged: HttpApi) -> None:
    await staged.create(MACHINES, {"metadata": {"name": "brief-2"}})
    await visit(operator, "/machine/brief-2")
    await button(operator, "Drain").wait_for()
    await operator.page.evaluate(
        """() => {
            const found = [...document.querySelectorAll("button")];
            for (const name of ["Pause operations", "Drain"]) found.find((one) => one.textContent === name).click();
        }"""
    )
    await operator.shows("kubectl unbounded machine drain brief-2")
    await expect(button(operator, "Drain")).to_have_count(2)
    assert await button(operator, "Pause operations").count() == 1


async def test_a_plan_is_left_by_keyboard_and_the_focus_is_at_its_button_again(operator: Tab, staged: HttpApi) -> None:
    await visit(operator, f"/machine/{MACHINE}")
    for key in ("Escape", "Enter"):
        await button(operator, "Replace").focus()
        await operator.page.keyboard.press("Enter")
        await operator.page.get_by_label(f"Type {MACHINE} to continue").focus()
        await operator.page.keyboard.type("web")
        if key == "Enter":
            await operator.page.keyboard.press(key)  # in the field, with another text
            await operator.page.wait_for_timeout(300)
            await button(operator, "Do nothing").focus()
        await operator.page.keyboard.press(key)
        await expect(button(operator, "Replace")).to_have_count(1)
        await expect(button(operator, "Replace")).to_be_focused()


async def test_a_write_that_has_failed_is_planned_again(
    kubeconfig: Path, browser: Browser, staged: HttpApi, tmp_path: Path
) -> None:
    await staged.create(MACHINES, {"metadata": {"name": "brief-3"}})
    token = await create_reader(staged, "writer", "machines", "machineoperations")
    reads = {"apiGroups": [GROUP], "resources": ["*"], "verbs": ["get", "list", "watch"]}
    writes = {**reads, "verbs": ["*"]}
    await staged.patch(ROLES, "writer", {"rules": [writes]})
    own = console(kubeconfig_of(kubeconfig, token, tmp_path / "writer"), "--allow-operations")
    async with own as process, tab(browser, await process.next_url()) as found:
        await visit(found, "/machine/brief-3")
        await button(found, "Pause operations").click()
        await expect(button(found, "Pause operations")).to_have_count(2)
        await staged.patch(ROLES, "writer", {"rules": [reads]})
        await button(found, "Pause operations").last.click()
        await found.shows("Failed: ")
        assert not is_paused((await staged.get(MACHINES, "brief-3")).metadata.annotations)
        await staged.patch(ROLES, "writer", {"rules": [writes]})
        await button(found, "Plan again").click()
        await expect(button(found, "Pause operations")).to_have_count(2)
        await button(found, "Pause operations").last.click()
        await found.shows("Done: paused.")


async def test_a_write_that_the_server_refuses_is_not_offered(
    kubeconfig: Path, browser: Browser, staged: HttpApi, tmp_path: Path
) -> None:
    token = await create_reader(staged, "looker", "machines", "machineoperations")
    own = console(kubeconfig_of(kubeconfig, token, tmp_path / "looker"), "--allow-operations")
    async with own as process, tab(browser, await process.next_url()) as found:
        await visit(found, f"/machine/{MACHINE}")
        await button(found, "Drain").click()
        await found.shows("the server refuses it")
        await found.shows("It would be rejected, so it is not offered.")
        assert await button(found, "Drain").count() == 1
    assert (await staged.get(MACHINES, MACHINE)).spec.maintenance is None
