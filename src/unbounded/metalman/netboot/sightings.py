"""Boot progress that the servers of this process observe: queued for the status, and checked for a second host."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from unbounded.api.conditions import ConditionReason, ConditionType
from unbounded.api.machine import Machine, NetbootMilestone
from unbounded.api.operation import BOOT_CONTESTED
from unbounded.kube.cache import Cache
from unbounded.kube.logs import Log
from unbounded.metalman.http.ports import NotYet, ProgressReport
from unbounded.metalman.netboot import contest
from unbounded.metalman.netboot.files import FIRST_STAGES, Role
from unbounded.metalman.netboot.findings import SERVED, trouble_of
from unbounded.metalman.netboot.milestones import repaved
from unbounded.metalman.netboot.model import Said, Seen, Wanted, Window, rank
from unbounded.metalman.netboot.ports import Images, Neighbours, Served
from unbounded.metalman.netboot.roll import Roll
from unbounded.metalman.netboot.wanted import seen_of
from unbounded.operations.announcing import Announce

LONGEST_STAGE: Final = 64
MILESTONES: Final = {Role.LOADER: NetbootMilestone.LOADER_FETCHED, Role.KERNEL: NetbootMilestone.KERNEL_FETCHED}

log = Log("metalman.netboot")


@dataclass(slots=True)
class Sight:
    """State of one boot in this process."""

    boot: tuple[str, str]  # UID of the Machine, and boot
    trace: contest.Trace
    loader: str = ""  # path of the first one that was sent; only its loads are counted


class Sightings:
    """Receiver of the servers' events.

    Args:
        note: queues an update of a Machine's status.
        close: ends a boot at once.
        neighbours: returns the MAC behind an address; always None if clients are not on the server's segment.
    """

    def __init__(
        self,
        machines: Cache[Machine],
        roll: Roll,
        images: Images,
        *,
        note: Callable[[str, Seen], None],
        close: Callable[[Wanted], None],
        announce: Announce,
        neighbours: Neighbours,
    ) -> None:
        self._machines = machines
        self._roll = roll
        self._images = images
        self._note, self._close, self._announce = note, close, announce
        self._neighbours = neighbours
        self._sights: dict[str, Sight] = {}

    def began(self, machine: Machine, wanted: Wanted) -> None:
        """Start a requested boot. The executor of an operation reports the boot itself; for a counter this method does.

        After a restart, the condition that `nothing_came` removed is not set again.
        """
        log.info("boot from the network wanted", machine=wanted.machine, boot=wanted.boot)
        is_new = wanted.window is Window.INSTALLING and seen_of(machine, wanted.boot) is None
        if wanted.repave is not None and is_new and machine.spec.pxe is not None:
            pending = repaved(machine.spec.pxe.image, done=False)
            self._note(wanted.machine, Seen(boot=wanted.boot, conditions={ConditionType.REPAVED: pending}))

    def nothing_came(self, machine: str) -> None:
        """Remove the condition of a repave whose host was not started for long."""
        log.info("nothing came of a repave", machine=machine)
        self._note(machine, Seen(conditions={ConditionType.REPAVED: None}))

    def ended(self, wanted: Wanted) -> None:
        """Forget a boot that is not requested any more."""
        log.info("boot from the network over", machine=wanted.machine, boot=wanted.boot)
        self._sights.pop(wanted.machine, None)

    def served(self, wanted: Wanted) -> Served | None:
        """Return the images of a boot; None if they are not on disk."""
        machine = self._machines.get(wanted.machine)
        images = None if machine is None else self._images.of(machine)
        return None if images is None or isinstance(images, NotYet) else images

    # ---- DHCP

    def identified(self, wanted: Wanted, machine_id: bytes) -> None:
        """Record the machine id in a packet from the boot's MAC; ignored once a kernel was sent, as it proves nothing
        then.
        """
        machine = self._machines.get(wanted.machine)
        known = None if machine is None else seen_of(machine, wanted.boot)
        if known is None or rank(known.milestone) < rank(NetbootMilestone.KERNEL_FETCHED):
            self._saw(wanted, contest.Identified(machine_id))

    def offered(self, wanted: Wanted) -> None:
        """Record that a boot file was offered. Hosts repeat requests, so only a new milestone is queued."""
        machine, served = self._machines.get(wanted.machine), self.served(wanted)
        if machine is None or served is None:
            return
        known = seen_of(machine, wanted.boot)
        trouble = trouble_of(machine)
        # an address in use shows only after the offer
        mends = trouble is not None and trouble != ConditionReason.ADDRESS_IN_USE
        if mends or known is None or rank(known.milestone) < rank(NetbootMilestone.OFFERED):
            conditions = {ConditionType.NETBOOT_SERVED: SERVED} if mends or trouble is None else {}
            self._tell(wanted, NetbootMilestone.OFFERED, image_digest=served.disk.digest, conditions=conditions)

    # ---- files

    def asked(self, wanted: Wanted, client: str, *, by_prefix: bool) -> bool:
        """Check a request for a second host; False if it shows one, which ends the boot."""
        if by_prefix and not self._saw(wanted, contest.PrefixUsed(client, wanted.window)):
            return False
        if wanted.window is not Window.INSTALLING:
            return True
        mac = self._neighbours(client)
        return mac is None or self._saw(wanted, contest.Neighbour(client, mac))

    def image_asked_for(self, wanted: Wanted) -> None:
        """Record a request for the disk image, which only an installer sends."""
        machine = self._machines.get(wanted.machine)
        known = None if machine is None else seen_of(machine, wanted.boot)
        if known is None or rank(known.milestone) < rank(NetbootMilestone.INSTALLER_STARTED):
            self._tell(wanted, NetbootMilestone.INSTALLER_STARTED)

    def went_out(self, wanted: Wanted, client: str, path: str, kind: Role) -> None:
        """Record that a file of the first stages was sent to its end."""
        installing = wanted.window is Window.INSTALLING and kind in FIRST_STAGES
        # by now the kernel's table has the client's MAC for certain
        if not installing or not self.asked(wanted, client, by_prefix=False):
            return
        if not self._saw(wanted, contest.Loading(path, kernel=kind is Role.KERNEL)):
            return
        milestone = MILESTONES.get(kind)
        if milestone is None:
            return
        loads = 0
        if kind is Role.LOADER:
            sight = self._sight(wanted)
            sight.loader = sight.loader or path
            loads = int(path == sight.loader)
        served = self.served(wanted)
        self._tell(
            wanted,
            milestone,
            loads=loads,
            image_digest=None if served is None else served.disk.digest,
            conditions={ConditionType.NETBOOT_SERVED: SERVED},
        )

    # ---- reports

    def progress(self, wanted: Wanted, report: ProgressReport) -> bool:
        """Record a progress report of the installer; False if it shows a second host."""
        percent = None if report.percent is None else min(max(report.percent, 0), 100)
        if not self._saw(wanted, contest.Reported(percent)):
            return False
        stage, said = (self._roll.without_prefix(each, wanted.machine) for each in (report.stage, report.message))
        stage = stage[:LONGEST_STAGE]
        text = ": ".join(part for part in (stage, said) if part)
        if report.failed:
            milestone = NetbootMilestone.FAILED
        elif stage.lower().startswith("writ") or percent:
            milestone = NetbootMilestone.IMAGE_WRITING
        else:
            milestone, percent = NetbootMilestone.INSTALLER_STARTED, None
        self._tell(wanted, milestone, percent=percent, message=text, disk=report.disk or None)
        return True

    # ---- inside

    def _tell(
        self,
        wanted: Wanted,
        milestone: NetbootMilestone,
        *,
        percent: int | None = None,
        loads: int = 0,
        message: str | None = None,
        image_digest: str | None = None,
        conditions: Mapping[ConditionType, Said | None] | None = None,
        disk: str | None = None,
    ) -> None:
        log.debug("seen of a boot", machine=wanted.machine, boot=wanted.boot, milestone=str(milestone))
        seen = Seen(wanted.boot, milestone, percent, loads, message, image_digest, conditions or {}, disk=disk)
        self._note(wanted.machine, seen)

    def _sight(self, wanted: Wanted) -> Sight:
        sight, boot = self._sights.get(wanted.machine), (wanted.uid, wanted.boot)
        if sight is None or sight.boot != boot:
            sight = self._sights[wanted.machine] = Sight(boot, contest.Trace())
        return sight

    def _saw(self, wanted: Wanted, event: contest.Event) -> bool:
        """Return whether the event fits one host; end the boot if it shows two."""
        sight = self._sight(wanted)
        result = contest.saw(sight.trace, event, self._roll.known(wanted.machine))
        if not isinstance(result, contest.Contested):
            sight.trace = result
            return True
        log.warning("boot contested", machine=wanted.machine, boot=wanted.boot, why=result.why)
        self._tell(wanted, NetbootMilestone.CONTESTED, message=result.why)
        machine = self._machines.get(wanted.machine)
        if machine is not None:
            again = "ask for another HostReplace" if wanted.operation else "raise spec.operations.repaveCounter"
            text = f"the boot from the network was ended, as two hosts take part in it: {result.why}"
            self._announce(machine, "Warning", BOOT_CONTESTED, f"{text}; to try again, {again}")
        self._close(wanted)
        return False
