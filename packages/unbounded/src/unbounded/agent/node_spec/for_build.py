"""Goal of a node that is about to be built: from its Machine as it is at that time, else from the agent's
configuration.
"""

from __future__ import annotations

from typing import Final

from unbounded.agent.model import NodeGoal
from unbounded.agent.node_spec.from_machine import desired_node
from unbounded.agent.recreation.status import RecreationStatusWriter
from unbounded.agent.recreation.version_resolver import Unresolved, VersionResolver
from unbounded.api.failures import Rejected, Transient
from unbounded.api.machine import MACHINES
from unbounded.kube.clock import utc_now
from unbounded.kube.errors import NotFound
from unbounded.kube.port import Api

_READS: Final = 5  # reads of a configuration that has changed at each


async def goal_for_build(api: Api, base: NodeGoal) -> NodeGoal:
    """Return the goal that a recreation would use now, so that a new node needs no recreation right away.

    Args:
        base: goal from the agent's configuration.
    Raises:
        Rejected: there is no such Machine.
        Transient: its configuration does not exist, or no answer.
    """
    try:
        machine = await api.get(MACHINES, base.machine)
    except NotFound as error:
        raise Rejected(deleted_machine_message(base.machine)) from error
    version = await VersionResolver(api, 0.0).version(machine, fresh=True)
    if isinstance(version, Unresolved):
        raise Transient(f"Machine {base.machine}: {version.why}")
    return desired_node(machine, version, base).goal


async def recorded_goal(api: Api, base: NodeGoal) -> NodeGoal:
    """Return the goal of a node that is built now, after recording its configuration version in the Machine's status.

    machina does not change a version that a Machine's status names. A read after that write detects a change in
    between; a changed version is recorded and read again.

    Raises:
        Rejected, Transient: as `goal_for_build`; Transient also where the version changes at each read.
    """
    status = RecreationStatusWriter(api, base.machine, now=utc_now)
    spec = await goal_for_build(api, base)
    for _ in range(_READS):
        if spec.configuration is None:
            return spec
        await status.record_configuration(spec.configuration)
        named, spec = spec, await goal_for_build(api, base)
        if spec == named:
            return spec
    raise Transient(f"Machine {base.machine}: its configuration changes too often; run start again")


def deleted_machine_message(machine: str) -> str:
    """Return the remedy for a host whose Machine was deleted."""
    return (
        f"Machine {machine} was deleted: run `unbounded-agent reset` to remove the agent from this host, "
        "or `unbounded-agent start` with a bootstrap token to create the Machine again"
    )
