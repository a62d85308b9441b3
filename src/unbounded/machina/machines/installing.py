"""What is brought to a host: the agent's configuration, the script, and what it is told."""

from __future__ import annotations

from unbounded.api.failures import Failure
from unbounded.api.machine import Machine
from unbounded.api.node_settings import NodeSettings
from unbounded.join.agent_config import agent_config, config_text
from unbounded.join.bootstrap import UsableToken
from unbounded.join.facts import ClusterFacts
from unbounded.join.install import (
    AgentOrigin,
    install_environment,
    install_script,
    origin_of,
    with_image,
    with_key,
    with_mirror,
)
from unbounded.kube.logs import Secret
from unbounded.machina.machines.outcome import NoSource, NoToken
from unbounded.machina.machines.settings import Settings
from unbounded.machina.provisioning.model import Install


def install_of(
    machine: Machine,
    attempt: str,
    facts: ClusterFacts | None,
    token: UsableToken | None,
    settings: Settings,
    node: NodeSettings | None = None,
) -> tuple[Install, Failure | None]:
    """The install of one attempt, and why it cannot be begun: without token or facts it can still be followed."""
    uid = machine.metadata.uid
    if facts is None or token is None:
        lacking = "the cluster is not known well enough" if facts is None else "there is no bootstrap token"
        return Install(uid, attempt, Secret(""), ""), NoToken(lacking)
    told = agent_config(machine, facts, token=token.text.reveal(), settings=node)
    config = with_mirror(told, settings.artifact_mirror)
    config = with_key(with_image(config, settings.agent_image), settings.agent_public_key)
    origin = origin_of(machine.spec.agent, defaults_of(settings))
    environment = install_environment(origin)
    install = Install(uid, attempt, Secret(config_text(config)), install_script(), environment, (token.text,))
    missing = origin_fault(machine, settings)
    return install, NoSource(missing) if missing else None


def origin_fault(machine: Machine, settings: Settings) -> str:
    """Return why the host has no release of the agent to run; empty where it has one."""
    return origin_of(machine.spec.agent, defaults_of(settings)).fault


def defaults_of(settings: Settings) -> AgentOrigin:
    """Where agents come from that no Machine names a place for: what was told, else the mirror."""
    return AgentOrigin(
        version=settings.agent_version,
        base_url=settings.agent_base_url or settings.artifact_mirror,
        url=settings.agent_url,
        sha256=settings.agent_sha256,
        public_key=settings.agent_public_key,
    )
