"""Origin of a host's agent as far as the command line knows it, and the error where there is none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from unbounded.agent.node_spec.from_config import NO_IMAGE
from unbounded.api.machine import Machine
from unbounded.cli.deploy.live_machina import LiveMachina
from unbounded.cli.plugin.command import CliError, CommandSession
from unbounded.join.install import NO_DIGEST, AgentOrigin, HostDefaults, origin_of


def default_origin(config: Mapping[str, Any]) -> AgentOrigin:
    """Return machina's origin of agents, for Machines that name none; the mirror has the lowest precedence."""
    return AgentOrigin(
        version=str(config.get("agentVersion") or ""),
        base_url=str(config.get("agentBaseUrl") or config.get("artifactMirror") or ""),
        url=str(config.get("agentUrl") or ""),
        sha256=str(config.get("agentSha256") or ""),
    )


def host_defaults(config: Mapping[str, Any]) -> HostDefaults:
    """Return machina's settings for all hosts."""
    mirror, image = str(config.get("artifactMirror") or ""), str(config.get("agentImage") or "")
    return HostDefaults(default_origin(config), mirror, image)


def require_origin(session: CommandSession, machine: Machine, live: LiveMachina) -> AgentOrigin:
    """Return the origin of the host's agent. Warn where no image of its node is named: a MachineConfiguration may name
    it.

    Raises:
        CliError: neither the Machine nor the settings of machina name a release that hosts may run.
    """
    origin = origin_of(machine.spec.agent, default_origin(live.settings))
    if origin.fault:
        raise CliError(origin.fault, next_step=_next_step(session.invocation.program, machine, live, origin.fault))
    if not (machine.spec.agent and machine.spec.agent.image) and not live.settings.get("agentImage"):
        session.printer.warn(NO_IMAGE)
    return origin


def _next_step(program: str, machine: Machine, live: LiveMachina, fault: str) -> str:
    """Return the flags that supply what is missing; for a release of one host, no digest for all hosts."""
    if fault != NO_DIGEST:
        return f"set it with --agent-url URL for this host, or with `{live.agent_command(program)}` for all hosts"
    agent, here = machine.spec.agent, "set it with --agent-sha256 DIGEST for this host"
    if agent is not None and (agent.url or agent.base_url or agent.version):
        return here
    return f"{here}, or with `{live.digest_command(program)}` for all hosts"


def warn_of_no_digest(session: CommandSession, config: Mapping[str, Any]) -> None:
    """Warn where hosts would reject their agent, unless their Machine has its digest."""
    if default_origin(config).fault == NO_DIGEST:
        session.printer.warn(
            "hosts would download the agent over plain http without a digest, which they reject: give "
            "--agent-sha256 DIGEST, or spec.agent.sha256 in each Machine"
        )
