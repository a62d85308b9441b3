"""The guides about a host, on a host: what they call by kubectl is run beside it, everything else on it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.docs.runner import LIMIT_S, RELEASE_URL, Shell
from tests.support.agent_release import AgentRelease
from tests.support.hosts.agent import AgentHost

SHA256: Final = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
VERSION: Final = "9.9.9"


def newer(agent: AgentHost, release: AgentRelease) -> dict[str, str]:
    """Return the placeholders of the guides for a release, and their values in the test."""
    return {RELEASE_URL: agent.mirror.add(f"/{release.version}.tar.gz", release.archive), SHA256: release.sha256}


@dataclass
class HostShell(Shell):
    """A user's, who is root on the host too."""

    agent: AgentHost

    async def run(self, command: str, *, within_s: float = LIMIT_S) -> str:
        if command.startswith("kubectl"):
            return await super().run(command, within_s=within_s)
        told = f"cd /root; {self.changed(command)}"
        ran = await self.agent.host.run("bash", "-euo", "pipefail", "-c", told, check=False, timeout_s=within_s)
        assert ran.ok, f"{command}\nstatus {ran.status}\n{ran.stdout}\n{ran.stderr}"
        return ran.stdout + ran.stderr


def host_shell(agent: AgentHost, folder: Path, changes: dict[str, str]) -> HostShell:
    folder.mkdir(exist_ok=True)
    return HostShell(folder, agent.plane.kubeconfig, changes, agent)
