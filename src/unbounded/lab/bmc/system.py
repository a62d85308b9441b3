"""One computer system of a BMC: the host, and the power that the BMC reports, which may be wrong."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from unbounded.lab.bmc.dials import Dials
from unbounded.lab.bmc.power import Effect, Host, Power, Press, Traits

ABSENT: Final = "absent"
"""Value for an omitted PowerState."""

TRANSITIONS: Final[Mapping[str, Mapping[Power, str | None]]] = {
    "named": {},
    "hidden": {Power.POWERING_ON: "On", Power.POWERING_OFF: "On"},
    "null": {Power.POWERING_ON: None, Power.POWERING_OFF: None},
    "unknown": {Power.POWERING_ON: "Unknown", Power.POWERING_OFF: "Unknown"},
    "starting": {Power.POWERING_ON: "Starting", Power.POWERING_OFF: "Starting"},
    "absent": {Power.POWERING_ON: ABSENT, Power.POWERING_OFF: ABSENT},
}
"""PowerState during a change of the power, by the dial `transitions`; a state that is not listed has its own name."""


@dataclass(frozen=True, slots=True)
class Times:
    """Durations of a host's transitions, in seconds."""

    shutdown_s: float = 1.0
    boot_s: float = 2.0


USUAL_TIMES: Final = Times()


def traits(times: Times, dials: Dials) -> Traits:
    return Traits(
        shutdown_s=times.shutdown_s,
        boot_s=times.boot_s,
        ignores_shutdown=dials.ignores_shutdown,
        ignores_override=dials.ignores_override,
        comes_back_s=dials.comes_back_s,
    )


class System:
    """A host from its BMC's point of view."""

    def __init__(self, name: str, index: int, host: Host) -> None:
        self.name = name
        self.index = index
        self.host = host
        self._shown: tuple[float, Power] | None = None  # time and result of the last reading of the power
        self._lie: tuple[float, Power] | None = None  # end of the time for which an old state is shown, and that state

    def press(self, press: Press, now: float, dials: Dials) -> Effect:
        self.host.advance(now)
        before = self.host.power
        effect = self.host.press(press, now)
        if dials.power_lie_s > 0:
            self._lie = (now + dials.power_lie_s, before)
        return effect

    def power_state(self, now: float, dials: Dials) -> str | None:
        """Return the PowerState that the BMC shows; ABSENT if it omits it."""
        power = self._read(now, dials)
        return TRANSITIONS[dials.transitions].get(power, power.value)

    def in_transition(self, now: float) -> bool:
        self.host.advance(now)
        return self.host.power in (Power.POWERING_ON, Power.POWERING_OFF)

    def _read(self, now: float, dials: Dials) -> Power:
        self.host.advance(now)
        if self._lie is not None and now < self._lie[0]:
            return self._lie[1]
        if self._shown is None or now - self._shown[0] >= dials.power_cache_s:
            self._shown = (now, self.host.power)
        return self._shown[1]
