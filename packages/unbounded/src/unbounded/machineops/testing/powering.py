"""Tests of observations, and of power changes."""

from __future__ import annotations

import pytest

from unbounded.machineops.provider import Action, Job, OperationKind, Power, Refusal, Transient
from unbounded.machineops.testing.base import ENDS_IN, Contract
from unbounded.machineops.testing.budgets import InMemoryKeep, now
from unbounded.machineops.testing.driving import (
    AHEAD_S,
    DrivenReplacement,
    assert_fit,
    job_of,
    power_job,
    scope_of,
    session_of,
    truth_of,
)
from unbounded.machineops.testing.subject import Subject, accounts


class PowerTests(Contract):
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
            async with session_of(subject) as (onlooker, _):
                for action in self._actions(subject):
                    if action is Action.RESTART:
                        continue
                    for _ in range(2):
                        is_followed = await self._ask_and_follow(subject, power_job(action, instance), action)
                        if is_followed:
                            there = (await subject.instances()).get(provider_id, Power.GONE)
                            assert there in ENDS_IN[action], f"{action} was said to be done, and it is {there}"
                        await self._until_power(subject, instance, ENDS_IN[action])
                    await self._until_it_shows(subject, onlooker, instance, ENDS_IN[action])
                    there = (await subject.instances()).get(provider_id, Power.GONE)
                    assert there in ENDS_IN[action]
                    assert (await onlooker.look(instance)).power is there
                    boots += action is Action.POWER_ON
                    assert await subject.boots(provider_id) == boots, f"after {action}"
            truth = await truth_of(subject)
            assert {name: truth.get(name) for name in others} == others, "an instance of somebody else was touched"

        self.run(story())

    def test_what_is_asked_for_while_something_else_goes_on_is_no_mistake_of_anybody(self, subject: Subject) -> None:
        async def story() -> None:
            instance = subject.provider.instance(await subject.make())
            long_calls: list[tuple[Job, str | None]] = []
            async with session_of(subject) as (session, _):
                for action in self._actions(subject):
                    job = power_job(action, instance)
                    try:
                        long_calls.append((job, await session.ask(job, action, before=now() + AHEAD_S)))
                    except Transient as error:
                        assert_fit(subject, str(error), known=(instance.id, instance.scope))
                    except Refusal as refusal:
                        pytest.fail(f"{action} can be done when the other one has ended: Transient, not {refusal!r}")
                for job, handle in long_calls:
                    if handle is not None:
                        await self._ended(subject, session, job, handle)
                await self._until_it_shows(subject, session, instance, set(Power) - {Power.CHANGING, Power.GONE})

        self.run(story())

    def test_each_operation_restarts_the_instance_once_and_ends_with_it_running(self, subject: Subject) -> None:
        async def story() -> None:
            provider_id = await subject.make()
            instance = subject.provider.instance(provider_id)
            for _ in range(2):
                boots = await subject.boots(provider_id)
                is_followed = await self._ask_and_follow(subject, power_job(Action.RESTART, instance), Action.RESTART)
                if is_followed:
                    assert await subject.boots(provider_id) == boots + 1, "it was said to be done"
                await self._until_restarted(subject, provider_id, boots)

        if OperationKind.HOST_REBOOT in subject.provider.kinds:
            self.run(story())

    def test_a_restart_without_a_long_call_is_shown_by_the_record(self, subject: Subject) -> None:
        async def story() -> None:
            provider_id = await subject.make()
            instance, boots = subject.provider.instance(provider_id), await subject.boots(provider_id)
            async with session_of(subject) as (session, _):
                job = power_job(Action.RESTART, instance)
                if await session.ask(job, Action.RESTART, before=now() + AHEAD_S) is None:
                    await self._until_it_shows(subject, session, instance, {Power.CHANGING})
                    await self._until_restarted(subject, provider_id, boots)

        if OperationKind.HOST_REBOOT in subject.provider.kinds:
            self.run(story())

    def test_what_has_the_same_name_in_another_account_is_another_instance(self, subject: Subject) -> None:
        maker = accounts(subject)

        async def story() -> None:
            one = await subject.make()
            other = await maker.make_namesake(one)
            names = [subject.provider.instance(each) for each in (one, other)]
            assert names[0].id != names[1].id
            async with session_of(subject) as (session, budget):
                for instance in names:
                    await self._until_it_shows(subject, session, instance, {Power.RUNNING})
                assert len(budget.scopes) == len({await scope_of(subject, each) for each in names}) == 2
                truth = await truth_of(subject)
                for action in [each for each in self._actions(subject) if each in ENDS_IN]:
                    await session.ask(power_job(action, names[0]), action, before=now() + AHEAD_S)
                    await self._until_it_shows(subject, session, names[0], ENDS_IN[action])
                    await self._until_it_shows(subject, session, names[1], {Power.RUNNING})
            assert (await truth_of(subject))[other] == truth[other], f"{one} was meant"
            if subject.provider.replacement:
                driven = DrivenReplacement(self.pace, subject, one)
                await driven.complete()
                assert (await truth_of(subject))[other] == truth[other], f"{one} was to be replaced"

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
                        await session.look_replace(job_of(OperationKind.HOST_REPLACE, missing), InMemoryKeep())

        self.run(story())
