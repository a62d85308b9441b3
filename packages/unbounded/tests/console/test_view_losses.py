"""Views of users with fewer rights, and views that lose their page, their server or their rights."""

from __future__ import annotations

import asyncio
import re
from asyncio.subprocess import PIPE, STDOUT
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest
import pytest_asyncio
from playwright.async_api import Browser, expect

from tests.cli.running import KUBECTL
from tests.console.browser import CHROMIUM, Tab, tab
from tests.console.running import console
from tests.console.served import (
    BINDINGS,
    ROLE_BINDINGS,
    ROLES,
    bind,
    create_namespace,
    create_new,
    create_project_viewer,
    create_reader,
    created,
    host_body,
    kubeconfig_at,
    kubeconfig_of,
    temporary_status,
)
from tests.console.staging import CANARY, MACHINE, OPERATION, PAGES, SITE
from tests.containercloud.objects import machine_body
from tests.support.paths import ROOT
from tests.support.proxy import Proxy, proxy
from unbounded.api.container_cloud.host import BARE_METAL_HOSTS
from unbounded.api.container_cloud.machine import CONTAINER_CLOUD_MACHINES
from unbounded.api.names import GROUP, NAMESPACE
from unbounded.kube.api import NotFound
from unbounded.kube.client import HttpApi

pytestmark = [
    pytest.mark.slow,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed: scripts/browser-tools"),
]
VIEWS: Final = {"fleet": (f"/?site={SITE}", MACHINE), **PAGES}
ALL_KINDS: Final = [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["get", "list", "watch"]}]
GRANTED: Final = {
    "fleet-viewers": {"ns-1": "yes", "default": "yes"},
    "project-viewers": {"ns-1": "yes", "default": "no"},
}
SLOW_S: Final = 1.5  # of each piece of an answer; NiceGUI gives a page up after 3 s
INTERRUPTED: Final = "the watch is interrupted"
# the text of a page that shows all that it knows, but for times that grow
SETTLED: Final = """(expected) => {
  const text = document.querySelector("main").innerText.replace(/\\d+ (h|min|s)( \\d+ (min|s))?/g, "TIME");
  return !text.includes("Being ") && (!expected || text === expected) && text;
}"""


