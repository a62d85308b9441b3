"""The packaged agent's preflight on a host with a real systemd, against a real control plane, mirror and registry."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from scripts.packages import version

from tests.support.agent_release import agent_release
from tests.support.hosts import Host
from tests.support.hosts.agent import CONFIG, AgentHost
from tests.support.hosts.host import PARAMETERS
from tests.support.hosts.images import Images
from tests.support.hosts.mirror import Dial, Mirror
from tests.support.hosts.plane import ControlPlane

pytestmark = [pytest.mark.slow, pytest.mark.root, pytest.mark.timeout(600)]

COMMAND = "/root/unbounded-agent"


@pytest.fixture
async def configured(host: Host, plane: ControlPlane, mirror: Mirror, images: Images) -> AsyncIterator[AgentHost]:
    """A host with a configuration, and the agent in one file."""
    made = AgentHost(host, plane, mirror, images, "preflight-1")
    await made.configure()
    host.put(COMMAND, agent_release().file.read_bytes(), mode=0o755)
    yield made
    mirror.dials.clear()


async def preflight(on: AgentHost, *arguments: str) -> tuple[int, dict[str, Any]]:
    """Exit status, and the JSON."""
    said = await on.host.run(COMMAND, "preflight", "--config", CONFIG, "--output", "json", *arguments, check=False)
    return said.status, json.loads(said.stdout)


def wrong(document: dict[str, Any]) -> dict[str, str]:
    return {one["name"]: one["target"] for one in document["checks"] if one["severity"] == "error"}


async def test_a_host_that_lacks_nothing_and_then_things_that_it_names(configured: AgentHost) -> None:
    host = configured.host
    status, document = await preflight(configured, "--ignore-preflight-errors", "cgroups")
    assert wrong(document) == {}, document
    assert (status, document["status"]) == (0, "ok")
    assert document["summary"]["ok"] >= 14

    configured.mirror.dials[configured.mirror.path_of("containerd-")] = Dial(status=404)
    host.put("/etc/unbounded/agent/kube1-applied-config.json", b"{}")
    host.put("/etc/unbounded/agent/kube1-applied-config.json.sha256", b"0  x")
    status, document = await preflight(configured, "--ignore-preflight-errors", "cgroups,nspawn-machine-provisioning")
    assert status == 1
    assert wrong(document) == {"cri-artifacts": "containerd 1.6.20"}
    ignored = [one["name"] for one in document["checks"] if one["ignored"]]
    assert "nspawn-machine-provisioning" in ignored

    text = await host.run(COMMAND, "preflight", "--config", CONFIG, check=False)
    assert (text.status, "[ERROR cri-artifacts] containerd 1.6.20: it does not exist: 404" in text.stdout) == (1, True)
    token = json.loads(host.get(CONFIG))["Kubelet"]["Auth"]["BootstrapToken"]
    assert token not in text.stdout + text.stderr
    assert configured.plane.address.rpartition(":")[0].removeprefix("https://") not in text.stdout


async def test_one_file_runs_where_nothing_in_tmp_may_and_tells_the_state(configured: AgentHost) -> None:
    host = configured.host
    await host.run("mount", "-t", "tmpfs", "-o", "noexec", "tmpfs", "/tmp")
    host_file = await host.run("sh", "-c", f"cp {COMMAND} /usr/local/bin/unbounded-agent && unbounded-agent version")
    assert host_file.stdout == f"unbounded-agent {version()}\n"
    told = await host.run("unbounded-agent", "status")
    assert "Machine:     none: this host was not started" in told.stdout
    assert "Daemon:      not installed" in told.stdout
    others = ("setpriv", "--reuid=65534", "--clear-groups", "env", "UNBOUNDED_AGENT_UNPACK_DIR=/var/tmp/nobody")
    as_nobody = await host.run(*others, "unbounded-agent", "status")
    assert "Daemon:      not installed" in as_nobody.stdout


async def test_kubelets_parameters_that_cannot_be_set_fail_preflight_and_start_by_name(configured: AgentHost) -> None:
    """As in a container whose /proc/sys is read-only, below a kernel whose values kubelet refuses."""
    host = configured.host
    refuse = "for one; do echo 7 >/proc/sys/$one; mount -o remount,bind,ro /proc/sys/$one; done"
    await host.run("sh", "-euc", refuse, "sh", *PARAMETERS)
    status, document = await preflight(configured, "--ignore-preflight-errors", "cgroups")
    refused = {one["target"]: one["message"] for one in document["checks"] if one["severity"] == "error"}
    assert status == 1
    assert refused["kernel.panic"].startswith("kernel.panic is 7, but kubelet needs 10; this host cannot set it")
    assert {one["name"] for one in document["checks"] if one["severity"] == "error"} == {"kernel-parameters"}

    said = await host.run(COMMAND, "start", "--config", CONFIG, "--ignore-preflight-errors", "all", check=False)
    assert said.status == 1
    assert f"sysctl: {'; '.join(message.partition('; this host')[0] for message in refused.values())}" in said.stderr
    assert not host.exists("/var/lib/machines/kube1/usr/local/bin/kubelet"), "a node was made"
