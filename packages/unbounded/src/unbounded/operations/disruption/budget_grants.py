"""The writes of disruption budgets, and their controller: grants, groups, and the condition Enforced."""

from __future__ import annotations

import asyncio
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import msgspec

from unbounded.api.conditions import counted, set_condition
from unbounded.api.core import Node
from unbounded.api.disruption import (
    MACHINE_DISRUPTION_BUDGETS,
    MAX_GRANTS,
    BudgetGrant,
    DisruptionHolder,
    DisruptionStage,
    MachineDisruptionBudget,
)
from unbounded.api.failures import Stale
from unbounded.api.machine import MACHINES, Machine
from unbounded.kube.api import Api, NotFound
from unbounded.kube.cache import Cache
from unbounded.kube.clock import WallClock, loop_time, rfc3339, seconds_since
from unbounded.kube.controller import Controller
from unbounded.kube.metrics import ControllerMetrics
from unbounded.kube.status_writer import StatusWriter
from unbounded.operations import reasons
from unbounded.operations.disruption.budgets import (
    FIRST_YEARS,
    GRACE_S,
    GroupCounts,
    GroupState,
    NodeOf,
    budget_names,
    full,
    group_of,
    group_status,
    has_been_node,
    is_used,
    window_of,
)
from unbounded.operations.disruption.model import Delay

ENFORCED: Final = "Enforced"
SETTLE_S: Final = 1.0  # after a change, as others come together with it
_VOID: Final = ("False", "ScheduleNeverComes", f"schedule has no begin within {FIRST_YEARS} years: it never counts")
ROUNDING_S: Final = 0.001
NAMED: Final = 10  # Machines in the message of the condition
GRANT_WITHIN_S: Final = 10.0  # of the reading of its holder, which may end while its grant waits for another write
_COUNTS: Final = ("allowed", "granted", "groups", "grants")


class _Change:
    """A change of the grants of one budget, and its outcome: a grant for `target`, or the end of the holder's.

    Args:
        overrides: grant although there is no room.
        read_at: time of the event loop at which the holder was last read.
    """

    def __init__(
        self,
        machine: str,
        holder: DisruptionHolder,
        target: Machine | None = None,
        *,
        overrides: bool = False,
        read_at: float = math.inf,
    ) -> None:
        self.machine = machine
        self.holder = holder
        self.target = target
        self.overrides = overrides
        self.read_at = read_at
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def ends(self, grant: BudgetGrant) -> bool:
        return self.target is None and (grant.machine, grant.holder.uid) == (self.machine, self.holder.uid)

    def fail(self, error: Exception) -> None:
        if not self.done.done():
            self.done.set_exception(error)
            self.done.exception()  # it counts as retrieved, also where its task was cancelled meanwhile


