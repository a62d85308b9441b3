"""The facts of this host that a node depends on."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from typing import Final

from unbounded.agent.layout import Layout
from unbounded.agent.node_spec.from_config import HostFacts

ARCHITECTURES: Final = {"x86_64": "amd64", "aarch64": "arm64"}
_YES: Final = frozenset({"1", "t", "true"})


def host_facts(layout: Layout, environment: Mapping[str, str]) -> HostFacts:
    """Read the facts from the host.

    Args:
        environment: of the agent's process: AGENT_OCI_IMAGE, AGENT_DISABLE_OCI_IMAGE.
    """
    machine = platform.machine()
    return HostFacts(
        arch=ARCHITECTURES.get(machine, machine),
        nvidia=any(layout.at("/dev").glob("nvidia[0-9]*")),
        image=environment.get("AGENT_OCI_IMAGE", ""),
        debootstrap=environment.get("AGENT_DISABLE_OCI_IMAGE", "").strip().lower() in _YES,
    )
