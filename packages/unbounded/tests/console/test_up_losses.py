"""`unbounded up --console` in Chromium, before a simulated cloud that Oracle's SDK calls over HTTPS."""

from __future__ import annotations

import asyncio
import os
import sys
from asyncio.subprocess import PIPE, STDOUT
from pathlib import Path
from typing import Final

import pytest
from playwright.async_api import Browser

from tests.cli.running import KUBECTL, up
from tests.console.browser import CHROMIUM, tab
from tests.console.running import PLUGIN, URL

pytestmark = [
    pytest.mark.slow,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed: scripts/browser-tools"),
    pytest.mark.skipif(KUBECTL is None, reason="kubectl is not installed"),
]
MACHINE: Final = "lab-oci-02"  # `up` replaces the first one


async def _planned(data: Path) -> str:
    """Return the plan that the command line prints, with the environment that the simulated cloud has written."""
    exports = (data / "lab-cloud" / "environment").read_text().splitlines()
    of_cloud = dict(one.removeprefix("export ").split("=", 1) for one in exports if one.startswith("export "))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, *PLUGIN, "plan", "--kubeconfig", str(data / "kubeconfig"), "machine", "replace", MACHINE),
        env={**os.environ, **of_cloud},
        stdout=PIPE,
        stderr=STDOUT,
    )
    out, _ = await process.communicate()
    return out.decode()


def _losses(text: str) -> list[str]:
    """Return what is lost, and what is unknown."""
    return [one for one in text.splitlines() if one.strip().startswith(("loses ", "not checked: "))]


async def test_the_losses_in_the_cloud_are_those_of_the_command(browser: Browser, tmp_path: Path) -> None:
    data = tmp_path / "data"
    async with up(data, "--lab", "2", "--lab-cloud", "oci", "--console", "0", "--allow-operations") as running:
        url = (await running.says(URL.pattern)).group()
        async with tab(browser, url) as found:
            await found.visit(f"/machine/{MACHINE}")
            await found.button("Replace").click()
            plan = found.page.locator("[aria-label=Confirmation] pre")
            await plan.wait_for(timeout=40_000)
            shown = _losses(await plan.inner_text())
            assert any(one.startswith("     loses vnic.privateIp: private IP 10.") for one in shown), shown
            assert any(one.startswith("     loses vnic.publicIp: ") for one in shown), shown
            assert not any("the losses of" in one for one in shown), shown
            assert shown == _losses(await _planned(data))
            assert await found.serious_findings() == []
        await running.stops()
