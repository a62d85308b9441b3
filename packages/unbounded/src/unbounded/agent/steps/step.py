"""A step, its subject, the host, and the run of a list of steps.

Start runs a list forward, concurrently where dependencies allow it. Reset runs it backward, past all errors.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from typing import Final, Generic, TypeVar

from unbounded.agent.interfaces import Commands, OnProgress, Units
from unbounded.agent.paths import HostPaths
from unbounded.api.failures import Failure, Rejected, Stale, Transient, Uncertain
from unbounded.kube.logs import Log
from unbounded.kube.tasks import first_failure

_PROGRAMS: Final = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")


@dataclass(frozen=True)
class StepHost:
    """A host, as far as `start` changes it.

    Args:
        debootstrap: the root file system is made by debootstrap, not from an image.
    """

    paths: HostPaths
    commands: Commands
    units: Units
    debootstrap: bool = False

    def has(self, program: str) -> bool:
        """Return whether this program is installed."""
        return any((self.paths.at(folder) / program).exists() for folder in _PROGRAMS)


W = TypeVar("W")


@dataclass(frozen=True)
class ReversibleStep(Generic[W]):
    """One change. `present` only observes: a step that was interrupted is simply not present.

    Args:
        name: for users, such as "nftables table"; unique in its list.
        add: makes the change; may be called on the remains of an earlier call.
        remove: undoes it; succeeds when there is nothing to undo.
        after: names of steps that must be present before; others may run concurrently.
    """

    name: str
    present: Callable[[W], Awaitable[bool]]
    add: Callable[[W, OnProgress], Awaitable[None]]
    remove: Callable[[W], Awaitable[None]]
    after: tuple[str, ...] = ()


log = Log("agent")

AT_ONCE: Final = 4


@dataclass(frozen=True)
class Leftover:
    """A step that could not be undone, and the cause."""

    name: str
    why: str

    def __str__(self) -> str:
        return f"{self.name}: {self.why}"


def faults(steps: Sequence[ReversibleStep[W]]) -> list[str]:
    """Return the errors of a list of steps; empty for a valid one."""
    names = [step.name for step in steps]
    found = [f"two steps are named {name!r}" for name in sorted({name for name in names if names.count(name) > 1})]
    for step in steps:
        found += [f"{step.name!r} comes after {name!r}, which there is not" for name in step.after if name not in names]
    try:
        TopologicalSorter({step.name: step.after for step in steps}).prepare()
    except CycleError as error:
        found.append(f"steps wait for each other: {' → '.join(error.args[1])}")
    return found


def ordered(steps: Sequence[ReversibleStep[W]]) -> list[ReversibleStep[W]]:
    """Return the steps in an order in which each comes after its dependencies, otherwise in the order of the list."""
    placed: list[ReversibleStep[W]] = []
    rest = list(steps)
    while rest:
        done = {step.name for step in placed}
        following = next((step for step in rest if done.issuperset(step.after)), None)
        if following is None:
            raise ValueError("; ".join(faults(steps)))
        placed.append(following)
        rest.remove(following)
    return placed


async def add_all(
    steps: Sequence[ReversibleStep[W]], on: W, report: OnProgress, *, at_once: int = AT_ONCE
) -> tuple[str, ...]:
    """Add the steps that are not present; return their names. The first failure stops the others.

    Raises:
        Failure: of the error's own class, with the step's name at the start of the message.
    """
    if wrong := faults(steps):
        raise ValueError("; ".join(wrong))
    room = asyncio.Semaphore(at_once)
    present = {step.name: asyncio.Event() for step in steps}
    changed: list[str] = []

    async def take(step: ReversibleStep[W]) -> None:
        for name in step.after:
            await present[name].wait()
        async with room:
            if await _add_if_missing(step, on, report):
                changed.append(step.name)
        present[step.name].set()

    try:
        async with asyncio.TaskGroup() as tasks:
            for step in ordered(steps):
                tasks.create_task(take(step), name=step.name)
    except BaseExceptionGroup as errors:
        raise first_failure(errors) from None
    return tuple(changed)


async def _add_if_missing(step: ReversibleStep[W], on: W, report: OnProgress) -> bool:
    """Add the step unless it is present; return whether it was added."""
    began = time.monotonic()
    try:
        if await step.present(on):
            log.debug("step is present", step=step.name)
            return False
        log.info("step started", step=step.name)
        await step.add(on, lambda words: report(f"{step.name}: {words}"))
    except asyncio.CancelledError:
        log.info("step interrupted", step=step.name, seconds=_since(began))
        raise
    except Failure as error:
        log.warning("step failed", error=error, step=step.name, seconds=_since(began))
        raise _failure_class(error)(f"{step.name}: {error}") from error
    except OSError as error:
        log.warning("step failed", error=error, step=step.name, seconds=_since(began))
        raise Transient(f"{step.name}: {error}") from error
    log.info("step completed", step=step.name, seconds=_since(began))
    return True


def _failure_class(error: Failure) -> type[Failure]:
    """Return the error's class among those of the taxonomy; some subclasses have more arguments than a message."""
    return next(one for one in (Transient, Uncertain, Stale, Rejected, Failure) if isinstance(error, one))


async def remove_all(steps: Sequence[ReversibleStep[W]], on: W) -> list[Leftover]:
    """Undo every step, last first, past all errors; return those that could not be undone."""
    left: list[Leftover] = []
    for step in reversed(ordered(steps)):
        began = time.monotonic()
        try:
            await step.remove(on)
        except (Failure, OSError) as error:
            log.warning("cannot undo step", error=error, step=step.name, seconds=_since(began))
            left.append(Leftover(step.name, str(error)))
        else:
            log.info("step undone", step=step.name, seconds=_since(began))
    return left


def _since(began: float) -> float:
    return round(time.monotonic() - began, 2)
