"""The command `preflight`, and the configuration that it takes."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.agent.preflight.support import config
from unbounded.agent.paths import HostPaths
from unbounded.agent.preflight import run
from unbounded.agent.settings import store_config
from unbounded.join.agent_config import AgentConfig, ArtifactSource, Downloads

NOWHERE = ArtifactSource(base_url="http://127.0.0.1:1")


async def findings(paths: HostPaths, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """By their names; of those of one name the last."""
    await asyncio.to_thread(run.run, None, {}, fail_on_warnings=False, json=True, colour=False, paths=paths)
    return {one["name"]: one for one in json.loads(capsys.readouterr().out)["checks"]}


def join(paths: HostPaths, kept: AgentConfig) -> None:
    store_config(paths, kept)
    paths.identity.mkdir(parents=True)
    (paths.identity / "agent.pem").write_text("a certificate")


@pytest.mark.slow
async def test_a_joined_host_is_looked_at_with_what_it_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing listens on port 1 of this machine."""
    paths = HostPaths(tmp_path)
    assert "no configuration" in (await findings(paths, capsys))["agent-config"]["message"]
    downloads = Downloads(kubernetes=NOWHERE, containerd=NOWHERE, runc=NOWHERE, cni=NOWHERE, crictl=NOWHERE)
    join(paths, config(api_server="https://127.0.0.1:1", oci_image="127.0.0.1:1/root:v1", downloads=downloads))
    found = await findings(paths, capsys)
    assert (found["agent-config"]["severity"], found["agent-config"]["message"]) == ("ok", "no errors")
    assert "refused" in found["api-server-reachable"]["message"]


async def test_config_fault_names_the_valid_form_and_hides_the_address(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = HostPaths(tmp_path)
    join(paths, config(api_server="http://u:p@10.0.0.1"))
    told = (await findings(paths, capsys))["agent-config"]["message"]
    assert "Kubelet.ApiServer: must be a URL that begins with https://, without a user" in told
    assert "10.0.0.1" not in told
