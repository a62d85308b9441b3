"""What machina is told about setting hosts up, as frozen data; `machina.settings` reads it."""

from __future__ import annotations

from dataclasses import dataclass, field

from unbounded.kube.backoff import Backoff


@dataclass(frozen=True)
class Settings:
    """What machina is told.

    Args:
        probe_workers: looks at SSH ports at the same time.
        attempts_at_once: hosts that are set up at the same time.
        provisioning_timeout_s: of one attempt.
        silence_s: how long a host that is set up may say nothing.
        retry: of attempts that failed.
        agent_version, agent_base_url, agent_url, agent_sha256: of agents, for Machines that do not say.
        agent_public_key: of releases of the agent, which have to be signed by it; empty where any release may run.
        agent_image: root file system of nodes, for the same.
        cluster_dns, apiserver_endpoint: stand in for what the cluster says; empty for nothing.
        artifact_mirror: where everything is downloaded from that a Machine gives no place for; empty for nothing.
    """

    probe_workers: int = 64
    attempts_at_once: int = 50
    provisioning_timeout_s: float = 1800.0
    silence_s: float = 600.0
    reset_timeout_s: float = 900.0
    retry: Backoff = field(default_factory=lambda: Backoff(60.0, 1800.0))
    agent_version: str = ""
    agent_base_url: str = ""
    agent_url: str = ""
    agent_sha256: str = ""
    agent_public_key: str = ""
    agent_image: str = ""
    cluster_dns: str = ""
    apiserver_endpoint: str = ""
    artifact_mirror: str = ""
