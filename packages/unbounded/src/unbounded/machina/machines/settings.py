"""Settings of provisioning as frozen data; `machina.settings` reads them."""

from __future__ import annotations

from dataclasses import dataclass, field

from unbounded.kube.backoff import Backoff


@dataclass(frozen=True)
class ProvisioningSettings:
    """Settings of provisioning.

    Args:
        probe_workers: limit of concurrent probes of SSH ports.
        attempts_at_once: limit of hosts that are provisioned at the same time.
        provisioning_timeout_s: of one attempt.
        silence_s: longest time without output of an install.
        retry: backoff of failed attempts.
        agent_version, agent_base_url, agent_url, agent_sha256: of agents, for Machines that do not set them.
        agent_public_key: key that signs agent releases; empty to allow any release.
        agent_image: root file system of nodes, for Machines that do not set one.
        cluster_dns, apiserver_endpoint: override the facts of the cluster; empty for no override.
        artifact_mirror: source of all downloads for which a Machine sets no other; empty for none.
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
