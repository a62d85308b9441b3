"""Child processes of `unbounded up`: each ends with its parent, even if the parent is killed, and is ended if it hangs.

A supervised child has a pipe: its event loop sends heartbeats there, and a child that fails its last line of standard
error. Hang detection by `Watchdog` is pure but `read_process_state`:

- A busy process does not hang.
- Time counts as it passes for the watcher. Where both stood still, as in a closed laptop or a stopped terminal job,
  there was no silence.
- A process that waits for a CPU or a disk has more time. One that used much CPU time without a turn of its loop has
  not.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import io
import os
import re
import signal
import sys
import traceback
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Final, Self, TextIO

from unbounded.kube.settings import HEARTBEAT_S, HEARTBEAT_SERVING

STOP_S: Final = 10.0
PR_SET_PDEATHSIG: Final = 1  # prctl(2)
HEARTBEAT_FLAG: Final = "--heartbeat-fd"
LAST_WORDS: Final = b"!"  # starts the last line of standard error on the pipe
LAST_WORDS_LENGTH: Final = 1000  # characters, which a pipe takes in one write
_FRAME: Final = re.compile(r"[\s|+-]*")  # drawn around the lines of a traceback in an exception group
CHECK_S: Final = HEARTBEAT_S
SILENT_S: Final = 30.0
# until the first heartbeat: a cloud's SDK is large, and takes a minute to import on a busy machine
START_S: Final = 120.0
MOST_S: Final = 120.0  # of silence, however little CPU time the process got
BUSY_CPU_S: Final = 10.0  # a turn of the loop takes milliseconds of CPU time, so that this much is enough

_STOPPED: Final = frozenset("Tt")
_WAITS: Final = frozenset("RD")  # for a CPU, or for a disk; swapped-out memory counts as one, too


def command(module: str, *arguments: str) -> tuple[str, ...]:
    """Return the command line that runs `main(arguments)` of a module in a child process."""
    return (sys.executable, "-m", __name__, str(os.getpid()), module, *arguments)


async def end(process: Process) -> None:
    """Terminate a process and wait until it has exited; kill it after STOP_S."""
    if process.returncode is not None:
        return
    process.terminate()
    try:
        await asyncio.wait_for(process.wait(), STOP_S)
    except TimeoutError:
        process.kill()
        await process.wait()


@dataclass(frozen=True)
class ProcessEnd:
    """End of a process.

    Args:
        status: its exit status, negative for a signal.
        hung: why it was killed; empty where it ended by itself.
        last_words: the last line that it wrote to standard error; empty after a success or a sudden end.
    """

    status: int
    hung: str
    last_words: str


async def run_watched(
    module: str,
    *arguments: str,
    environment: Mapping[str, str],
    serves: Callable[[], None],
    hangs: Callable[[str], None],
) -> ProcessEnd:
    """Run a process until it has ended, and kill it if it hangs.

    Args:
        module: its `main` takes HEARTBEAT_FLAG; its event loop writes heartbeats to that descriptor.
        serves: called when the process first reports that it serves.
        hangs: called with the reason before a hung process is killed.
    """
    heard, says = os.pipe()
    try:
        process = await asyncio.create_subprocess_exec(
            *command(module, *arguments, HEARTBEAT_FLAG, str(says)),
            env=environment,
            stdin=DEVNULL,
            pass_fds=(says,),
        )
    except BaseException:
        os.close(heard)
        raise
    finally:
        os.close(says)
    with _HeartbeatPipe(heard) as pulse:
        try:
            hung = await _wait_end_or_hang(process, pulse, serves)
            if hung:
                hangs(hung)
        finally:
            await end(process)
        pulse.turned()
        return ProcessEnd(await process.wait(), hung, pulse.last_words.decode(errors="replace"))


class _HeartbeatPipe:
    """Reader of a heartbeat pipe, which is closed at the end of the context."""

    def __init__(self, heard: int) -> None:
        self._heard = heard
        self.last_words = b""
        self.serves = False
        os.set_blocking(heard, False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._heard)

    def turned(self) -> bool:
        """Return whether the process's event loop has turned since the last call."""
        try:
            came = os.read(self._heard, 65536)
        except BlockingIOError:
            return False
        beats, _, words = came.partition(LAST_WORDS)
        self.last_words = words or self.last_words
        self.serves |= HEARTBEAT_SERVING in beats
        return bool(beats)


async def _wait_end_or_hang(process: Process, pulse: _HeartbeatPipe, serves: Callable[[], None]) -> str:
    """Watch a process until it has ended (returns an empty string) or hangs (returns the reason)."""
    loop, dog, ending = asyncio.get_running_loop(), Watchdog(), asyncio.create_task(process.wait())
    try:
        while True:
            looked_at, was_serving = loop.time(), pulse.serves
            done, _ = await asyncio.wait({ending}, timeout=CHECK_S if pulse.serves else CHECK_S / 4)
            if done:
                return ""
            vital = read_process_state(process.pid)
            if pulse.turned():
                dog.record_heartbeat(vital)
                if pulse.serves and not was_serving:
                    serves()
            elif why := dog.record_silence(loop.time() - looked_at, vital):
                return why
    finally:
        ending.cancel()


# Code that runs in the child process


class _LastLineStream(io.TextIOBase):
    """Standard error that remembers the last line written to it."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._end = ""

    def write(self, text: str) -> int:
        self._end = f"{self._end}{text}"[-8 * LAST_WORDS_LENGTH :]
        return self._out.write(text)

    def flush(self) -> None:
        self._out.flush()

    def fileno(self) -> int:
        return self._out.fileno()

    def isatty(self) -> bool:
        return self._out.isatty()

    @property
    def last_line(self) -> str:
        """The last line that is not empty; of a traceback, the exception."""
        lines = (_FRAME.sub("", line, count=1) for line in reversed(self._end.splitlines()))
        return next((line.strip() for line in lines if line.strip()), "")


def main(arguments: Sequence[str]) -> int:
    parent, module, *rest = arguments
    if sys.platform == "linux":
        # a process that hangs or is stopped reacts to no other signal
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(parent):
        return 0
    if HEARTBEAT_FLAG not in rest:
        return _run(module, rest)
    sys.stderr = stderr = _LastLineStream(sys.stderr)
    status = _run(module, rest)
    if status != 0:
        with contextlib.suppress(OSError):
            words = LAST_WORDS + stderr.last_line[:LAST_WORDS_LENGTH].encode()
            os.write(int(rest[rest.index(HEARTBEAT_FLAG) + 1]), words)
    return status


def _run(module: str, arguments: Sequence[str]) -> int:
    try:
        status: int = import_module(module).main(arguments)
    except SystemExit as error:
        if isinstance(error.code, str):
            print(error.code, file=sys.stderr)
            return 1
        return error.code or 0
    except BaseException:
        traceback.print_exc()
        return 1
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))


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
