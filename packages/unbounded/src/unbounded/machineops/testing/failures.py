"""Tests of a provider while its cloud fails."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final

import pytest

from unbounded.machineops import provider, reasons
from unbounded.machineops.testing import driver
from unbounded.machineops.testing.base import Contract
from unbounded.machineops.testing.subject import (
    CountingBudget,
    Subject,
    Trouble,
    Troubled,
    able,
    bring,
    came,
    login_refused,
    now,
)

_BEAT_S: Final = 0.01
_LOOKS: Final = 3
_HOLD_S: Final = 0.25  # of the second or so that a slow cloud takes for an answer


class TroubleTests(Contract):
    def test_throttled_account_raises_throttled_and_changes_nothing(self, subject: Subject) -> None:
        def is_said(error: Exception) -> None:
            assert isinstance(error, provider.Throttled), repr(error)
            assert error.after_s > 0
            driver.assert_fit_hint(error.after_s)

        self.run(self._turned_away(subject, Trouble.THROTTLED, looking=is_said, asking=is_said))

    def test_unavailable_cloud_gives_no_record(self, subject: Subject) -> None:
        def is_transient(error: Exception) -> None:
            assert isinstance(error, provider.Transient), f"whatever goes wrong with a read is Transient, not {error!r}"

        def is_no_refusal(error: Exception) -> None:
            assert isinstance(error, (provider.Transient, provider.Uncertain)), repr(error)

        self.run(self._turned_away(subject, Trouble.DOWN, looking=is_transient, asking=is_no_refusal))

    async def _turned_away(
        self,
        subject: Subject,
        trouble: Trouble,
        *,
        looking: Callable[[Exception], None],
        asking: Callable[[Exception], None],
    ) -> None:
        """Check that each call of a session fails during the trouble, with the right error and without a change."""
        instance = subject.provider.instance(await subject.make())
        truth = await driver.truth_of(subject)
        async with driver.session_of(subject) as (session, _):
            await session.look(instance)  # logs in
            maker = await bring(subject, trouble)
            for observe in driver.reading_calls(subject, session, instance):
                looking(await self._trouble_of(subject, instance, observe()))
            for action in self._actions(subject):
                ask = session.ask(driver.power_job(action, instance), action, before=now() + driver.AHEAD_S)
                asking(await self._trouble_of(subject, instance, ask))
            await maker.set_trouble(None)
            await self._until_it_shows(subject, session, instance, {provider.Power.RUNNING})
        assert await driver.truth_of(subject) == truth

    async def _trouble_of(
        self, subject: Subject, instance: provider.Instance, call: Coroutine[Any, Any, object]
    ) -> Exception:
        try:
            found = await call
        except Exception as error:
            driver.assert_fit(subject, str(error), known=(instance.id, instance.scope))
            return error
        pytest.fail(f"the cloud was in trouble, and it says {found}")

    def test_rejected_login_is_reported_despite_an_earlier_one(self, subject: Subject) -> None:
        async def story() -> None:
            refused = login_refused(subject)
            instance = subject.provider.instance(await subject.make())
            async with driver.session_of(subject) as (session, _):
                assert (await session.look(instance)).power is provider.Power.RUNNING
            session = subject.provider.connect(refused, CountingBudget())
            try:
                with pytest.raises(provider.Refusal) as raised:
                    await session.look(instance)
            finally:
                await session.close()
            assert raised.value.reason == reasons.AUTH_REFUSED
            driver.assert_fit(subject, str(raised.value), login=refused, known=(instance.id, instance.scope))

        self.run(story())

    def test_failed_long_call_is_followed_to_its_failure(self, subject: Subject) -> None:
        async def story() -> None:
            for action in self._actions(subject):
                one, other = [
                    driver.power_job(action, subject.provider.instance(await subject.make())) for _ in range(2)
                ]
                if await self._handle(subject, one, action) is None:
                    continue  # this kind has no long calls
                maker = await bring(subject, Trouble.FAILING)
                try:
                    handle = await self._handle(subject, other, action)
                finally:
                    await maker.set_trouble(None)
                assert handle is not None, f"{action} had something to follow before"
                progress = await self._followed(subject, other, handle)
                assert progress.state is not provider.State.DONE, f"{action} came to nothing"

        self.run(story())

    def test_failed_restart_is_not_reported_as_done(self, subject: Subject) -> None:
        """A provider that never reports a restart as done need not prove it."""

        async def story() -> None:
            job = driver.power_job(provider.Action.RESTART, subject.provider.instance(await subject.make()))
            handle = await self._handle(subject, job, provider.Action.RESTART)
            claims = handle is not None and (await self._followed(subject, job, handle)).state is provider.State.DONE
            shown = [await self._comes_to_nothing(subject, trouble) for trouble in (Trouble.FAILING, Trouble.IGNORED)]
            assert any(shown) or not claims, (
                "follow says DONE of a restart: have set_trouble show by FAILING or IGNORED that it says so of none "
                f"that came to nothing. What the cloud accepts, and shows no more of, is {provider.State.ACCEPTED!r}"
            )

        if provider.OperationKind.HOST_REBOOT in subject.provider.kinds:
            self.run(story())

    async def _comes_to_nothing(self, subject: Subject, trouble: Trouble) -> bool:
        """Request a restart that is accepted and not executed; return whether the cloud can simulate that."""
        provider_id = await subject.make()
        instance, boots = subject.provider.instance(provider_id), await subject.boots(provider_id)
        if not isinstance(subject, Troubled) or not await came(subject, trouble):
            return False
        job = driver.power_job(provider.Action.RESTART, instance)
        try:
            handle = await self._handle(subject, job, provider.Action.RESTART)
        finally:
            await subject.set_trouble(None)
        if handle is not None:
            progress = await self._followed(subject, job, handle)
            assert progress.state is not provider.State.DONE, (
                f"the restart came to nothing ({trouble}), and is said to be {progress}"
            )
        assert await subject.boots(provider_id) == boots, (
            f"set_trouble({trouble}) does not keep restarts from being done"
        )
        return True

    def test_restart_with_a_lost_answer_is_uncertain_and_done_once(self, subject: Subject) -> None:
        async def story() -> None:
            maker = await able(subject, Trouble.LOST)
            provider_id = await subject.make()
            instance = subject.provider.instance(provider_id)
            boots = await subject.boots(provider_id)
            async with driver.session_of(subject) as (session, _):
                await session.look(instance)
                await maker.set_trouble(Trouble.LOST)
                job = driver.power_job(provider.Action.RESTART, instance)
                with pytest.raises(provider.Uncertain):
                    await session.ask(job, provider.Action.RESTART, before=now() + driver.AHEAD_S)
                await maker.set_trouble(None)
                for _ in range(2 if subject.provider.restarts_once else 1):  # during the restart, and after it
                    if subject.provider.restarts_once:
                        await session.ask(job, provider.Action.RESTART, before=now() + driver.AHEAD_S)
                    await self._until_restarted(subject, provider_id, boots)

        if provider.OperationKind.HOST_REBOOT in subject.provider.kinds:
            self.run(story())

    def test_replacement_continues_after_an_outage_of_the_cloud(self, subject: Subject) -> None:
        async def story() -> None:
            maker = await able(subject, Trouble.DOWN)
            before = await self._others(subject)
            driven = driver.DrivenReplacement(
                self.pace, subject, await subject.make(), maker=maker, trouble=Trouble.DOWN
            )
            await driven.complete()
            await driven.judge(before)

        if subject.provider.replacement:
            self.run(story())

    def test_paged_list_is_read_to_its_end(self, subject: Subject) -> None:
        async def story() -> None:
            before = await self._others(subject)
            driven = driver.DrivenReplacement(self.pace, subject, await subject.make())
            maker = await bring(subject, Trouble.PAGES)
            await driven.complete()
            await maker.set_trouble(None)
            await driven.judge(before)

        if subject.provider.replacement:
            self.run(story())

    def test_replacement_with_lost_answers_is_uncertain_and_done_once(self, subject: Subject) -> None:
        async def story() -> None:
            maker = await able(subject, Trouble.LOST)
            before = await self._others(subject)
            driven = driver.DrivenReplacement(self.pace, subject, await subject.make(), maker=maker)
            await driven.complete()
            await driven.judge(before)

        if subject.provider.replacement:
            self.run(story())

    def test_lagging_lists_are_not_taken_as_complete(self, subject: Subject) -> None:
        self._replaced_in(subject, Trouble.LAGGING)

    def test_stale_lists_are_not_taken_as_current(self, subject: Subject) -> None:
        self._replaced_in(subject, Trouble.STALE)

    def test_launch_of_unknown_outcome_is_done_once(self, subject: Subject) -> None:
        """The answer of the launch is lost, and no list shows it at the next request."""
        self._replaced_in(subject, Trouble.UNKNOWN)

    def _replaced_in(self, subject: Subject, trouble: Trouble) -> None:
        async def story() -> None:
            maker = await able(subject, trouble)
            before = await self._others(subject)
            driven = driver.DrivenReplacement(self.pace, subject, await subject.make(), maker=maker, trouble=trouble)
            await driven.complete()
            await driven.judge(before)

        if subject.provider.replacement:
            self.run(story())

    def test_other_sessions_continue_while_a_cloud_is_slow(self, subject: Subject) -> None:
        async def story() -> None:
            instance = subject.provider.instance(await subject.make())
            async with driver.session_of(subject) as (session, _):
                await session.look(instance)
                maker = await bring(subject, Trouble.SLOW)
                looks = driver.reading_calls(subject, session, instance)
                held = [await _least_hold(observe) for observe in looks]
                await maker.set_trouble(None)
            assert max(held) < _HOLD_S, f"the event loop stood still for {held} s: call the cloud without blocking it"

        self.run(story())

    def test_cancelled_call_ends(self, subject: Subject) -> None:
        async def story() -> None:
            instance = subject.provider.instance(await subject.make())
            async with driver.session_of(subject) as (session, _):
                await session.look(instance)
                maker = await bring(subject, Trouble.SLOW)
                observe = asyncio.create_task(session.look(instance))
                await asyncio.sleep(_BEAT_S)
                observe.cancel()
                await asyncio.wait([observe])
                await maker.set_trouble(None)
                assert observe.cancelled(), "a CancelledError is passed on: a controller that is to end waits for it"
                try:
                    async with asyncio.timeout(self.within_s):
                        await self._until_it_shows(subject, session, instance, {provider.Power.RUNNING})
                except TimeoutError:
                    pytest.fail("the session does not go on when one of its calls was cut off")

        self.run(story())


async def _least_hold(observe: Callable[[], Coroutine[Any, Any, object]]) -> float:
    """Return the least of several measurements: other processes may have used the processor."""
    least = await _longest_hold(observe())
    for _ in range(_LOOKS - 1):
        if least >= _HOLD_S:
            least = min(least, await _longest_hold(observe()))
    return least


async def _longest_hold(call: Coroutine[Any, Any, object]) -> float:
    """Return the longest real time in seconds for which a call blocked the event loop."""
    longest = 0.0

    async def beat() -> None:
        nonlocal longest
        while True:
            before = time.perf_counter()
            await asyncio.sleep(_BEAT_S)
            longest = max(longest, time.perf_counter() - before - _BEAT_S)

    heart = asyncio.create_task(beat())
    try:
        await asyncio.sleep(0)
        await call
        await asyncio.sleep(2 * _BEAT_S)
    finally:
        heart.cancel()
    return longest
