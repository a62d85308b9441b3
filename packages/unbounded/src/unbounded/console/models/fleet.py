"""The fleet as rows: what needs attention comes first; filters by text, state, site, phase, reason and labels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any, Final, TypeVar

from unbounded.api.machine import MACHINES, Machine, MachinePhase, MachinePower, RecentOperation
from unbounded.api.meta import Kind
from unbounded.api.operation import MACHINE_OPERATIONS, MachineOperation
from unbounded.console.live import Derived
from unbounded.console.models.failures import in_order, last_failure, set_or_drop, unrecorded_failure
from unbounded.kube.clock import timestamp_of
from unbounded.kube.selectors import SelectorError, label_test
from unbounded.operations.claim_gates import in_maintenance, is_paused
from unbounded.operations.reasons import blocker_of

V = TypeVar("V")

PAGE_ROWS: Final = 50
LONGEST: Final = 256  # characters of a part of the filter
NO_SITE: Final = "(none)"
NEW: Final = "New"  # the phase of a Machine that no controller has seen


class Need(IntEnum):
    """The attention that a Machine needs, the most first."""

    ATTENTION = 0  # no controller can help it
    FAILED = 1  # an operation on it has failed, which no controller repeats
    BLOCKED = 2  # something is in its way, which may pass
    WORKING = 3  # an operation or an installation is at work
    PAUSED = 4  # a user has paused its operations
    MAINTENANCE = 5  # a user has drained it
    CALM = 6

    @property
    def state(self) -> str:
        """Return its value in the filter by state."""
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class FleetRow:
    """A Machine in the list of the fleet.

    Attributes:
        operation: kind of the operation at work, or of the failed one.
        operation_name: its name.
        cause: why it needs attention; empty where it needs none.
        search: its texts in lower case.
        failed_at: time of the failure of the operation, in seconds; 0 where none counts.
    """

    need: Need
    name: str
    site: str
    phase: str
    reason: str
    operation: str
    operation_name: str
    power: str
    cause: str
    labels: Mapping[str, str]
    search: str
    failed_at: float

    @property
    def order(self) -> tuple[Need, float, str]:
        """Return its place: by need, the newest failure first, then by name."""
        return (self.need, -self.failed_at, self.name)


def fleet_row(machine: Machine, unrecorded: Iterable[RecentOperation] = ()) -> FleetRow:
    """Return the row of a Machine.

    Args:
        unrecorded: failed operations on it that its history has not.
    """
    status = machine.status
    failure = last_failure(in_order(status.recent_operations, unrecorded))
    need = need_of(machine, failure)
    shown = failure if need is Need.FAILED else status.active_operation
    if need is Need.FAILED and failure is not None:
        cause = f"{failure.kind} {failure.name} failed: {failure.message or failure.reason or 'no cause is reported'}"
    else:
        cause = cause_of(machine) if need in (Need.ATTENTION, Need.BLOCKED) else ""
    phase = status.phase or NEW
    reason = status.reason or ""
    operation = "" if shown is None else shown.kind
    power = "" if status.power is None else status.power.state
    texts = (machine.name, machine.site, phase, reason, operation, cause)
    return FleetRow(
        need=need,
        name=machine.name,
        site=machine.site,
        phase=phase,
        reason=reason,
        operation=operation,
        operation_name="" if shown is None else shown.name,
        power=power,
        cause=cause,
        labels=machine.metadata.labels,
        search="\n".join(texts).lower(),
        failed_at=(timestamp_of(failure.completed_at) or 0.0) if need is Need.FAILED and failure is not None else 0.0,
    )


def need_of(machine: Machine, failure: RecentOperation | None) -> Need:
    """Return the attention that a Machine needs.

    Args:
        failure: of an operation on it, which no later success makes good.
    """
    status = machine.status
    redfish, ssh = status.redfish, status.ssh
    if (
        status.phase == MachinePhase.FAILED
        or (redfish is not None and redfish.refused_secret_version is not None)
        or (ssh is not None and (ssh.refused or ssh.untrusted))
    ):
        return Need.ATTENTION
    if status.active_operation is not None:
        return Need.BLOCKED if status.active_operation.lost else Need.WORKING
    if failure is not None and status.phase != MachinePhase.PROVISIONING:
        return Need.FAILED
    is_dark = status.power is not None and status.power.state == MachinePower.UNKNOWN
    if is_dark or (status.reason and status.phase != MachinePhase.PROVISIONING):
        return Need.BLOCKED
    if status.phase == MachinePhase.PROVISIONING:
        return Need.WORKING
    if is_paused(machine.metadata.annotations):
        return Need.PAUSED
    return Need.MAINTENANCE if in_maintenance(machine) else Need.CALM


def blocked_row(row: FleetRow, cause: str) -> FleetRow:
    """Return the row of a Machine with an operation that is blocked, unless the Machine itself needs more."""
    if row.need <= Need.BLOCKED:
        return row
    return replace(row, need=Need.BLOCKED, cause=cause, search=f"{row.search}\n{cause.lower()}")


def blocked_cause(operation: MachineOperation) -> str:
    """Return what an operation waits for; empty where nothing blocks it."""
    waiting = operation.status.waiting
    if operation.terminal or waiting is None or blocker_of(waiting.reason) is None:
        return ""
    return f"{operation.spec.operation_kind} {operation.name}: {operation.status.message or waiting.reason}"


def cause_of(machine: Machine) -> str:
    """Return why a Machine needs attention."""
    status = machine.status
    if status.phase != MachinePhase.FAILED:
        if status.redfish is not None and status.redfish.refused_secret_version is not None:
            return "The BMC refuses the password"
        if status.ssh is not None and status.ssh.untrusted:
            return "The host shows another SSH host key than the trusted one"
        if status.ssh is not None and status.ssh.refused:
            return "The host refuses the SSH key"
        if status.power is not None and status.power.state == MachinePower.UNKNOWN and not status.reason:
            return "The BMC does not answer"
    return status.message or status.reason or ""


@dataclass(frozen=True)
class FleetFilter:
    """A selection of Machines; an empty part selects all.

    Attributes:
        labels: a label selector.
    """

    text: str = ""
    state: str = ""
    site: str = ""
    phase: str = ""
    reason: str = ""
    labels: str = ""

    def __post_init__(self) -> None:
        for name in self.names():  # a browser may send any amount of text, and each change of a row is compared with it
            object.__setattr__(self, name, getattr(self, name)[:LONGEST])

    @classmethod
    def from_query(cls, query: Mapping[str, str]) -> FleetFilter:
        """Return the filter of a URL's query; unknown parameters are left out."""
        return cls(**{name: query[name] for name in cls.names() if name in query})

    @staticmethod
    def names() -> tuple[str, ...]:
        return ("text", "state", "site", "phase", "reason", "labels")

    def query(self) -> dict[str, str]:
        """Return the parameters of the URL that shows the same."""
        return {name: getattr(self, name) for name in self.names() if getattr(self, name)}

    def but(self, **changed: str) -> FleetFilter:
        """Return the filter with other parts."""
        return replace(self, **changed)

    @property
    def fault(self) -> str:
        """Return the error of the label selector; empty where it can be used."""
        try:
            label_test(self.labels)
        except SelectorError as error:
            return f"labels: {error}"
        return ""

    def select(self, rows: Iterable[FleetRow]) -> Iterator[FleetRow]:
        """Yield the selected rows. Raises SelectorError."""
        words = tuple(dict.fromkeys(self.text.lower().split()))
        site = "" if self.site == NO_SITE else self.site
        has_labels = label_test(self.labels) if self.labels.strip() else None
        for row in rows:
            if (self.state and row.need.state != self.state) or (self.site and row.site != site):
                continue
            if (self.phase and row.phase != self.phase) or (self.reason and row.reason != self.reason):
                continue
            if words and not all(word in row.search for word in words):
                continue
            if has_labels is not None and not has_labels(row.labels):
                continue
            yield row


