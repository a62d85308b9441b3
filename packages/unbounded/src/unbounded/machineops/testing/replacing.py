"""Tests of replacements."""

from __future__ import annotations

from collections.abc import Sequence

from unbounded.machineops.provider import Cancel, Power, Refusal, ReplaceStep
from unbounded.machineops.testing.base import Contract
from unbounded.machineops.testing.budgets import ProcessCut
from unbounded.machineops.testing.driving import DrivenReplacement, alive, scope_of, truth_of
from unbounded.machineops.testing.subject import Subject


class ReplacementTests(Contract):
    def test_a_replacement_ends_with_one_instance_that_can_join(self, subject: Subject) -> None:
        async def story() -> None:
            provider_id = await subject.make()
            for filled in (False, True):
                before = await self._others(subject)
                del before[provider_id]
                driven = DrivenReplacement(self.pace, subject, provider_id, filled=filled)
                await driven.complete()
                order = [step.stage for step in subject.provider.replacement]
                assert driven.stages == sorted(driven.stages, key=order.index)
                await driven.judge(before)
                provider_id = driven.provider_id  # the next one replaces the result of this one

        if subject.provider.replacement:
            self.run(story())

    def test_what_a_replacement_has_left_that_came_to_nothing_is_made_anew_by_the_next(self, subject: Subject) -> None:
        async def story() -> None:
            for step in subject.provider.replacement:
                if step.needs_what_is_kept:
                    before = await self._others(subject)
                    failed = DrivenReplacement(self.pace, subject, await subject.make())
                    await failed.up_to(step)
                    again = DrivenReplacement(self.pace, subject, failed.provider_id)
                    again.keep.left = failed.keep.content
                    await again.complete()
                    await again.judge(before)

        self.run(story())

    def test_what_a_replacement_that_failed_has_launched_is_not_launched_beside_it_by_the_next(
        self, subject: Subject
    ) -> None:
        async def story() -> None:
            steps = subject.provider.replacement
            kept = [place for place, step in enumerate(steps) if step.needs_what_is_kept]
            for step in _that_leave_something(steps):
                for waits in (True,) if step.hands_over else (True, False):
                    before = await self._others(subject)
                    failed = DrivenReplacement(self.pace, subject, await subject.make())
                    await failed.fail_in(step, waits=waits)
                    left = await alive(subject) - before.keys() - {failed.provider_id}
                    again = failed.next_one(is_kept=kept != [] and kept[0] <= steps.index(step))
                    try:
                        await again.complete()
                    except Refusal as refusal:
                        await self._judge_refusal(subject, again, left, refusal)
                    else:
                        await again.judge(before)

        self.run(story())

    async def _judge_refusal(
        self, subject: Subject, refused: DrivenReplacement, left: set[str], refusal: Refusal
    ) -> None:
        """Check a refusal because of the remains of another replacement: others may use them, so it must name them."""
        assert not refused.stages, f"it was refused when something was touched: {refusal}"
        assert left, f"nothing is left of the replacement that failed, and the next one is refused: {refusal}"
        for name in left:
            one = subject.provider.instance(name)
            named = one.name in str(refusal) or one.id in str(refusal)
            assert named, f"{name} is left of the replacement that failed, and is not named: {refusal}"
            await self._until_power(subject, one, {Power.RUNNING, Power.STOPPED, Power.RELEASED, Power.GONE})

    def test_every_step_of_a_replacement_that_is_asked_for_twice_is_done_once(self, subject: Subject) -> None:
        async def story() -> None:
            before = await self._others(subject)
            driven = DrivenReplacement(self.pace, subject, await subject.make(), asks=2)
            await driven.complete()
            await driven.judge(before)

        if subject.provider.replacement:
            self.run(story())

    def test_a_request_that_arrives_when_another_process_has_gone_on_makes_no_second_instance(
        self, subject: Subject
    ) -> None:
        """A late request of an ended process. The budget delays it, so the subject needs no support for this."""

        async def story() -> None:
            before = await self._others(subject)
            driven = DrivenReplacement(self.pace, subject, await subject.make())
            await driven.beside_late_ones()
            driven.scopes = {await scope_of(subject, driven.job.instance)}
            await driven.judge(before)

        if subject.provider.replacement:
            self.run(story())

    def test_a_step_of_a_replacement_that_comes_too_late_is_not_sent(self, subject: Subject) -> None:
        async def story() -> None:
            before = await self._others(subject)
            driven = DrivenReplacement(self.pace, subject, await subject.make(), late=True)
            await driven.complete()
            await driven.judge(before)

        if subject.provider.replacement:
            self.run(story())

    def test_a_replacement_that_is_left_off_where_it_may_be_leaves_all_as_it_was(self, subject: Subject) -> None:
        async def story() -> None:
            for step in subject.provider.replacement:
                if step.undo or step.cancel is Cancel.AT_ONCE:
                    before = await self._others(subject)
                    left = DrivenReplacement(self.pace, subject, await subject.make())
                    truth = await truth_of(subject)
                    await left.cancel_in(step, asked=step.cancel is Cancel.AT_ONCE)
                    there = await truth_of(subject)
                    if step.undo:  # undoing may have started it again
                        truth[left.provider_id] = (truth[left.provider_id][0], there[left.provider_id][1])
                    assert there == truth, f"when {step.stage} was left off"
                    again = DrivenReplacement(self.pace, subject, left.provider_id)
                    await again.complete()
                    await again.judge(before)

        self.run(story())

    def test_a_replacement_that_is_cut_off_anywhere_is_gone_on_with(self, subject: Subject) -> None:
        async def story() -> None:
            whole = DrivenReplacement(self.pace, subject, await subject.make())
            await whole.complete()
            cuts = whole.points if self.cuts is None else min(self.cuts, whole.points)
            for cut_at in sorted({whole.points * n // cuts for n in range(cuts)}):
                before = await self._others(subject)
                driven = DrivenReplacement(self.pace, subject, await subject.make())
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
