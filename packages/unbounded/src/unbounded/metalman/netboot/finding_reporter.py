"""Reports of problems with leases and boot files: the condition NetbootServed, and Events.

Problems with leases are a state: the condition follows the index of leases. A missing boot file or a declined address
is an event: the condition returns to True when the host is served later.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from unbounded.api.conditions import ConditionReason, ConditionStatus, ConditionType
from unbounded.api.machine import Machine
from unbounded.kube.cache import Cache
from unbounded.kube.events import EventSink
from unbounded.metalman.dhcp.model import DhcpFinding, DhcpFindingKind
from unbounded.metalman.netboot.boot_index import BootIndex
from unbounded.metalman.netboot.model import BootObservation, ConditionState

FOREIGN_SERVER: Final = "ForeignDHCPServer"
MOST_EVENTS: Final = 20  # limit on the Machines that get an Event for a problem of their network

REASONS: Final = {
    DhcpFindingKind.NO_BOOT_FILE: ConditionReason.NO_BOOT_FILE,
    DhcpFindingKind.ADDRESS_IN_USE: ConditionReason.ADDRESS_IN_USE,
    DhcpFindingKind.DUPLICATE_LEASE: ConditionReason.DUPLICATE_LEASE,
    DhcpFindingKind.INVALID_LEASE: ConditionReason.INVALID_LEASE,
}
OF_LEASES: Final = frozenset({ConditionReason.DUPLICATE_LEASE, ConditionReason.INVALID_LEASE})
SERVED: Final = ConditionState(ConditionStatus.TRUE, ConditionReason.SERVED, "the Machine is served")


def lease_condition(machine: Machine, findings: tuple[DhcpFinding, ...]) -> ConditionState | None:
    """Return the update of NetbootServed for a Machine's leases; None if the condition remains as it is."""
    if findings:
        text = "; ".join(finding.text for finding in findings)
        return ConditionState(ConditionStatus.FALSE, REASONS[findings[0].kind], text)
    return SERVED if unserved_reason(machine) in OF_LEASES else None


def unserved_reason(machine: Machine) -> str | None:
    """Return the reason of a NetbootServed that is not True; None if it is True or not set."""
    for condition in machine.status.conditions:
        if condition.type == ConditionType.NETBOOT_SERVED and condition.status != ConditionStatus.TRUE:
            return condition.reason
    return None


class FindingReporter:
    """Writer of problems into conditions and Events.

    Args:
        note: queues an update of a Machine's status.
        announce: emits an Event.
    """

    def __init__(
        self,
        machines: Cache[Machine],
        index: BootIndex,
        note: Callable[[str, BootObservation], None],
        announce: EventSink,
    ) -> None:
        self._machines = machines
        self._index = index
        self._note = note
        self._announce = announce

    def leases_changed(self, machine: Machine) -> None:
        """Update NetbootServed after a change of the leases of a Machine, or of a Machine in conflict with it."""
        condition = lease_condition(machine, self._index.findings(machine.name))
        if condition is not None:
            self._note(machine.name, BootObservation(conditions={ConditionType.NETBOOT_SERVED: condition}))

    def report(self, finding: DhcpFinding) -> None:
        """Report a problem that a DHCP server found."""
        if finding.kind is DhcpFindingKind.FOREIGN_SERVER:
            self._announce_foreign_server(finding)
        elif finding.machine:
            message = ConditionState(ConditionStatus.FALSE, REASONS[finding.kind], finding.text)
            self._note(finding.machine, BootObservation(conditions={ConditionType.NETBOOT_SERVED: message}))

    def _announce_foreign_server(self, finding: DhcpFinding) -> None:
        names = (
            [finding.machine]
            if finding.machine
            else [each.machine for each in self._index.all_requests()][:MOST_EVENTS]
        )
        for name in names:
            machine = self._machines.get(name)
            if machine is not None:
                self._announce(machine, "Warning", FOREIGN_SERVER, finding.text)
