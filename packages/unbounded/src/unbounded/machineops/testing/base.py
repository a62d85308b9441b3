"""Common parts of the contract's tests."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Coroutine
from typing import Any, ClassVar, Final, TypeVar

from unbounded.machineops.provider import Action, Instance, Job, OperationKind, Power, Progress, Session, State
from unbounded.machineops.testing import driver
from unbounded.machineops.testing.subject import Subject, now

T = TypeVar("T")

ENDS_IN: Final = {
    Action.POWER_OFF: frozenset({Power.STOPPED, Power.RELEASED}),
    Action.DEALLOCATE: frozenset({Power.RELEASED}),
    Action.POWER_ON: frozenset({Power.RUNNING}),
}


class Contract:
    """Requests to a provider, and their observation. A subclass may change these numbers."""

    within_s: ClassVar[float] = 120.0
    """Limit of a power change, or of one step of a replacement, in seconds."""
    poll_s: ClassVar[float] = 0.05
    cuts: ClassVar[int | None] = None
    """Limit of interruptions of a replacement, spread over all places; None for each call of the cloud and each store
    of the

    state.
    """

    @property
    def pace(self) -> driver.PollPace:
        return driver.PollPace(self.within_s, self.poll_s)

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        """Run a test's coroutine to its end."""
        return asyncio.run(main)

    def _actions(self, subject: Subject) -> list[Action]:
        """Return the provider's actions in a possible order."""
        kinds, parameters = subject.provider.kinds, subject.provider.parameters
        found = [Action.RESTART] if OperationKind.HOST_REBOOT in kinds else []
        on = [Action.POWER_ON] if OperationKind.HOST_POWER_ON in kinds else []
        if OperationKind.HOST_POWER_OFF in kinds:
            found += [Action.POWER_OFF, *on]
            if "deallocate" in parameters.get(OperationKind.HOST_POWER_OFF, ()):
                found += [Action.DEALLOCATE, *on]
        return found

    async def _handle(self, subject: Subject, job: Job, action: Action) -> str | None:
        """Request the action; return the handle to follow."""
        async with driver.session_of(subject) as (session, _):
            return await session.ask(job, action, before=now() + driver.AHEAD_S)

    async def _followed(self, subject: Subject, job: Job, handle: str) -> Progress:
        """Return the end of a long call, observed by a session that did not request it."""
        async with driver.session_of(subject) as (session, budget):
            progress = await self._ended(subject, session, job, handle)
            asked = progress.state is not State.ACCEPTED or budget.scopes  # an accepted call needs no request any more
            assert not asked or budget.scopes == {await driver.scope_of(subject, job.instance)}
            return progress

    async def _ended(self, subject: Subject, session: Session, job: Job, handle: str) -> Progress:
        async def look() -> Progress:
            progress = await session.follow(job, handle)
            driver.assert_fit_hint(progress.again_s)
            for text in (progress.detail, progress.where):
                driver.assert_fit(subject, text, known=(job.instance.id, job.instance.scope))
            return progress

        return await self.pace.until(look, lambda one: one.state is not State.RUNNING)

    async def _ask_and_follow(self, subject: Subject, job: Job, action: Action) -> bool:
        """Request in one session and follow in others, as a restarted controller does; return whether it was reported
        as done.
        """
        async with driver.session_of(subject) as (session, budget):
            before = now() + driver.AHEAD_S
            handle = await session.ask(job, action, before=before)
            assert budget.writes
            assert budget.scopes == {await driver.scope_of(subject, job.instance)}
            assert all(limit <= before for _, limit in budget.writes)
        if handle is None:
            return False
        driver.assert_fit_handle(subject, handle)
        progress = await self._followed(subject, job, handle)
        if action is Action.RESTART and progress.state is State.ACCEPTED:
            return False
        assert progress.state is State.DONE, progress
        return True

    async def _others(self, subject: Subject) -> dict[str, tuple[Power, int]]:
        """Return the other instances of the account, with a new one that no test may change."""
        bystander = await subject.make()
        await self._until_power(subject, subject.provider.instance(bystander), {Power.RUNNING})
        return await driver.truth_of(subject)

    async def _until_power(self, subject: Subject, instance: Instance, desired: Collection[Power]) -> None:
        async with driver.session_of(subject) as (session, _):
            await self._until_it_shows(subject, session, instance, desired)

    async def _until_it_shows(
        self, subject: Subject, session: Session, instance: Instance, desired: Collection[Power]
    ) -> None:
        record = await self.pace.until(
            lambda: session.look(instance),
            lambda one: one.power in desired or one.power is Power.GONE,
            f"{' or '.join(sorted(desired))} is not seen, by a session that may have looked before",
        )
        assert record.power in desired, record
        for text in (record.detail, record.where):
            driver.assert_fit(subject, text, known=(instance.id, instance.scope))

    async def _until_restarted(self, subject: Subject, provider_id: str, boots: int) -> None:
        """Wait until the instance has started exactly once more."""
        await self.pace.until(lambda: subject.boots(provider_id), lambda found: found > boots)
        await self._until_power(subject, subject.provider.instance(provider_id), {Power.RUNNING})
        assert await subject.boots(provider_id) == boots + 1
        assert (await subject.instances())[provider_id] is Power.RUNNING
