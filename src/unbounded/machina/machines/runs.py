"""What this process does on hosts beside the loop: one run for a Machine at a time, known by its name, and its end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from unbounded.api.conditions import fit_message
from unbounded.api.failures import Failure, Transient
from unbounded.kube.logs import Log
from unbounded.machina.machines.model import Attempt
from unbounded.machina.provisioning.model import Remote

TELL_EVERY_S: Final = 5.0  # progress is written down, at most
PROGRESS_CHARACTERS: Final = 512

Wake = Callable[[str, float], None]  # (machine, in how many seconds to look at it)

log = Log("machines")


@dataclass
class Run:
    """How far one is.

    Args:
        generation: of the Machine, when the login was begun.
        sent: something may run on the host by now: a broken line is no end.
        touched: something may have been begun on the host, by this run or one before it.
        heard_at: when the host last said something new.
    """

    attempt: str
    began_at: float
    step: str = "waiting for its turn"
    progress: str = ""
    version: str = ""
    generation: int = 0
    sent: bool = False
    touched: bool = False
    ended: Remote | Failure | None = None
    on_word: Callable[[], None] = field(default=lambda: None, repr=False)

    def shown(self, now: float) -> Attempt:
        return Attempt(
            attempt=self.attempt,
            step=self.step,
            seconds=now - self.began_at,
            progress=self.progress,
            ended=self.ended,
            version=self.version,
            generation=self.generation,
            touched=self.touched,
        )


class Runs:
    """The runs of one kind, in a task group of the term: they end with it, and what runs on the host goes on.

    Who would begin one and finds no room waits in a queue. It is woken when there may be room, and has to come out of
    the queue then, one way or the other: by beginning, or by `leave`, which wakes the next one in its stead.

    Args:
        at_once: how many have room.
        wake: called when there is something to see.
    """

    def __init__(self, at_once: int, wake: Wake) -> None:
        self._at_once = at_once
        self._wake = wake
        self._runs: dict[str, tuple[Run, asyncio.Task[None]]] = {}
        self._kept: set[str] = set()  # Machines that are about to begin
        self._waiting: dict[str, None] = {}  # Machines that found no room, in order

    def of(self, machine: str) -> Attempt | None:
        known = self._runs.get(machine)
        return None if known is None else known[0].shown(_now())

    @property
    def at_work(self) -> int:
        """One that was cancelled has no end, and is at work no more."""
        return sum(run.ended is None and not task.done() for run, task in self._runs.values())

    @property
    def free(self) -> int:
        return max(self._at_once - self.at_work - len(self._kept), 0)

    @contextmanager
    def place(self, machine: str) -> Iterator[None]:
        """Keep a place for a Machine that is about to begin; one that it does not use is the next one's."""
        self._waiting.pop(machine, None)
        self._kept.add(machine)
        try:
            yield
        finally:
            self._kept.discard(machine)
            self._wake_next()

    def wait(self, machine: str) -> None:
        """Queue up: it would begin, and there is no room."""
        self._waiting.setdefault(machine)

    def leave(self, machine: str) -> None:
        """It does not want to begin now, or cannot."""
        if machine in self._waiting:
            del self._waiting[machine]
            self._wake_next()

    def start(
        self, group: asyncio.TaskGroup, machine: str, attempt: str, work: Callable[[Run], Awaitable[Remote]]
    ) -> None:
        """Begin, unless one of the Machine is at work."""
        known = self._runs.get(machine)
        if known is not None and known[0].ended is None:
            return
        run = Run(attempt, _now())
        task = group.create_task(self._carry(machine, run, work), name=f"{machine}: {attempt}")
        self._runs[machine] = (run, task)

    async def stop(self, machine: str) -> None:
        """End what this process does; what runs on the host goes on."""
        known = self._runs.get(machine)
        if known is not None:
            _, task = known
            task.cancel()
            await asyncio.wait({task})
        self.forget(machine)

    def forget(self, machine: str) -> None:
        """Its end is written down, or nobody asks for it any more."""
        self._runs.pop(machine, None)
        self._waiting.pop(machine, None)
        self._wake_next()

    def said(self, machine: str, run: Run, text: str) -> None:
        """A line of progress."""
        run.on_word()
        line = fit_message(text.strip(), PROGRESS_CHARACTERS)
        if line and line != run.progress:
            run.progress = line
            self._wake(machine, TELL_EVERY_S)

    async def _carry(self, machine: str, run: Run, work: Callable[[Run], Awaitable[Remote]]) -> None:
        try:
            run.ended = await work(run)
        except Failure as failure:
            run.ended = failure
        except Exception:
            log.exception("work on the host broke", machine=machine, attempt=run.attempt)
            run.ended = Transient("machina met an error of its own; its log has more")
        self._wake(machine, 0.0)
        self._wake_next()

    def _wake_next(self) -> None:
        """As many as there is room for. Who is woken stays in its place until it looks: somebody may be quicker."""
        for machine in islice(self._waiting, self.free if self._waiting else 0):
            self._wake(machine, 0.0)


def _now() -> float:
    return asyncio.get_running_loop().time()
