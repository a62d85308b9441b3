"""A NodeGoal for tests, and what it is made of."""

from __future__ import annotations

from typing import Any

from tests.support.authority import PEM as CA
from unbounded.agent.model import NodeGoal
from unbounded.join.agent_config import ArtifactSource, Downloads

__all__ = ["CA", "goal", "mirrored"]


def goal(**changed: Any) -> NodeGoal:
    """The node m1 with version 1.34.2, with the changes."""
    given: dict[str, Any] = {
        "machine": "m1",
        "kubernetes_version": "1.34.2",
        "api_server": "https://10.0.0.1:6443",
        "ca_pem": CA,
        "cluster_dns": "10.96.0.10",
        "image": "registry.example/rootfs:1",
        "labels": {"unbounded-cloud.io/machine": "m1"},
        "containerd_version": "2.1.8",
        "runc_version": "1.5.0",
        "cni_version": "1.5.1",
    }
    return NodeGoal(**{**given, **changed})


def mirrored(base: str) -> Downloads:
    """All artifacts from one mirror, each project in its folder."""
    names = ("kubernetes", "containerd", "runc", "cni", "crictl", "sandbox")
    return Downloads(**{name: ArtifactSource(base_url=f"{base}/{name}") for name in names})
