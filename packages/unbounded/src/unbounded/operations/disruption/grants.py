"""The writes of disruption budgets: grants, groups, and the condition Enforced."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Final

import msgspec

from unbounded.api.conditions import set_condition
from unbounded.api.core import Node
from unbounded.api.disruption import (
    MACHINE_DISRUPTION_BUDGETS,
    BudgetGrant,
    DisruptionHolder,
    DisruptionStage,
    MachineDisruptionBudget,
)
from unbounded.api.machine import MACHINES, Machine
from unbounded.kube.api import Api, NotFound
from unbounded.kube.cache import Cache
from unbounded.kube.clock import WallClock, rfc3339, seconds_since
from unbounded.kube.status_writer import StatusWriter
from unbounded.operations.disruption.budgets import (
    GRACE_S,
    NodeOf,
    budget_names,
    full,
    group_states,
    group_status,
    is_used,
    selects,
    window_of,
    with_grant,
)
from unbounded.operations.disruption.holders import Delay

ENFORCED: Final = "Enforced"
NAMED: Final = 10  # Machines in the message of the condition
_FIELDS: Final = ("allowed", "conditions", "granted", "grants", "groups")


class Grants:
    """The grants of all budgets, each a write of `status.grants` that conflicts with any other.

    Args:
        node_of: returns the Node of a Machine.
        check_leads: raises Stale once another process may lead.
    """

    def __init__(
        self,
        api: Api,
        budgets: Cache[MachineDisruptionBudget],
        machines: Cache[Machine],
        node_of: NodeOf,
        now: WallClock,
        check_leads: Callable[[], None],
    ) -> None:
        self._api = api
        self._check_leads = check_leads
        self._budgets = budgets
        self._machines = machines
        self._node_of = node_of
        self._now = now
        self._status = StatusWriter(api, MACHINE_DISRUPTION_BUDGETS, fields=_FIELDS, cache=budgets)

    def names(self, machine: Machine) -> tuple[str, ...]:
        """Return the names of the budgets that cover a Machine."""
        return budget_names(self._budgets.all(), machine)

    def counting(self, machine: Machine) -> list[MachineDisruptionBudget]:
        """Return the budgets that cover a Machine and count now, by name."""
        now = self._now()
        found = [one for name in self.names(machine) if (one := self._budgets.get(name)) is not None]
        return [one for one in found if window_of(one, now).counts]

    def changes_s(self, machine: Machine) -> float | None:
        """Return the seconds until a budget of the Machine counts or counts no longer; None without a schedule."""
        now = self._now()
        found = [one for name in self.names(machine) if (one := self._budgets.get(name)) is not None]
        times = [at for one in found if (at := window_of(one, now).changes_at) is not None]
        return min(((at - now).total_seconds() + 0.01 for at in times), default=None)

    def delay(self, machine: Machine, budgets: Sequence[MachineDisruptionBudget]) -> Delay | None:
        """Return the delay by the first budget without room for the Machine."""
        machines = self._machines.all()
        return next((found for one in budgets if (found := full(one, machine, machines, self._node_of))), None)

    async def acquire(
        self, machine: Machine, holder: DisruptionHolder, budgets: Sequence[MachineDisruptionBudget]
    ) -> None:
        """Write a grant in each budget, on the version of it that had room.

        Raises:
            Conflict: a budget has changed since. The grants that were written are used by the next attempt, or end.
        """
        for budget in budgets:
            grants = with_grant(budget, machine, holder, rfc3339(self._now()))
            if tuple(grants) != budget.status.grants:
                await self._write(budget, _grants(grants))

    async def release(self, machine: str, holder: DisruptionHolder) -> None:
        """Remove the grants of a Machine's holder from all budgets."""
        for budget in self._budgets.all():
            rest = [one for one in budget.status.grants if (one.machine, one.holder.uid) != (machine, holder.uid)]
            if len(rest) != len(budget.status.grants):
                await self._write(budget, _grants(rest))

    async def reconcile(self, name: str) -> float | None:
        """Bring the status of a budget up to date; return the seconds until its schedule or a grant is due."""
        budget, now = self._budgets.get(name), self._now()
        if budget is None:
            return None
        grants = [one for one in budget.status.grants if await self._is_used(one, now)]
        current = msgspec.structs.replace(budget, status=msgspec.structs.replace(budget.status, grants=tuple(grants)))
        states = group_states(current, self._machines.all(), self._node_of)
        status = {
            "allowed": sum(one.allowed for one in states),
            "granted": len(grants),
            "groups": [msgspec.to_builtins(one) for one in group_status(states)],
            **_grants(grants),
        }
        present = [msgspec.to_builtins(one) for one in budget.status.conditions]
        conditions = set_condition(present, ENFORCED, *self._enforced(budget), rfc3339(now))
        if conditions is not None:
            status["conditions"] = conditions
        old = {"allowed": None, "granted": None, "groups": [], "grants": []} | msgspec.to_builtins(budget.status)
        changed = {field: value for field, value in status.items() if value != old.get(field)}
        await self._write(budget, changed)
        changes_at = window_of(budget, now).changes_at
        waits = [] if changes_at is None else [max((changes_at - now).total_seconds(), 1.0)]
        if any(not is_used(one, self._machines.get(one.machine), GRACE_S) for one in grants):
            waits.append(GRACE_S)
        return min(waits, default=None)

    async def _write(self, budget: MachineDisruptionBudget, status: Mapping[str, object]) -> None:
        if status:
            self._check_leads()
            await self._status.write(budget, status)

    async def _is_used(self, grant: BudgetGrant, now: datetime) -> bool:
        """Return whether a grant is used; a live read confirms that it is not."""
        age_s = seconds_since(grant.since, now)
        if is_used(grant, self._machines.get(grant.machine), age_s):
            return True
        try:
            machine: Machine | None = await self._api.get(MACHINES, grant.machine)
        except NotFound:
            machine = None
        return is_used(grant, machine, age_s)

    def _enforced(self, budget: MachineDisruptionBudget) -> tuple[str, str, str]:
        """Return status, reason and message of the condition Enforced."""
        covered = [one for one in self._machines.all() if selects(budget, one)]
        pending = [one.name for one in covered if budget.name not in one.status.disruption_budgets]
        if pending:
            return "False", "MachinesPending", f"Machines that do not name the budget yet: {_named(pending)}"
        outdated = [one.name for one in covered if not _waits(one)]
        if outdated:
            text = f"agents of an earlier version start operations without a grant, upgrade those of {_named(outdated)}"
            return "False", "AgentsOutdated", text
        return "True", ENFORCED, f"it covers {len(covered)} Machines"


def _grants(grants: Sequence[BudgetGrant]) -> dict[str, object]:
    return {"grants": [msgspec.to_builtins(one) for one in grants]}


def _waits(machine: Machine) -> bool:
    agent = machine.status.agent
    return agent is None or not agent.version or agent.waits_for_grants


def _named(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return f"{', '.join(names[:NAMED])}{more}"


def availability(machine: Machine | None, node: Node | None) -> object:
    """Return a value that changes with whatever a budget counts of a Machine."""
    if machine is None:
        return None
    record, spec = machine.status.disruption, machine.spec.kubernetes
    return (
        machine.metadata.labels,
        None if spec is None else spec.node_ref,
        machine.status.disruption_budgets,
        _waits(machine),
        record is not None and record.stage != DisruptionStage.WAITING,
        node_availability(node),
    )


def node_availability(node: Node | None) -> object:
    """Return the part of `availability` that the Node determines."""
    if node is None:
        return None
    others = [(one.type, one.status, one.reason) for one in node.status.conditions if one.type in _COUNTED]
    return (node.metadata.uid, node.ready, node.spec.unschedulable, others)


_COUNTED: Final = frozenset({"DrainInProgress", "Drained", "MaintenanceInProgress"})
