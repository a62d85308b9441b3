"""The engine's port to an executor."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from unbounded.api.failures import Rejected, Transient
from unbounded.api.fields import Cause
from unbounded.api.machine import Machine
from unbounded.api.operation import MachineOperation, OperationKind
from unbounded.operations.claim_gates import Gate
from unbounded.operations.execution_record import Run
from unbounded.workflow.procedure import Observation, Procedure


class Refusal(Rejected):
    """The request cannot be executed in the current state, for a reason that users can script against.

    Args:
        cause: the objects or values that the reason is about, for programs.
    """

    def __init__(self, reason: str, message: str, cause: Cause | None = None) -> None:
        super().__init__(message)
        self.reason = reason
        self.cause = cause


class NotDone(Transient):
    """The call certainly had no effect, and a retry may succeed; the last attempt's reason goes to the status."""

    def __init__(self, reason: str, message: str, cause: Cause | None = None) -> None:
        super().__init__(message)
        self.reason = reason
        self.cause = cause


@dataclass(frozen=True)
class Target:
    """One operation, the Machine it acts on, and its record.

    Args:
        ends_at: loop time at which the stage or the deadline ends; from then on, only observations count.
    """

    operation: MachineOperation
    machine: Machine
    run: Run
    ends_at: float = math.inf


class Executor(Protocol):
    """A component that executes operations. Its procedures make the decisions.

    `observe` and `perform` raise Refusal where only a person can help, and Uncertain when the answer was lost. They
    raise Transient, or NotDone with a reason, when the call certainly had no effect. Both may take long: the engine
    runs them beside other operations.
    """

    @property
    def name(self) -> str:
        """The name in the status, e.g. `metalman/lab`."""
        ...

    @property
    def call_limit_s(self) -> float:
        """The longest duration of one call of `perform`, in seconds."""
        ...

    def claims(self, kind: OperationKind, machine: Machine) -> bool:
        """Return whether this executor owns operations of this kind on this Machine."""
        ...

    def procedure(self, operation: MachineOperation) -> Procedure:
        """Return the operation's procedure; raise Refusal for an unsupported kind."""
        ...

    def endpoint(self, machine: Machine) -> str:
        """Return the endpoint of observations and actions, for messages: `https://bmc-01 Systems/1`."""
        ...

    def concurrency_group(self, machine: Machine) -> str:
        """Return the name of a bottleneck that several Machines share, such as an account's rate limits; else empty."""
        ...

    def target_digest(self, machine: Machine) -> str:
        """Return a digest of the target of actions on this Machine; another digest is another target."""
        ...

    def claim_gate(self, operation: MachineOperation, machine: Machine) -> Gate | None:
        """Return the executor's own gate of a claim; None where the operation may be claimed now.

        The engine calls it once all other gates are open: from then on, the executor may block other operations.
        """
        ...

    def observation_key(self, operation: MachineOperation, machine: Machine) -> object:
        """Return the part of the Machine that an observation depends on; a change, by `==`, triggers an observation."""
        ...

    async def observe(self, target: Target) -> Observation: ...

    async def perform(self, target: Target, action: str, *, before: float) -> str | None:
        """Call an action; return once it is accepted, with the handle of a long one (at most 4 KiB).

        Args:
            before: loop time after which the call must no longer be sent (then Transient).
        """
        ...
