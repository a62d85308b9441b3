"""Content of an install: the agent's configuration, the script, and its variables."""

from __future__ import annotations

from typing import NamedTuple

from unbounded.api.conditions import ConditionReason
from unbounded.api.configuration import NodeSettings
from unbounded.api.failures import Failure
from unbounded.api.machine import Machine
from unbounded.join.agent_config import config_text
from unbounded.join.facts import ClusterFacts
from unbounded.join.install import (
    NO_DIGEST,
    AgentOrigin,
    HostDefaults,
    host_setup,
    install_environment,
    install_script,
    origin_of,
)
from unbounded.join.tokens import UsableToken
from unbounded.kube.logs import SecretStr
from unbounded.machina.machines.conditions import CannotBegin
from unbounded.machina.provisioning.model import Install
from unbounded.machina.settings import ProvisioningSettings


def install_of(
    machine: Machine,
    attempt: str,
    facts: ClusterFacts | None,
    token: UsableToken | None,
    settings: ProvisioningSettings,
    node: NodeSettings | None = None,
) -> tuple[Install, Failure | None]:
    """Return the install of one attempt, and the failure if it cannot be started.

    An install without token or facts cannot be started but still be followed.
    """
    uid = machine.lasting_uid
    if facts is None or token is None:
        lacking = "facts about the cluster are missing" if facts is None else "no bootstrap token exists"
        return Install(uid, attempt, SecretStr(""), ""), CannotBegin(ConditionReason.TOKEN_UNUSABLE, lacking)
    setup = host_setup(machine, facts, defaults_of(settings), token=token.text.reveal(), settings=node)
    environment = install_environment(setup.origin)
    install = Install(uid, attempt, SecretStr(config_text(setup.config)), install_script(), environment, (token.text,))
    fault = _fault_of(setup.origin)
    return install, CannotBegin(fault.reason, fault.words) if fault.words else None


class OriginFault(NamedTuple):
    """Cause why a host has no agent release to run, and its reason; empty words without a fault."""

    words: str
    reason: ConditionReason


def origin_fault(machine: Machine, settings: ProvisioningSettings) -> OriginFault:
    """Return the cause why a Machine's host has no agent release to run."""
    return _fault_of(origin_of(machine.spec.agent, defaults_of(settings).origin))


def _fault_of(origin: AgentOrigin) -> OriginFault:
    words = origin.fault
    no_digest = words == NO_DIGEST
    return OriginFault(words, ConditionReason.DIGEST_MISSING if no_digest else ConditionReason.SOURCE_MISSING)


def defaults_of(settings: ProvisioningSettings) -> HostDefaults:
    """Return machina's defaults for all hosts: releases come from the configured source, else from the mirror."""
    origin = AgentOrigin(
        version=settings.agent_version,
        base_url=settings.agent_base_url or settings.artifact_mirror,
        url=settings.agent_url,
        sha256=settings.agent_sha256,
    )
    return HostDefaults(origin, settings.artifact_mirror, settings.agent_image)
