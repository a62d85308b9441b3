"""What the servers of this process saw of each boot: passed on to be written down, and watched for a second host."""

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
    """What this process keeps of one boot."""

    boot: tuple[str, str]  # UID of the Machine, and boot
    trace: contest.Trace
    loader: str = ""  # the first one that went out; it is the one that is counted


class Sightings:
    """Args:
    note: has something written down.
    close: ends a boot at once.
    neighbours: the MACs behind addresses; one that knows none, where clients are not on the server's segment.
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
        """A boot is wanted. What an operation wants its executor says; a counter has nobody else.

        A restart does not say again what was taken back since (`nothing_came`).
        """
        log.info("boot from the network wanted", machine=wanted.machine, boot=wanted.boot)
        is_new = wanted.window is Window.INSTALLING and seen_of(machine, wanted.boot) is None
        if wanted.repave is not None and is_new and machine.spec.pxe is not None:
            pending = repaved(machine.spec.pxe.image, done=False)
            self._note(wanted.machine, Seen(boot=wanted.boot, conditions={ConditionType.REPAVED: pending}))

    def nothing_came(self, machine: str) -> None:
        """Of the repave of a Machine that somebody was to start nothing was seen for long."""
        log.info("nothing came of a repave", machine=machine)
        self._note(machine, Seen(conditions={ConditionType.REPAVED: None}))

    def ended(self, wanted: Wanted) -> None:
        """A boot is not wanted any more."""
        log.info("boot from the network over", machine=wanted.machine, boot=wanted.boot)
        self._sights.pop(wanted.machine, None)

    def served(self, wanted: Wanted) -> Served | None:
        """The images of a boot, if they are there."""
        machine = self._machines.get(wanted.machine)
        images = None if machine is None else self._images.of(machine)
        return None if images is None or isinstance(images, NotYet) else images

    # ---- DHCP

    def identified(self, wanted: Wanted, machine_id: bytes) -> None:
        """A packet of the boot's MAC said a machine id. Once a kernel went out that proves nothing any more."""
        machine = self._machines.get(wanted.machine)
        known = None if machine is None else seen_of(machine, wanted.boot)
        if known is None or rank(known.milestone) < rank(NetbootMilestone.KERNEL_FETCHED):
            self._saw(wanted, contest.Identified(machine_id))

    def offered(self, wanted: Wanted) -> None:
        """A boot file was offered. Hosts ask several times: nothing is passed on that is known."""
        machine, served = self._machines.get(wanted.machine), self.served(wanted)
        if machine is None or served is None:
            return
        known = seen_of(machine, wanted.boot)
        trouble = trouble_of(machine)
        mends = trouble is not None and trouble != ConditionReason.ADDRESS_IN_USE  # that shows only after the offer
        if mends or known is None or rank(known.milestone) < rank(NetbootMilestone.OFFERED):
            conditions = {ConditionType.NETBOOT_SERVED: SERVED} if mends or trouble is None else {}
            self._tell(wanted, NetbootMilestone.OFFERED, image_digest=served.disk.digest, conditions=conditions)

    # ---- files

    def asked(self, wanted: Wanted, client: str, *, by_prefix: bool) -> bool:
        """Somebody asks for something of a boot; False when that shows a second host, and the boot is over."""
        if by_prefix and not self._saw(wanted, contest.PrefixUsed(client, wanted.window)):
            return False
        if wanted.window is not Window.INSTALLING:
            return True
        mac = self._neighbours(client)
        return mac is None or self._saw(wanted, contest.Neighbour(client, mac))

    def image_asked_for(self, wanted: Wanted) -> None:
        """Somebody asks for the disk image, as only an installer does."""
        machine = self._machines.get(wanted.machine)
        known = None if machine is None else seen_of(machine, wanted.boot)
        if known is None or rank(known.milestone) < rank(NetbootMilestone.INSTALLER_STARTED):
            self._tell(wanted, NetbootMilestone.INSTALLER_STARTED)

    def went_out(self, wanted: Wanted, client: str, path: str, kind: Role) -> None:
        """The end of a file of the first stages went out."""
        installing = wanted.window is Window.INSTALLING and kind in FIRST_STAGES
        if not installing or not self.asked(wanted, client, by_prefix=False):  # by now its MAC is known for sure
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
        """The installer said how far it is; False when that shows a second host."""
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
        """Whether there is one host as far as can be told; the boot is over when there are two."""
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
