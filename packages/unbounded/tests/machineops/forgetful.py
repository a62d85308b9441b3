"""Samples with faults that only another process shows: they resume from their own memory."""

from __future__ import annotations

import time
from dataclasses import replace
from threading import Lock

from unbounded_process_provider.provider import LocalProcess, Processes

from unbounded.machineops.provider import Action, Budget, Instance, Job, Keep, Login, Next, Progress, Record, State

HANDLES: dict[str, str] = {}
LOOKS: dict[str, Record] = {}
MADE: dict[str, str] = {}


class HandlesInTheModule(LocalProcess):
    """Its handles are keys of a dict in memory."""

    class Session(Processes):
        async def ask(self, job: Job, action: Action, *, before: float) -> str | None:
            handle = await super().ask(job, action, before=before)
            if handle is not None:
                HANDLES[job.uid] = handle
            return handle and job.uid

        async def follow(self, job: Job, handle: str) -> Progress:
            return await super().follow(job, HANDLES[handle])

    def connect(self, login: Login, budget: Budget) -> Processes:
        return self.Session(budget)


class LocalTime(LocalProcess):
    """Its handles are times of the zone that the process is in."""

    class Session(Processes):
        async def ask(self, job: Job, action: Action, *, before: float) -> str | None:
            handle = await super().ask(job, action, before=before)
            return handle and f"{time.strftime('%Y-%m-%dT%H:%M:%S')}/{handle}"

        async def follow(self, job: Job, handle: str) -> Progress:
            asked, _, number = handle.partition("/")
            ago = time.time() - time.mktime(time.strptime(asked, "%Y-%m-%dT%H:%M:%S"))
            if not 0 <= ago < 3600:
                return Progress(State.FAILED, f"the restart has failed for {ago:.0f} s", job.instance.id)
            return await super().follow(job, number)

    def connect(self, login: Login, budget: Budget) -> Processes:
        return self.Session(budget)


class LooksInTheModule(LocalProcess):
    """A provider that observes an instance again only if it has changed that itself."""

    class Session(Processes):
        async def look(self, instance: Instance) -> Record:
            if instance.id not in LOOKS:
                LOOKS[instance.id] = await super().look(instance)
            return LOOKS[instance.id]

        async def ask(self, job: Job, action: Action, *, before: float) -> str | None:
            LOOKS.pop(job.instance.id, None)
            return await super().ask(job, action, before=before)

    def connect(self, login: Login, budget: Budget) -> Processes:
        return self.Session(budget)


class MadeInTheModule(LocalProcess):
    """It names what it makes at random, and remembers the name."""

    class Session(Processes):
        def known(self, job: Job) -> Job:
            return replace(job, uid=MADE.setdefault(job.uid, f"{time.monotonic_ns()}"[::-1]))

        async def look_replace(self, job: Job, keep: Keep) -> Next:
            return await super().look_replace(self.known(job), keep)

        async def act_replace(self, job: Job, step: str, keep: Keep, user_data: str, *, before: float) -> None:
            await super().act_replace(self.known(job), step, keep, user_data, before=before)

    def connect(self, login: Login, budget: Budget) -> Processes:
        return self.Session(budget)


class Unpicklable(LocalProcess):
    """It holds what no other process can have."""

    def __init__(self) -> None:
        self.lock = Lock()
