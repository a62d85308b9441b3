"""Disruption budgets: which count now, the Machines that they cover, and whether there is room. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final
from zoneinfo import ZoneInfo

from unbounded.api.conditions import counted
from unbounded.api.core import Node
from unbounded.api.disruption import (
    MAX_BUDGETS,
    MAX_GRANTS,
    MAX_GROUPS,
    BudgetGrant,
    BudgetGroup,
    DisruptionStage,
    DrainMode,
    MachineDisruptionBudget,
    OperationDrain,
)
from unbounded.api.machine import Machine
from unbounded.kube.clock import rfc3339
from unbounded.kube.selectors import SelectorError, label_test, selector_text
from unbounded.operations import reasons
from unbounded.operations.disruption.drain import DrainRules, rules_of
from unbounded.operations.disruption.model import Delay, foreign_maintenance

FIRST_YEARS: Final = 8  # within which a schedule comes, or never: 29 February may be missing for so long

NodeOf = Callable[[str], Node | None]
"""A function that returns the Node of a Machine."""


# Schedules


@dataclass(frozen=True)
class CronSchedule:
    """A cron expression: the values of each field, and whether a day has to match both of its fields."""

    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]  # 0 is Sunday
    any_day: bool
    any_weekday: bool

    def has_day(self, at: datetime) -> bool:
        """Return whether it begins on this day. As in cron, a day of the month and one of the week are alternatives."""
        if at.month not in self.months:
            return False
        day, weekday = at.day in self.days, at.isoweekday() % 7 in self.weekdays
        return (day and weekday) if self.any_day or self.any_weekday else (day or weekday)


_RANGES: Final = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 7))


@lru_cache(maxsize=256)
def parse_schedule(text: str) -> CronSchedule:
    """Parse a cron expression of five fields.

    Raises:
        ValueError: it has another form.
    """
    fields = text.split()
    if len(fields) != len(_RANGES):
        raise ValueError(f"{text!r} has {len(fields)} fields in place of five")
    minutes, hours, days, months, weekdays = (
        _values(one, least, most) for one, (least, most) in zip(fields, _RANGES, strict=True)
    )
    any_day, any_weekday = fields[2].startswith("*"), fields[4].startswith("*")
    return CronSchedule(minutes, hours, days, months, frozenset(one % 7 for one in weekdays), any_day, any_weekday)


def _values(text: str, least: int, most: int) -> frozenset[int]:
    found: set[int] = set()
    for part in text.split(","):
        span, _, step = part.partition("/")
        first, _, last = span.partition("-")
        low = least if span == "*" else int(first)
        high = most if span == "*" or (step and not last) else int(last or first)
        found.update(range(low, high + 1, int(step or 1)))
    if not found or min(found) < least or max(found) > most:
        raise ValueError(f"{text!r} is not within {least} and {most}")
    return frozenset(found)


@dataclass(frozen=True)
class Window:
    """The state of a schedule: it counts now or not, and the time of the next change; None for never."""

    counts: bool
    changes_at: datetime | None


def window_of(budget: MachineDisruptionBudget, now: datetime) -> Window:
    """Return whether a budget counts now. One whose schedule cannot be read always counts."""
    spec = budget.spec
    if spec.schedule is None or spec.duration_seconds is None:
        return Window(counts=True, changes_at=None)
    try:
        schedule, zone = parse_schedule(spec.schedule), ZoneInfo(spec.time_zone or "UTC")
    except (ValueError, OSError, KeyError):  # ZoneInfoNotFoundError is a KeyError
        return Window(counts=True, changes_at=None)
    duration = timedelta(seconds=spec.duration_seconds)
    begun = next(_begins(schedule, zone, now, back=True), None)
    if begun is not None and now < begun + duration:
        return Window(counts=True, changes_at=begun + duration)
    return Window(counts=False, changes_at=next(_begins(schedule, zone, now, back=False), None))


def _begins(schedule: CronSchedule, zone: ZoneInfo, now: datetime, *, back: bool) -> Iterator[datetime]:
    """Yield the begins before or after a time, the nearest first."""
    today = now.astimezone(zone).replace(hour=0, minute=0, second=0, microsecond=0)
    for number in range(366 * FIRST_YEARS):
        day = today + timedelta(days=-number if back else number)
        if not schedule.has_day(day):
            continue
        for hour in sorted(schedule.hours, reverse=back):
            for minute in sorted(schedule.minutes, reverse=back):
                at = day.replace(hour=hour, minute=minute).astimezone(UTC)
                if (at <= now) if back else (at > now):
                    yield at


# Machines


@lru_cache(maxsize=1024)
def _selects(text: str) -> Callable[[Mapping[str, str]], bool]:
    return label_test(text)


def selection(budget: MachineDisruptionBudget) -> Callable[[Machine], bool]:
    """Return a function that returns whether the budget covers a Machine."""
    try:
        test = _selects(selector_text(budget.spec.machine_selector))
    except SelectorError:
        return lambda _machine: False
    return lambda machine: test(machine.metadata.labels)


def selects(budget: MachineDisruptionBudget, machine: Machine) -> bool:
    """Return whether the budget covers the Machine."""
    return selection(budget)(machine)


def budget_names(budgets: Iterable[MachineDisruptionBudget], machine: Machine) -> tuple[str, ...]:
    """Return the names of the budgets that cover the Machine."""
    names = sorted(one.name for one in budgets if selects(one, machine) and not one.metadata.deletion_timestamp)
    return tuple(names[:MAX_BUDGETS])


def has_been_node(machine: Machine, node: Node | None) -> bool:
    """Return whether the Machine has or had a Node: it was bound to one, or one was drained for it."""
    record = machine.status.disruption
    is_bound = machine.spec.kubernetes is not None and machine.spec.kubernetes.node_ref is not None
    return node is not None or is_bound or (record is not None and record.node_uid is not None)


def is_unavailable(machine: Machine, node: Node | None) -> bool:
    """Return whether the Machine is unavailable, for any cause: its Node is missing, not Ready, cordoned or in work."""
    if machine.spec.kubernetes is None:
        return False
    if node is None:
        return machine.spec.kubernetes.node_ref is not None
    return not node.ready or node.spec.unschedulable or foreign_maintenance(node) is not None


def group_of(budget: MachineDisruptionBudget, machine: Machine) -> str:
    return "/".join(machine.metadata.labels.get(key, "") for key in budget.spec.group_by)


def limit_of(budget: MachineDisruptionBudget, machines: int) -> int:
    """Return the number of Machines of a group that may be unavailable."""
    limit = budget.spec.max_unavailable
    return limit if isinstance(limit, int) else int(limit.removesuffix("%")) * machines // 100


@dataclass(frozen=True)
class GroupState:
    """One group of a budget.

    Args:
        used: names of Machines that are unavailable or granted.
    """

    value: str
    machines: int
    used: frozenset[str]
    granted: frozenset[str]
    limit: int

    @property
    def allowed(self) -> int:
        return max(self.limit - len(self.used), 0)

    def has_room_for(self, machine: str) -> bool:
        """Return whether a Machine of the group may be granted: one that counts already takes no more room."""
        return machine in self.used or len(self.used) < self.limit

    def granting(self, machine: str) -> GroupState:
        return replace(self, used=self.used | {machine}, granted=self.granted | {machine})

    def status(self) -> BudgetGroup:
        return BudgetGroup(
            value=self.value[:128],
            machines=self.machines,
            unavailable=len(self.used),
            granted=len(self.granted),
            allowed=self.allowed,
        )


class GroupCounts:
    """The Machines of each group of a budget, and those that are unavailable. It is built once, and follows changes.

    Args:
        budget: later versions of its generation have the same counts.
    """

    def __init__(self, budget: MachineDisruptionBudget) -> None:
        self._budget = budget
        self._selects = selection(budget)
        self.values: dict[str, str] = {}  # of the group, by the name of the Machine
        self._sizes: Counter[str] = Counter()
        self._unavailable: defaultdict[str, set[str]] = defaultdict(set)  # by the value of the group

    def update(self, name: str, machine: Machine | None, node: Node | None) -> None:
        """Count a Machine as it is now; None for one that is gone."""
        before = self.values.pop(name, None)
        if before is not None:
            self._sizes[before] -= 1
            self._unavailable[before].discard(name)
        if machine is None or not self._selects(machine):
            return
        value = self.values[name] = group_of(self._budget, machine)
        self._sizes[value] += 1
        if is_unavailable(machine, node):
            self._unavailable[value].add(name)

    def states(self, grants: Sequence[BudgetGrant]) -> dict[str, GroupState]:
        """Return the state of each group by its value, with these grants."""
        granted: defaultdict[str, set[str]] = defaultdict(set)
        for grant in grants:
            if (value := self.values.get(grant.machine)) is not None:
                granted[value].add(grant.machine)
        found = dict[str, GroupState]()
        for value, size in sorted(self._sizes.items()):
            if size:
                held, limit = frozenset(granted[value]), limit_of(self._budget, size)
                found[value] = GroupState(value, size, held | self._unavailable[value], held, limit)
        return found


def group_status(states: Sequence[GroupState]) -> tuple[BudgetGroup, ...]:
    """Return the groups as the status has them: those without room first, where there are too many."""
    fullest = sorted(states, key=lambda one: (one.allowed, one.value))[:MAX_GROUPS]
    return tuple(sorted((one.status() for one in fullest), key=lambda one: one.value))


# Grants


def full(
    budget: MachineDisruptionBudget,
    machine: Machine,
    states: Mapping[str, GroupState],
    until: datetime | None = None,
) -> Delay | None:
    """Return the delay where the budget has no room for the Machine; None where it may be granted.

    A Machine that counts already, as it is granted or unavailable, takes no more room.

    Args:
        states: of the budget's groups, by their values.
        until: the end of the time in which it counts; None for none.
    """
    if len(budget.status.grants) >= MAX_GRANTS and all(one.machine != machine.name for one in budget.status.grants):
        text = f"MachineDisruptionBudget {budget.name} has {MAX_GRANTS} grants, the most that it can hold"
        return Delay(reasons.WAITING_FOR_BUDGET, text, f"MachineDisruptionBudget {budget.name}")
    value = group_of(budget, machine)
    state = states.get(value)
    if state is None or state.has_room_for(machine.name):
        return None
    group = f" of group {value}" if value else ""
    rule = (
        f"MachineDisruptionBudget {budget.name} lets {state.limit} of {counted(state.machines, 'Machine')}{group} "
        f"be unavailable{'' if until is None else f' until {rfc3339(until)}'}"
    )
    if not state.used:
        return Delay(reasons.WAITING_FOR_BUDGET, rule, f"MachineDisruptionBudget {budget.name}")
    if state.machines > NAMED:
        held = "its status.grants name the holders"  # each change would rewrite the messages of all that wait
    else:
        held = "; ".join(used_text(budget, name) for name in sorted(state.used))
    return Delay(reasons.WAITING_FOR_BUDGET, f"{rule}: {held}", f"MachineDisruptionBudget {budget.name}")


def used_text(budget: MachineDisruptionBudget, machine: str) -> str:
    grant = next((one for one in budget.status.grants if one.machine == machine), None)
    return f"{machine} (not available)" if grant is None else f"{machine} ({grant.holder}, since {grant.since})"


NAMED: Final = 20  # Machines of a group whose holders the message names
GRACE_S: Final = 60.0  # for which a grant outlasts a missing record: the write of the record follows that of the grant


def is_used(grant: BudgetGrant, machine: Machine | None, age_s: float) -> bool:
    """Return whether a grant is still used: the record of its Machine has its holder, or is about to."""
    if machine is None or machine.metadata.uid != grant.machine_uid:
        return False
    record = machine.status.disruption
    if record is not None and record.holder == grant.holder and record.stage != DisruptionStage.WAITING:
        return True
    return age_s < GRACE_S


# Drains


def drain_rules(
    budgets: Sequence[MachineDisruptionBudget], drain: OperationDrain | None, *, override: bool, maintenance: bool
) -> DrainRules:
    """Return the rules of a drain: those of the budgets that count now, and what the operation sets itself.

    Of several budgets the most patient and the most careful settings hold.
    """
    given = [(one.spec.drain, one.spec.min_ready_seconds) for one in budgets]
    each = [rules_of(one) for one, _ready in given if one is None or one.enabled is not False]
    rules = DrainRules()
    if each:
        rules = DrainRules(
            timeout_s=max(one.timeout_s for one in each),
            delete_empty_dir_data=all(one.delete_empty_dir_data for one in each),
            evict_unmanaged=all(one.evict_unmanaged for one in each),
            skips=tuple(skip for one in each for skip in one.skips),
            stuck_s=max(one.stuck_s for one in each),
            proceeds=all(one.proceeds for one in each),
        )
    ready_s = max((10 if one is None else one for _drain, one in given), default=10)
    mode = DrainMode.AUTO if drain is None else drain.mode
    by_default = maintenance or (bool(each) and not override)
    enabled = mode == DrainMode.ALWAYS or (mode == DrainMode.AUTO and by_default)
    rules = rules if drain is None else rules_of(drain, rules)
    return replace(rules, enabled=enabled, min_ready_s=ready_s)
