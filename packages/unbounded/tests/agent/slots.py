"""HostNodes over a host of tests.support.hosts, in the test's own process: commands run in the host's namespaces."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tests.agent.goals import goal
from tests.support.hosts import Host
from tests.support.hosts.mirror import CNI, CONTAINERD, RUNC, Mirror
from unbounded.agent.host import HostCommands, Systemctl
from unbounded.agent.interfaces import HostCommandResult
from unbounded.agent.model import NodeGoal, TokenAccess
from unbounded.agent.node.machine_runner import MachineLimits
from unbounded.agent.node.nodes import HostNodes
from unbounded.agent.paths import HostPaths
from unbounded.join.agent_config import ArtifactSource, Downloads
from unbounded.kube.logs import SecretStr

TOKEN: Final = TokenAccess(SecretStr("abcdef.0123456789abcdef"))


class CommandsOfHost:
    """Real commands, in all namespaces of a host."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._commands = HostCommands()

    async def run(
        self,
        *argv: str,
        timeout_s: float = 60.0,
        stdin: bytes | None = None,
        env: Mapping[str, str] | None = None,
        check: bool = True,
    ) -> HostCommandResult:
        leader = self._host.cgroup.leader()
        argv = tuple(word.removeprefix(f"/proc/{leader}/root") for word in argv)  # as the host sees it
        path = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", **(env or {})}
        entered = ("nsenter", "-t", str(leader), "-a", *argv)
        return await self._commands.run(*entered, timeout_s=timeout_s, stdin=stdin, env=path, check=check)


def paths_of(host: Host) -> HostPaths:
    """As it is until the host boots again."""
    leader = host.cgroup.leader()
    assert leader is not None, f"{host.name} is off"
    return HostPaths(Path(f"/proc/{leader}/root"))


def nodes_of(host: Host, limits: MachineLimits | None = None) -> HostNodes:
    """As they are until the host boots again."""
    commands = CommandsOfHost(host)
    return HostNodes(paths_of(host), commands, Systemctl(commands), limits=limits)


def goal_of(mirror: Mirror, image: str, version: str = "1.34.0") -> NodeGoal:
    """A node from the artifacts that the mirror has."""
    source = ArtifactSource(base_url=mirror.base)
    return goal(
        image=image,
        kubernetes_version=version,
        containerd_version=CONTAINERD,
        runc_version=RUNC,
        cni_version=CNI,
        downloads=Downloads(
            kubernetes=source, containerd=source, runc=source, cni=source, crictl=source, sandbox=source
        ),
    )
