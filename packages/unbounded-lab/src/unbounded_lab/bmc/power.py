"""The host behind a BMC: its power, its boots, and its history. No clock: time comes in as a value.

Time is in seconds on any clock that does not run backwards. A host is advanced to `now` before it is read or changed.
The number of these advances makes no difference to its actions and their times.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, Protocol

HISTORY_LENGTH: Final = 1_000


class HostPower(StrEnum):
    OFF = "Off"
    POWERING_ON = "PoweringOn"
    ON = "On"
    POWERING_OFF = "PoweringOff"


class Press(StrEnum):
    """A power request of a BMC; the values are Redfish's ResetType."""

    ON = "On"
    FORCE_ON = "ForceOn"
    FORCE_OFF = "ForceOff"
    GRACEFUL_SHUTDOWN = "GracefulShutdown"
    GRACEFUL_RESTART = "GracefulRestart"
    FORCE_RESTART = "ForceRestart"
    POWER_CYCLE = "PowerCycle"
    PUSH_POWER_BUTTON = "PushPowerButton"


class PressEffect(StrEnum):
    START = "power on and boot"
    HALT = "off at once"
    SHUT_DOWN = "orderly off"
    REBOOT = "orderly off, then on"
    RESET = "boot again without losing power"
    CYCLE = "off at once, on a moment later"
    NOTHING = "no effect: the host does not react"
    ALREADY = "no effect: the host is in this state"
    IMPOSSIBLE = "rejected in this state"


def _row(
    press: Press, off: PressEffect, powering_on: PressEffect, on: PressEffect, powering_off: PressEffect
) -> dict[tuple[Press, HostPower], PressEffect]:
    return dict(zip(((press, power) for power in HostPower), (off, powering_on, on, powering_off), strict=True))


E = PressEffect
EFFECTS: Final[Mapping[tuple[Press, HostPower], PressEffect]] = {
    #                               Off            PoweringOn  On           PoweringOff
    **_row(Press.ON,                E.START,       E.ALREADY,  E.ALREADY,   E.ALREADY),
    **_row(Press.FORCE_ON,          E.START,       E.ALREADY,  E.ALREADY,   E.ALREADY),
    **_row(Press.FORCE_OFF,         E.ALREADY,     E.HALT,     E.HALT,      E.HALT),
    **_row(Press.GRACEFUL_SHUTDOWN, E.ALREADY,     E.NOTHING,  E.SHUT_DOWN, E.NOTHING),
    **_row(Press.GRACEFUL_RESTART,  E.IMPOSSIBLE,  E.NOTHING,  E.REBOOT,    E.NOTHING),
    **_row(Press.FORCE_RESTART,     E.IMPOSSIBLE,  E.RESET,    E.RESET,     E.RESET),
    **_row(Press.POWER_CYCLE,       E.START,       E.CYCLE,    E.CYCLE,     E.CYCLE),
    **_row(Press.PUSH_POWER_BUTTON, E.START,       E.NOTHING,  E.SHUT_DOWN, E.NOTHING),
}  # fmt: skip
"""Effect of each press in each state. A press of On while the host shuts down is lost, as on real boards."""

ORDERLY: Final = frozenset({PressEffect.SHUT_DOWN, PressEffect.REBOOT})


class OverrideEnabled(StrEnum):
    """Redfish's BootSourceOverrideEnabled."""

    DISABLED = "Disabled"
    ONCE = "Once"
    CONTINUOUS = "Continuous"


@dataclass(frozen=True, slots=True)
class HostBootOverride:
    """The boot override: a boot source in place of the disk, and its duration."""

    enabled: OverrideEnabled = OverrideEnabled.DISABLED
    target: str = "None"
    mode: str = "UEFI"

    @property
    def source(self) -> str:
        return "Hdd" if self.enabled is OverrideEnabled.DISABLED or self.target == "None" else self.target

    def after_boot(self) -> HostBootOverride:
        """Return the override after a boot of the host: `Once` is used up."""
        return (
            replace(self, enabled=OverrideEnabled.DISABLED, target="None")
            if self.enabled is OverrideEnabled.ONCE
            else self
        )


@dataclass(frozen=True, slots=True)
class HostTraits:
    """Behaviour of a board and its operating system."""

    shutdown_s: float = 1.0
    boot_s: float = 2.0
    cycle_off_s: float = 1.0
    ignores_shutdown: bool = False
    ignores_override: bool = False
    comes_back_s: float | None = None  # seconds after which an Off host switches itself on; None: it stays off


@dataclass(frozen=True, slots=True)
class HostEvent:
    """An event of a host.

    `what` is one of `pressed` and `unheard` (detail: the ResetType), `power` (the new state), `boot` (its source) and
    `mains` (gone or back).
    """

    at: float
    what: str
    detail: str


