"""Losses in a simulated cloud, in Chromium: `unbounded up --console`, and the console of a cluster with two users.

Oracle's SDK calls the cloud over HTTPS.
"""

from __future__ import annotations

import asyncio
import os
import sys
from asyncio.subprocess import PIPE, STDOUT
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import pytest
import pytest_asyncio
from playwright.async_api import Browser

from tests.cli.running import KUBECTL, Up, up
from tests.console.browser import CHROMIUM, Tab, log_in, tab
from tests.console.running import PLUGIN, URL, cluster_console
from tests.console.served import ROLES, create_reader
from unbounded.api.names import GROUP, NAMESPACE
from unbounded.kube.client import HttpApi
from unbounded.kube.config import from_kubeconfig

pytestmark = [
    pytest.mark.slow,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed: scripts/browser-tools"),
    pytest.mark.skipif(KUBECTL is None, reason="kubectl is not installed"),
]
MACHINE: Final = "lab-oci-02"  # `up` replaces the first one
SECRET: Final = f"Secret {NAMESPACE}/lab-oci-auth"
OPERATOR: Final[list[dict[str, Any]]] = [
    {"apiGroups": [GROUP], "resources": ["*"], "verbs": ["*"]},
    {"apiGroups": ["", "coordination.k8s.io"], "resources": ["nodes", "pods", "configmaps", "leases"], "verbs": ["*"]},
]
READS_SECRETS: Final = {"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Up]:
    data = tmp_path_factory.mktemp("up") / "data"
    async with up(data, "--lab", "2", "--lab-cloud", "oci", "--console", "0", "--allow-operations") as found:
        await found.says(rf"machine {MACHINE}: ")
        await found.says(URL.pattern)
        yield found


def _environment(running: Up) -> dict[str, str]:
    """Return the variables with which a process reaches the simulated cloud, and no other."""
    exports = (running.data / "lab-cloud" / "environment").read_text().splitlines()
    return dict(one.removeprefix("export ").split("=", 1) for one in exports if one.startswith("export "))


async def _printed(running: Up) -> list[str]:
    """Return the losses that the command line prints."""
    words = ("plan", "--kubeconfig", str(running.data / "kubeconfig"), "machine", "replace", MACHINE)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, *PLUGIN, *words), env={**os.environ, **_environment(running)}, stdout=PIPE, stderr=STDOUT
    )
    out, _ = await process.communicate()
    return _losses(out.decode())


async def _shown(found: Tab) -> list[str]:
    """Return the losses in the confirmation of the console."""
    await found.visit(f"/machine/{MACHINE}")
    await found.button("Replace").click()
    plan = found.page.locator("[aria-label=Confirmation] pre")
    await plan.wait_for(timeout=40_000)
    return _losses(await plan.inner_text())


def _losses(text: str) -> list[str]:
    """Return the lines on what is lost, and what is unknown."""
    return [one for one in text.splitlines() if one.strip().startswith(("loses ", "not checked: "))]


async def test_the_losses_in_the_cloud_are_those_of_the_command(running: Up, browser: Browser) -> None:
    async with tab(browser, URL.findall(running.printed)[-1]) as found:
        shown = await _shown(found)
        assert any(one.startswith("     loses vnic.privateIp: private IP 10.") for one in shown), shown
        assert any(one.startswith("     loses vnic.publicIp: ") for one in shown), shown
        assert not any("the losses of" in one for one in shown), shown
        assert shown == await _printed(running)
        assert await found.serious_findings() == []


async def test_losses_on_a_cluster_rest_on_the_rights_of_each_user(
    running: Up, browser: Browser, tmp_path: Path
) -> None:
    """Who may not read the login sees no losses, also after those of another user, and reads why."""
    kubeconfig = running.data / "kubeconfig"
    rights = {"cloud-operator": [*OPERATOR, READS_SECRETS], "operator": OPERATOR}
    async with HttpApi(from_kubeconfig(kubeconfig)) as admin:
        tokens = {name: await create_reader(admin, name) for name in rights}
        for name, rules in rights.items():
            await admin.patch(ROLES, name, {"rules": rules})
    flags = ("--plain-addr", "127.0.0.1:0", "--allow-operations")
    async with cluster_console(kubeconfig, tmp_path, *flags, environment=_environment(running)) as address:
        shown = {}
        for name, token in tokens.items():
            async with tab(browser, f"http://{address}") as found:
                await log_in(found, token)
                await found.shows(MACHINE)
                shown[name] = await _shown(found)
                found.errors.clear()  # Chromium reports the status 401 of the log-in
    of_cloud = [one for one in await _printed(running) if one.startswith("     loses")]
    assert len(of_cloud) > 1
    assert [one for one in shown["cloud-operator"] if one.startswith("     loses")] == of_cloud
    assert [one for one in shown["operator"] if one.startswith("     loses")] == []
    (why,) = (one for one in shown["operator"] if "the losses of" in one)
    assert f"the cloud was not called: you have no permission to read {SECRET} " in why
