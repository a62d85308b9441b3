"""Where agents come from, as far as the command line knows: pure."""

from __future__ import annotations

from unbounded.cli.deploying.origins import origin_told
from unbounded.join.install import AgentOrigin

DIGEST = "a" * 64


def test_agents_come_from_the_mirror_where_nothing_else_is_said() -> None:
    mirror = {"artifactMirror": "https://mirror.example.com"}
    assert origin_told({}) == AgentOrigin()
    assert origin_told(mirror) == AgentOrigin(base_url="https://mirror.example.com")
    told = mirror | {"agentBaseUrl": "https://releases.example.com", "agentVersion": "v1", "agentUrl": None}
    assert origin_told(told) == AgentOrigin(version="v1", base_url="https://releases.example.com")
    assert origin_told({"agentSha256": DIGEST}).sha256 == DIGEST