@dataclass
class _Counted:
    """The counts of a budget.

    Args:
        spec: UID and generation of the budget.
        changed: Machines to count again.
        states: of the groups, for a version of the budget.
    """

    spec: tuple[str, int | None]
    groups: GroupCounts
    changed: set[str]
    version: str = ""
    states: Mapping[str, GroupState] | None = None


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
        fields = (*_COUNTS, "conditions")
        self._status = StatusWriter(api, MACHINE_DISRUPTION_BUDGETS, fields=fields, cache=budgets)
        self._changes: defaultdict[str, list[_Change]] = defaultdict(list)  # by the budget
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._counted: dict[str, _Counted] = {}  # by the budget

    def names(self, machine: Machine) -> tuple[str, ...]:
        """Return the names of the budgets that cover a Machine."""
        return budget_names(self._budgets.all(), machine)

    def counting(self, machine: Machine) -> list[MachineDisruptionBudget]:
        """Return the budgets that cover a Machine and count now, by name; none for one that never had a Node.

        Its first install takes nothing away, and all hosts of a new cluster are installed at once.
        """
        if not has_been_node(machine, self._node_of(machine.name)):
            return []
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
        delays = (full(one, machine, self.states(one), self.until(one)) for one in budgets)
        return next((found for found in delays if found is not None), None)

    def until(self, budget: MachineDisruptionBudget) -> datetime | None:
        """Return the time at which a budget counts, or counts no longer; None without a schedule."""
        return window_of(budget, self._now()).changes_at

    def states(self, budget: MachineDisruptionBudget) -> Mapping[str, GroupState]:
        """Return the state of each group of a budget by its value, computed once until something changes."""
        found, version = self._count(budget), budget.metadata.resource_version
        if found.states is None or found.version != version:
            found.states, found.version = found.groups.states(budget.status.grants), version
        return found.states

    def changed(self, *machines: str) -> None:
        """Note that these Machines or their Nodes have changed in what budgets count."""
        for one in self._counted.values():
            one.changed.update(machines)

    def _count(self, budget: MachineDisruptionBudget) -> _Counted:
        """Return the counts of a budget as of now: a change of one Machine counts the others not again."""
        spec, found = (budget.metadata.uid, budget.metadata.generation), self._counted.get(budget.name)
        if found is None or found.spec != spec:
            names = {machine.name for machine in self._machines.all()}
            found = self._counted[budget.name] = _Counted(spec, GroupCounts(budget), names)
        for name in found.changed:
            found.groups.update(name, self._machines.get(name), self._node_of(name))
            found.states = None
        found.changed.clear()
        return found

    async def acquire(
        self,
        machine: Machine,
        holder: DisruptionHolder,
        budgets: Iterable[str],
        *,
        overrides: bool,
        read_at: float,
    ) -> None:
        """Write a grant in each budget.

        Args:
            overrides: grant although there is no room.
            read_at: time of the event loop at which the holder was last read.

        Raises:
            Stale: a budget has no room any more, or that reading is too old: the holder may have ended.
            Conflict: another process changed it. Grants that were written are used by the next attempt, or end.
        """
        for name in budgets:
            change = _Change(machine.name, holder, machine, overrides=overrides, read_at=read_at)
            await self._change(name, change)

    def replaces(self, machine: Machine, holder: DisruptionHolder, budgets: Iterable[str]) -> bool:
        """Return whether a grant for a holder would take the place of another holder's of the Machine."""
        found = [one for name in budgets if (one := self._budgets.get(name)) is not None]
        grants = (grant for budget in found for grant in budget.status.grants if grant.machine == machine.name)
        return any(grant.holder != holder for grant in grants)

    async def release(self, machine: str, holder: DisruptionHolder) -> None:
        """Remove the grants of a Machine's holder from all budgets."""
        for budget in self._budgets.all():
            if any((one.machine, one.holder.uid) == (machine, holder.uid) for one in budget.status.grants):
                await self._change(budget.name, _Change(machine, holder))

    async def _change(self, name: str, change: _Change) -> None:
        """Write a change of a budget's grants, together with those that arrive while another write is under way."""
        self._changes[name].append(change)
        async with self._locks[name]:
            if not change.done.done():
                await self._commit(name)
        await change.done

    async def _commit(self, name: str) -> None:
        changes, budget = self._changes.pop(name), self._budgets.get(name)
        if budget is None:
            for change in changes:
                change.fail(Stale(f"MachineDisruptionBudget {name} is gone"))
            return
        try:
            grants = [one for one in budget.status.grants if not any(change.ends(one) for change in changes)]
            states = self._count(budget).groups.states(grants)
            for change in changes:
                if change.target is not None:
                    self._grant(budget, change, change.target, grants, states)
            await self._write(budget, self._changed(budget, grants, list(states.values())))
        except BaseException as error:
            failure = error if isinstance(error, Exception) else Stale(f"the write of {name} was interrupted")
            for change in changes:
                change.fail(failure)
            if not isinstance(error, Exception):
                raise
        for change in changes:
            if not change.done.done():
                change.done.set_result(None)

    def _grant(
        self,
        budget: MachineDisruptionBudget,
        change: _Change,
        machine: Machine,
        grants: list[BudgetGrant],
        states: dict[str, GroupState],
    ) -> None:
        """Add a grant; one of an earlier holder of the Machine becomes that of the next."""
        if loop_time() - change.read_at > GRANT_WITHIN_S:
            change.fail(Stale(f"{change.holder} was read more than {GRANT_WITHIN_S:g} s before its grant"))
            return
        present = next((one for one in grants if one.machine == machine.name), None)
        same = present is not None and (present.holder, present.machine_uid) == (change.holder, machine.metadata.uid)
        if same and present is not None and seconds_since(present.since, self._now()) < GRACE_S / 2:
            return  # an older one is about to end as unused
        state = states.get(group_of(budget, machine))
        has_room = state is None or state.has_room_for(machine.name) or change.overrides
        if not has_room or (present is None and len(grants) >= MAX_GRANTS):
            change.fail(Stale(f"MachineDisruptionBudget {budget.name} has no room any more"))
            return
        if present is not None:
            grants.remove(present)
        uid, since = machine.metadata.uid, rfc3339(self._now())
        grants.append(BudgetGrant(machine=machine.name, machine_uid=uid, holder=change.holder, since=since))
        if state is not None:
            states[state.value] = state.granting(machine.name)

    def _changed(
        self, budget: MachineDisruptionBudget, grants: Sequence[BudgetGrant], states: Sequence[GroupState]
    ) -> dict[str, object]:
        """Return the fields of the status that differ."""
        before = budget.status
        after = msgspec.structs.replace(
            before,
            allowed=sum(one.allowed for one in states),
            granted=len(grants),
            groups=group_status(states),
            grants=tuple(grants),
        )
        builtins = msgspec.to_builtins(after)
        return {field: builtins.get(field, []) for field in _COUNTS if getattr(after, field) != getattr(before, field)}

    async def reconcile(self, name: str) -> float | None:
        """Bring the status of a budget up to date; return the seconds until its schedule or a grant is due."""
        async with self._locks[name]:
            return await self._reconcile(name)

    async def _reconcile(self, name: str) -> float | None:
        budget, now = self._budgets.get(name), self._now()
        if budget is None:
            self._locks.pop(name, None)
            self._counted.pop(name, None)
            return None
        grants = [one for one in budget.status.grants if await self._is_used(one, now)]
        groups = self._count(budget).groups
        changed = self._changed(budget, grants, list(groups.states(grants).values()))
        present = [msgspec.to_builtins(one) for one in budget.status.conditions]
        window = window_of(budget, now)
        is_void = not window.counts and window.changes_at is None
        enforced = _VOID if is_void else self._enforced(budget, groups.values)
        conditions = set_condition(present, ENFORCED, *enforced, rfc3339(now))
        if conditions is not None:
            changed["conditions"] = conditions
        await self._write(budget, changed)
        waits = [] if window.changes_at is None else [max((window.changes_at - now).total_seconds(), 1.0)]
        if any(not is_used(one, self._machines.get(one.machine), GRACE_S) for one in grants) or any(
            not self._covers(budget, one) for one in grants
        ):
            waits.append(GRACE_S)
        return min(waits, default=None)

    def _covers(self, budget: MachineDisruptionBudget, grant: BudgetGrant) -> bool:
        """Return whether the budget covers the Machine of a grant; of one that it does not, it gets no event."""
        machine = self._machines.get(grant.machine)
        return machine is not None and budget.name in self.names(machine)

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

    def _enforced(self, budget: MachineDisruptionBudget, names: Iterable[str]) -> tuple[str, str, str]:
        """Return status, reason and message of the condition Enforced.

        Args:
            names: of the Machines that the budget covers.
        """
        covered = [one for name in names if (one := self._machines.get(name)) is not None]
        pending = [one.name for one in covered if budget.name not in one.status.disruption_budgets]
        if pending:
            return "False", "MachinesPending", f"Machines that do not name the budget yet: {_named(pending)}"
        outdated = [one.name for one in covered if not _waits(one)]
        if outdated:
            text = f"agents of an earlier version start operations without a grant, upgrade those of {_named(outdated)}"
            return "False", "AgentsOutdated", text
        return "True", ENFORCED, f"it covers {counted(len(covered), 'Machine')}"


