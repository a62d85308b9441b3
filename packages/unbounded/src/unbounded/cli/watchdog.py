"""Hang detection for child processes of `unbounded up`: each event loop sends a heartbeat every HEARTBEAT_S. Pure but
`read_process_state`.

- A busy process does not hang.
- Time counts as it passes for the watcher. Where both stood still, as in a closed laptop or a stopped terminal job,
  there was no silence.
- A process that waits for a CPU or a disk has more time. One that used much CPU time without a turn of its loop has
  not.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from unbounded.kube.settings import HEARTBEAT_S

CHECK_S: Final = HEARTBEAT_S
SILENT_S: Final = 30.0
# until the first heartbeat: a cloud's SDK is large, and takes a minute to import on a busy machine
START_S: Final = 120.0
MOST_S: Final = 120.0  # of silence, however little CPU time the process got
BUSY_CPU_S: Final = 10.0  # a turn of the loop takes milliseconds of CPU time, so that this much is enough

_STOPPED: Final = frozenset("Tt")
_WAITS: Final = frozenset("RD")  # for a CPU, or for a disk; swapped-out memory counts as one, too


@dataclass(frozen=True)
class ProcessState:
    """State of a process according to the kernel.

    Args:
        state: of its main thread, a letter as in proc(5).
        cpu_s: CPU time used.
    """

    state: str
    cpu_s: float


def read_process_state(pid: int, *, ticks_per_s: int = 100) -> ProcessState | None:
    """Read the state of a process; None where the kernel has none."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return ProcessState(fields[0], (int(fields[11]) + int(fields[12])) / ticks_per_s)


@dataclass
class Watchdog:
    """Silence of one process, from its start to its end."""

    silent_s: float = 0.0
    beats: bool = False  # it has sent a heartbeat
    cpu_s: float = 0.0  # CPU time used at the last heartbeat

    def record_heartbeat(self, vital: ProcessState | None) -> None:
        """Record a heartbeat."""
        self.silent_s, self.beats = 0.0, True
        self.cpu_s = self.cpu_s if vital is None else vital.cpu_s

    def record_silence(self, elapsed_s: float, vital: ProcessState | None) -> str:
        """Record that no heartbeat came since the last check; returns the reason if the process hangs, else an empty
        string.

        Args:
            elapsed_s: since the last check.
        """
        self.silent_s += min(elapsed_s, 2 * CHECK_S)
        if vital is not None and vital.state in _STOPPED:
            return "a signal has stopped it" if self.silent_s >= SILENT_S else ""
        limit_s = SILENT_S if self.beats else START_S
        if self.silent_s < limit_s or (self.silent_s < max(limit_s, MOST_S) and self._lacks_cpu_or_disk(vital)):
            return ""
        return f"its event loop has been blocked for {self.silent_s:.0f} s"

    def _lacks_cpu_or_disk(self, vital: ProcessState | None) -> bool:
        """Return whether the silence may be due to a lack of CPU or disk."""
        return vital is None or (vital.state in _WAITS and vital.cpu_s - self.cpu_s < BUSY_CPU_S)
