"""One computer system of a BMC: the host, and the power that the BMC reports, which may be wrong."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from unbounded_lab.bmc.dials import BmcDials
from unbounded_lab.bmc.power import HostPower, HostTraits, Press, PressEffect, SimulatedHost

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
"""PowerState during a change of the power, by the dial `transitions`; a state that is not listed has its own name."""


@dataclass(frozen=True, slots=True)
class HostTimes:
    """Durations of a host's transitions, in seconds."""

    shutdown_s: float = 1.0
    boot_s: float = 2.0


USUAL_TIMES: Final = HostTimes()


def traits(times: HostTimes, dials: BmcDials) -> HostTraits:
    return HostTraits(
        shutdown_s=times.shutdown_s,
        boot_s=times.boot_s,
        ignores_shutdown=dials.ignores_shutdown,
        ignores_override=dials.ignores_override,
        comes_back_s=dials.comes_back_s,
    )


class BmcSystem:
    """A host from its BMC's point of view."""

    def __init__(self, name: str, index: int, host: SimulatedHost) -> None:
        self.name = name
        self.index = index
        self.host = host
        self._shown: tuple[float, HostPower] | None = None  # time and result of the last reading of the power
        self._lie: tuple[float, HostPower] | None = (
            None  # end of the time for which an old state is shown, and that state
        )

    def press(self, press: Press, now: float, dials: BmcDials) -> PressEffect:
        self.host.advance(now)
        before = self.host.power
        effect = self.host.press(press, now)
        if dials.power_lie_s > 0:
            self._lie = (now + dials.power_lie_s, before)
        return effect

    def power_state(self, now: float, dials: BmcDials) -> str | None:
        """Return the PowerState that the BMC shows; ABSENT if it omits it."""
        power = self._read(now, dials)
        return TRANSITIONS[dials.transitions].get(power, power.value)

    def in_transition(self, now: float) -> bool:
        self.host.advance(now)
        return self.host.power in (HostPower.POWERING_ON, HostPower.POWERING_OFF)

    def _read(self, now: float, dials: BmcDials) -> HostPower:
        self.host.advance(now)
        if self._lie is not None and now < self._lie[0]:
            return self._lie[1]
        if self._shown is None or now - self._shown[0] >= dials.power_cache_s:
            self._shown = (now, self.host.power)
        return self._shown[1]
