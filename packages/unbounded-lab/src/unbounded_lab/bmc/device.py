"""A BMC as a state machine: its systems, account, Tasks and faults. No socket and no clock: time comes in as a value.

A Task is a reset that is accepted with 202 and executed later. The reported power of a system may be wrong.
`resources.py` renders a BMC, `actions.py` changes it, and `service.py` combines them.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Any, Final

from unbounded_lab.bmc.access import BmcAccounts
from unbounded_lab.bmc.events import BmcEventLog
from unbounded_lab.bmc.faults import COUNTS, IDEAL, BmcFaults
from unbounded_lab.bmc.identity import BmcIdentity
from unbounded_lab.bmc.power import HostEvent, HostPower, HostTraits, Press, PressEffect, SimulatedHost
from unbounded_lab.bmc.replay import BmcRecording
from unbounded_lab.faults import FOR_EVER, Counts

MAX_TASKS: Final = 64
"""Maximum number of remembered Tasks."""
ABSENT: Final = "absent"
"""Value for an omitted PowerState."""
TRANSITIONS: Final[Mapping[str, Mapping[HostPower, str | None]]] = {
    "named": {},
    "hidden": {HostPower.POWERING_ON: "On", HostPower.POWERING_OFF: "On"},
    "null": {HostPower.POWERING_ON: None, HostPower.POWERING_OFF: None},
    "unknown": {HostPower.POWERING_ON: "Unknown", HostPower.POWERING_OFF: "Unknown"},
    "starting": {HostPower.POWERING_ON: "Starting", HostPower.POWERING_OFF: "Starting"},
    "absent": {HostPower.POWERING_ON: ABSENT, HostPower.POWERING_OFF: ABSENT},
}
"""PowerState during a change of the power, by the fault `transitions`; a state that is not listed has its own name."""
BOOTING: Final = frozenset({PressEffect.START, PressEffect.RESET, PressEffect.CYCLE})
BIOS: Final = "BIOS"
BMC: Final = "BMC"
FIRMWARE_VERSIONS: Final[Mapping[str, str]] = {BIOS: "2.4.1", BMC: "1.0.0", "NIC1": "22.31.6"}
JOURNAL_LENGTH: Final = 1_000
UP_S: Final = 86_400.0  # since when a new BMC runs
GOES_S: Final = 0.1
"""Time from the reset of the BMC itself, in which the answer to the reset leaves, to the end of its listener."""


class TaskState(StrEnum):
    RUNNING = "Running"
    COMPLETED = "Completed"
    EXCEPTION = "Exception"


@dataclass(slots=True)
class Task:
    """An action that was accepted, and is executed at its end.

    Attributes:
        effect: called with the time of the end.
        vanishes: together with its monitor, at its end.
        problem: message and arguments of a Task that ends with an exception.
        request: path and body of the action, where the Task shows them.
    """

    id: str
    name: str
    effect: Callable[[float], object]
    started: float
    ends: float
    outcome: TaskState
    vanishes: bool
    problem: tuple[str, ...] = ("InternalError",)
    request: tuple[str, str] | None = None
    carried_out: bool = False

    def percent(self, now: float) -> int:
        return min(100, int(100 * (now - self.started) / max(self.ends - self.started, 0.001)))

    def state(self, now: float) -> TaskState:
        return TaskState.RUNNING if now < self.ends else self.outcome


class Tasks:
    """The Tasks of one BMC, oldest first."""

    def __init__(self) -> None:
        self._all: dict[str, Task] = {}
        self._last_id = 0

    def start(
        self,
        name: str,
        effect: Callable[[float], object],
        now: float,
        *,
        takes_s: float,
        outcome: TaskState,
        vanishes: bool,
        problem: tuple[str, ...] = ("InternalError",),
        request: tuple[str, str] | None = None,
    ) -> Task:
        self._last_id += 1
        number, ends = str(self._last_id), now + takes_s
        task = Task(number, name, effect, now, ends, outcome, vanishes, problem, request)
        self._all[task.id] = task
        while len(self._all) > MAX_TASKS:
            del self._all[next(iter(self._all))]
        return task

    def due(self, now: float) -> list[Task]:
        """Return Tasks that have ended with success by `now` and are not executed yet, in the order of their ends."""
        ended = [task for task in self._all.values() if task.state(now) is TaskState.COMPLETED and not task.carried_out]
        return sorted(ended, key=lambda task: task.ends)

    def ends(self) -> list[float]:
        """Return the ends of the Tasks that are not executed yet."""
        return [
            task.ends for task in self._all.values() if task.outcome is TaskState.COMPLETED and not task.carried_out
        ]

    def visible(self, now: float) -> list[Task]:
        return [task for task in self._all.values() if not (task.vanishes and now >= task.ends)]

    def get(self, task_id: str, now: float) -> Task | None:
        return next((task for task in self.visible(now) if task.id == task_id), None)

    def clear(self) -> None:
        """Drop all Tasks, as a restart of the BMC does: those not executed yet never are."""
        self._all.clear()


@dataclass(frozen=True, slots=True)
class HostTimes:
    """Durations of a host's transitions, in seconds."""

    shutdown_s: float = 1.0
    boot_s: float = 2.0


