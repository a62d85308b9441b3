"""Boot progress that the servers of this process observe, and reports of problems.

Progress is queued for the status, and checked for a second host.

Problems are reported as the condition NetbootServed and as Events. Problems with leases are a state: the condition
follows the index of leases. A missing boot file or a declined address is an event: the condition returns to True when
the host is served later.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from unbounded.api.conditions import ConditionReason, ConditionStatus, ConditionType
from unbounded.api.machine import Machine, NetbootMilestone
from unbounded.api.operation import BOOT_CONTESTED
from unbounded.kube.cache import Cache
from unbounded.kube.events import EventSink
from unbounded.kube.logs import Log
from unbounded.metalman.dhcp.model import DhcpFinding, DhcpFindingKind
from unbounded.metalman.host_network import static_addresses
from unbounded.metalman.http.boot_service import NotReadyYet, ProgressReport
from unbounded.metalman.netboot import duplicate_host, model
from unbounded.metalman.netboot.boot_index import BootIndex
from unbounded.metalman.netboot.boot_requests import boot_record
from unbounded.metalman.netboot.image_paths import FIRST_STAGES, FileRole
from unbounded.metalman.netboot.status_writer import repaved_condition

LONGEST_STAGE: Final = 64
MILESTONES: Final = {FileRole.LOADER: NetbootMilestone.LOADER_FETCHED, FileRole.KERNEL: NetbootMilestone.KERNEL_FETCHED}

log = Log("metalman.netboot")


@dataclass(slots=True)
class TrackedBoot:
    """State of one boot in this process."""

    boot: tuple[str, str]  # UID of the Machine, and boot
    trace: duplicate_host.BootTrace
    loader: str = ""  # path of the first one that was sent; only its loads are counted


class BootTracker:
    """Receiver of the servers' events.

    Args:
        note: queues an update of a Machine's status.
        close: ends a boot at once.
        neighbours: returns the MAC behind an address; always None if clients are not on the server's segment.
    """

    def __init__(
        self,
        machines: Cache[Machine],
        index: BootIndex,
        images: model.BootImageSource,
        *,
        note: Callable[[str, model.BootObservation], None],
        close: Callable[[model.BootRequest], None],
        announce: EventSink,
        neighbours: model.MacLookup,
    ) -> None:
        self._machines = machines
        self._index = index
        self._images = images
        self._note, self._close, self._announce = note, close, announce
        self._neighbours = neighbours
        self._boots: dict[str, TrackedBoot] = {}

    def start_boot(self, machine: Machine, request: model.BootRequest) -> None:
        """Start a requested boot. The executor of an operation reports the boot itself; for a counter this method does.

        After a restart, the condition that `expire_repave` removed is not set again.
        """
        log.info("network boot requested", machine=request.machine, boot=request.boot)
        is_new = request.window is model.BootWindow.INSTALLING and boot_record(machine, request.boot) is None
        image = machine.spec.pxe.image if machine.spec.pxe is not None else None
        if request.repave is not None and is_new and image is not None:
            pending = repaved_condition(image, done=False)
            self._note(
                request.machine, model.BootObservation(boot=request.boot, conditions={ConditionType.REPAVED: pending})
            )

    def expire_repave(self, machine: str) -> None:
        """Remove the condition of a repave whose host was not started for long."""
        log.info("repave made no progress", machine=machine)
        self._note(machine, model.BootObservation(conditions={ConditionType.REPAVED: None}))

    def forget(self, request: model.BootRequest) -> None:
        """Forget a boot that is not requested any more."""
        log.info("network boot ended", machine=request.machine, boot=request.boot)
        self._boots.pop(request.machine, None)

    def served(self, request: model.BootRequest) -> model.BootImages | None:
        """Return the images of a boot; None if they are not on disk."""
        machine = self._machines.get(request.machine)
        images = None if machine is None else self._images.of(machine)
        return None if images is None or isinstance(images, NotReadyYet) else images

    # ---- DHCP

    def record_machine_id(self, request: model.BootRequest, machine_id: bytes) -> None:
        """Record the machine id in a packet from the boot's MAC; ignored once a kernel was sent, as it proves nothing
        then.
        """
        machine = self._machines.get(request.machine)
        known = None if machine is None else boot_record(machine, request.boot)
        if known is None or model.milestone_rank(known.milestone) < model.milestone_rank(
            NetbootMilestone.KERNEL_FETCHED
        ):
            self._detect(request, duplicate_host.MachineIdSent(machine_id))

    def record_offer(self, request: model.BootRequest) -> None:
        """Record that a boot file was offered. Hosts repeat requests, so only a new milestone is queued."""
        machine, served = self._machines.get(request.machine), self.served(request)
        if machine is None or served is None:
            return
        known = boot_record(machine, request.boot)
        trouble = unserved_reason(machine)
        # an address in use shows only after the offer
        mends = trouble is not None and trouble != ConditionReason.ADDRESS_IN_USE
        if (
            mends
            or known is None
            or model.milestone_rank(known.milestone) < model.milestone_rank(NetbootMilestone.OFFERED)
        ):
            conditions = {ConditionType.NETBOOT_SERVED: SERVED} if mends or trouble is None else {}
            self._note_milestone(request, NetbootMilestone.OFFERED, served=served, conditions=conditions)

    # ---- files

    def check_request(self, request: model.BootRequest, client: str, *, by_prefix: bool) -> bool:
        """Check a request for a second host; False if it shows one, which ends the boot."""
        if by_prefix and not self._detect(request, duplicate_host.PrefixUsed(client, request.window)):
            return False
        if request.window is not model.BootWindow.INSTALLING:
            return True
        mac = self._neighbours(client)
        return mac is None or self._detect(request, duplicate_host.NeighbourFound(client, mac))

    def record_image_request(self, request: model.BootRequest) -> None:
        """Record a request for the disk image, which only an installer sends."""
        machine = self._machines.get(request.machine)
        known = None if machine is None else boot_record(machine, request.boot)
        if known is None or model.milestone_rank(known.milestone) < model.milestone_rank(
            NetbootMilestone.INSTALLER_STARTED
        ):
            self._note_milestone(request, NetbootMilestone.INSTALLER_STARTED)

    def record_sent_file(self, request: model.BootRequest, client: str, path: str, kind: FileRole) -> None:
        """Record that a file of the first stages was sent to its end."""
        installing = request.window is model.BootWindow.INSTALLING and kind in FIRST_STAGES
        # by now the kernel's table has the client's MAC for certain
        if not installing or not self.check_request(request, client, by_prefix=False):
            return
        if not self._detect(request, duplicate_host.BootFileSent(path, kernel=kind is FileRole.KERNEL)):
            return
        milestone = MILESTONES.get(kind)
        if milestone is None:
            return
        loads = 0
        if kind is FileRole.LOADER:
            tracked = self._tracked(request)
            tracked.loader = tracked.loader or path
            loads = int(path == tracked.loader)
        self._note_milestone(
            request,
            milestone,
            loads=loads,
            served=self.served(request),
            conditions={ConditionType.NETBOOT_SERVED: SERVED},
        )

    # ---- reports

    def progress(self, request: model.BootRequest, report: ProgressReport) -> bool:
        """Record a progress report of the installer; False if it shows a second host."""
        percent = None if report.percent is None else min(max(report.percent, 0), 100)
        if not self._detect(request, duplicate_host.ProgressReported(percent)):
            return False
        stage, message = (self._index.without_prefix(each, request.machine) for each in (report.stage, report.message))
        stage = stage[:LONGEST_STAGE]
        text = ": ".join(part for part in (stage, message) if part)
        if report.failed:
            milestone = NetbootMilestone.FAILED
        elif stage.lower().startswith("writ") or percent:
            milestone = NetbootMilestone.IMAGE_WRITING
        else:
            milestone, percent = NetbootMilestone.INSTALLER_STARTED, None
        self._note_milestone(request, milestone, percent=percent, message=text, disk=report.disk or None)
        return True

    # ---- inside

    def _note_milestone(
        self,
        request: model.BootRequest,
        milestone: NetbootMilestone,
        *,
        percent: int | None = None,
        loads: int = 0,
        message: str | None = None,
        served: model.BootImages | None = None,
        conditions: Mapping[ConditionType, model.ConditionState | None] | None = None,
        disk: str | None = None,
    ) -> None:
        log.debug("network boot progressed", machine=request.machine, boot=request.boot, milestone=str(milestone))
        observation = model.BootObservation(
            boot=request.boot,
            milestone=milestone,
            percent=percent,
            loads=loads,
            message=message,
            image=None if served is None else served.disk_reference,
            image_digest=None if served is None else served.disk.digest,
            conditions=conditions or {},
            disk=disk,
        )
        self._note(request.machine, observation)

    def _tracked(self, request: model.BootRequest) -> TrackedBoot:
        tracked, boot = self._boots.get(request.machine), (request.uid, request.boot)
        if tracked is None or tracked.boot != boot:
            tracked = self._boots[request.machine] = TrackedBoot(boot, duplicate_host.BootTrace())
        return tracked

    def _detect(self, request: model.BootRequest, event: duplicate_host.BootEvent) -> bool:
        """Return whether the event fits one host; end the boot if it shows two."""
        tracked = self._tracked(request)
        machine = self._machines.get(request.machine)
        known = self._index.identity_of(request.machine)
        if machine is not None and machine.spec.network is not None:
            known = replace(known, declared=static_addresses(machine.spec.network))
        result = duplicate_host.detect(tracked.trace, event, known)
        if not isinstance(result, duplicate_host.DuplicateHost):
            tracked.trace = result
            return True
        log.warning("boot contested", machine=request.machine, boot=request.boot, why=result.why)
        self._note_milestone(request, NetbootMilestone.CONTESTED, message=result.why)
        if machine is not None:
            again = "create another HostReplace" if request.operation else "increase spec.operations.repaveCounter"
            text = f"the network boot ended because two hosts took part in it: {result.why}"
            self._announce(machine, "Warning", BOOT_CONTESTED, f"{text}; to retry, {again}")
        self._close(request)
        return False


FOREIGN_SERVER: Final = "ForeignDHCPServer"
MOST_EVENTS: Final = 20  # limit on the Machines that get an Event for a problem of their network

REASONS: Final = {
    DhcpFindingKind.NO_BOOT_FILE: ConditionReason.NO_BOOT_FILE,
    DhcpFindingKind.ADDRESS_IN_USE: ConditionReason.ADDRESS_IN_USE,
    DhcpFindingKind.DUPLICATE_LEASE: ConditionReason.DUPLICATE_LEASE,
    DhcpFindingKind.INVALID_LEASE: ConditionReason.INVALID_LEASE,
}
OF_LEASES: Final = frozenset({ConditionReason.DUPLICATE_LEASE, ConditionReason.INVALID_LEASE})
SERVED: Final = model.ConditionState(ConditionStatus.TRUE, ConditionReason.SERVED, "the Machine is served")


def lease_condition(machine: Machine, findings: tuple[DhcpFinding, ...]) -> model.ConditionState | None:
    """Return the update of NetbootServed for a Machine's leases; None if the condition remains as it is."""
    if findings:
        text = "; ".join(finding.text for finding in findings)
        return model.ConditionState(ConditionStatus.FALSE, REASONS[findings[0].kind], text)
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
        note: Callable[[str, model.BootObservation], None],
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
            self._note(machine.name, model.BootObservation(conditions={ConditionType.NETBOOT_SERVED: condition}))

    def report(self, finding: DhcpFinding) -> None:
        """Report a problem that a DHCP server found."""
        if finding.kind is DhcpFindingKind.FOREIGN_SERVER:
            self._announce_foreign_server(finding)
        elif finding.machine:
            message = model.ConditionState(ConditionStatus.FALSE, REASONS[finding.kind], finding.text)
            self._note(finding.machine, model.BootObservation(conditions={ConditionType.NETBOOT_SERVED: message}))

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