class HostBoard(Protocol):
    """A real machine behind a host; it reports by `SimulatedHost.ended` what ends by itself."""

    def start(self, boot: HostBootOverride) -> None: ...  # run from this source, in place of what ran before

    def halt(self) -> None: ...  # when it returns, nothing runs

    def press_button(self) -> None: ...  # request an orderly shutdown from the operating system


class SimulatedHost:
    """One host. `power` is its true state; its BMC may report another one.

    Without a `board` an orderly shutdown takes the time of its traits; with one, the time that the board needs.
    """

    def __init__(self, traits: HostTraits, *, now: float, power: HostPower = HostPower.ON) -> None:
        self.traits = traits
        self.power = power
        self.boot = HostBootOverride()
        self.mains = True
        self.board: HostBoard | None = None
        self.boots = 0
        self.history: deque[HostEvent] = deque(maxlen=HISTORY_LENGTH)
        self.on_power: Callable[[float, HostPower], None] | None = None  # called at each change of `power`
        self._due: float | None = None  # when the present state ends by itself
        self._restart = False  # PoweringOff leads to PoweringOn instead of to Off
        self._before_outage = power
        self._seen = now

    def advance(self, now: float) -> None:
        """Execute everything that is due by `now`."""
        while self._due is not None and self._due <= now:
            self._finish(self._due)
        self._seen = max(self._seen, now)

    @property
    def due(self) -> float | None:
        """Time at which the present state ends by itself; None: it does not."""
        return self._due

    def press(self, press: Press, now: float) -> PressEffect:
        """Execute a press; returns its effect."""
        self.advance(now)
        self._record(now, "pressed", press.value)
        effect = EFFECTS[press, self.power]
        if not self.mains:
            return PressEffect.IMPOSSIBLE
        if effect in ORDERLY and self.traits.ignores_shutdown:
            return PressEffect.NOTHING
        self._apply(effect, now)
        return effect

    def board_ended(self, now: float, *, restarts: bool = False) -> None:
        """Record that the board has ended by itself: it has switched off, or (`restarts`) reset to boot again."""
        self.advance(now)
        if restarts or self._restart:
            self._start(now)
        else:
            self._off(now)

    def unplug(self, now: float) -> None:
        """Cut the mains: the host is off, whatever its state was."""
        self.advance(now)
        if self.mains:
            self._before_outage = self.power
            self.mains = False
            self._record(now, "mains", "gone")
            self._enter(HostPower.OFF, now, due=None)

    def plug(self, now: float, *, restore: str = "AlwaysOff") -> None:
        """Restore the mains; `restore` is Redfish's PowerRestorePolicy (AlwaysOn, AlwaysOff, LastState)."""
        self.advance(now)
        if not self.mains:
            self.mains = True
            self._record(now, "mains", "back")
            if restore == "AlwaysOn" or (restore == "LastState" and self._before_outage is not HostPower.OFF):
                self._start(now)

    def _apply(self, effect: PressEffect, now: float) -> None:
        match effect:
            case PressEffect.START | PressEffect.RESET:
                self._start(now)
            case PressEffect.HALT:
                self._off(now)
            case PressEffect.CYCLE:
                self._enter(HostPower.OFF, now, due=now + self.traits.cycle_off_s)
            case PressEffect.SHUT_DOWN | PressEffect.REBOOT:
                self._restart = effect is PressEffect.REBOOT
                self._enter(HostPower.POWERING_OFF, now, due=self._shut_down_by(now))
            case PressEffect.NOTHING | PressEffect.ALREADY | PressEffect.IMPOSSIBLE:
                pass

    def _shut_down_by(self, now: float) -> float | None:
        """Return the end of an orderly shutdown; None if the board reports it."""
        if self.board is None:
            return now + self.traits.shutdown_s
        self.board.press_button()
        return None

    def _finish(self, at: float) -> None:
        """End the present state, at the moment it was due to end."""
        if self.power is HostPower.POWERING_ON:
            self._enter(HostPower.ON, at, due=None)
        elif self.power is HostPower.OFF or self._restart:
            self._start(at)
        else:
            self._off(at)

    def _start(self, at: float) -> None:
        boot = HostBootOverride() if self.traits.ignores_override else self.boot
        self.boots += 1
        self.boot = self.boot.after_boot()
        self._enter(HostPower.POWERING_ON, at, due=at + self.traits.boot_s)
        self._record(at, "boot", boot.source)
        if self.board is not None:
            self.board.start(boot)

    def _off(self, at: float) -> None:
        back = self.traits.comes_back_s
        self._enter(HostPower.OFF, at, due=None if back is None else at + back)

    def _enter(self, power: HostPower, at: float, *, due: float | None) -> None:
        self.power, self._due = power, due
        if power is not HostPower.POWERING_OFF:
            self._restart = False
        if power is HostPower.OFF and self.board is not None:
            self.board.halt()
        self._record(at, "power", power.value)
        if self.on_power is not None:
            self.on_power(at, power)

    def _record(self, at: float, what: str, detail: str) -> None:
        self.history.append(HostEvent(at, what, detail))
