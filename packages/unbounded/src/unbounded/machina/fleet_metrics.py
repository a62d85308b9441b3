"""Metrics of the fleet: Machines, operations, rollouts, budgets, tokens and certificates, for the leader of machina.

Counts follow the changes of the caches, so that a scrape visits no Machine and no ended operation. No name of an object
is a label. Sites and reasons are bounded: the ones with the most Machines keep their names, all others are `other`.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Final, Generic, NoReturn, TypeVar

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from unbounded.api.conditions import ConditionType
from unbounded.api.configuration import UpdatePhase
from unbounded.api.disruption import MachineDisruptionBudget
from unbounded.api.failures import Failure
from unbounded.api.machine import Machine
from unbounded.api.names import LABEL_SITE
from unbounded.api.operation import MachineOperation, RolloutStageStatus, StagePhase
from unbounded.join.bootstrap_tokens import expiration
from unbounded.join.token_finder import list_default_tokens
from unbounded.kube.api import Api
from unbounded.kube.cache import Cache
from unbounded.kube.clock import WallClock, shown_seconds, utc_now
from unbounded.kube.logs import Log
from unbounded.operations.observed_power import bmc_state
from unbounded.operations.reasons import blocker_of
from unbounded.operations.telemetry import OperationMetrics

T = TypeVar("T")
G = TypeVar("G", bound=Hashable)
Raw = dict[str, Any]
Labels = tuple[str, ...]

MAX_SITES: Final = 50
MAX_REASONS: Final = 40
MAX_STAGES: Final = 40
OTHER: Final = "other"
UNKNOWN: Final = "unknown"
TOKENS_EVERY_S: Final = 300.0
HOUR_S: Final = 3600
DAY_S: Final = 24 * HOUR_S

log = Log("machina")


@dataclass(frozen=True)
class GaugeType:
    """A gauge: its name, help and labels."""

    name: str
    text: str
    labels: Labels

    def family(self, samples: Mapping[Labels, float]) -> GaugeMetricFamily:
        family = GaugeMetricFamily(self.name, self.text, labels=self.labels)
        for labels, value in sorted(samples.items()):
            family.add_metric(labels, value)
        return family


MACHINES: Final = GaugeType(
    "unbounded_machines", "Machines, by phase and reason of the phase.", ("site", "phase", "reason")
)
CONDITIONS: Final = GaugeType(
    "unbounded_machine_conditions",
    "Conditions of Machines, by type, status and reason.",
    ("site", "type", "status", "reason"),
)
BMCS: Final = GaugeType("unbounded_bmcs", "Machines with a BMC, by the result of its last readings.", ("site", "state"))
PARTS: Final = GaugeType(
    "unbounded_hardware_parts", "Parts of Machines, by the health that the BMC reports.", ("site", "part", "health")
)
AGENT_CERTIFICATES: Final = GaugeType(
    "unbounded_agent_certificates", "Certificates of agents, by the time that is left.", ("site", "left")
)
TOKENS: Final = GaugeType(
    "unbounded_bootstrap_tokens", "Default bootstrap tokens, by the time that is left.", ("site", "left")
)
OPEN: Final = GaugeType("unbounded_operations_open", "MachineOperations that have not ended.", ("kind", "phase"))
IN_STAGE: Final = GaugeType(
    "unbounded_operations_stage_seconds",
    "Longest time of a MachineOperation in its present stage.",
    ("kind", "stage"),
)
BLOCKED: Final = GaugeType(
    "unbounded_operations_blocked", "MachineOperations that wait for another party.", ("kind", "by", "reason")
)
BLOCKED_SECONDS: Final = GaugeType(
    "unbounded_operations_blocked_seconds",
    "Longest present wait of a MachineOperation for another party.",
    ("kind", "by", "reason"),
)
ROLLOUTS: Final = GaugeType(
    "unbounded_rollouts",
    "Selector operations in stages that have not ended, and rolling updates of configurations.",
    ("source", "phase"),
)
ROLLOUT_TARGETS: Final = GaugeType(
    "unbounded_rollout_targets", "Machines of these rollouts, by result so far.", ("source", "result")
)
BUDGETS: Final = GaugeType(
    "unbounded_disruption_budgets", "MachineDisruptionBudgets: available if one more Machine may go.", ("state",)
)
BUDGET_MACHINES: Final = GaugeType(
    "unbounded_disruption_budget_machines",
    "Machines of all MachineDisruptionBudgets. A Machine counts in each of its budgets.",
    ("state",),
)


class GroupedCounts(Generic[T, G]):
    """Objects of a cache, counted by the groups that each belongs to."""

    def __init__(self, groups: Callable[[T], Iterable[G]]) -> None:
        self.counts: Counter[G] = Counter()
        self._groups = groups

    def changed(self, old: T | None, new: T | None) -> None:
        """Take a change of the cache into account."""
        before = () if old is None else tuple(self._groups(old))
        after = () if new is None else tuple(self._groups(new))
        if before == after:
            return
        self.counts.update(after)
        for group in before:
            self.counts[group] -= 1
            if not self.counts[group]:
                del self.counts[group]


def bounded(counts: Mapping[Labels, float], position: int, limit: int) -> dict[Labels, float]:
    """Return the counts with at most `limit` values of one label, the largest; the sums of all others are `other`."""
    totals: Counter[str] = Counter()
    for labels, count in counts.items():
        totals[labels[position]] += int(count)
    if len(totals) <= limit:
        return dict(counts)
    return _folded(counts, position, _largest(totals, limit))


def _largest(totals: Mapping[str, float], limit: int) -> frozenset[str]:
    return frozenset(sorted(totals, key=lambda value: (-totals[value], value))[:limit])


def _folded(counts: Mapping[Labels, float], position: int, kept: frozenset[str]) -> dict[Labels, float]:
    folded: dict[Labels, float] = {}
    for labels, count in counts.items():
        value = labels[position] if labels[position] in kept else OTHER
        key = (*labels[:position], value, *labels[position + 1 :])
        folded[key] = folded.get(key, 0) + count
    return folded


def _longest(times: Mapping[Labels, float], position: int, limit: int) -> dict[Labels, float]:
    """Return the times with at most `limit` values of one label, the longest; the longest of all others is `other`."""
    by_value: dict[str, float] = {}
    for labels, seconds in times.items():
        by_value[labels[position]] = max(by_value.get(labels[position], 0.0), seconds)
    kept, found = _largest(by_value, limit), dict[Labels, float]()
    for labels, seconds in times.items():
        value = labels[position] if labels[position] in kept else OTHER
        key = (*labels[:position], value, *labels[position + 1 :])
        found[key] = max(found.get(key, 0.0), seconds)
    return found


class TimeLeft(StrEnum):
    """The time until something expires. Each value excludes the ones before it."""

    EXPIRED = "expired"
    DAY = "1d"
    WEEK = "7d"
    MONTH = "30d"
    MORE = "more"


def time_left(seconds: float) -> TimeLeft:
    """Return the class of a remaining time."""
    limits = ((0, TimeLeft.EXPIRED), (DAY_S, TimeLeft.DAY), (7 * DAY_S, TimeLeft.WEEK), (30 * DAY_S, TimeLeft.MONTH))
    return next((left for limit_s, left in limits if seconds <= limit_s), TimeLeft.MORE)


_TYPES: Final = frozenset(map(str, ConditionType))
_HEALTH: Final = frozenset({"OK", "Warning", "Critical"})
_PARTS: Final = frozenset({"disk", "NIC", "accelerator", "TPM", "power supply"})


def _of_phase(machine: Machine) -> Iterator[Labels]:
    yield machine.site, machine.status.phase or UNKNOWN, machine.status.reason or ""


def _of_conditions(machine: Machine) -> Iterator[Labels]:
    for one in machine.status.conditions:
        if one.type in _TYPES:
            yield machine.site, one.type, one.status, one.reason or ""


def _of_bmc(machine: Machine) -> Iterator[Labels]:
    if (state := bmc_state(machine)) is not None:
        yield machine.site, state.value


def _of_parts(machine: Machine) -> Iterator[Labels]:
    """Yield the parts of the BMC's last reading, else those of the inspection."""
    hardware = machine.status.hardware
    if hardware is None:
        return
    if hardware.bmc is not None:
        found = [(part.kind, part.health) for part in hardware.bmc.parts]
    else:
        found = [("disk", one.health) for one in hardware.disks]
        found += [("power supply", one.health) for one in hardware.power_supplies]
    for part, health in found:
        label = UNKNOWN if health is None else health if health in _HEALTH else OTHER
        yield machine.site, part if part in _PARTS else OTHER, label