USUAL_TIMES: Final = HostTimes()


def traits(times: HostTimes, faults: BmcFaults) -> HostTraits:
    return HostTraits(
        shutdown_s=times.shutdown_s,
        boot_s=times.boot_s,
        ignores_shutdown=faults.ignores_shutdown,
        ignores_override=faults.ignores_override,
        comes_back_s=faults.comes_back_s,
    )


class BmcSystem:
    """A host from its BMC's point of view."""

    def __init__(self, name: str, index: int, host: SimulatedHost) -> None:
        self.name = name
        self.index = index
        self.host = host
        self.image: str | None = None  # URL of the image in its CD drive
        self.image_shown_at = 0.0
        self._shown: tuple[float, HostPower] | None = None  # time and result of the last reading of the power
        self._lie: tuple[float, HostPower] | None = (
            None  # end of the time for which an old state is shown, and that state
        )

    def press(self, press: Press, now: float, faults: BmcFaults) -> PressEffect:
        self.host.advance(now)
        before = self.host.power
        effect = self.host.press(press, now)
        if faults.media_lost_at_reset and effect in BOOTING:
            self.image = None
        if faults.power_lie_s > 0:
            self._lie = (now + faults.power_lie_s, before)
        return effect

    def power_state(self, now: float, faults: BmcFaults) -> str | None:
        """Return the PowerState that the BMC shows; ABSENT if it omits it."""
        power = self._read(now, faults)
        return TRANSITIONS[faults.transitions].get(power, power.value)

    def in_transition(self, now: float) -> bool:
        self.host.advance(now)
        return self.host.power in (HostPower.POWERING_ON, HostPower.POWERING_OFF)

    def _read(self, now: float, faults: BmcFaults) -> HostPower:
        self.host.advance(now)
        if self._lie is not None and now < self._lie[0]:
            return self._lie[1]
        if self._shown is None or now - self._shown[0] >= faults.power_cache_s:
            self._shown = (now, self.host.power)
        return self._shown[1]


@dataclass(frozen=True, slots=True)
class BmcExchange:
    """A request as the BMC received it: the status of its reply (0: lost on the way), and the reply's delivery."""

    at: float
    method: str
    path: str
    status: int
    fate: str


