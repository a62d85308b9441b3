"""Shared parts of the preflight's tests: a configuration, and a host on which nothing is run."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

from tests.support.authority import PEM
from unbounded.agent.interfaces import HostCommandResult, UnitFacts
from unbounded.agent.model import NodeGoal
from unbounded.join.agent_config import AgentConfig, JoinedCluster, Kubelet, KubeletAuth

TOKEN = "abcdef.0123456789abcdef"
GOAL = NodeGoal(
    machine="m1",
    kubernetes_version="1.34.0",
    api_server="https://api.example.com",
    ca_pem=PEM,
    image="registry.example.com/root:v1",
    containerd_version="2.1.8",
    runc_version="1.5.0",
    cni_version="1.5.1",
)


def config(*, api_server: str, ca_pem: str = PEM, **more: Any) -> AgentConfig:
    return AgentConfig(
        machine_name="m1",
        cluster=JoinedCluster(ca_cert_base64=base64.b64encode(ca_pem.encode()).decode(), version="1.34.0"),
        kubelet=Kubelet(api_server=api_server, auth=KubeletAuth(bootstrap_token=TOKEN)),
        **more,
    )


class NoCommands:
    """Programs that all print the same."""

    def __init__(self, says: str = "") -> None:
        self._says = says

    async def run(self, *argv: str, **_: Any) -> HostCommandResult:
        return HostCommandResult(argv, 0, self._says, "")


class NoUnits:
    """Units of which some are active, and which a test may not change."""

    def __init__(self, active: Mapping[str, bool] | None = None) -> None:
        self._active = active or {}

    async def observe(self, unit: str) -> UnitFacts:
        return UnitFacts(unit, active="active" if self._active.get(unit) else "inactive")

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"a preflight changes nothing, and calls {name}")
