"""What a host that becomes a node is made from: what its Machine says by then, else the agent's configuration."""

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

_READS: Final = 5  # of a configuration that changes with each


async def wanted_goal(api: Api, base: NodeGoal) -> NodeGoal:
    """As a recreation would make the node now, so that a node that has just been made is not one to be made anew.

    Args:
        base: the node as the agent's configuration has it.
    Raises:
        Rejected: there is no such Machine.
        Transient: the configuration that it names is not there, or no answer.
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
    """The same for a node that is made now. Its Machine says which version it is made from before that begins, and from
    then on machina leaves the version as it is. So it is read once more after that; where it has changed, it is named
    and read anew.

    Raises:
        Rejected, Transient: as `wanted_goal`; Transient also where it changes again and again.
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
    """What a person does about a host whose Machine was deleted."""
    return (
        f"Machine {machine} was deleted: run `unbounded-agent reset` to take the agent off this host, or"
        " `unbounded-agent start` with a bootstrap token to make the Machine again"
    )
