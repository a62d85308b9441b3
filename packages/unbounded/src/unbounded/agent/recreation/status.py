"""Writer of the Machine's status for recreations: the claim (activeOperation), conditions, and the history."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Any, Final

import msgspec

from unbounded.agent.model import BuildRecord, ConfigurationId, NodeGoal
from unbounded.agent.node_spec import DesiredNode
from unbounded.agent.recreation.report import ConditionReport, stage_of_node, stage_of_recreation, status_change
from unbounded.agent.recreation.state_store import Transition
from unbounded.api.machine import (
    MACHINES,
    NODE_RECREATION,
    ActiveOperation,
    ConfigurationStatus,
    Machine,
    PreparedVersion,
    RecentOperation,
)
from unbounded.api.operation import OperationPhase
from unbounded.kube.api import Api, NotFound
from unbounded.kube.clock import WallClock, rfc3339
from unbounded.kube.status_writer import StatusWriter
from unbounded.operations.execution_record import with_nulls
from unbounded.operations.machine_lock import with_newest

Raw = Mapping[str, Any]

_REPORTS: Final = 5
_FIELDS: Final = ("activeOperation", "agent", "conditions", "configuration", "recentOperations")


class RecreationStatusWriter:
    """Writes with the resourceVersion of a read just before: a change in between is a Conflict, and the pass is
    repeated.
    """

    def __init__(self, api: Api, machine: str, *, now: WallClock) -> None:
        self._api = api
        self._status = StatusWriter(api, MACHINES, fields=_FIELDS)
        self._machine = machine
        self._executor = f"unbounded-agent/{machine}"
        self._wall = now

    def now(self) -> str:
        return rfc3339(self._wall())

    def operation_name(self) -> str:
        """Name of the recreation in the claim."""
        return f"{self._machine}-recreation"

    async def claim(self, transition: Transition, report: ConditionReport) -> str:
        """Take the claim or keep it, and report the progress. Return the other holder; empty where the claim is taken.

        A deleted Machine has no claim to lose: a recreation under way is completed.
        """
        raw = await self._read()
        if raw is None:
            return ""
        active = msgspec.convert(raw, Machine).status.active_operation
        if active is not None and active.uid != transition.uid and not active.lost:
            return holder_message(active)
        change = status_change(raw, (report,), None, None, now=self.now(), agent=stage_of_recreation(transition))
        if active is None or active.uid != transition.uid:
            change["activeOperation"] = self._slot(transition, lost=active is not None and active.lost)
        await self._status.write(raw, change)
        return ""

    async def report_progress(self, transition: Transition, report: ConditionReport) -> None:
        """Report the progress if this recreation has the claim."""
        raw = await self._read()
        if raw is not None and _holder(raw) == transition.uid:
            stage = stage_of_recreation(transition)
            await self._status.write(raw, status_change(raw, (report,), None, None, now=self.now(), agent=stage))

    async def complete(
        self,
        transition: Transition,
        report: Iterable[ConditionReport],
        applied: BuildRecord | None,
        desired: DesiredNode | None,
        phase: OperationPhase,
    ) -> bool:
        """Release the claim and add the result to the history. Return False when another operation has the claim."""
        raw = await self._read()
        if raw is None:
            return True
        if _holder(raw) not in ("", transition.uid):
            return False
        conditions = tuple(report)
        stage = {} if applied is None else stage_of_node(applied)
        change = status_change(raw, conditions, applied, desired, now=self.now(), agent=stage)
        result = msgspec.to_builtins(self._result(transition, phase, conditions[0]))
        history = with_newest(raw.get("status", {}).get("recentOperations", ()), result)
        await self._status.write(raw, {**change, "activeOperation": None, "recentOperations": history})
        return True

    async def report(
        self,
        report: Iterable[ConditionReport],
        applied: BuildRecord | None,
        desired: DesiredNode | None,
        *,
        agent: Raw = MappingProxyType({}),
    ) -> None:
        """Update conditions, configuration and image; write nothing where they are equal already. On a Conflict, such
        as with other writers at the daemon's start, retry at once.

        Args:
            agent: further fields of `status.agent`; None removes one.
        """
        conditions = tuple(report)
        await self._status.update(
            self._machine,
            lambda raw: status_change(raw, conditions, applied, desired, now=self.now(), agent=agent),
            attempts=_REPORTS,
        )

    async def report_prepared(self, prepared: PreparedVersion) -> None:
        """Report what is downloaded for the next node."""
        await self._status.update(
            self._machine,
            lambda raw: status_change(raw, (), None, None, now=self.now(), agent={"prepared": prepared}),
            attempts=_REPORTS,
        )

    async def record_configuration(self, configuration: ConfigurationId) -> None:
        """Record the configuration version of the first node before its build: there is no claim that could name it
        yet.
        """
        with suppress(NotFound):
            await self._status.merge(self._machine, {"configuration": msgspec.to_builtins(configuration)})

    async def release_leftover(self) -> None:
        """Release the claim of a recreation that is no longer under way."""
        raw = await self._read()
        if raw is not None and self.is_leftover(msgspec.convert(raw, Machine)):
            await self._status.write(raw, {"activeOperation": None})

    def is_leftover(self, machine: Machine) -> bool:
        """Return whether the claim belongs to a recreation of this agent; call this while none is under way."""
        active = machine.status.active_operation
        return active is not None and active.kind == NODE_RECREATION and active.executor == self._executor

    def _slot(self, transition: Transition, *, lost: bool) -> dict[str, Any]:
        active = ActiveOperation(
            uid=transition.uid,
            name=self.operation_name(),
            kind=NODE_RECREATION,
            executor=self._executor,
            since=self.now(),
            configuration=_configuration(transition.goal),
        )
        return with_nulls(active) if lost else msgspec.to_builtins(active)

    def _result(self, transition: Transition, phase: OperationPhase, report: ConditionReport) -> RecentOperation:
        return RecentOperation(
            name=self.operation_name(),
            uid=transition.uid,
            kind=NODE_RECREATION,
            phase=phase,
            reason=report.reason,
            message=report.message[:512],
            started_at=transition.since,
            completed_at=self.now(),
        )

    async def _read(self) -> Raw | None:
        try:
            return await self._api.get(MACHINES.raw(), self._machine)
        except NotFound:
            return None


def holder_message(active: ActiveOperation) -> str:
    return f"{active.kind} {active.name} ({active.executor}) holds the lock of the Machine since {active.since}"


def _configuration(spec: NodeGoal) -> ConfigurationStatus | None:
    configuration = None if spec.configuration is None else msgspec.to_builtins(spec.configuration)
    return None if configuration is None else msgspec.convert(configuration, ConfigurationStatus)


def _holder(raw: Raw) -> str:
    active = raw.get("status", {}).get("activeOperation") or {}
    return str(active.get("uid", ""))