@dataclass(frozen=True)
class FleetSummary:
    """Counts of the whole fleet.

    Attributes:
        sites: Machines, and those that need attention, by site.
    """

    machines: int
    needs: Mapping[Need, int]
    phases: Mapping[str, int]
    reasons: Mapping[str, int]
    sites: Mapping[str, tuple[int, int]]


@dataclass(frozen=True)
class FleetPage:
    """A page of the list.

    Attributes:
        first: number of the first row, from 0.
        selected: rows that the filter selects.
    """

    rows: tuple[FleetRow, ...]
    first: int
    selected: int


class FleetIndex(Derived):
    """The rows of all Machines in their order, and counts, kept up to date."""

    kinds: tuple[Kind[Any], ...] = (MACHINES, MACHINE_OPERATIONS)

    def __init__(self) -> None:
        self._machines: dict[str, Machine] = {}
        # by Machine and operation
        self._blocked: dict[str, dict[str, str]] = {}
        self._unrecorded: dict[str, dict[str, RecentOperation]] = {}
        self._rows: dict[str, FleetRow] = {}
        self._names: list[str] = []  # in their order, if sorted
        self._is_sorted = True
        self._needs: Counter[Need] = Counter()
        self._phases: Counter[str] = Counter()
        self._reasons: Counter[str] = Counter()
        self._sites: Counter[str] = Counter()
        self._urgent: Counter[str] = Counter()  # Machines that need attention, by site

    def changed(self, old: Machine | MachineOperation | None, new: Machine | MachineOperation | None) -> None:
        """Take a change of a cache into account."""
        if isinstance(new, MachineOperation):
            if isinstance(old, MachineOperation) and old.spec.machine_ref != new.spec.machine_ref:
                self._note_operation(old, is_gone=True)  # another operation of the same name
            self._note_operation(new)
        elif isinstance(old, MachineOperation):
            self._note_operation(old, is_gone=True)
        elif new is not None:
            self._machines[new.name] = new
            self._draw(new.name)
        elif old is not None:
            self._machines.pop(old.name, None)
            self._draw(old.name)

    def _note_operation(self, operation: MachineOperation, *, is_gone: bool = False) -> None:
        machine, name = operation.spec.machine_ref, operation.name
        if machine is None:
            return
        cause = None if is_gone else blocked_cause(operation) or None
        failure = None if is_gone else unrecorded_failure(operation)
        changes = _set(self._blocked, machine, name, cause), _set(self._unrecorded, machine, name, failure)
        if any(changes):
            self._draw(machine)

    def _draw(self, name: str) -> None:
        """Make the row of a Machine anew."""
        before, machine = self._rows.pop(name, None), self._machines.get(name)
        after = None if machine is None else fleet_row(machine, self._unrecorded.get(name, {}).values())
        if after is not None and name in self._blocked:
            after = blocked_row(after, min(self._blocked[name].items())[1])
        if after is not None:
            self._rows[name] = after
        if before == after:
            return
        for row, step in ((before, -1), (after, 1)):
            if row is not None:
                self._count(row, step)
        if before is None or after is None or before.order != after.order:
            self._is_sorted = False

    def _count(self, row: FleetRow, step: int) -> None:
        counted: list[tuple[Counter[Any], Any]] = [
            (self._needs, row.need),
            (self._phases, row.phase),
            (self._sites, row.site or NO_SITE),
        ]
        if row.reason:
            counted.append((self._reasons, row.reason))
        if row.need is Need.ATTENTION:
            counted.append((self._urgent, row.site or NO_SITE))
        for counter, key in counted:
            counter[key] += step
            if not counter[key]:
                del counter[key]

    def summary(self) -> FleetSummary:
        """Return the counts."""
        return FleetSummary(
            machines=len(self._rows),
            needs=dict(self._needs),
            phases=dict(sorted(self._phases.items())),
            reasons=dict(sorted(self._reasons.items())),
            sites={site: (count, self._urgent[site]) for site, count in sorted(self._sites.items())},
        )

    def page(self, desired: FleetFilter, first: int, rows: int = PAGE_ROWS) -> FleetPage:
        """Return a page of the selected rows; the last one where there are fewer. Raises SelectorError."""
        in_order = self._in_order()
        selected = list(desired.select(in_order) if desired.query() else in_order)
        start = max(0, min(first, (len(selected) - 1) // rows * rows))
        return FleetPage(tuple(selected[start : start + rows]), start, len(selected))

    def _in_order(self) -> Iterable[FleetRow]:
        """Return the rows, what needs attention first, then by name."""
        if not self._is_sorted:
            self._names = sorted(self._rows, key=lambda name: self._rows[name].order)
            self._is_sorted = True
        return map(self._rows.__getitem__, self._names)


def _set(of: dict[str, dict[str, V]], machine: str, name: str, value: V | None) -> bool:
    """Set or drop the value of an operation on a Machine; return whether that changes anything."""
    found = of.get(machine, {})
    if not set_or_drop(found, name, value):
        return False
    if found:
        of[machine] = found
    else:
        of.pop(machine, None)
    return True
