"""Tests of a provider during troubles of its cloud."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final

import pytest

from unbounded.machineops import provider, reasons
from unbounded.machineops.testing import driving
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
    def test_an_account_that_is_throttled_is_said_to_be_and_nothing_is_done(self, subject: Subject) -> None:
        def is_said(error: Exception) -> None:
            assert isinstance(error, provider.Throttled), repr(error)
            assert error.after_s > 0
            driving.assert_fit_hint(error.after_s)

        self.run(self._turned_away(subject, Trouble.THROTTLED, looking=is_said, asking=is_said))

    def test_a_cloud_that_is_down_is_no_record_of_anything(self, subject: Subject) -> None:
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
        truth = await driving.truth_of(subject)
        async with driving.session_of(subject) as (session, _):
            await session.look(instance)  # logs in
            maker = await bring(subject, trouble)
            for observe in driving.reading_calls(subject, session, instance):
                looking(await self._trouble_of(subject, instance, observe()))
            for action in self._actions(subject):
                ask = session.ask(driving.power_job(action, instance), action, before=now() + driving.AHEAD_S)
                asking(await self._trouble_of(subject, instance, ask))
            await maker.set_trouble(None)
            await self._until_it_shows(subject, session, instance, {provider.Power.RUNNING})
        assert await driving.truth_of(subject) == truth

    async def _trouble_of(
        self, subject: Subject, instance: provider.Instance, call: Coroutine[Any, Any, object]
    ) -> Exception:
        try:
            found = await call
        except Exception as error:
            driving.assert_fit(subject, str(error), known=(instance.id, instance.scope))
            return error
        pytest.fail(f"the cloud was in trouble, and it says {found}")

    def test_a_login_that_is_refused_is_said_to_be_whoever_was_logged_in_before(self, subject: Subject) -> None:
        async def story() -> None:
            refused = login_refused(subject)
            instance = subject.provider.instance(await subject.make())
            async with driving.session_of(subject) as (session, _):
                assert (await session.look(instance)).power is provider.Power.RUNNING
            session = subject.provider.connect(refused, CountingBudget())
            try:
                with pytest.raises(provider.Refusal) as raised:
                    await session.look(instance)
            finally:
                await session.close()
            assert raised.value.reason == reasons.AUTH_REFUSED
            driving.assert_fit(subject, str(raised.value), login=refused, known=(instance.id, instance.scope))

        self.run(story())

    def test_a_long_call_that_fails_is_followed_to_its_failure(self, subject: Subject) -> None:
        async def story() -> None:
            for action in self._actions(subject):
                one, other = [
                    driving.power_job(action, subject.provider.instance(await subject.make())) for _ in range(2)
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

    def test_a_restart_that_came_to_nothing_is_not_said_to_be_done(self, subject: Subject) -> None:
        """A provider that never reports a restart as done need not prove it."""

        async def story() -> None:
            job = driving.power_job(provider.Action.RESTART, subject.provider.instance(await subject.make()))
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
        job = driving.power_job(provider.Action.RESTART, instance)
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

    def test_a_restart_whose_answer_was_lost_is_uncertain_and_is_done_once(self, subject: Subject) -> None:
        async def story() -> None:
            maker = await able(subject, Trouble.LOST)
            provider_id = await subject.make()
            instance = subject.provider.instance(provider_id)
            boots = await subject.boots(provider_id)
            async with driving.session_of(subject) as (session, _):
                await session.look(instance)
                await maker.set_trouble(Trouble.LOST)
                job = driving.power_job(provider.Action.RESTART, instance)
                with pytest.raises(provider.Uncertain):
                    await session.ask(job, provider.Action.RESTART, before=now() + driving.AHEAD_S)
                await maker.set_trouble(None)
                for _ in range(2 if subject.provider.restarts_once else 1):  # during the restart, and after it
                    if subject.provider.restarts_once:
                        await session.ask(job, provider.Action.RESTART, before=now() + driving.AHEAD_S)
                    await self._until_restarted(subject, provider_id, boots)

        if provider.OperationKind.HOST_REBOOT in subject.provider.kinds:
            self.run(story())

    def test_a_replacement_goes_on_when_a_cloud_was_down(self, subject: Subject) -> None:
        async def story() -> None:
            maker = await able(subject, Trouble.DOWN)
            before = await self._others(subject)
            driven = driving.DrivenReplacement(
                self.pace, subject, await subject.make(), maker=maker, trouble=Trouble.DOWN
            )
            await driven.complete()
            await driven.judge(before)

        if subject.provider.replacement:
            self.run(story())

    def test_a_list_that_comes_in_pages_is_read_to_its_end(self, subject: Subject) -> None:
        async def story() -> None:
            before = await self._others(subject)
            driven = driving.DrivenReplacement(self.pace, subject, await subject.make())
            maker = await bring(subject, Trouble.PAGES)
            await driven.complete()
            await maker.set_trouble(None)
            await driven.judge(before)

        if subject.provider.replacement:
            self.run(story())

    def test_a_replacement_whose_answers_are_lost_is_uncertain_and_is_done_once(self, subject: Subject) -> None:
        async def story() -> None:
            maker = await able(subject, Trouble.LOST)
            before = await self._others(subject)
            driven = driving.DrivenReplacement(self.pace, subject, await subject.make(), maker=maker)
            await driven.complete()
            await driven.judge(before)

        if subject.provider.replacement:
            self.run(story())

    def test_lists_that_lag_behind_are_not_taken_for_all_there_is(self, subject: Subject) -> None:
        self._replaced_in(subject, Trouble.LAGGING)

    def test_lists_that_are_stale_are_not_taken_for_what_is_now(self, subject: Subject) -> None:
        self._replaced_in(subject, Trouble.STALE)

    def test_a_launch_of_which_nothing_is_known_is_done_once(self, subject: Subject) -> None:
        """The answer of the launch is lost, and no list shows it at the next request."""
        self._replaced_in(subject, Trouble.UNKNOWN)

    def _replaced_in(self, subject: Subject, trouble: Trouble) -> None:
        async def story() -> None:
            maker = await able(subject, trouble)
            before = await self._others(subject)
            driven = driving.DrivenReplacement(self.pace, subject, await subject.make(), maker=maker, trouble=trouble)
            await driven.complete()
            await driven.judge(before)

        if subject.provider.replacement:
            self.run(story())

    def test_other_sessions_go_on_while_a_cloud_is_slow(self, subject: Subject) -> None:
        async def story() -> None:
            instance = subject.provider.instance(await subject.make())
            async with driving.session_of(subject) as (session, _):
                await session.look(instance)
                maker = await bring(subject, Trouble.SLOW)
                looks = driving.reading_calls(subject, session, instance)
                held = [await _least_hold(observe) for observe in looks]
                await maker.set_trouble(None)
            assert max(held) < _HOLD_S, f"the event loop stood still for {held} s: call the cloud without blocking it"

        self.run(story())

    def test_what_is_cut_off_ends(self, subject: Subject) -> None:
        async def story() -> None:
            instance = subject.provider.instance(await subject.make())
            async with driving.session_of(subject) as (session, _):
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
