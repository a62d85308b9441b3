"""The agent's executor: dispatches each operation to the work of its kind."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Mapping
from typing import Final

from unbounded.agent.interfaces import OperationWork
from unbounded.api.failures import Uncertain
from unbounded.api.machine import Machine
from unbounded.api.operation import MachineOperation, OperationKind
from unbounded.operations import reasons
from unbounded.operations.claim_gates import Gate
from unbounded.operations.executor_protocol import Refusal, Target
from unbounded.operations.executor_selection import ExecutorKind, executor_of
from unbounded.workflow.procedure import Observation, Procedure

CALL_LIMIT_S: Final = 900.0  # the download of a release and the start of a node have limits below it


class AgentExecutor:
    """Executor of one Machine's operations in the Machine's own agent.

    Args:
        machine: its name.
        host_id: of this host (/etc/machine-id); an operation that another host has claimed is not resumed here.
        resetting: returns whether a reset is under way; then only AgentReset is claimed.
    """

    def __init__(
        self,
        machine: str,
        works: Mapping[OperationKind, OperationWork],
        *,
        host_id: str,
        resetting: Callable[[], bool] = lambda: False,
        call_limit_s: float = CALL_LIMIT_S,
    ) -> None:
        self._machine = machine
        self._works = dict(works)
        self._binding = hashlib.sha256(host_id.encode()).hexdigest()[:32]
        self._resetting = resetting
        self._call_limit_s = call_limit_s

    @property
    def name(self) -> str:
        return f"{ExecutorKind.AGENT}/{self._machine}"

    @property
    def call_limit_s(self) -> float:
        return self._call_limit_s

    def claims(self, kind: OperationKind, machine: Machine) -> bool:
        mine = machine.name == self._machine and executor_of(kind, machine) is ExecutorKind.AGENT
        return mine and (kind is OperationKind.AGENT_RESET or not self._resetting())

    def procedure(self, operation: MachineOperation) -> Procedure:
        return self._work(operation).procedure(operation)

    def endpoint(self, machine: Machine) -> str:
        return f"the host of {machine.name}"

    def concurrency_group(self, machine: Machine) -> str:  # noqa: ARG002  # there is one host
        return ""

    def target_digest(self, machine: Machine) -> str:  # noqa: ARG002  # the UID is compared by itself
        return self._binding

    def claim_gate(self, operation: MachineOperation, machine: Machine) -> Gate | None:  # noqa: ARG002  # as above
        return None

    def observation_key(self, operation: MachineOperation, machine: Machine) -> object:  # noqa: ARG002  # only the host counts
        return None

    async def observe(self, target: Target) -> Observation:
        return await self._work(target.operation).observe(target)

    async def perform(self, target: Target, action: str, *, before: float) -> str | None:
        try:
            async with asyncio.timeout(self._call_limit_s):
                return await self._work(target.operation).perform(target, action, before=before)
        except TimeoutError as error:
            raise Uncertain(f"{action}: not complete within {self._call_limit_s:g} s") from error

    def _work(self, operation: MachineOperation) -> OperationWork:
        kind = OperationKind(operation.spec.operation_kind)
        work = self._works.get(kind)
        if work is None:
            raise Refusal(reasons.UNSUPPORTED_OPERATION, f"this version of the agent does not support {kind}")
        return work
