"""docs/providers.md: its commands run unchanged, and its code is that of the sample."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.cli.deployed import deployed
from tests.cli.running import KUBECTL
from tests.docs.runner import DOCS, Shell, blocks, follow
from tests.machineops.conftest import EXAMPLE
from tests.machineops.test_process import controller
from unbounded.cli.deploy import components
from unbounded.cli.servers import publish_cluster_info
from unbounded.kube.client import HttpApi
from unbounded.kube.config import from_kubeconfig

GUIDE = DOCS / "providers.md"


@pytest.mark.parametrize("language", ["python", "toml"])
def test_its_code_is_that_of_the_sample(language: str) -> None:
    files = [path.read_text() for path in EXAMPLE.rglob("*") if path.suffix in (".py", ".toml")]
    code = [block.code for block in blocks(GUIDE, language)]
    assert code
    assert [one for one in code if not any(one in text for text in files)] == []


@pytest.mark.slow
@pytest.mark.skipif(KUBECTL is None, reason="kubectl is not installed")
async def test_its_commands_do_what_it_says(tmp_path: Path, example: dict[str, str]) -> None:
    vms = tmp_path / "vms"
    async with AsyncExitStack() as stack:
        server, _ = await stack.enter_async_context(deployed(tmp_path / "server"))
        async with HttpApi(from_kubeconfig(server.kubeconfig_path)) as api:
            await publish_cluster_info(api, server.url, api.config.ca or b"")
            await components.publish(api, {})  # as `unbounded up` does
        sample = {"PYTHONPATH": example["PYTHONPATH"]}
        shell = Shell(tmp_path, server.kubeconfig_path, {"/srv/vms": str(vms)}, more=sample)
        stack.push_async_callback(_remove, vms, shell)
        config = tmp_path / "kubeconfig"
        await asyncio.to_thread(config.write_text, await asyncio.to_thread(server.kubeconfig_path.read_text))

        async def run_it() -> None:
            await stack.enter_async_context(controller(config, example, "--site", "lab", "--provider", "LocalProcess"))

        said = await follow(
            GUIDE,
            shell,
            starts={"machine-ops-controller controller --site lab --provider LocalProcess": run_it},
        )
    assert "LocalProcess (unbounded_process_provider:PROVIDER)" in said
    assert f"process://{vms}/m1-" in said


async def _remove(vms: Path, shell: Shell) -> None:
    for path in await asyncio.to_thread(lambda: list(vms.glob("[!.]*"))):
        await shell.run(f"python -m unbounded_process_provider.machines remove {path}")
