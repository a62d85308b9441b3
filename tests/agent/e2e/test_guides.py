"""docs/upgrade.md and docs/reset.md, the guides about what a node goes through: their commands, on a host."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

import pytest

from tests.agent.e2e.conftest import HostOf
from tests.agent.e2e.over_ssh import SITE, joined
from tests.docs.runner import DOCS, Shell, follow
from tests.support.agent_release import AgentRelease, release_like
from tests.support.hosts.agent import AgentHost
from unbounded.agent.layout import DAEMON_UNIT

pytestmark = [pytest.mark.soak, pytest.mark.root, pytest.mark.timeout(1800, func_only=True)]

MACHINE: Final = f"{SITE}-worker-01"
CONFIG: Final = "/etc/unbounded/agent/config.json"
URL: Final = "https://example.com/releases/unbounded-agent-linux-amd64.tar.gz"
SHA256: Final = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"


async def test_their_commands_do_what_they_say(agent_host: HostOf, release: AgentRelease, tmp_path: Path) -> None:
    newer = release_like(release, tmp_path / "newer", version="9.9.9")
    async with agent_host(MACHINE, 41) as agent:
        shell, _ = await joined(agent, release, tmp_path / "home")
        await _takes_releases_of_tests(agent)
        (shell.folder / "data").symlink_to(agent.plane.data)
        agent.mirror.add_kubernetes("1.35.0")
        url = agent.mirror.add("/newer.tar.gz", newer.archive)
        changes = {URL: url, SHA256: newer.sha256, "registry.example.com/images/node:v1": agent.node_image}
        guide = Shell(shell.folder, shell.kubeconfig, changes)
        said = await follow(DOCS / "upgrade.md", guide)
        assert said.rstrip().endswith("v1.35.0")
        assert await agent.agent_version() == "9.9.9"
        said = await follow(DOCS / "reset.md", guide)
        assert await agent.slots() == []
        assert not agent.host.exists("/usr/local/lib/unbounded-agent")


async def _takes_releases_of_tests(agent: AgentHost) -> None:
    """Over plain http, and after a short time."""
    config = json.loads(agent.host.get(CONFIG))
    config["Upgrade"] = {"AllowHTTP": True, "HealthWindowSeconds": 3}
    agent.host.put(CONFIG, json.dumps(config).encode(), mode=0o600)
    await agent.host.run("systemctl", "restart", DAEMON_UNIT)