def _of_certificate(machine: Machine) -> Iterator[tuple[str, int]]:
    """Yield the site and the hour in which the agent's certificate expires."""
    host = None if machine.status.agent is None else machine.status.agent.host
    if host is not None and host.certificate_expires is not None:
        with suppress(ValueError, OverflowError):  # the agent of another version wrote it
            yield machine.site, int(datetime.fromisoformat(host.certificate_expires).timestamp()) // HOUR_S


class FleetMetrics(Collector):
    """Collector of the fleet's metrics. It has no samples while this process does not lead.

    Args:
        operations: receives the ended waits.
    """

    def __init__(
        self, registry: CollectorRegistry, operations: OperationMetrics | None = None, *, now: WallClock = utc_now
    ) -> None:
        self._operations = operations or OperationMetrics()
        self._now = now
        self._tokens: tuple[tuple[str, datetime | None], ...] = ()  # site and expiry
        self._clear()
        registry.register(self)

    def _clear(self) -> None:
        self._phases = GroupedCounts(_of_phase)
        self._conditions = GroupedCounts(_of_conditions)
        self._bmcs = GroupedCounts(_of_bmc)
        self._parts = GroupedCounts(_of_parts)
        self._certificates = GroupedCounts(_of_certificate)
        self._open: dict[str, MachineOperation] = {}  # by UID
        self._budgets: Cache[MachineDisruptionBudget] | None = None
        self._configurations: Cache[Raw] | None = None
        self._tokens = ()

    @contextmanager
    def following(
        self,
        machines: Cache[Machine],
        operations: Cache[MachineOperation],
        budgets: Cache[MachineDisruptionBudget],
        configurations: Cache[Raw],
    ) -> Iterator[None]:
        """Count the objects of the caches while inside of the context."""
        self._budgets, self._configurations = budgets, configurations
        counts = (self._phases, self._conditions, self._bmcs, self._parts, self._certificates)
        with ExitStack() as stack:
            stack.callback(self._clear)
            for one in counts:
                stack.enter_context(machines.subscribed(one.changed))
            stack.enter_context(operations.subscribed(self._operation_changed))
            yield

    async def follow_tokens(self, api: Api) -> NoReturn:
        """List the default bootstrap tokens now and then, until cancelled."""
        while True:
            try:
                found = await list_default_tokens(api)
                self._tokens = tuple((one.metadata.labels.get(LABEL_SITE, ""), expiration(one)) for one in found)
            except Failure as error:
                self._tokens = ()
                log.debug("cannot count bootstrap tokens", error=error)
            await asyncio.sleep(TOKENS_EVERY_S)

    def _operation_changed(self, old: MachineOperation | None, new: MachineOperation | None) -> None:
        waited = None if old is None or old.terminal else old.status.waiting
        waits = None if new is None or new.terminal else new.status.waiting
        if waited is not None and (waits is None or waits.reason != waited.reason):
            by = blocker_of(waited.reason)
            if by is not None:
                self._operations.unblocked(by.value, waited.reason, shown_seconds(waited.since, self._now()))
        if new is not None and not new.terminal:
            self._open[new.metadata.uid] = new
        elif (gone := new or old) is not None:
            self._open.pop(gone.metadata.uid, None)

    # ---- a scrape

    def collect(self) -> Iterator[GaugeMetricFamily]:
        sites: Counter[str] = Counter()
        for (site, *_), count in self._phases.counts.items():
            sites[site] += count
        kept = _largest(sites, MAX_SITES)

        def of_sites(counts: Mapping[Labels, float]) -> Mapping[Labels, float]:
            return counts if len(sites) <= MAX_SITES else _folded(counts, 0, kept)

        yield MACHINES.family(bounded(of_sites(self._phases.counts), 2, MAX_REASONS))
        yield CONDITIONS.family(bounded(of_sites(self._conditions.counts), 3, MAX_REASONS))
        yield BMCS.family(of_sites(self._bmcs.counts))
        yield PARTS.family(of_sites(self._parts.counts))
        yield AGENT_CERTIFICATES.family(of_sites(self._left()))
        yield TOKENS.family(bounded(self._tokens_left(), 0, MAX_SITES))
        yield from self._of_operations()
        yield from self._of_rollouts()
        yield from self._of_budgets()

    def _left(self) -> dict[Labels, float]:
        now, found = self._now().timestamp(), Counter[Labels]()
        for (site, hour), count in self._certificates.counts.items():
            found[site, time_left(hour * HOUR_S - now).value] += count
        return dict(found)

    def _tokens_left(self) -> dict[Labels, float]:
        now, found = self._now(), Counter[Labels]()
        for site, expires in self._tokens:
            left = TimeLeft.MORE if expires is None else time_left((expires - now).total_seconds())
            found[site, left.value] += 1
        return dict(found)

    def _of_operations(self) -> Iterator[GaugeMetricFamily]:
        now = self._now()
        count: Counter[Labels] = Counter()
        blocked: Counter[Labels] = Counter()
        longest: dict[Labels, float] = {}
        stages: dict[Labels, float] = {}
        for one in self._open.values():
            kind, status = one.spec.operation_kind, one.status
            count[kind, status.phase or UNKNOWN] += 1
            by = None if status.waiting is None else blocker_of(status.waiting.reason)
            if status.waiting is not None and by is not None:
                labels = (kind, by.value, status.waiting.reason)
                blocked[labels] += 1
                longest[labels] = max(longest.get(labels, 0.0), shown_seconds(status.waiting.since, now))
            execution, stage = status.execution, status.targets[0].stage if len(status.targets) == 1 else None
            if execution is not None and stage is not None:
                since_s = execution.stage_seconds + max(shown_seconds(execution.recorded_at, now), 0.0)
                stages[kind, stage] = max(stages.get((kind, stage), 0.0), since_s)
        yield OPEN.family(count)
        yield IN_STAGE.family(_longest(stages, 1, MAX_STAGES))
        yield BLOCKED.family(bounded(blocked, 2, MAX_REASONS))
        yield BLOCKED_SECONDS.family(_longest(longest, 2, MAX_REASONS))

    def _of_rollouts(self) -> Iterator[GaugeMetricFamily]:
        phases: Counter[Labels] = Counter()
        targets: Counter[Labels] = Counter()
        for one in self._open.values():
            if one.status.rollout is not None:
                phases["operation", _phase_of(one.status.rollout.stages)] += 1
                for stage in one.status.rollout.stages:
                    targets["operation", "failed"] += stage.failed
                    targets["operation", "done"] += stage.completed
                    targets["operation", "open"] += stage.targets - stage.completed - stage.failed
        for raw in () if self._configurations is None else self._configurations.all():
            rollout = raw.get("status", {}).get("rollout")
            if rollout:
                phase, failed, left = rollout["phase"], len(rollout.get("failed", ())), rollout.get("outdated", 0)
                phases["configuration", phase if phase in _UPDATE_PHASES else OTHER] += 1
                targets["configuration", "failed"] += failed
                targets["configuration", "done"] += rollout.get("updated", 0)
                targets["configuration", "open"] += max(left - failed, 0)
        yield ROLLOUTS.family(phases)
        yield ROLLOUT_TARGETS.family(targets)

    def _of_budgets(self) -> Iterator[GaugeMetricFamily]:
        states: Counter[Labels] = Counter()
        machines: Counter[Labels] = Counter()
        for budget in () if self._budgets is None else self._budgets.all():
            if budget.status.allowed is not None:
                states[("available" if budget.status.allowed else "exhausted",)] += 1
            for group in budget.status.groups:
                for state in ("machines", "unavailable", "granted", "allowed"):
                    machines[("all" if state == "machines" else state,)] += getattr(group, state)
        yield BUDGETS.family(states)
        yield BUDGET_MACHINES.family(machines)


_UPDATE_PHASES: Final = frozenset(map(str, UpdatePhase))


def _phase_of(stages: Iterable[RolloutStageStatus]) -> str:
    """Return the phase of a rollout: halted or paused where a stage is, else in progress."""
    present = {stage.phase for stage in stages}
    found = (phase for phase in (StagePhase.HALTED, StagePhase.PAUSED) if phase in present)
    return next(found, StagePhase.IN_PROGRESS).value
