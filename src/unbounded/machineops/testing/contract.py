"""The tests."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Coroutine
from dataclasses import replace
from typing import Any, ClassVar, Final, TypeVar

import pytest

from unbounded.api.operation import MAX_HANDLE
from unbounded.machineops import reasons, registry
from unbounded.machineops.provider import (
    Action,
    Cancel,
    Instance,
    Job,
    OperationKind,
    Power,
    Progress,
    Refusal,
    Secret,
    State,
    Throttled,
    Transient,
    Uncertain,
)
from unbounded.machineops.testing.driving import (
    AHEAD_S,
    Counted,
    Cut,
    Driven,
    Kept,
    Pace,
    job_of,
    now,
    power_job,
    says_no_secret,
    scope_of,
    session_of,
    truth_of,
)
from unbounded.machineops.testing.subject import Subject, Trouble, bring, login_refused, troubled

T = TypeVar("T")

ENDS_IN: Final = {
    Action.POWER_OFF: frozenset({Power.STOPPED, Power.RELEASED}),
    Action.DEALLOCATE: frozenset({Power.RELEASED}),
    Action.POWER_ON: frozenset({Power.RUNNING}),
}
_BEAT_S: Final = 0.01
_HOLD_S: Final = 0.25  # of about the second that a slow cloud takes for an answer


class ProviderContract:
    """Tests that every provider passes. A subclass has the fixture `subject`, and may change these numbers."""

    within_s: ClassVar[float] = 120.0
    """How long a change of power, or one step of a replacement, may take."""
    poll_s: ClassVar[float] = 0.05
    cuts: ClassVar[int] = 40
    """At how many places a replacement is cut off, at most; they are spread over all."""

    @property
    def pace(self) -> Pace:
        return Pace(self.within_s, self.poll_s)

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        """Run a test's coroutine to its end."""
        return asyncio.run(main)

    # What it says of itself

    def test_it_describes_itself_soundly(self, subject: Subject) -> None:
        assert registry.faults(subject.provider) == []
        assert subject.provider.modes

    def test_a_provider_id_names_an_instance_and_other_text_is_refused_in_words(self, subject: Subject) -> None:
        instance = subject.provider.instance(subject.missing)
        assert instance == subject.provider.instance(subject.missing)
        assert instance.id
        assert instance.scope
        assert instance.name
        for text in ("", " ", "elsewhere://a/b", "/", subject.missing.partition(":")[0] + ":"):
            with pytest.raises(ValueError, match=r"\w"):
                subject.provider.instance(text)

    def test_connecting_sends_nothing_and_names_the_key_it_cannot_read(self, subject: Subject) -> None:
        async def story() -> None:
            budget = Counted()
            session = subject.provider.connect(subject.login, budget)
            await session.close()
            assert budget.calls == 0
            garbage = "g4rb4ge-\x00"
            for key in subject.login.secret:
                broken = replace(subject.login, secret={**subject.login.secret, key: Secret(garbage)})
                try:
                    await subject.provider.connect(broken, budget).close()
                except ValueError as error:
                    assert key in str(error)
                    assert garbage not in str(error)

        self.run(story())

    # Power

    def test_the_record_is_what_there_is(self, subject: Subject) -> None:
        async def story() -> None:
            async with session_of(subject) as (session, budget):
                instance = subject.provider.instance(await subject.make())
                record = await self.pace.until(lambda: session.look(instance), lambda one: one.power is Power.RUNNING)
                assert record.detail
                assert record.where
                assert len(budget.scopes) == 1
                assert budget.writes == []
                missing = subject.provider.instance(subject.missing)
                assert (await session.look(missing)).power is Power.GONE

        self.run(story())

    def test_the_instances_of_one_account_count_for_one_scope(self, subject: Subject) -> None:
        async def story() -> None:
            instances = [subject.provider.instance(await subject.make()) for _ in range(2)]
            scopes = {(each.scope, await scope_of(subject, each)) for each in instances}
            assert len(scopes) == len({each.scope for each in instances}), scopes

        self.run(story())

    def test_power_follows_what_is_asked_for_and_asking_twice_does_it_once(self, subject: Subject) -> None:
        async def story() -> None:
            others = await self._others(subject)
            provider_id = await subject.make()
            instance = subject.provider.instance(provider_id)
            boots = await subject.boots(provider_id)
            for action in self._actions(subject):
                if action is Action.RESTART:
                    continue
                for _ in range(2):
                    await self._ask_and_follow(subject, power_job(action, instance), action)
                    await self._until_power(subject, instance, ENDS_IN[action])
                assert (await subject.instances())[provider_id] in ENDS_IN[action]
                boots += action is Action.POWER_ON
                assert await subject.boots(provider_id) == boots, f"after {action}"
            truth = await truth_of(subject)
            assert {name: truth.get(name) for name in others} == others, "an instance of somebody else was touched"

        self.run(story())

    def test_a_restart_starts_the_instance_once_more_and_ends_with_it_running(self, subject: Subject) -> None:
        async def story() -> None:
            provider_id = await subject.make()
            boots = await subject.boots(provider_id)
            instance = subject.provider.instance(provider_id)
            is_followed = await self._ask_and_follow(subject, power_job(Action.RESTART, instance), Action.RESTART)
            if is_followed:
                assert await subject.boots(provider_id) == boots + 1, "it was said to be done"
            await self._until_restarted(subject, provider_id, boots)

        if OperationKind.HOST_REBOOT in subject.provider.kinds:
            self.run(story())

    def test_what_comes_too_late_is_not_sent(self, subject: Subject) -> None:
        async def story() -> None:
            instance = subject.provider.instance(await subject.make())
            truth = await truth_of(subject)
            for action in self._actions(subject):
                async with session_of(subject) as (session, _):
                    if action is not Action.POWER_ON:  # it is on
                        with pytest.raises(Transient):
                            await session.ask(power_job(action, instance), action, before=now() - 1)
                assert await truth_of(subject) == truth, f"{action} was sent"

        self.run(story())

    def test_an_instance_that_is_not_there_is_refused(self, subject: Subject) -> None:
        async def story() -> None:
            missing = subject.provider.instance(subject.missing)
            async with session_of(subject) as (session, _):
                for action in self._actions(subject):
                    with pytest.raises(Refusal):
                        await session.ask(power_job(action, missing), action, before=now() + AHEAD_S)
                if subject.provider.replacement:
                    with pytest.raises(Refusal):
                        await session.look_replace(job_of(OperationKind.HOST_REPLACE, missing), Kept())

        self.run(story())

    def test_an_account_that_is_throttled_is_said_to_be_and_nothing_is_done(self, subject: Subject) -> None:
        maker = troubled(subject)

        async def story() -> None:
            instance = subject.provider.instance(await subject.make())
            truth = await truth_of(subject)
            async with session_of(subject) as (session, _):
                await session.look(instance)  # it is logged in
                await maker.set_trouble(Trouble.THROTTLED)
                with pytest.raises(Throttled) as raised:
                    await session.look(instance)
                assert raised.value.after_s > 0
                for action in self._actions(subject):
                    with pytest.raises(Throttled):
                        await session.ask(power_job(action, instance), action, before=now() + AHEAD_S)
                if subject.provider.replacement:
                    with pytest.raises(Throttled):
                        await session.look_replace(job_of(OperationKind.HOST_REPLACE, instance), Kept())
                await maker.set_trouble(None)
            assert await truth_of(subject) == truth

        self.run(story())

    def test_a_cloud_that_is_down_is_no_record_of_anything(self, subject: Subject) -> None:
        async def story() -> None:
            provider_id = await subject.make()
            instance = subject.provider.instance(provider_id)
            truth = await truth_of(subject)
            async with session_of(subject) as (session, _):
                await session.look(instance)  # it is logged in
                maker = await bring(subject, Trouble.DOWN)
                with pytest.raises(Transient):
                    await session.look(instance)
                for action in self._actions(subject):
                    with pytest.raises((Transient, Uncertain)):
                        await session.ask(power_job(action, instance), action, before=now() + AHEAD_S)
                if subject.provider.replacement:
                    with pytest.raises(Transient):
                        await session.look_replace(job_of(OperationKind.HOST_REPLACE, instance), Kept())
                await maker.set_trouble(None)
            assert await truth_of(subject) == truth

        self.run(story())

    def test_a_login_that_is_refused_is_said_to_be_whoever_was_logged_in_before(self, subject: Subject) -> None:
        async def story() -> None:
            refused = login_refused(subject)
            instance = subject.provider.instance(await subject.make())
            async with session_of(subject) as (session, _):
                assert (await session.look(instance)).power is Power.RUNNING
            session = subject.provider.connect(refused, Counted())
            try:
                with pytest.raises(Refusal) as raised:
                    await session.look(instance)
            finally:
                await session.close()
            assert raised.value.reason == reasons.AUTH_REFUSED
            assert says_no_secret(refused, str(raised.value), known=(instance.id, instance.scope))

        self.run(story())

    def test_a_long_call_that_fails_is_followed_to_its_failure(self, subject: Subject) -> None:
        async def story() -> None:
            for action in self._actions(subject):
                one, other = [power_job(action, subject.provider.instance(await subject.make())) for _ in range(2)]
                if await self._handle(subject, one, action) is None:
                    continue  # there are no long calls of this kind
                maker = await bring(subject, Trouble.FAILING)
                try:
                    handle = await self._handle(subject, other, action)
                finally:
                    await maker.set_trouble(None)
                assert handle is not None, f"{action} had something to follow before"
                progress = await self._followed(subject, other, handle)
                assert progress.state is not State.DONE, f"{action} came to nothing"

        self.run(story())

    def test_other_sessions_go_on_while_a_cloud_is_slow(self, subject: Subject) -> None:
        async def story() -> None:
            instance = subject.provider.instance(await subject.make())
            job = job_of(OperationKind.HOST_REPLACE, instance)
            async with session_of(subject) as (session, _):
                await session.look(instance)
                maker = await bring(subject, Trouble.SLOW)
                looks: list[Callable[[], Coroutine[Any, Any, object]]] = [lambda: session.look(instance)]
                if subject.provider.replacement:
                    looks.append(lambda: session.look_replace(job, Kept()))
                held = [min([await _longest_hold(look()) for _ in range(3)]) for look in looks]
                await maker.set_trouble(None)
            assert max(held) < _HOLD_S, f"the event loop stood still for {held} s: call the cloud without blocking it"

        self.run(story())

    def test_what_is_cut_off_ends(self, subject: Subject) -> None:
        async def story() -> None:
            instance = subject.provider.instance(await subject.make())
            async with session_of(subject) as (session, _):
                await session.look(instance)
                maker = await bring(subject, Trouble.SLOW)
                look = asyncio.create_task(session.look(instance))
                await asyncio.sleep(_BEAT_S)
                look.cancel()
                await asyncio.wait([look])
                await maker.set_trouble(None)
            assert look.cancelled(), "a CancelledError is passed on: a controller that is to end waits for it"

        self.run(story())

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
                    fresh = [Driven(self.pace, subject, await subject.make(), shared=True) for _ in range(2)]
                    for one in fresh:
                        one.keep.budget = budget
                    await asyncio.gather(*(one.go_on(session, budget) for one in fresh))
                    for one in fresh:
                        assert await subject.user_data(one.provider_id) == one.user_data
                        assert (await subject.instances())[one.provider_id] is Power.RUNNING
            truth = await truth_of(subject)
            assert {name: truth.get(name) for name in others} == others, "an instance of somebody else was touched"

        self.run(story())

    def test_a_restart_whose_answer_was_lost_is_uncertain_and_is_done_once(self, subject: Subject) -> None:
        maker = troubled(subject)

        async def story() -> None:
            provider_id = await subject.make()
            instance = subject.provider.instance(provider_id)
            boots = await subject.boots(provider_id)
            async with session_of(subject) as (session, _):
                await session.look(instance)
                await maker.set_trouble(Trouble.LOST)
                job = power_job(Action.RESTART, instance)
                with pytest.raises(Uncertain):
                    await session.ask(job, Action.RESTART, before=now() + AHEAD_S)
                await maker.set_trouble(None)
                for _ in range(2 if subject.provider.restarts_once else 1):  # while it goes on, and when it is over
                    if subject.provider.restarts_once:
                        await session.ask(job, Action.RESTART, before=now() + AHEAD_S)
                    await self._until_restarted(subject, provider_id, boots)

        if OperationKind.HOST_REBOOT in subject.provider.kinds:
            self.run(story())

    def _actions(self, subject: Subject) -> list[Action]:
        """What the provider is asked for, in an order in which each can be done."""
        kinds, parameters = subject.provider.kinds, subject.provider.parameters
        found = [Action.RESTART] if OperationKind.HOST_REBOOT in kinds else []
        on = [Action.POWER_ON] if OperationKind.HOST_POWER_ON in kinds else []
        if OperationKind.HOST_POWER_OFF in kinds:
            found += [Action.POWER_OFF, *on]
            if "deallocate" in parameters.get(OperationKind.HOST_POWER_OFF, ()):
                found += [Action.DEALLOCATE, *on]
        return found

    async def _handle(self, subject: Subject, job: Job, action: Action) -> str | None:
        """Ask for it; what there is to follow."""
        async with session_of(subject) as (session, _):
            return await session.ask(job, action, before=now() + AHEAD_S)

    async def _followed(self, subject: Subject, job: Job, handle: str) -> Progress:
        """How the long call has ended, by a session that did not ask for it."""
        async with session_of(subject) as (session, budget):
            progress = await self.pace.until(
                lambda: session.follow(job, handle), lambda one: one.state is not State.RUNNING
            )
            assert budget.scopes == {await scope_of(subject, job.instance)}
            return progress

    async def _ask_and_follow(self, subject: Subject, job: Job, action: Action) -> bool:
        """Ask in one session, and follow in others, as a controller does that is started again; whether there was
        something to follow.
        """
        async with session_of(subject) as (session, budget):
            before = now() + AHEAD_S
            handle = await session.ask(job, action, before=before)
            assert budget.writes
            assert budget.scopes == {await scope_of(subject, job.instance)}
            assert all(limit <= before for _, limit in budget.writes)
        if handle is None:
            return False
        assert len(handle) <= MAX_HANDLE
        assert says_no_secret(subject.login, handle), "a handle is stored where others read it"
        progress = await self._followed(subject, job, handle)
        assert progress.state is State.DONE, progress
        return True

    # Replacement

    def test_a_replacement_ends_with_one_instance_that_can_join(self, subject: Subject) -> None:
        async def story() -> None:
            before = await self._others(subject)
            driven = Driven(self.pace, subject, await subject.make())
            await driven.to_the_end()
            order = [step.stage for step in subject.provider.replacement]
            assert driven.stages == sorted(driven.stages, key=order.index)
            await driven.judge(before)

        if subject.provider.replacement:
            self.run(story())

    def test_every_step_of_a_replacement_that_is_asked_for_twice_is_done_once(self, subject: Subject) -> None:
        async def story() -> None:
            before = await self._others(subject)
            driven = Driven(self.pace, subject, await subject.make(), asks=2)
            await driven.to_the_end()
            await driven.judge(before)

        if subject.provider.replacement:
            self.run(story())

    def test_a_step_of_a_replacement_that_comes_too_late_is_not_sent(self, subject: Subject) -> None:
        async def story() -> None:
            before = await self._others(subject)
            driven = Driven(self.pace, subject, await subject.make(), late=True)
            await driven.to_the_end()
            await driven.judge(before)

        if subject.provider.replacement:
            self.run(story())

    def test_a_replacement_whose_answers_are_lost_is_uncertain_and_is_done_once(self, subject: Subject) -> None:
        maker = troubled(subject)

        async def story() -> None:
            before = await self._others(subject)
            driven = Driven(self.pace, subject, await subject.make(), losing=maker)
            await driven.to_the_end()
            await driven.judge(before)

        if subject.provider.replacement:
            self.run(story())

    def test_a_replacement_that_is_left_off_where_it_may_be_leaves_all_as_it_was(self, subject: Subject) -> None:
        async def story() -> None:
            for step in subject.provider.replacement:
                if step.undo or step.cancel is Cancel.AT_ONCE:
                    before = await self._others(subject)
                    left = Driven(self.pace, subject, await subject.make())
                    truth = await truth_of(subject)
                    await left.leave_off(step, asked=step.cancel is Cancel.AT_ONCE)
                    there = await truth_of(subject)
                    if step.undo:  # it may have been started again for that
                        truth[left.provider_id] = (truth[left.provider_id][0], there[left.provider_id][1])
                    assert there == truth, f"when {step.stage} was left off"
                    again = Driven(self.pace, subject, left.provider_id)
                    await again.to_the_end()
                    await again.judge(before)

        self.run(story())

    def test_a_replacement_that_is_cut_off_anywhere_is_gone_on_with(self, subject: Subject) -> None:
        async def story() -> None:
            whole = Driven(self.pace, subject, await subject.make())
            await whole.to_the_end()
            for cut_at in sorted({whole.points * n // self.cuts for n in range(self.cuts)}):
                before = await self._others(subject)
                driven = Driven(self.pace, subject, await subject.make())
                try:
                    await driven.to_the_end(cut_at=cut_at)
                except Cut:
                    await driven.to_the_end()
                await driven.judge(before)

        if subject.provider.replacement:
            self.run(story())

    # Looking

    async def _others(self, subject: Subject) -> dict[str, tuple[Power, int]]:
        """What the account has besides: a new one at least, which is nobody's here to touch."""
        bystander = await subject.make()
        await self._until_power(subject, subject.provider.instance(bystander), {Power.RUNNING})
        return await truth_of(subject)

    async def _until_power(self, subject: Subject, instance: Instance, wanted: Collection[Power]) -> None:
        async with session_of(subject) as (session, _):
            record = await self.pace.until(
                lambda: session.look(instance), lambda one: one.power in wanted or one.power is Power.GONE
            )
            assert record.power in wanted, record

    async def _until_restarted(self, subject: Subject, provider_id: str, boots: int) -> None:
        """Until it has started once more than so often, and no more often than that."""
        await self.pace.until(lambda: subject.boots(provider_id), lambda found: found > boots)
        await self._until_power(subject, subject.provider.instance(provider_id), {Power.RUNNING})
        assert await subject.boots(provider_id) == boots + 1
        assert (await subject.instances())[provider_id] is Power.RUNNING


async def _longest_hold(call: Coroutine[Any, Any, object]) -> float:
    """For how many real seconds at once nothing else ran in the event loop while the call was made."""
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
