"""Supervised child processes of `unbounded up`: a pipe carries the heartbeats of the event loop, and its last error
line.
"""

from __future__ import annotations

import asyncio
import os
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Self

from unbounded.cli import watchdog
from unbounded.cli.child import HEARTBEAT_FLAG, LAST_WORDS, command, end
from unbounded.cli.watchdog import CHECK_S, Watchdog
from unbounded.kube.settings import HEARTBEAT_SERVING


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
            vital = watchdog.read_process_state(process.pid)
            if pulse.turned():
                dog.record_heartbeat(vital)
                if pulse.serves and not was_serving:
                    serves()
            elif why := dog.record_silence(loop.time() - looked_at, vital):
                return why
    finally:
        ending.cancel()
