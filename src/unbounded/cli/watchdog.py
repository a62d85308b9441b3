"""Whether a process beside `unbounded up` hangs: its event loop says every BEAT_S that it turns. Pure but for `seen`.

Who is merely busy is no hang. Time counts as it passes for who looks: where both stood still, as in a laptop that was
closed, or both were stopped in their terminal, it was no silence. A process that waits for a CPU or a disk, of which
others leave it too little, has more time; one that has used a CPU for long without a turn of its loop has not.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from unbounded.kube.settings import BEAT_S

LOOK_S: Final = BEAT_S
SILENT_S: Final = 30.0
START_S: Final = 120.0  # until the first turn: a cloud's SDK is large, and takes a minute to import on a busy machine
MOST_S: Final = 120.0  # of silence, however little the process was given
BUSY_CPU_S: Final = 10.0  # a turn of the loop takes milliseconds: who was given so much has had its chance

_STOPPED: Final = frozenset("Tt")
_WAITS: Final = frozenset("RD")  # for a CPU, or for a disk; memory that was swapped out is one, too


@dataclass(frozen=True)
class Vital:
    """What the kernel says of a process.

    Args:
        state: of its main thread, a letter as in proc(5).
        cpu_s: that it has used.
    """

    state: str
    cpu_s: float


def seen(pid: int, *, ticks_per_s: int = 100) -> Vital | None:
    """A process as it is now; None where the kernel does not tell."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return Vital(fields[0], (int(fields[11]) + int(fields[12])) / ticks_per_s)


@dataclass
class Watchdog:
    """One life of a process."""

    silent_s: float = 0.0
    beats: bool = False  # it has said something once
    cpu_s: float = 0.0  # that it had used when it said something last

    def heard(self, vital: Vital | None) -> None:
        """Its loop has turned."""
        self.silent_s, self.beats = 0.0, True
        self.cpu_s = self.cpu_s if vital is None else vital.cpu_s

    def unheard(self, elapsed_s: float, vital: Vital | None) -> str:
        """Nothing came since the look before; why it is taken to hang, empty where it is not.

        Args:
            elapsed_s: since that look.
        """
        self.silent_s += min(elapsed_s, 2 * LOOK_S)
        if vital is not None and vital.state in _STOPPED:
            return "a signal has stopped it" if self.silent_s >= SILENT_S else ""
        limit_s = SILENT_S if self.beats else START_S
        if self.silent_s < limit_s or (self.silent_s < max(limit_s, MOST_S) and self._is_kept_waiting(vital)):
            return ""
        return f"its event loop has not turned for {self.silent_s:.0f} s"

    def _is_kept_waiting(self, vital: Vital | None) -> bool:
        """Whether that may be for want of a CPU or a disk."""
        return vital is None or (vital.state in _WAITS and vital.cpu_s - self.cpu_s < BUSY_CPU_S)
