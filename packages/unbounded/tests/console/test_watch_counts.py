"""Open watches, counted by the API server: one of each kind for a user, and others as long as their page is open."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Final

import pytest
from playwright.async_api import Browser, BrowserContext
from prometheus_client.samples import Sample

from tests.console.browser import CHROMIUM, LIMIT_S, Tab, log_in, tab
from tests.console.running import cluster_console
from tests.console.served import ROLES, create_namespace, create_new, create_reader
from unbounded.api.core import NODES
from unbounded.api.names import NAMESPACE
from unbounded.api.operation import MACHINE_OPERATIONS
from unbounded.cli.manifests import install_container_cloud
from unbounded.console.app import RECONNECT_S
from unbounded.kube.client import HttpApi

pytestmark = [
    pytest.mark.slow,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed: scripts/browser-tools"),
]
MACHINE, OPERATION = "m-001", "reboot-1"
READ_ALL: Final = [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["get", "list", "watch"]}]
# pages of whole kinds alone, each with a text that shows that all is read
KIND_PAGES: Final = {
    "/": "120 Machines",
    "/rollouts": "No MachineDisruptionBudget exists.",
    "/hosts": "No BareMetalHost.",
}
# pages that follow single objects and Leases as well
OBJECT_PAGES: Final = {
    f"/machine/{MACHINE}": f"Node {MACHINE}",
    f"/operation/{OPERATION}": f"operation/{OPERATION}",
    "/site/site-1": "The site has no default bootstrap token.",
}
OF_KINDS: Final = Counter(
    {
        **dict.fromkeys(("machines", "machineoperations", "machineconfigurations"), 1),
        **dict.fromkeys(("machinedisruptionbudgets", "baremetalhosts", "clusters", "machinepools"), 1),
        "machines.cluster.k8s.io": 1,
    }
)
OF_OBJECTS: Final = Counter(
    {
        "machines": 1,  # this one Machine, whole
        "nodes": 1,
        "leases": 2,  # those of controllers, and that of the Node
        "configmaps": 2,  # the pause of all operations, and the state of embedded controllers
        "secrets": 1,  # default bootstrap tokens
    }
)
Count = Callable[[], Awaitable[Counter[str]]]


@pytest.fixture(scope="module")
def count(scrape: Callable[[], Awaitable[list[Sample]]]) -> Count:
    """Counts the open watches by kind, at the API server."""

    async def watches() -> Counter[str]:
        found = Counter[str]()
        for sample in await scrape():
            if sample.name == "apiserver_longrunning_requests":
                found[kind_of(sample.labels)] += int(sample.value)
        return found

    return watches


def kind_of(labels: Mapping[str, str]) -> str:
    """Return the name of a kind; the Machines of two groups are told apart."""
    plural, group = labels["resource"], labels["group"]
    return f"{plural}.{group}" if (plural, group) == ("machines", "cluster.k8s.io") else plural


async def becomes(expected: Counter[str], count: Count, within_s: float = LIMIT_S) -> None:
    found = Counter[str]()
    try:
        async with asyncio.timeout(within_s):
            while (found := await count()) != expected:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
    except TimeoutError:
        pytest.fail(f"{found} in place of {expected}")


async def open_pages(context: BrowserContext, address: str, pages: Mapping[str, str]) -> list[Any]:
    """Open pages of a session, each in a tab of its own, and wait until they show all."""
    opened = []
    for path, text in pages.items():
        page = await context.new_page()
        await page.goto(f"{address}{path}")
        await Tab(page, address).shows(text)
        opened.append(page)
    return opened


async def test_a_user_has_one_watch_a_kind_and_each_open_page_its_own(
    kubeconfig: Path, browser: Browser, api: HttpApi, count: Count, tmp_path: Path
) -> None:
    """Two sessions of one user and one of another, with pages in tabs of their own."""
    await install_container_cloud(api)
    await create_namespace(api, NAMESPACE)
    await create_new(api, NODES, {"metadata": {"name": MACHINE}})
    request = {"operationKind": "HostReboot", "machineRef": MACHINE}
    await create_new(api, MACHINE_OPERATIONS, {"metadata": {"name": OPERATION}, "spec": request})
    tokens = []
    for name in ("one", "other"):
        tokens.append(await create_reader(api, name))
        await api.patch(ROLES, name, {"rules": READ_ALL})
    before = await count()
    async with cluster_console(kubeconfig, tmp_path, "--plain-addr", "127.0.0.1:0") as host:
        address = f"http://{host}"
        async with tab(browser, address) as first, tab(browser, address) as second, tab(browser, address) as third:
            for found, token in ((first, tokens[0]), (second, tokens[0]), (third, tokens[1])):
                await log_in(found, token)
            await open_pages(first.page.context, address, KIND_PAGES)
            await open_pages(third.page.context, address, KIND_PAGES)
            await becomes(before + OF_KINDS + OF_KINDS, count)
            of_objects = await open_pages(first.page.context, address, OBJECT_PAGES)
            of_objects += await open_pages(second.page.context, address, dict(tuple(OBJECT_PAGES.items())[::2]))
            await open_pages(second.page.context, address, {"/rollouts": KIND_PAGES["/rollouts"]})
            await becomes(before + OF_KINDS + OF_KINDS + OF_OBJECTS, count)
            await open_pages(third.page.context, address, OBJECT_PAGES)
            await becomes(before + OF_KINDS + OF_KINDS + OF_OBJECTS + OF_OBJECTS, count)
            for page in of_objects:
                await page.close()
            await becomes(before + OF_KINDS + OF_KINDS + OF_OBJECTS, count, RECONNECT_S + LIMIT_S)
            for found in (first, second, third):
                found.errors.clear()  # Chromium reports the status 401 of the log-in
    await becomes(before, count)
