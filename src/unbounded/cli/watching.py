"""Processes beside `unbounded up` that are watched: by a pipe they say that their event loop turns, and what they said
last before they ended.
"""

from __future__ import annotations

import asyncio
import os
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Self

from unbounded.cli import watchdog
from unbounded.cli.beside import HEARTBEAT_FLAG, LAST_WORDS, command, end
from unbounded.cli.watchdog import LOOK_S, Watchdog
from unbounded.kube.settings import SERVES


@dataclass(frozen=True)
class Ended:
    """How a process has ended.

    Args:
        status: its exit status, negative for a signal.
        hung: why it was ended; empty where it ended by itself.
        last_words: the last line that it wrote to standard error; empty after a good end, or a sudden one.
    """

    status: int
    hung: str
    last_words: str


async def watched(
    module: str,
    *arguments: str,
    environment: Mapping[str, str],
    serves: Callable[[], None],
    hangs: Callable[[str], None],
) -> Ended:
    """Run a process to its end, which is brought about where it hangs.

    Args:
        module: one whose `main` takes HEARTBEAT_FLAG, and has something written there by its event loop.
        serves: called when it says for the first time that it serves.
        hangs: called with the words why it is ended.
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
    with _Pulse(heard) as pulse:
        try:
            hung = await _hung(process, pulse, serves)
            if hung:
                hangs(hung)
        finally:
            await end(process)
        pulse.turned()
        return Ended(await process.wait(), hung, pulse.last_words.decode(errors="replace"))


class _Pulse:
    """What comes out of a pipe; closed when it is left."""

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
        """Whether the loop of the process has turned since this was asked last."""
        try:
            came = os.read(self._heard, 65536)
        except BlockingIOError:
            return False
        beats, _, words = came.partition(LAST_WORDS)
        self.last_words = words or self.last_words
        self.serves |= SERVES in beats
        return bool(beats)


async def _hung(process: Process, pulse: _Pulse, serves: Callable[[], None]) -> str:
    """Look until it has ended, or is found to hang: then why."""
    loop, dog, ending = asyncio.get_running_loop(), Watchdog(), asyncio.create_task(process.wait())
    try:
        while True:
            looked_at, was_serving = loop.time(), pulse.serves
            done, _ = await asyncio.wait({ending}, timeout=LOOK_S if pulse.serves else LOOK_S / 4)
            if done:
                return ""
            vital = watchdog.seen(process.pid)
            if pulse.turned():
                dog.heard(vital)
                if pulse.serves and not was_serving:
                    serves()
            elif why := dog.unheard(loop.time() - looked_at, vital):
                return why
    finally:
        ending.cancel()
