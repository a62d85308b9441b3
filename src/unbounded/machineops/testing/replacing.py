"""Replacements."""

from __future__ import annotations

from unbounded.machineops.provider import Cancel
from unbounded.machineops.testing.base import Contract
from unbounded.machineops.testing.driving import Cut, Driven, truth_of
from unbounded.machineops.testing.subject import Subject


class Replacing(Contract):
    def test_a_replacement_ends_with_one_instance_that_can_join(self, subject: Subject) -> None:
        async def story() -> None:
            provider_id = await subject.make()
            for filled in (False, True):
                before = await self._others(subject)
                del before[provider_id]
                driven = Driven(self.pace, subject, provider_id, filled=filled)
                await driven.to_the_end()
                order = [step.stage for step in subject.provider.replacement]
                assert driven.stages == sorted(driven.stages, key=order.index)
                await driven.judge(before)
                provider_id = driven.provider_id  # the next one replaces what this one has made

        if subject.provider.replacement:
            self.run(story())

    def test_what_a_replacement_has_left_that_came_to_nothing_is_made_anew_by_the_next(self, subject: Subject) -> None:
        async def story() -> None:
            for step in subject.provider.replacement:
                if step.needs_what_is_kept:
                    before = await self._others(subject)
                    failed = Driven(self.pace, subject, await subject.make())
                    await failed.up_to(step)
                    again = Driven(self.pace, subject, failed.provider_id)
                    again.keep.left = failed.keep.content
                    await again.to_the_end()
                    await again.judge(before)

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
