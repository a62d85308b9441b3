"""Goal of a node that is about to be built, and the resolution of its Machine's configuration version.

The goal comes from the Machine as it is at that time, else from the agent's configuration. Versions are read on demand,
without a watch.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from unbounded.agent.model import NodeGoal
from unbounded.agent.node_spec import desired_node
from unbounded.agent.recreation.status import RecreationStatusWriter
from unbounded.api.conditions import ConditionType
from unbounded.api.configuration import MachineConfigurationVersion
from unbounded.api.failures import Rejected, Transient
from unbounded.api.machine import MACHINES, Machine
from unbounded.api.machine_spec import ConfigurationRef
from unbounded.join.labels_and_taints import NoVersion, read_bound_version
from unbounded.kube.api import Api, NotFound
from unbounded.kube.clock import utc_now

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


MISSING_S: Final = 30.0  # between reads of a version that does not exist


@dataclass(frozen=True)
class Unresolved:
    """The Machine names a configuration that does not exist."""

    why: str


Version = MachineConfigurationVersion | None | Unresolved


def pending_condition(machine: Machine) -> list[tuple[str, str]]:
    """Return the condition ConfigurationPending. It names the newest version, so a change of it hints at a new one."""
    of_it = (one for one in machine.status.conditions if one.type == ConditionType.CONFIGURATION_PENDING)
    return [(one.status, one.message) for one in of_it]


class VersionResolver:
    """Resolver of versions: the one that the user set, else the newest of the configuration.

    Args:
        for_s: how long a result is reused, while the Machine stays the same and no decision needs it.
    """

    def __init__(self, api: Api, for_s: float) -> None:
        self._api = api
        self._for_s = for_s
        self._key: object = None
        self._known: Version = None
        self._until = 0.0

    async def version(self, machine: Machine, *, fresh: bool = False) -> Version:
        """Return the version of a Machine.

        Args:
            fresh: for a decision; while the version is about to change, the result is Unresolved.
        """
        ref = machine.spec.configuration_ref
        if ref is None:
            return None
        pending = pending_condition(machine)
        key, now = (ref, machine.metadata.uid, pending), asyncio.get_running_loop().time()
        if fresh or key != self._key or now >= self._until:
            self._known = await self._read(ref)
            hold_s = MISSING_S if isinstance(self._known, Unresolved) else self._for_s
            self._key, self._until = key, now + hold_s
        if fresh and isinstance(self._known, MachineConfigurationVersion) and self._known.about_to_change:
            return Unresolved(f"MachineConfigurationVersion {self._known.metadata.name} is about to change")
        return self._known

    def again_s(self, machine: Machine) -> float | None:
        """Return the seconds until the next read; None where only an event can change the result."""
        if machine.spec.configuration_ref is None:
            return None
        return max(1.0, self._until - asyncio.get_running_loop().time())

    async def _read(self, ref: ConfigurationRef) -> Version:
        try:
            return await read_bound_version(self._api, ref)
        except NoVersion as missing:
            return Unresolved(str(missing))
