"""Tests of concurrent and consecutive sessions."""

from __future__ import annotations

import asyncio
from itertools import cycle
from typing import Final

from unbounded.machineops.provider import Action, Instance, OperationKind, Power, Session, State
from unbounded.machineops.testing import left_open
from unbounded.machineops.testing.base import ENDS_IN, Contract
from unbounded.machineops.testing.driving import (
    AHEAD_S,
    DrivenReplacement,
    power_job,
    reading_calls,
    session_of,
    truth_of,
)
from unbounded.machineops.testing.elsewhere import HINT, other_process_session
from unbounded.machineops.testing.subject import Subject, now

SESSIONS: Final = 8  # one after the other


class SharingTests(Contract):
    def test_operations_of_one_session_act_on_their_own_instances(self, subject: Subject) -> None:
        async def story() -> None:
            others = await self._others(subject)
            names = [await subject.make() for _ in range(2)]
            action = Action.POWER_OFF if OperationKind.HOST_POWER_OFF in subject.provider.kinds else None
            async with session_of(subject) as (session, budget):
                if action is not None:
                    jobs = [power_job(action, subject.provider.instance(name)) for name in names]
                    await asyncio.gather(*(session.ask(job, action, before=now() + AHEAD_S) for job in jobs))
                    for job in jobs:
                        await self._until_power(subject, job.instance, ENDS_IN[action])
                if subject.provider.replacement:
                    fresh = [DrivenReplacement(self.pace, subject, await subject.make(), shared=True) for _ in range(2)]
                    for one in fresh:
                        one.keep.budget = budget
                    await asyncio.gather(*(one.resume(session, budget) for one in fresh))
                    for one in fresh:
                        assert await subject.user_data(one.provider_id) in one.told
                        assert (await subject.instances())[one.provider_id] is Power.RUNNING
            truth = await truth_of(subject)
            assert {name: truth.get(name) for name in others} == others, "an instance of somebody else was touched"

        self.run(story())

    def test_another_process_goes_on_with_what_one_has_asked_for(self, subject: Subject) -> None:
        async def story() -> None:
            others = await self._others(subject)
            provider_id = await subject.make()
            instance = subject.provider.instance(provider_id)
            async with other_process_session(subject) as there, session_of(subject) as here:
                for session, _ in (here, there):
                    record = await session.look(instance)
                    assert record.power is Power.RUNNING, f"{provider_id} is there, and was told to be {record}. {HINT}"
                for action, (asking, following) in zip(
                    self._actions(subject), cycle([(here[0], there[0]), (there[0], here[0])]), strict=False
                ):
                    job = power_job(action, instance)
                    handle = await asking.ask(job, action, before=now() + AHEAD_S)
                    if handle is not None:
                        progress = await self._ended(subject, following, job, handle)
                        ends = {State.DONE} | ({State.ACCEPTED} if action is Action.RESTART else set())
                        assert progress.state in ends, f"another process cannot follow {action}: {progress}"
                    for session in (following, asking):
                        await self._until_it_shows(subject, session, instance, ENDS_IN.get(action, {Power.RUNNING}))
                if subject.provider.replacement:
                    driven = DrivenReplacement(self.pace, subject, provider_id)
                    await driven.alternate(here, there)
                    driven.scopes = here[1].scopes | there[1].scopes
                    await driven.judge(others)

        self.run(story())

    def test_a_session_that_was_closed_leaves_nothing_open(self, subject: Subject) -> None:
        async def story() -> None:
            instance = subject.provider.instance(await subject.make())
            # References prevent a garbage collection from closing the sessions. The first session opens shared
            # resources, too.
            used: list[Session] = [await self._used_session(subject, instance)]
            before, threads = left_open.files() | left_open.tasks(), left_open.threads()
            with left_open.unclosed() as thrown_away:
                for count in range(1, SESSIONS + 1):
                    used.append(await self._used_session(subject, instance))
                    still = await left_open.opened_since(before)
                    message = "; ".join(still)
                    assert not still, (
                        f"session.close() has returned ({count} times), and there are still open: {message}"
                    )
                more = [each for key, each in left_open.threads().items() if key not in threads]
                assert len(more) < SESSIONS, f"after {SESSIONS} sessions there are more threads: {', '.join(more)}"
                used.clear()
            assert not thrown_away, f"session.close() has closed all but what was thrown away: {'; '.join(thrown_away)}"

        self.run(story())

    async def _used_session(self, subject: Subject, instance: Instance) -> Session:
        """Return a session that was used and closed."""
        async with session_of(subject) as (session, _):
            await asyncio.gather(*(observe() for observe in reading_calls(subject, session, instance)))
        return session
