"""What the engine needs of an executor, in the engine's words."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from unbounded.api.failures import Rejected, Transient
from unbounded.api.machine import Machine
from unbounded.api.operation import Cause, MachineOperation, OperationKind
from unbounded.operations.gates import Gate
from unbounded.operations.procedure import Procedure, Sight
from unbounded.operations.record import Run


class Refusal(Rejected):
    """It cannot be done as things stand, for a reason that users can script against.

    Args:
        cause: what the reason is about, where programs can make use of that.
    """

    def __init__(self, reason: str, message: str, cause: Cause | None = None) -> None:
        super().__init__(message)
        self.reason = reason
        self.cause = cause


class NotDone(Transient):
    """Surely not done, and worth another attempt; the reason stands in the status if that was the last one."""

    def __init__(self, reason: str, message: str, cause: Cause | None = None) -> None:
        super().__init__(message)
        self.reason = reason
        self.cause = cause


@dataclass(frozen=True)
class Target:
    """One operation, the Machine it acts on, and how far it is.

    Args:
        ends_at: the time of the loop at which its stage or its deadline ends: from then on only what is seen counts.
    """

    operation: MachineOperation
    machine: Machine
    run: Run
    ends_at: float = math.inf


class Executor(Protocol):
    """One component that carries operations out. It decides nothing: procedures do.

    `observe` and `perform` raise Refusal for what only a person can change, Transient (or NotDone, with a reason) when
    surely nothing was done, Uncertain when the answer was lost. Both may take long; the engine keeps that from delaying
    anybody else.
    """

    @property
    def name(self) -> str:
        """As the status names it, e.g. `metalman/lab`."""
        ...

    @property
    def call_limit_s(self) -> float:
        """The longest that one call of `perform` can last."""
        ...

    def claims(self, kind: OperationKind, machine: Machine) -> bool:
        """Whether this executor owns operations of this kind on this Machine."""
        ...

    def procedure(self, operation: MachineOperation) -> Procedure:
        """How to carry it out; raises Refusal for a kind that is not supported."""
        ...

    def place(self, machine: Machine) -> str:
        """Where it looks and acts, as people know it: `https://bmc-01 Systems/1`."""
        ...

    def lane(self, machine: Machine) -> str:
        """What slows many Machines alike, such as the rate limits of an account; empty where each has its own."""
        ...

    def binding(self, machine: Machine) -> str:
        """A digest of what actions on this Machine go to; another one is another target."""
        ...

    def claim_gate(self, operation: MachineOperation, machine: Machine) -> Gate | None:
        """Return what the executor itself holds a claim back for; None where the operation may be claimed now.

        Asked once all other gates are open: the executor may hold others back from then on.
        """
        ...

    def rests_on(self, operation: MachineOperation, machine: Machine) -> object:
        """What a look takes from the Machine itself; another one, as by `==`, brings on another look at once."""
        ...

    async def observe(self, target: Target) -> Sight: ...

    async def perform(self, target: Target, action: str, *, before: float) -> str | None:
        """Ask for an action; returns once it is accepted, with the handle of a long one (at most 4 KiB).

        Args:
            before: the loop time after which the ask must no longer be sent (then Transient).
        """
        ...
