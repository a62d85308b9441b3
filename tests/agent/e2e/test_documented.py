"""Every command of docs/agent.md, run in its order: on a host, or with kubectl beside it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pytest

from tests.docs.runner import DOCS, Shell, blocks, commands
from tests.support.agent_release import AgentRelease, agent_release, release_like
from tests.support.hosts import Host
from tests.support.hosts.agent import CONFIG, AgentHost
from tests.support.hosts.images import Images
from tests.support.hosts.mirror import Mirror
from tests.support.hosts.plane import ControlPlane

pytestmark = [pytest.mark.soak, pytest.mark.root, pytest.mark.timeout(1200)]

DOCUMENT: Final = DOCS / "agent.md"
MACHINE: Final = "worker-01"
LIMIT_S: Final = 300.0


async def on_host(host: Host, command: str) -> None:
    ran = await host.run("bash", "-ec", f"cd /root; {command}", check=False, timeout_s=LIMIT_S)
    assert ran.ok, f"{command}\n{ran.stdout}\n{ran.stderr}"


def replaced(text: str, changes: Mapping[str, str]) -> str:
    for old, new in changes.items():
        text = text.replace(old, new)
    return text


async def settled(plane: ControlPlane, node: str) -> None:
    """After what was just run: operations have ended well, and the Node is there unless it was deleted for good."""
    for each in json.loads(await plane.kubectl("get", "mop", "-o", "json"))["items"]:
        ended = await plane.ended(each["metadata"]["name"], within_s=LIMIT_S)
        assert ended["status"]["phase"] == "Complete", ended["status"]
    await plane.ready(node, within_s=LIMIT_S)


async def test_its_commands_do_what_it_says(
    host: Host, plane: ControlPlane, mirror: Mirror, images: Images, tmp_path: Path
) -> None:
    release = agent_release()
    newer = release_like(release, tmp_path / "newer", version="9.9.9")
    on = AgentHost(host, plane, mirror, images, MACHINE)
    await on.configure()
    config = json.loads(host.get(CONFIG))
    config["Kubelet"]["Auth"]["BootstrapToken"] = "abcdef.0123456789abcdef"
    host.put("/root/agent.json", json.dumps(config).encode(), mode=0o600)
    put_release(host, release)
    changes = {
        "https://example.com/releases/unbounded-agent-linux-amd64.tar.gz": mirror.add("/newer.tar.gz", newer.archive),
        "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08": newer.sha256,
        # what hosts of tests lack
        "start --config agent.json": "start --config agent.json --ignore-preflight-errors cgroups",
        "preflight --config agent.json": "preflight --config agent.json --ignore-preflight-errors cgroups",
    }
    shell = Shell(tmp_path, plane.kubeconfig, changes)
    for block in blocks(DOCUMENT):
        for command in commands(block.code):
            if command.startswith("kubectl"):
                await shell.run(command)
            else:
                await on_host(host, replaced(command, changes))
            started = host.exists("/var/lib/machines/kube1") or host.exists("/var/lib/machines/kube2")
            if started:
                await settled(plane, MACHINE)
    assert not host.exists("/usr/local/lib/unbounded-agent")
    assert not host.exists("/etc/unbounded")


def put_release(host: Host, release: AgentRelease) -> None:
    for file in (release.archive, release.file):
        target = host.outside(f"/root/{file.name}")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, target)
