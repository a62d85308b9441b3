"""Goal of a node that is about to be built: from its Machine as it is at that time, else from the agent's
configuration.
"""

from __future__ import annotations

from typing import Final

from unbounded.agent.desired import desired
from unbounded.agent.model import NodeGoal
from unbounded.agent.recreation.desk import Desk
from unbounded.agent.recreation.resolving import Resolver, Unresolved
from unbounded.api.failures import Rejected, Transient
from unbounded.api.machine import MACHINES
from unbounded.kube.clock import utc_now
from unbounded.kube.errors import NotFound
from unbounded.kube.port import Api

_READS: Final = 5  # reads of a configuration that has changed at each


async def wanted_goal(api: Api, base: NodeGoal) -> NodeGoal:
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
        raise Rejected(missing_words(base.machine)) from error
    version = await Resolver(api, 0.0).version(machine, fresh=True)
    if isinstance(version, Unresolved):
        raise Transient(f"Machine {base.machine}: {version.why}")
    return desired(machine, version, base).goal


async def named_goal(api: Api, base: NodeGoal) -> NodeGoal:
    """Return the goal of a node that is built now, after recording its configuration version in the Machine's status.

    machina does not change a version that a Machine's status names. A read after that write detects a change in
    between; a changed version is recorded and read again.

    Raises:
        Rejected, Transient: as `wanted_goal`; Transient also where the version changes at each read.
    """
    desk = Desk(api, base.machine, now=utc_now)
    goal = await wanted_goal(api, base)
    for _ in range(_READS):
        if goal.configuration is None:
            return goal
        await desk.name(goal.configuration)
        named, goal = goal, await wanted_goal(api, base)
        if goal == named:
            return goal
    raise Transient(f"Machine {base.machine}: its configuration changes again and again; start again")


def missing_words(machine: str) -> str:
    """Return the remedy for a host whose Machine was deleted."""
    return (
        f"Machine {machine} was deleted: run `unbounded-agent reset` to take the agent off this host, or"
        " `unbounded-agent start` with a bootstrap token to make the Machine again"
    )
