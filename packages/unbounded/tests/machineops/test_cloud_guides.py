"""docs/azure.md and docs/oci.md: their commands run unchanged.

The built-in providers run in the controller's own process, with the cloud that `unbounded lab cloud` serves.
"""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cli.deployed import deployed
from tests.cli.running import KUBECTL
from tests.docs.runner import DOCS, Shell, Stage, blocks, commands, follow, plain
from tests.machineops.test_process import controller, kubeconfig
from unbounded.cli.deploy import components
from unbounded.kube.client import HttpApi
from unbounded.kube.config import from_kubeconfig

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300, func_only=True),
    pytest.mark.skipif(KUBECTL is None, reason="kubectl is not installed"),
]


class Reader:
    """A user with a cluster who follows a guide from its first command on."""

    def __init__(self, folder: Path, stack: AsyncExitStack) -> None:
        folder.mkdir(exist_ok=True)
        self.folder = folder
        self.stack = stack

    async def follow(self, guide: str) -> str:
        server, _ = await self.stack.enter_async_context(deployed(self.folder / "server"))
        async with HttpApi(from_kubeconfig(server.kubeconfig_path)) as api:
            await components.publish(api, {})  # as `unbounded up` does
        self.config = await kubeconfig(server, self.folder / "controller.kubeconfig")
        self.changes: dict[str, str] = {}
        return await follow(
            DOCS / guide, Shell(self.folder, server.kubeconfig_path, self.changes), starts=self._starts(guide)
        )

    def _starts(self, guide: str) -> dict[str, Stage]:
        """Return starters of the commands that do not end by themselves; they run while the guide does."""
        found: dict[str, Stage] = {}
        for command in (plain(one) for block in blocks(DOCS / guide) for one in commands(block.code)):
            match shlex.split(command):
                case ["unbounded", "lab", "cloud", *arguments]:
                    found[command] = partial(self._serve, arguments)
                case ["machine-ops-controller", "controller", *flags]:
                    found[command] = partial(self._control, flags)
        return found

    async def _serve(self, arguments: Sequence[str]) -> None:
        shown = await self.stack.enter_async_context(simulated(self.folder, *arguments))
        if secret := shown.get("clientSecret"):
            self.changes["clientSecret='…'"] = f"clientSecret={secret}"
        if (self.folder / "oci.yaml").exists():
            self.changes |= _oci_changes(self.folder)

    async def _control(self, flags: Sequence[str]) -> None:
        (environment,) = self.folder.glob("*.env")
        words = (shlex.split(line)[1].partition("=") for line in environment.read_text().splitlines())
        env = {**os.environ, **{name: value for name, _, value in words}}
        await self.stack.enter_async_context(controller(self.config, env, *flags))


@asynccontextmanager
async def simulated(folder: Path, *arguments: str) -> AsyncIterator[dict[str, str]]:
    """A cloud that is served; what is printed of it, by name."""
    command = (sys.executable, "-m", "unbounded_lab.cloud", *arguments)
    process = await asyncio.create_subprocess_exec(*command, cwd=folder, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    shown: dict[str, str] = {}
    async with asyncio.timeout(30):
        while line := (await process.stdout.readline()).decode():
            if line.startswith("Ctrl-C"):
                break
            what, _, value = line.partition("  ")
            shown[what] = value.strip()
    try:
        yield shown
    finally:
        process.send_signal(signal.SIGINT)
        assert await asyncio.wait_for(process.wait(), 60) == 0


async def test_their_commands_do_what_they_say(tmp_path: Path) -> None:
    """Both at once: they wait a lot."""
    async with asyncio.TaskGroup() as readers:
        readers.create_task(_has_azure(tmp_path / "azure"))
        readers.create_task(_has_oci(tmp_path / "oci"))


async def _has_azure(folder: Path) -> None:
    async with AsyncExitStack() as stack:
        said = await Reader(folder, stack).follow("azure.md")
    assert said.count("is complete") == 5, said
    assert "the old VM is deleted" in said
    bound = re.findall(r"^azure:///\S+/virtualMachines/azure-01$", said, re.MULTILINE)
    assert len(bound) == 1, "it is made anew under its name"


async def _has_oci(folder: Path) -> None:
    async with AsyncExitStack() as stack:
        said = await Reader(folder, stack).follow("oci.md")
    assert "keep: strict allows no loss unless parameters.accept names it, and instance " in said
    assert "     loses vnic.privateIp: private IP " in said, "the plan has not looked"
    assert "  vnic.privateIp  private IP " in said
    assert "the Machine names its replacement" in said
    (old,) = [each["spec"]["providerID"] for each in _objects(folder) if each["metadata"]["name"] == "oci-01"]
    (bound,) = re.findall(r"^oci://ocid1.instance\S+$", said, re.MULTILINE)
    assert bound != old
    assert said.count("is complete") == 5, said


def _objects(folder: Path) -> list[dict[str, Any]]:
    """Return what the simulator has written for `kubectl apply`."""
    return list(yaml.load_all((folder / "oci.yaml").read_bytes(), Loader=yaml.CSafeLoader))


def _oci_changes(folder: Path) -> dict[str, str]:
    """Return a user's values for Oracle's cloud, in place of those in the guide."""
    secret, _, machine, *_ = _objects(folder)
    login = secret["stringData"]
    (folder / "oci_api_key.pem").write_text(login["privateKey"])
    passphrase = f"--from-literal=privateKeyPassphrase={login['privateKeyPassphrase']}"
    return {
        "oci://ocid1.instance.oc1.phx.…": machine["spec"]["providerID"],
        "ocid1.tenancy.oc1..…": login["tenancyOCID"],
        "ocid1.user.oc1..…": login["userOCID"],
        "00:11:22:33:44:55:66:77:88:99:aa:bb:cc:dd:ee:ff": login["fingerprint"],
        "--from-file=privateKey=": f"{passphrase} --from-file=privateKey=",
    }
