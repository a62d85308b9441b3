"""What netboot templates are told beside the Machine, out of the facts of the cluster."""

from __future__ import annotations

from unbounded.api.machine import Machine
from unbounded.join.agent_config import agent_config_json
from unbounded.join.facts import FactsFollower
from unbounded.metalman.templates import Surroundings


class ClusterSurroundings:
    """Made anew for each file, as facts change while hosts boot. No token is ever among it: attestation brings that."""

    def __init__(self, follower: FactsFollower) -> None:
        self._follower = follower

    def surroundings(self, machine: Machine, serve_url: str) -> Surroundings | None:
        """All of it; None while the cluster is not known yet.

        Args:
            serve_url: the URL of this boot, with its prefix; the agent attests under it.
        """
        facts = self._follower.facts
        if facts is None:
            return None
        return Surroundings(
            apiserver_url=facts.apiserver_url,
            serve_url=serve_url,
            kubernetes_version=facts.kubernetes_version,
            cluster_dns=facts.cluster_dns,
            agent_config_json=agent_config_json(machine, facts, attest_url=serve_url),
        )