@dataclass(frozen=True)
class OpenViews:
    """Each view in a page of its own, all in one browser context, whose user reads all kinds.

    Attributes:
        line: between the console and the server.
    """

    tabs: Mapping[str, Tab]
    line: Proxy
    role: str


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def views(
    kubeconfig: Path, browser: Browser, staged: HttpApi, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[OpenViews]:
    role, folder = "all-views", tmp_path_factory.mktemp("views")
    token = await create_reader(staged, role)
    await staged.patch(ROLES, role, {"rules": ALL_KINDS})
    async with proxy(staged.config.server) as line:
        reader = kubeconfig_of(kubeconfig, token, folder / "reader")
        own = console(kubeconfig_at(reader, line.url, folder / "kubeconfig"))
        async with own as process, tab(browser, await process.url()) as first:
            origin = "/".join(first.page.url.split("/")[:3])
            tabs = {name: Tab(await first.page.context.new_page(), origin) for name in VIEWS}
            for name, found in tabs.items():
                await found.page.goto(f"{origin}{VIEWS[name][0]}")
            yield OpenViews(tabs, line, role)
            for found in tabs.values():
                found.check()


async def test_each_view_shows_the_same_after_a_reload(views: OpenViews) -> None:
    for name, found in views.tabs.items():
        await found.shows(VIEWS[name][1])
        before = await (await found.page.wait_for_function(SETTLED)).json_value()
        await found.page.reload()
        await found.page.wait_for_function(SETTLED, arg=before)


async def test_each_view_shows_the_age_of_its_data_while_its_server_is_lost(views: OpenViews, staged: HttpApi) -> None:
    views.line.refuse = True
    views.line.cut()
    for name, found in views.tabs.items():
        await found.shows(INTERRUPTED)
        await found.shows(VIEWS[name][1])
        await found.page.locator("[data-since]:visible").first.wait_for()
    async with temporary_status(staged, MACHINE, reason="ChangedMeanwhile"):
        views.line.calm()
        for found in views.tabs.values():
            age = found.page.get_by_text(INTERRUPTED).filter(visible=True)
            await expect(age).to_have_count(0)
        for name in ("fleet", "machine"):
            await views.tabs[name].shows("ChangedMeanwhile")


async def test_each_view_is_emptied_with_the_rights_of_its_user_and_filled_again(
    views: OpenViews, staged: HttpApi
) -> None:
    for name, found in views.tabs.items():
        await found.shows(VIEWS[name][1])
    await staged.patch(ROLES, views.role, {"rules": []})
    for name, found in views.tabs.items():
        await found.shows("ou may not read")
        await found.lacks(VIEWS[name][1])
    await staged.patch(ROLES, views.role, {"rules": ALL_KINDS})
    for name, found in views.tabs.items():
        await found.shows(VIEWS[name][1])


async def test_a_page_shows_nothing_that_its_user_may_not_read(
    kubeconfig: Path, browser: Browser, staged: HttpApi, tmp_path: Path
) -> None:
    """The administrator's page shows the operation; that of a user with other rights never does."""
    token = await create_reader(staged, "reader", "machines")
    own = console(kubeconfig_of(kubeconfig, token, tmp_path / "reader"))
    async with own as process, tab(browser, await process.next_url()) as found:
        await found.visit(f"/operation/{OPERATION}")
        await found.shows("You may not read machineoperations.unbounded-cloud.io.")
        assert "ShuttingDown" not in await found.page.content()
        await found.visit("/rollouts")
        await found.shows("You may not read machinedisruptionbudgets.unbounded-cloud.io.")
        await found.shows("not all readable")
        assert "No MachineDisruptionBudget exists." not in await found.page.content()
        assert "holder-1" not in await found.page.content()
        assert CANARY not in await found.page.content()
        await found.visit(f"/machine/{MACHINE}")
        await found.shows("Disk 3")
        await found.shows("The Node is left out: you have no permission to read it.")
        assert CANARY not in await found.page.locator("ul.tree").inner_text()
        await found.visit(f"/site/{SITE}")
        await found.shows("You may not read Secrets in kube-system.")
        await found.shows(f"You may not read leases.coordination.k8s.io in {NAMESPACE}.")


async def test_a_user_of_one_namespace_sees_its_hosts_and_clusters_and_no_others(
    kubeconfig: Path, browser: Browser, staged: HttpApi, tmp_path: Path
) -> None:
    """The canary is in the name of a host in another namespace, and in its state."""
    await create_namespace(staged, "ns-2")
    token = await create_project_viewer(staged, "project-viewer", "ns-1")
    own = console(kubeconfig_of(kubeconfig, token, tmp_path / "project-viewer"))
    other = created(staged, BARE_METAL_HOSTS, host_body(CANARY), namespace="ns-2", status={"errorMessage": CANARY})
    consumer = {"apiVersion": CONTAINER_CLOUD_MACHINES.api_version, "kind": CONTAINER_CLOUD_MACHINES.kind}
    async with other, own as process, tab(browser, await process.next_url()) as found:
        await found.visit("/hosts")
        await found.shows("You may not read baremetalhosts.metal3.io.")
        assert await found.findings_on_all_screens() == []
        assert await found.keyboard_findings() == []
        await _check_no_canary(found)
        await found.page.get_by_label("Namespace").fill("ns-1")
        await found.page.keyboard.press("Enter")
        await found.page.wait_for_url("**/hosts?namespace=ns-1")
        await found.page.get_by_role("heading", name="Hosts and clusters in ns-1").wait_for()
        await found.shows("1 host, 0 free")
        await found.shows("ns-1/cluster-1")
        assert await found.page.locator(".banner:visible").count() == 0
        claimed = host_body("host-2", consumerRef={**consumer, "namespace": "ns-1", "name": "claim-2"})
        claim = created(staged, CONTAINER_CLOUD_MACHINES, machine_body("claim-2", "cluster-1"), namespace="ns-1")
        async with claim, created(staged, BARE_METAL_HOSTS, claimed, namespace="ns-1"):
            await found.shows("ns-1/host-2")
            for path in ("/host/ns-1/host-2", "/cluster/ns-1/cluster-1"):  # their explanations read the other kind
                await found.visit(path)
                await found.shows("ns-1/claim-2")
                assert await found.page.locator(".banner:visible").count() == 0
            await found.visit("/hosts?namespace=ns-1")
        await found.lacks("ns-1/host-2")
        await _check_no_canary(found)
        await found.page.get_by_role("link", name="ns-1/host-1").click()
        await found.shows("redfish://192.0.2.1")
        await found.shows("BareMetalHost ns-1/host-1")  # the tree, which rests on what may be read
        assert await found.page.locator(".banner:visible").count() == 0
        await found.visit("/cluster/ns-1/cluster-1")
        await found.shows("release-1")
        await found.shows("cluster.cluster.k8s.io/cluster-1 -n ns-1")  # the explanation
        assert await found.page.locator(".banner:visible").count() == 0
        for path in ("/hosts?namespace=ns-2", f"/host/ns-2/{CANARY}", f"/cluster/ns-2/{CANARY}"):
            await found.visit(path)
            await found.shows("in ns-2.")
            await _check_no_canary(found, in_address=CANARY in path)
        await found.visit("/hosts?namespace=ns-1")
        await found.shows("ns-1/host-1")
        await staged.delete(ROLE_BINDINGS, "project-viewer", namespace="ns-1")
        await found.shows("You may not read baremetalhosts.metal3.io in ns-1.")
        await found.lacks("ns-1/host-1")


async def test_a_slow_server_names_the_rights_of_one_namespace_in_the_end(
    kubeconfig: Path, browser: Browser, staged: HttpApi, tmp_path: Path
) -> None:
    """Its answers come after the page has to be there: those of the watches of all namespaces, which it refuses."""
    token = await create_project_viewer(staged, "slow-viewer", "ns-1")
    async with proxy(staged.config.server) as line:
        slow = kubeconfig_at(kubeconfig_of(kubeconfig, token, tmp_path / "direct"), line.url, tmp_path / "slow")
        async with console(slow) as own, tab(browser, await own.url()) as found:
            line.delay_s = SLOW_S
            await found.visit("/host/ns-1/host-1")
            await found.page.locator("main p", has_text="Being read …").wait_for()
            assert await found.page.locator("h1").count() == 0
            line.delay_s = 0
            await found.shows("redfish://192.0.2.1")
            assert await found.page.locator(".banner:visible").count() == 0


async def _check_no_canary(found: Tab, *, in_address: bool = False) -> None:
    """The page has nothing of what its user may not read; the name in its address is the user's own."""
    text = await found.page.locator("main").inner_text()
    assert CANARY not in (text.replace(f"ns-2/{CANARY}", "") if in_address else await found.page.content())


@pytest.mark.skipif(KUBECTL is None, reason="kubectl is not installed")
async def test_the_commands_of_the_guide_grant_all_namespaces_or_one(kubeconfig: Path, staged: HttpApi) -> None:
    text = await asyncio.to_thread((ROOT / "docs" / "console" / "hosts.md").read_text)
    commands = [one.replace("PROJECT", "ns-1") for one in re.findall(r"^    kubectl (.*)$", text, re.MULTILINE)]

    async def kubectl(*words: str) -> str:
        process = await asyncio.create_subprocess_exec(
            *(KUBECTL or "", "--kubeconfig", str(kubeconfig), *words), stdout=PIPE, stderr=STDOUT
        )
        return (await process.communicate())[0].decode().strip()

    try:
        for command in commands:
            assert (await kubectl(*command.split())).endswith(" created")
        for group, answers in GRANTED.items():
            for namespace, answer in answers.items():
                asked = ("list", "bmh", "-n", namespace, "--as", "somebody", "--as-group", group)
                assert await kubectl("auth", "can-i", *asked) == answer
    finally:
        with suppress(NotFound):
            await staged.delete(BINDINGS, "fleet-viewers")
        with suppress(NotFound):
            await staged.delete(ROLE_BINDINGS, "project-viewers", namespace="ns-1")


async def test_namespaces_are_offered_to_a_user_who_may_list_them(
    kubeconfig: Path, browser: Browser, staged: HttpApi, tmp_path: Path
) -> None:
    token = await create_project_viewer(staged, "namespace-lister", "ns-1")
    rules = [{"apiGroups": [""], "resources": ["namespaces"], "verbs": ["list"]}]
    await create_new(staged, ROLES, {"metadata": {"name": "namespace-lister"}, "rules": rules})
    await bind(staged, "namespace-lister")
    own = console(kubeconfig_of(kubeconfig, token, tmp_path / "namespace-lister"))
    async with own as process, tab(browser, await process.next_url()) as found:
        await found.visit("/hosts")
        choice = found.page.locator("select[name=namespace]")
        await choice.select_option("ns-1")
        await found.button("Show").click()
        await found.page.wait_for_url("**/hosts?namespace=ns-1")
        await found.shows("ns-1/host-1")
        await expect(choice).to_have_value("ns-1")


async def test_an_administrator_sees_one_namespace_by_its_address(admin: Tab, staged: HttpApi) -> None:
    await create_namespace(staged, "ns-2")
    async with created(staged, BARE_METAL_HOSTS, host_body("host-3"), namespace="ns-2"):
        await admin.visit("/hosts")
        await admin.shows("ns-1/host-1")
        await admin.shows("ns-2/host-3")
        await expect(admin.page.get_by_label("Namespace")).to_be_hidden()
        await admin.visit("/hosts?namespace=ns-2")
        await admin.shows("ns-2/host-3")
        assert "ns-1/host-1" not in await admin.page.content()


async def test_what_a_user_may_not_read_any_more_leaves_the_page(
    kubeconfig: Path, browser: Browser, staged: HttpApi, tmp_path: Path
) -> None:
    token = await create_reader(staged, "leaver", "machines", "machineoperations")
    own = console(kubeconfig_of(kubeconfig, token, tmp_path / "leaver"), "--allow-operations")
    async with own as process, tab(browser, await process.next_url()) as found:
        await found.visit(f"/machine/{MACHINE}")
        tree = found.page.locator("ul.tree")
        await tree.get_by_text(OPERATION).first.wait_for()
        await found.button("Drain").click()
        plan = found.page.get_by_text("would patch machine.unbounded-cloud.io")
        await plan.wait_for()
        rules = [{"apiGroups": [GROUP], "resources": ["machines"], "verbs": ["get", "list", "watch"]}]
        await staged.patch(ROLES, "leaver", {"rules": rules})
        await tree.get_by_text(OPERATION).first.wait_for(state="detached")
        await plan.wait_for(state="detached")
        await found.shows("left out")
