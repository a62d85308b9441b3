"""Which version of a MachineConfiguration a Machine is bound to; read when it is needed, without a watch."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from unbounded.api.conditions import ConditionType
from unbounded.api.configuration import MachineConfigurationVersion
from unbounded.api.machine import ConfigurationRef, Machine
from unbounded.join.configurations import NoVersion, bound_version
from unbounded.kube.port import Api

MISSING_S: Final = 30.0  # between looks for a version that is not there


@dataclass(frozen=True)
class Unresolved:
    """The Machine names what is not there."""

    why: str


Version = MachineConfigurationVersion | None | Unresolved


def pending_said(machine: Machine) -> list[tuple[str, str]]:
    """What ConfigurationPending says, which names the newest version: another one tells that there may be a new one."""
    of_it = (one for one in machine.status.conditions if one.type == ConditionType.CONFIGURATION_PENDING)
    return [(one.status, one.message) for one in of_it]


class Resolver:
    """A version that the user wrote is the one; else it is the newest of the configuration.

    Args:
        for_s: how long an answer holds, while the Machine stays the same and nothing is decided on it.
    """

    def __init__(self, api: Api, for_s: float) -> None:
        self._api = api
        self._for_s = for_s
        self._key: object = None
        self._known: Version = None
        self._until = 0.0

    async def version(self, machine: Machine, *, fresh: bool = False) -> Version:
        """Args:
        fresh: it is for a decision; then a version that is about to change is none, for the moment that this takes.
        """
        ref = machine.spec.configuration_ref
        if ref is None:
            return None
        pending = pending_said(machine)
        key, now = (ref, machine.metadata.uid, pending), asyncio.get_running_loop().time()
        if fresh or key != self._key or now >= self._until:
            self._known = await self._read(ref)
            hold_s = MISSING_S if isinstance(self._known, Unresolved) else self._for_s
            self._key, self._until = key, now + hold_s
        if fresh and isinstance(self._known, MachineConfigurationVersion) and self._known.about_to_change:
            return Unresolved(f"MachineConfigurationVersion {self._known.metadata.name} is about to change")
        return self._known

    def again_s(self, machine: Machine) -> float | None:
        """When to look again; None where nothing can change without an event."""
        if machine.spec.configuration_ref is None:
            return None
        return max(1.0, self._until - asyncio.get_running_loop().time())

    async def _read(self, ref: ConfigurationRef) -> Version:
        try:
            return await bound_version(self._api, ref)
        except NoVersion as missing:
            return Unresolved(str(missing))
