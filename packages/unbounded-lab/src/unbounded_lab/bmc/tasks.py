"""Redfish Tasks: resets that are accepted with 202 and executed later. No clock: time comes in as a value."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from unbounded_lab.bmc.power import Press

MAX_TASKS: Final = 64
"""Maximum number of remembered Tasks."""


class TaskState(StrEnum):
    RUNNING = "Running"
    COMPLETED = "Completed"
    EXCEPTION = "Exception"


@dataclass(slots=True)
class Task:
    id: str
    system: str
    press: Press
    started: float
    ends: float
    outcome: TaskState
    vanishes: bool  # together with its monitor, at its end
    carried_out: bool = False

    def state(self, now: float) -> TaskState:
        return TaskState.RUNNING if now < self.ends else self.outcome


class Tasks:
    """The Tasks of one BMC, oldest first."""

    def __init__(self) -> None:
        self._all: dict[str, Task] = {}
        self._last_id = 0

    def start(
        self, system: str, press: Press, now: float, *, takes_s: float, outcome: TaskState, vanishes: bool
    ) -> Task:
        self._last_id += 1
        task = Task(str(self._last_id), system, press, now, now + takes_s, outcome, vanishes)
        self._all[task.id] = task
        while len(self._all) > MAX_TASKS:
            del self._all[next(iter(self._all))]
        return task

    def due(self, now: float) -> list[Task]:
        """Return Tasks that have ended with success by `now` and are not executed yet, in the order of their ends."""
        ended = [task for task in self._all.values() if task.state(now) is TaskState.COMPLETED and not task.carried_out]
        return sorted(ended, key=lambda task: task.ends)

    def visible(self, now: float) -> list[Task]:
        return [task for task in self._all.values() if not (task.vanishes and now >= task.ends)]

    def get(self, task_id: str, now: float) -> Task | None:
        return next((task for task in self.visible(now) if task.id == task_id), None)

    def clear(self) -> None:
        """Drop all Tasks, as a restart of the BMC does: those not executed yet never are."""
        self._all.clear()
