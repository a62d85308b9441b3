"""Tests of observations, power changes and replacements."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from unbounded.machineops.provider import Action, Cancel, Job, OperationKind, Power, Refusal, ReplaceStep, Transient
from unbounded.machineops.testing import driver
from unbounded.machineops.testing.base import ENDS_IN, Contract
from unbounded.machineops.testing.subject import InMemoryKeep, ProcessCut, Subject, accounts, now


class PowerTests(Contract):
    def test_record_shows_the_state_of_the_instance(self, subject: Subject) -> None:
        async def story() -> None:
            async with driver.session_of(subject) as (session, budget):
                instance = subject.provider.instance(await subject.make())
                record = await self.pace.until(lambda: session.look(instance), lambda one: one.power is Power.RUNNING)
                assert record.detail
                assert record.where
                assert len(budget.scopes) == 1
                assert budget.writes == []
                missing = subject.provider.instance(subject.missing)
                assert (await session.look(missing)).power is Power.GONE

        self.run(story())

    def test_instances_of_one_account_share_a_scope(self, subject: Subject) -> None:
        async def story() -> None:
            instances = [subject.provider.instance(await subject.make()) for _ in range(2)]
            scopes = {(each.scope, await driver.scope_of(subject, each)) for each in instances}
            assert len(scopes) == len({each.scope for each in instances}), scopes

        self.run(story())

    def test_power_follows_a_request_and_a_repeated_one_acts_once(self, subject: Subject) -> None:
        async def story() -> None:
            others = await self._others(subject)
            provider_id = await subject.make()
            instance = subject.provider.instance(provider_id)
            boots = await subject.boots(provider_id)
            async with driver.session_of(subject) as (onlooker, _):
                for action in self._actions(subject):
                    if action is Action.RESTART:
                        continue
                    for _ in range(2):
                        is_followed = await self._ask_and_follow(subject, driver.power_job(action, instance), action)
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
            truth = await driver.truth_of(subject)
            assert {name: truth.get(name) for name in others} == others, "an instance of another owner was changed"

        self.run(story())

    def test_request_during_another_change_is_transient(self, subject: Subject) -> None:
        async def story() -> None:
            instance = subject.provider.instance(await subject.make())
            long_calls: list[tuple[Job, str | None]] = []
            async with driver.session_of(subject) as (session, _):
                for action in self._actions(subject):
                    job = driver.power_job(action, instance)
                    try:
                        long_calls.append((job, await session.ask(job, action, before=now() + driver.AHEAD_S)))
                    except Transient as error:
                        driver.assert_fit(subject, str(error), known=(instance.id, instance.scope))
                    except Refusal as refusal:
                        pytest.fail(f"{action} can be done when the other one has ended: Transient, not {refusal!r}")
                for job, handle in long_calls:
                    if handle is not None:
                        await self._ended(subject, session, job, handle)
                await self._until_it_shows(subject, session, instance, set(Power) - {Power.CHANGING, Power.GONE})

        self.run(story())

    def test_each_operation_restarts_the_instance_once(self, subject: Subject) -> None:
        async def story() -> None:
            provider_id = await subject.make()
            instance = subject.provider.instance(provider_id)
            for _ in range(2):
                boots = await subject.boots(provider_id)
                is_followed = await self._ask_and_follow(
                    subject, driver.power_job(Action.RESTART, instance), Action.RESTART
                )
                if is_followed:
                    assert await subject.boots(provider_id) == boots + 1, "it was said to be done"
                await self._until_restarted(subject, provider_id, boots)

        if OperationKind.HOST_REBOOT in subject.provider.kinds:
            self.run(story())

    def test_record_shows_a_restart_without_a_long_call(self, subject: Subject) -> None:
        async def story() -> None:
            provider_id = await subject.make()
            instance, boots = subject.provider.instance(provider_id), await subject.boots(provider_id)
            async with driver.session_of(subject) as (session, _):
                job = driver.power_job(Action.RESTART, instance)
                if await session.ask(job, Action.RESTART, before=now() + driver.AHEAD_S) is None:
                    await self._until_it_shows(subject, session, instance, {Power.CHANGING})
                    await self._until_restarted(subject, provider_id, boots)

        if OperationKind.HOST_REBOOT in subject.provider.kinds:
            self.run(story())

    def test_same_name_in_another_account_is_another_instance(self, subject: Subject) -> None:
        maker = accounts(subject)

        async def story() -> None:
            one = await subject.make()
            other = await maker.make_namesake(one)
            names = [subject.provider.instance(each) for each in (one, other)]
            assert names[0].id != names[1].id
            async with driver.session_of(subject) as (session, budget):
                for instance in names:
                    await self._until_it_shows(subject, session, instance, {Power.RUNNING})
                assert len(budget.scopes) == len({await driver.scope_of(subject, each) for each in names}) == 2
                truth = await driver.truth_of(subject)
                for action in [each for each in self._actions(subject) if each in ENDS_IN]:
                    await session.ask(driver.power_job(action, names[0]), action, before=now() + driver.AHEAD_S)
                    await self._until_it_shows(subject, session, names[0], ENDS_IN[action])
                    await self._until_it_shows(subject, session, names[1], {Power.RUNNING})
            assert (await driver.truth_of(subject))[other] == truth[other], f"{one} was meant"
            if subject.provider.replacement:
                driven = driver.DrivenReplacement(self.pace, subject, one)
                await driven.complete()
                assert (await driver.truth_of(subject))[other] == truth[other], f"{one} was to be replaced"

        self.run(story())

    def test_late_request_is_not_sent(self, subject: Subject) -> None:
        async def story() -> None:
            instance = subject.provider.instance(await subject.make())
            truth = await driver.truth_of(subject)
            for action in self._actions(subject):
                async with driver.session_of(subject) as (session, _):
                    if action is not Action.POWER_ON:  # it is on
                        with pytest.raises(Transient):
                            await session.ask(driver.power_job(action, instance), action, before=now() - 1)
                assert await driver.truth_of(subject) == truth, f"{action} was sent"

        self.run(story())

    def test_missing_instance_is_rejected(self, subject: Subject) -> None:
        async def story() -> None:
            missing = subject.provider.instance(subject.missing)
            async with driver.session_of(subject) as (session, _):
                for action in self._actions(subject):
                    with pytest.raises(Refusal):
                        await session.ask(driver.power_job(action, missing), action, before=now() + driver.AHEAD_S)
                if subject.provider.replacement:
                    with pytest.raises(Refusal):
                        await session.look_replace(driver.job_of(OperationKind.HOST_REPLACE, missing), InMemoryKeep())

        self.run(story())


class ReplacementTests(Contract):
    def test_a_replacement_ends_with_one_instance_that_can_join(self, subject: Subject) -> None:
        async def story() -> None:
            provider_id = await subject.make()
            for filled in (False, True):
                before = await self._others(subject)
                del before[provider_id]
                driven = driver.DrivenReplacement(self.pace, subject, provider_id, filled=filled)
                await driven.complete()
                order = [step.stage for step in subject.provider.replacement]
                assert driven.stages == sorted(driven.stages, key=order.index)
                await driven.judge(before)
                provider_id = driven.provider_id  # the next one replaces the result of this one

        if subject.provider.replacement:
            self.run(story())

    def test_next_replacement_creates_again_what_a_failed_one_left(self, subject: Subject) -> None:
        async def story() -> None:
            for step in subject.provider.replacement:
                if step.needs_what_is_kept:
                    before = await self._others(subject)
                    failed = driver.DrivenReplacement(self.pace, subject, await subject.make())
                    await failed.up_to(step)
                    again = driver.DrivenReplacement(self.pace, subject, failed.provider_id)
                    again.keep.left = failed.keep.content
                    await again.complete()
                    await again.judge(before)

        self.run(story())

    def test_next_replacement_launches_no_second_instance_beside_a_failed_one(self, subject: Subject) -> None:
        async def story() -> None:
            steps = subject.provider.replacement
            kept = [place for place, step in enumerate(steps) if step.needs_what_is_kept]
            for step in _that_leave_something(steps):
                for waits in (True,) if step.hands_over else (True, False):
                    before = await self._others(subject)
                    failed = driver.DrivenReplacement(self.pace, subject, await subject.make())
                    await failed.fail_in(step, waits=waits)
                    left = await driver.alive(subject) - before.keys() - {failed.provider_id}
                    again = failed.next_one(is_kept=kept != [] and kept[0] <= steps.index(step))
                    try:
                        await again.complete()
                    except Refusal as refusal:
                        await self._judge_refusal(subject, again, left, refusal)
                    else:
                        await again.judge(before)

        self.run(story())

    async def _judge_refusal(
        self, subject: Subject, refused: driver.DrivenReplacement, left: set[str], refusal: Refusal
    ) -> None:
        """Check a refusal because of the remains of another replacement: others may use them, so it must name them."""
        assert not refused.stages, f"it was refused when something was touched: {refusal}"
        assert left, f"nothing is left of the replacement that failed, and the next one is refused: {refusal}"
        for name in left:
            one = subject.provider.instance(name)
            named = one.name in str(refusal) or one.id in str(refusal)
            assert named, f"{name} is left of the replacement that failed, and is not named: {refusal}"
            await self._until_power(subject, one, {Power.RUNNING, Power.STOPPED, Power.RELEASED, Power.GONE})

    def test_repeated_replacement_steps_act_once(self, subject: Subject) -> None:
        async def story() -> None:
            before = await self._others(subject)
            driven = driver.DrivenReplacement(self.pace, subject, await subject.make(), asks=2)
            await driven.complete()
            await driven.judge(before)

        if subject.provider.replacement:
            self.run(story())

    def test_late_request_of_a_former_process_makes_no_second_instance(self, subject: Subject) -> None:
        """A late request of an ended process. The budget delays it, so the subject needs no support for this."""

        async def story() -> None:
            before = await self._others(subject)
            driven = driver.DrivenReplacement(self.pace, subject, await subject.make())
            await driven.beside_late_ones()
            driven.scopes = {await driver.scope_of(subject, driven.job.instance)}
            await driven.judge(before)

        if subject.provider.replacement:
            self.run(story())

    def test_late_replacement_step_is_not_sent(self, subject: Subject) -> None:
        async def story() -> None:
            before = await self._others(subject)
            driven = driver.DrivenReplacement(self.pace, subject, await subject.make(), late=True)
            await driven.complete()
            await driven.judge(before)

        if subject.provider.replacement:
            self.run(story())

    def test_cancelled_replacement_restores_the_former_state(self, subject: Subject) -> None:
        async def story() -> None:
            for step in subject.provider.replacement:
                if step.undo or step.cancel is Cancel.AT_ONCE:
                    before = await self._others(subject)
                    left = driver.DrivenReplacement(self.pace, subject, await subject.make())
                    truth = await driver.truth_of(subject)
                    await left.cancel_in(step, asked=step.cancel is Cancel.AT_ONCE)
                    there = await driver.truth_of(subject)
                    if step.undo:  # undoing may have started it again
                        truth[left.provider_id] = (truth[left.provider_id][0], there[left.provider_id][1])
                    assert there == truth, f"when {step.stage} was left off"
                    again = driver.DrivenReplacement(self.pace, subject, left.provider_id)
                    await again.complete()
                    await again.judge(before)

        self.run(story())

    def test_interrupted_replacement_resumes_at_any_step(self, subject: Subject) -> None:
        async def story() -> None:
            whole = driver.DrivenReplacement(self.pace, subject, await subject.make())
            await whole.complete()
            cuts = whole.points if self.cuts is None else min(self.cuts, whole.points)
            for cut_at in sorted({whole.points * n // cuts for n in range(cuts)}):
                before = await self._others(subject)
                driven = driver.DrivenReplacement(self.pace, subject, await subject.make())
                try:
                    await driven.complete(cut_at=cut_at)
                except ProcessCut:
                    await driven.complete()
                await driven.judge(before)

        if subject.provider.replacement:
            self.run(story())


def _that_leave_something(steps: Sequence[ReplaceStep]) -> Sequence[ReplaceStep]:
    """Return the steps whose failure may leave a new instance; the last one cannot."""
    first = next((place for place, step in enumerate(steps) if step.needs_user_data), len(steps))
    found = [step for step in steps[first:] if step.cancel is not Cancel.AT_ONCE]
    return found[:-1] or found
