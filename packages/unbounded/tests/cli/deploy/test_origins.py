"""Sources of agents, as far as the command line knows: pure."""

from __future__ import annotations

from unbounded.cli.deploy.live_machina import default_origin
from unbounded.join.agent_install import AgentOrigin

DIGEST = "a" * 64


def test_agents_come_from_the_mirror_where_nothing_else_is_said() -> None:
    mirror = {"artifactMirror": "https://mirror.example.com"}
    assert default_origin({}) == AgentOrigin()
    assert default_origin(mirror) == AgentOrigin(base_url="https://mirror.example.com")
    told = mirror | {"agentBaseUrl": "https://releases.example.com", "agentVersion": "v1", "agentUrl": None}
    assert default_origin(told) == AgentOrigin(version="v1", base_url="https://releases.example.com")
    assert default_origin({"agentSha256": DIGEST}).sha256 == DIGEST