class BudgetController:
    """The controller of budgets: it brings their status up to date, and wakes the Machines that wait for one.

    Args:
        wake: enqueues a Machine.
    """

    def __init__(
        self,
        grants: Grants,
        budgets: Cache[MachineDisruptionBudget],
        machines: Cache[Machine],
        wake: Callable[[str], None],
        *,
        metrics: ControllerMetrics | None,
    ) -> None:
        self._grants = grants
        self._budgets = budgets
        self._machines = machines
        self._wake_machine = wake
        self._granted_at: dict[str, float] = {}  # of the last change of grants, by budget
        self._controller: Controller[str] = Controller(
            "disruption budgets", self._reconcile, workers=2, metrics=metrics
        )

    async def run(self) -> None:
        """Run until cancelled."""
        await self._controller.run()

    def subscribed(self) -> AbstractContextManager[None]:
        """Follow the changes of budgets in a context."""
        return self._budgets.subscribed(self._changed)

    def count(self, *machines: Machine | None) -> None:
        """Bring the budgets that cover a Machine up to date, after further changes at the same time."""
        for machine in machines:
            for name in () if machine is None else self._grants.names(machine):
                self._controller.queue.add_after(name, SETTLE_S)

    def _changed(self, old: MachineDisruptionBudget | None, new: MachineDisruptionBudget | None) -> None:
        budget = new or old
        if budget is None:
            return
        self._controller.queue.add_after(budget.name, SETTLE_S)
        if old is None or new is None or old.status.grants != new.status.grants:
            self._granted_at[budget.name] = loop_time()
        if old is None or new is None or old.metadata.generation != new.metadata.generation:
            for machine in self._machines.all():
                self._wake_machine(machine.name)
        else:
            self._wake(new, sum(one.allowed for one in self._grants.states(new).values()))

    async def _reconcile(self, name: str) -> float | None:
        requeue_s = await self._grants.reconcile(name)
        budget = self._budgets.get(name)
        if budget is None:
            self._granted_at.pop(name, None)
            return requeue_s
        left_s = SETTLE_S - (loop_time() - self._granted_at.get(name, -math.inf))
        if left_s > ROUNDING_S:  # grants begin and end: each of them wakes as many as it leaves room for
            return left_s if requeue_s is None else min(left_s, requeue_s)
        self._wake(budget)  # those that were woken may not have used the room
        return requeue_s

    def _wake(self, budget: MachineDisruptionBudget, room: int | None = None) -> None:
        """Wake Machines that wait for a budget, if that can grant them now or delays them for another cause.

        A thousand of them may wait for each grant that ends.

        Args:
            room: the most that it can grant; None wakes all that would be granted now.
        """
        states, until = self._grants.states(budget), self._grants.until(budget)
        for machine in self._machines.all():
            record = machine.status.disruption
            if record is None or record.reason != reasons.WAITING_FOR_BUDGET:
                continue
            delay = full(budget, machine, states, until)
            if delay is None and room is not None and room <= 0:
                continue
            if delay is None:
                delay = self._grants.delay(machine, self._grants.counting(machine))
                room = room - 1 if delay is None and room is not None else room
            if delay is None or delay.text != record.message:
                self._wake_machine(machine.name)


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
        None if spec is None else (spec.node_ref,),
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
