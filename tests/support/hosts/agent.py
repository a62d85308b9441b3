"""The packaged agent on a host, as its users have it: unpacked, configured, started."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

from tests.support.agent_release import AgentRelease
from tests.support.hosts.host import Ended, Host
from tests.support.hosts.images import Images
from tests.support.hosts.mirror import Mirror
from tests.support.hosts.plane import ControlPlane

CONFIG: Final = "/etc/lab/agent.json"
UNPACKED: Final = "/opt/unbounded-agent"
COMMAND: Final = "/usr/local/bin/unbounded-agent"
START: Final = (f"{UNPACKED}/unbounded-agent/unbounded-agent", "start", "--config", CONFIG)
# Hosts in systemd-nspawn have no resource controllers where the system keeps those in version 1.
STARTS: Final = (*START, "--ignore-preflight-errors", "cgroups")
WINDOW_S: Final = 3
START_S: Final = 180.0


class RunsCommands(Protocol):
    """Any kind of test host."""

    async def run(self, *argv: str, check: bool = True, timeout_s: float = 120.0) -> Ended: ...

    async def write(self, path: str, content: bytes, *, mode: int = 0o644) -> None: ...

    async def unpack(self, archive: Path, folder: str) -> None: ...

    async def journal(self, *arguments: str) -> str: ...


@dataclass
class NodeHost:
    """A host that becomes a node.

    Args:
        machine: the Machine's name, and the Node's.
        image: of the node's root file system.
        more: keys of the agent's configuration, over the usual ones.
    """

    host: RunsCommands
    plane: ControlPlane
    mirror: Mirror
    images: Images
    machine: str
    image: str = ""
    version: str = "1.34.0"
    more: Mapping[str, Any] = field(default_factory=dict)
    starts: tuple[str, ...] = STARTS

    @property
    def node_image(self) -> str:
        return self.image or f"{self.images.host}/lab/node:v1"

    async def configure(self) -> None:
        """Write the agent's configuration, with a bootstrap token of the site."""
        config = {
            "MachineName": self.machine,
            "Cluster": {"CaCertBase64": self.plane.ca_base64, "ClusterDNS": "10.0.0.10", "Version": self.version},
            "Kubelet": {
                "ApiServer": self.plane.address,
                "Auth": {"BootstrapToken": await self.plane.site_token()},
                "Labels": {"tier": "edge"},
            },
            **self.mirror.versions(),
            "OCIImage": self.node_image,
            "Downloads": self.mirror.downloads(),
            "Upgrade": {"AllowHTTP": True, "HealthWindowSeconds": WINDOW_S},
            **self.more,
        }
        await self.host.write(CONFIG, json.dumps(config).encode(), mode=0o600)

    async def unpack(self, release: AgentRelease) -> None:
        """Unpack the release's tarball, as an installer does."""
        await self.host.unpack(release.archive, UNPACKED)

    async def start(self, *, check: bool = True, timeout_s: float = START_S) -> Ended:
        """`unbounded-agent start`."""
        return await self.host.run(*self.starts, check=check, timeout_s=timeout_s)

    async def joined(
        self, release: AgentRelease, *, within_s: float = 60.0, start_s: float = START_S
    ) -> dict[str, Any]:
        """Do all of it; the Node when it is Ready."""
        await self.configure()
        await self.unpack(release)
        await self.start(timeout_s=start_s)
        return await self.plane.ready(self.machine, within_s=within_s)

    async def agent_version(self) -> str:
        """Return the version that the command on the host prints."""
        return (await self.host.run(COMMAND, "version")).stdout.split()[-1]

    async def daemon_active(self) -> bool:
        said = await self.host.run("systemctl", "is-active", "unbounded-agent-daemon.service", check=False)
        return said.stdout.strip() == "active"

    async def slots(self) -> list[str]:
        """The nspawn machines that run."""
        listed = await self.host.run("machinectl", "list", "--no-legend", "--no-pager")
        return sorted(line.split()[0] for line in listed.stdout.splitlines() if line.split())

    async def inside(self, slot: str, *argv: str) -> str:
        """Run a command in an nspawn machine, and return its output."""
        told = ("systemd-run", f"--machine={slot}", "--quiet", "--wait", "--pipe", "--collect", "--", *argv)
        return (await self.host.run(*told)).stdout

    async def trouble(self) -> str:
        """Return the journals, for the message of a failure."""
        daemon = await self.host.journal("--unit=unbounded-agent-daemon", "--unit=unbounded-agent-daemon-recovery")
        return daemon[-6000:]


@dataclass
class AgentHost(NodeHost):
    """A host in systemd-nspawn, whose files and processes can be reached from outside."""

    host: Host
