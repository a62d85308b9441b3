"""Walks a list of steps: forward, at the same time where they allow it; and back, on and on whatever fails."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from typing import Final, TypeVar

from unbounded.agent.ports import Tell
from unbounded.agent.steps.step import Step
from unbounded.api.failures import Failure, Rejected, Stale, Transient, Uncertain
from unbounded.kube.logs import Log
from unbounded.kube.together import first_of

log = Log("agent")

W = TypeVar("W")

AT_ONCE: Final = 4


@dataclass(frozen=True)
class Leftover:
    """What could not be taken back, and why."""

    name: str
    why: str

    def __str__(self) -> str:
        return f"{self.name}: {self.why}"


def faults(steps: Sequence[Step[W]]) -> list[str]:
    """Why this list cannot be walked; empty for a sound one."""
    names = [step.name for step in steps]
    found = [f"two steps are named {name!r}" for name in sorted({name for name in names if names.count(name) > 1})]
    for step in steps:
        found += [f"{step.name!r} comes after {name!r}, which there is not" for name in step.after if name not in names]
    try:
        TopologicalSorter({step.name: step.after for step in steps}).prepare()
    except CycleError as error:
        found.append(f"steps wait for each other: {' → '.join(error.args[1])}")
    return found


def ordered(steps: Sequence[Step[W]]) -> list[Step[W]]:
    """The steps in an order in which each comes after what it builds on; else as they stand in the list."""
    placed: list[Step[W]] = []
    rest = list(steps)
    while rest:
        done = {step.name for step in placed}
        following = next((step for step in rest if done.issuperset(step.after)), None)
        if following is None:
            raise ValueError("; ".join(faults(steps)))
        placed.append(following)
        rest.remove(following)
    return placed


async def add_all(steps: Sequence[Step[W]], on: W, tell: Tell, *, at_once: int = AT_ONCE) -> tuple[str, ...]:
    """Add what is not present; the names of these steps. The first that fails stops the others.

    Raises:
        Failure: of the class of what went wrong, with the step's name before the words.
    """
    if wrong := faults(steps):
        raise ValueError("; ".join(wrong))
    room = asyncio.Semaphore(at_once)
    present = {step.name: asyncio.Event() for step in steps}
    changed: list[str] = []

    async def take(step: Step[W]) -> None:
        for name in step.after:
            await present[name].wait()
        async with room:
            if await _taken(step, on, tell):
                changed.append(step.name)
        present[step.name].set()

    try:
        async with asyncio.TaskGroup() as tasks:
            for step in ordered(steps):
                tasks.create_task(take(step), name=step.name)
    except BaseExceptionGroup as errors:
        raise first_of(errors) from None
    return tuple(changed)


async def _taken(step: Step[W], on: W, tell: Tell) -> bool:
    """Whether the step had to be added."""
    began = time.monotonic()
    try:
        if await step.present(on):
            log.debug("step is present", step=step.name)
            return False
        log.info("step started", step=step.name)
        await step.add(on, lambda words: tell(f"{step.name}: {words}"))
    except asyncio.CancelledError:
        log.info("step interrupted", step=step.name, seconds=_since(began))
        raise
    except Failure as error:
        log.warning("step failed", error=error, step=step.name, seconds=_since(began))
        raise _alike(error)(f"{step.name}: {error}") from error
    except OSError as error:
        log.warning("step failed", error=error, step=step.name, seconds=_since(began))
        raise Transient(f"{step.name}: {error}") from error
    log.info("step completed", step=step.name, seconds=_since(began))
    return True


def _alike(error: Failure) -> type[Failure]:
    """The class that says who acts next; some failures carry more than their words, which a step's does not."""
    return next(one for one in (Transient, Uncertain, Stale, Rejected, Failure) if isinstance(error, one))


async def remove_all(steps: Sequence[Step[W]], on: W) -> list[Leftover]:
    """Take every step back, last first, and go on whatever fails; what could not be taken back."""
    left: list[Leftover] = []
    for step in reversed(ordered(steps)):
        began = time.monotonic()
        try:
            await step.remove(on)
        except (Failure, OSError) as error:
            log.warning("not taken back", error=error, step=step.name, seconds=_since(began))
            left.append(Leftover(step.name, str(error)))
        else:
            log.info("taken back", step=step.name, seconds=_since(began))
    return left


def _since(began: float) -> float:
    return round(time.monotonic() - began, 2)