class SimulatedBmc:
    """One BMC and the hosts behind it."""

    def __init__(
        self,
        identity: BmcIdentity,
        faults: BmcFaults = IDEAL,
        times: HostTimes = USUAL_TIMES,
        *,
        now: float,
        power: HostPower = HostPower.ON,
        recording: BmcRecording | None = None,
    ) -> None:
        self.identity = identity
        self.recording = recording
        self.times = times
        self.rng = random.Random(f"{identity.seed}/{identity.name}")  # noqa: S311 - a simulation, no secret
        self.access = BmcAccounts(identity.username, identity.password, self.rng)
        self.tasks = Tasks()
        self.events = BmcEventLog()
        self.ssh_port = 0  # while consoles are served over SSH
        self.on_event: Callable[[], None] | None = None  # called after each recorded event
        self.mains = True
        self.fetched: dict[str, bool] = {}  # images of insertions, until the action: whether the BMC got them
        self.requests = 0
        self.journal: deque[BmcExchange] = deque(maxlen=JOURNAL_LENGTH)
        self.recent: deque[float] = deque()  # times of the requests of the last second
        self.available_at = now
        self.restarted_at = now - UP_S
        self.back_at = now
        self.restarts = 0
        self.firmware = dict(FIRMWARE_VERSIONS)
        self.updates: list[str] = []  # images of the updates that were accepted
        self._first_power = power
        self._systems: dict[str, BmcSystem] = {}
        self.set_faults(faults, now)
        if recording is not None:
            self._begin_as_recorded(recording)

    def _begin_as_recorded(self, recording: BmcRecording) -> None:
        self.access.username = recording.username
        for system in self.systems:
            system.host.power, system.host.boot = recording.power(system.name), recording.boot(system.name)

    def set_faults(self, faults: BmcFaults, now: float) -> None:
        """Set the faults; counts and durations restart."""
        self.faults = faults
        self.faults_since = now
        self.available_at = now + faults.unavailable_s
        self.access.password_changed = False
        self._counts = Counts(faults, COUNTS)
        for index, name in enumerate(faults.systems):
            if name not in self._systems:
                host = SimulatedHost(traits(self.times, faults), now=now, power=self._first_power)
                self._systems[name] = BmcSystem(name, index, host)
                host.on_power = partial(self._power_changed, name)
        for system in self._systems.values():
            system.host.advance(now)
            system.host.traits = traits(self.times, faults)

    def system(self, name: str) -> BmcSystem | None:
        return self._systems.get(name) if name in self.faults.systems else None

    @property
    def systems(self) -> list[BmcSystem]:
        return [self._systems[name] for name in self.faults.systems]

    def spend(self, count: str) -> bool:
        """Return whether a fault that counts is still on; each call uses one up."""
        return self._counts.spend(count)

    def advance(self, now: float) -> None:
        """Execute everything that is due by `now`, in order."""
        for task in self.tasks.due(now):
            task.carried_out = True
            task.effect(task.ends)
        for system in self._systems.values():
            system.host.advance(now)

    def next_change(self) -> float | None:
        """Return the time of the next change that needs no request; None if there is none."""
        times = [host.due for host in (system.host for system in self._systems.values()) if host.due is not None]
        return min([*times, *self.tasks.ends()], default=None)

    def _power_changed(self, name: str, at: float, power: HostPower) -> None:
        self.events.record(at, f"/redfish/v1/Systems/{name}", power)
        if self.on_event is not None:
            self.on_event()

    def press(self, system: BmcSystem, press: Press, now: float) -> PressEffect:
        return system.press(press, now, self.faults)

    def record_ignored_reset(self, system: BmcSystem, press: Press, now: float) -> None:
        """Record a reset that is answered with success and not executed."""
        system.host.history.append(HostEvent(now, "unheard", press.value))

    def install(self, component: str, version: str, now: float) -> None:
        """Install the firmware of a component; the BMC restarts with its own."""
        self.firmware[component] = version
        if component == BMC:
            self.restart(now)

    def restart(self, now: float) -> None:
        """Restart the BMC itself: it loses its sessions and Tasks, stops listening, and is unavailable for a while; the
        hosts are not affected.
        """
        self._start(now)
        self.restarts += 1
        self.back_at = now + self.faults.restart_gone_s

    def _start(self, now: float) -> None:
        self.access.forget_sessions()
        self.tasks.clear()
        self.restarted_at = now
        self.available_at = now + self.faults.restart_s

    def unplug(self, now: float) -> None:
        """Cut the mains of the BMC and its hosts."""
        self.advance(now)
        self.mains = False
        for system in self._systems.values():
            system.host.unplug(now)

    def plug(self, now: float) -> None:
        """Restore the mains: the BMC restarts, the hosts follow the fault `power_restore`."""
        self.advance(now)
        if not self.mains:
            self.mains = True
            self._start(now)
            for system in self._systems.values():
                system.host.plug(now, restore=self.faults.power_restore)

    def listening(self, now: float) -> tuple[bool, float | None]:
        """Return whether the BMC listens now, and when that changes by itself (None: never)."""
        faults, since = self.faults, self.faults_since
        if not self.mains or faults.refused_s == FOR_EVER:
            return False, None
        if now < self.back_at:
            goes_at = self.restarted_at + GOES_S
            return (True, goes_at) if now < goes_at < self.back_at else (False, self.back_at)
        if now < since + faults.refused_s:
            return False, since + faults.refused_s
        if faults.flaps_s is None:
            return True, None
        up_s, down_s = faults.flaps_s
        round_start = since + (now - since) // (up_s + down_s) * (up_s + down_s)
        if now < round_start + up_s:
            return True, round_start + up_s
        return False, round_start + up_s + down_s


Render = Callable[[SimulatedBmc, tuple[str, ...], float], dict[str, Any] | None]
"""A function that renders a resource of a BMC, from the parts of its path and the time; None if there is none."""
