"""Driver of a provider, as a controller: interrupted sessions, and a replacement until its end."""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar

from unbounded.api.failures import Failure
from unbounded.api.operation import MAX_HANDLE
from unbounded.machineops import provider
from unbounded.machineops.replacement import step_of
from unbounded.machineops.testing.subject import (
    CountingBudget,
    DelayedBudget,
    InMemoryKeep,
    Names,
    Subject,
    Trouble,
    Troubled,
    now,
)

T = TypeVar("T")

KINDS: Final = {
    provider.Action.RESTART: provider.OperationKind.HOST_REBOOT,
    provider.Action.POWER_OFF: provider.OperationKind.HOST_POWER_OFF,
    provider.Action.DEALLOCATE: provider.OperationKind.HOST_POWER_OFF,
    provider.Action.POWER_ON: provider.OperationKind.HOST_POWER_ON,
}
MOST_CHARS: Final = 2000
LONGEST_HINT_S: Final = 3600.0
AHEAD_S: Final = 10.0  # time of an executor for a request
_UNDOES: Final = 5  # limit of requests to undo
_LARGE: Final = 1_000_000  # bytes of user data; a larger limit is not exhausted
_TROUBLES: Final = {Trouble.LOST: 5}  # per step, which may need several changes; others come once
_UNSURE: Final = (provider.Transient, provider.Uncertain)
_SAID: Final = {Trouble.LOST: (provider.Uncertain,)}
_OF_LISTS: Final = frozenset({Trouble.LAGGING, Trouble.STALE, Trouble.UNKNOWN})


@dataclass(frozen=True)
class PollPace:
    """Limit of a wait, and its polling interval."""

    within_s: float
    poll_s: float

    async def until(
        self, observe: Callable[[], Coroutine[Any, Any, T]], done: Callable[[T], bool], desired: str = ""
    ) -> T:
        """Poll until the condition holds; a failure names the last value."""
        end = now() + self.within_s
        while not done(found := await observe()):
            assert now() < end, f"still {found} after {self.within_s:g} s{desired and f'; {desired}'}"
            await asyncio.sleep(self.poll_s)
        return found


@dataclass
class DrivenReplacement:
    """A replacement as a controller executes it, without the waits.

    Args:
        asks: requests of each step; each has other user data, as the token in it may differ.
        late: each request is first made after its deadline.
        maker: of the trouble during the first request of a step.
        shared: another client uses the session at the same time.
        filled: the user data has the largest size that the provider accepts.
        handle: of the long call of the last request.
    """

    pace: PollPace
    subject: Subject
    provider_id: str  # of the Machine
    asks: int = 1
    late: bool = False
    maker: Troubled | None = None
    trouble: Trouble = Trouble.LOST
    shared: bool = False
    filled: bool = False
    handle: str | None = None
    uid: str = field(default_factory=lambda: str(uuid.uuid4()))
    keep: InMemoryKeep = field(default_factory=InMemoryKeep)
    stages: list[str] = field(default_factory=list)
    scopes: set[str] = field(default_factory=set)
    points: int = 0
    told: set[str] = field(default_factory=set)  # all user data that was passed
    before: set[str] | None = None  # instances at the first observation
    most: int | None = None  # limit of user data of this instance, in bytes

    def __post_init__(self) -> None:
        self.began_with = self.subject.provider.instance(self.provider_id).binding

    @property
    def token(self) -> str:
        """Token with which the new host joins; a secret."""
        return f"join-{self.uid}"

    def new_user_data(self) -> str:
        """Return new user data: a host with it was created by this replacement."""
        text = f"#cloud-config\nruncmd: [[join, {self.token}, {len(self.told)}]]\n# für den Host\n"
        if self.filled:
            most = self.subject.provider.most_user_data if self.most is None else self.most
            text += "#" * (min(most, _LARGE) - len(text.encode()))
        self.told.add(text)
        return text

    @property
    def job(self) -> provider.Job:
        instance = self.subject.provider.instance(self.provider_id)
        return replace(job_of(provider.OperationKind.HOST_REPLACE, instance, uid=self.uid), handle=self.handle)

    async def complete(self, *, cut_at: int | None = None) -> None:
        """Take all steps.

        Raises:
            ProcessCut: before that call of the cloud.
        """
        async with session_of(self.subject, cut_at) as (session, budget):
            self.keep.budget = budget
            await self.resume(session, budget)
            self.points = budget.points
            self.scopes |= budget.scopes

    async def resume(self, session: provider.Session, budget: CountingBudget) -> None:
        """Take all remaining steps in a session that others may use."""
        await self.alternate((session, budget))

    async def alternate(self, *sessions: tuple[provider.Session, CountingBudget]) -> None:
        """Take all remaining steps, each in another session than the previous one."""
        for session, budget in itertools.cycle(sessions):
            found = await self._next(session, budget)
            if found.step is None:
                return
            await self._take(session, budget, found, found.step)

    async def cancel_in(self, step: provider.ReplaceStep, *, asked: bool) -> None:
        """Take the steps before this one, and with `asked` request this one too; then undo."""
        async with session_of(self.subject) as (session, budget):
            self.keep.budget = budget
            found = await self._up_to(step, session, budget)
            if asked and found.step is not None:
                await self._take(session, budget, found, found.step)
                found = await self._next(session, budget)
            for _ in range(_UNDOES if step.undo else 0):
                if found.is_as_it_was:
                    return
                await session.act_replace(self.job, provider.PUT_BACK, self.keep, "", before=now() + AHEAD_S)
                found = await self._next(session, budget)
        assert not step.undo, f"{provider.PUT_BACK} in {step.stage} does not come to its end: {found}"

    async def fail_in(self, step: provider.ReplaceStep, *, waits: bool) -> None:
        """Request the steps including this one, and fail as after its limit: undo what can be undone.

        Args:
            waits: this step completes before.
        """
        async with session_of(self.subject) as (session, budget):
            self.keep.budget = budget
            found = await self._up_to(step, session, budget)
            if found.step is None:
                return
            await self._take(session, budget, found, found.step)
            if not waits and not step.undo:
                return
            found = await self._next(session, budget)
            undone = {one.stage for one in self.subject.provider.replacement if one.undo}
            for _ in range(_UNDOES if step.undo else 0):
                if found.is_as_it_was or found.step not in undone:
                    return
                await session.act_replace(self.job, provider.PUT_BACK, self.keep, "", before=now() + AHEAD_S)
                found = await self._next(session, budget)

    def next_one(self, *, is_kept: bool) -> DrivenReplacement:
        """Return the replacement after this failed one.

        Args:
            is_kept: the state outlives the failure, and the next replacement of the instance finds it.
        """
        after = DrivenReplacement(self.pace, self.subject, self.provider_id, told=set(self.told))
        if is_kept and self.began_with == self.subject.provider.instance(self.provider_id).binding:
            after.keep.left = self.keep.content
        return after

    async def up_to(self, step: provider.ReplaceStep) -> None:
        """Take the steps including this one."""
        async with session_of(self.subject) as (session, budget):
            self.keep.budget = budget
            found = await self._up_to(step, session, budget)
            if found.step is not None:
                await self._take(session, budget, found, found.step)
                await self._next(session, budget)

    async def _up_to(
        self, step: provider.ReplaceStep, session: provider.Session, budget: CountingBudget
    ) -> provider.Next:
        while (found := await self._next(session, budget)).step not in (step.stage, None):
            await self._take(session, budget, found, found.step or "")
        return found

    async def _next(self, session: provider.Session, budget: CountingBudget) -> provider.Next:
        await self._new_ones()

        async def look() -> provider.Next:
            reads, writes = len(budget.reads), len(budget.writes)
            found = await session.look_replace(self.job, self.keep)
            assert self.shared or len(budget.writes) == writes, "a look asks for nothing"
            assert len(budget.reads) > reads, "what it looks at is what the cloud shows, and asks the budget for a read"
            if found.most_user_data is not None:
                self.most = found.most_user_data
            assert_fit_hint(found.again_s)
            budget.counting = not found.under_way
            return found

        found = await self.pace.until(look, lambda one: not one.under_way)
        assert found.where
        assert found.detail
        self._are_fit(found, budget)
        await self._check_names_all(found)
        return found

    async def _check_names_all(self, found: provider.Next) -> None:
        """Check that the message names all remains: a failure ends with it, and the user must find them."""
        if self.shared or not self._is_launched(found.step):
            return
        for name in await self._new_ones() | ({self.provider_id} if found.step is None else set()):
            one = self.subject.provider.instance(name)
            assert one.name in found.detail or one.id in found.detail, f"{name} is there, and is not named: {found}"

    def _is_launched(self, step: str | None) -> bool:
        """Return whether the steps that create the new instance are complete."""
        steps = self.subject.provider.replacement
        makes = [place for place, one in enumerate(steps) if one.needs_user_data]
        return step is None or [one.stage for one in steps].index(step) > max(makes, default=len(steps))

    async def _new_ones(self) -> set[str]:
        """Return the instances that did not exist at the first observation."""
        there = await alive(self.subject)
        if self.before is None:
            self.before = there
        return there - self.before

    def _are_fit(self, found: provider.Next, budget: CountingBudget) -> None:
        for text in (found.detail, found.where, found.progress):
            assert self.token not in text, f"user data is for its host alone: {text}"
            assert_fit(self.subject, text, known=(self.provider_id, *budget.scopes))

    async def _take(self, session: provider.Session, budget: CountingBudget, found: provider.Next, stage: str) -> None:
        assert self.stages.count(stage) < 10, f"{stage} does not come to its end: {found}"
        self.stages.append(stage)
        step = step_of(self.subject.provider.replacement, stage)
        if step.hands_over:
            assert found.new_instance
            self.provider_id = found.new_instance
            return
        truth, writes = await truth_of(self.subject), len(budget.writes)

        def user_data() -> str:
            return self.new_user_data() if step.needs_user_data else ""

        if self.late:
            with suppress(provider.Transient):  # there may be nothing to send
                await session.act_replace(self.job, stage, self.keep, user_data(), before=now() - 1)
            assert await truth_of(self.subject) == truth, f"{stage} was sent when it was too late"
            writes = len(budget.writes)
        for _ in range(self.asks):
            async with self._in_trouble(stage):
                before = now() + AHEAD_S
                with suppress(*(_UNSURE if self._in_trouble_with_lists(stage) else ())):
                    self._took(await session.act_replace(self.job, stage, self.keep, user_data(), before=before))
                if self._in_trouble_with_lists(stage):
                    await self._ask_again(session, stage, user_data, before)
            in_time = self.shared or all(limit <= before for _, limit in budget.writes[writes:])
            assert in_time, f"{stage} could be sent too late"
        if not self.shared and await truth_of(self.subject) != truth:
            assert len(budget.writes) > writes, f"{stage} did not ask its budget for what it changed"

    def _in_trouble_with_lists(self, stage: str) -> bool:
        return self.maker is not None and self.trouble in _OF_LISTS and self.stages.count(stage) == 1

    async def _ask_again(
        self, session: provider.Session, stage: str, user_data: Callable[[], str], before: float
    ) -> None:
        """Repeat a request, as a controller does whose observation shows nothing of it."""
        found = await session.look_replace(self.job, self.keep)
        if found.step == stage and not found.under_way:
            self._took(await session.act_replace(self.job, stage, self.keep, user_data(), before=before))

    async def beside_late_ones(self) -> None:
        """Take all steps, each with a late request: an ending process sent it as well, and it arrives after the step.

        Only the steps that have created an instance by then have one.
        """
        async with session_of(self.subject) as (session, budget):
            self.keep.budget = budget
            while (found := await self._next(session, budget)).step is not None:
                step = step_of(self.subject.provider.replacement, found.step)
                if step.hands_over:
                    await self._take(session, budget, found, found.step)
                    continue
                async with self._on_its_way(step) as arrives:
                    there = await alive(self.subject)
                    await self._take(session, budget, found, found.step)
                    made = await alive(self.subject) - there
                    if made:
                        await arrives()
                        more = await alive(self.subject) - there - made
                        assert not more, (
                            f"{step.stage} has made {', '.join(sorted(made))}, and a request for the same that was"
                            f" sent before and has arrived after that {', '.join(sorted(more))}: send an idempotency"
                            " key with it, such as one made of job.uid, or a name by which there can be only one"
                        )

    @asynccontextmanager
    async def _on_its_way(self, step: provider.ReplaceStep) -> AsyncIterator[Callable[[], Coroutine[Any, Any, None]]]:
        """Hold the request of another session for a step, and send it on demand."""
        budget = DelayedBudget()
        session = self.subject.provider.connect(self.subject.login, budget)
        user_data = self.new_user_data() if step.needs_user_data else ""
        before = now() + self.pace.within_s
        sending = asyncio.create_task(session.act_replace(self.job, step.stage, self.keep, user_data, before=before))
        reaching = asyncio.create_task(budget.reached.wait())

        async def arrives() -> None:
            budget.goes_on.set()
            with suppress(Failure):
                await sending

        try:
            await asyncio.wait((sending, reaching), return_when=asyncio.FIRST_COMPLETED)
            yield arrives
        finally:
            for task in (sending, reaching):
                task.cancel()
            await asyncio.gather(sending, reaching, return_exceptions=True)
            await session.close()

    def _took(self, given: provider.Taken) -> None:
        """Store the handle of a request."""
        if isinstance(given, provider.Handle):
            assert_fit_handle(self.subject, given)
            assert self.token not in given, (
                "user data is for its host alone, and a handle is stored where others read it"
            )
        else:
            assert_fit_hint(given)
        self.handle = str(given) if isinstance(given, provider.Handle) else None

    @asynccontextmanager
    async def _in_trouble(self, stage: str) -> AsyncIterator[None]:
        """Make trouble in the block: requests get no answer or a server error, and the provider must report that."""
        if self.maker is None or self.stages.count(stage) > _TROUBLES.get(self.trouble, 1):
            yield
            return
        await self.maker.set_trouble(self.trouble)
        try:
            with suppress(*_SAID.get(self.trouble, _UNSURE)):
                yield
        finally:
            await self.maker.set_trouble(None)

    async def judge(self, before: Mapping[str, tuple[provider.Power, int]]) -> None:
        """Check the result: the earlier instances are unchanged, and the Machine is bound to the one new instance.

        It runs with the user data of this replacement, and all calls for it counted for its account.
        """
        truth = await truth_of(self.subject)
        others = {name: truth.get(name) for name in before}
        assert others == before, "an instance of another owner was changed"
        there = {name: power for name, (power, _) in truth.items() if name not in before}
        there = {name: power for name, power in there.items() if power is not provider.Power.GONE}
        assert there == {self.provider_id: provider.Power.RUNNING}
        assert await self.subject.user_data(self.provider_id) in self.told, (
            "its host has other user data than was given"
        )
        assert self.scopes == {await scope_of(self.subject, self.job.instance)}


@asynccontextmanager
async def session_of(
    subject: Subject, cut_at: int | None = None
) -> AsyncIterator[tuple[provider.Session, CountingBudget]]:
    budget = CountingBudget(cut_at)
    session = subject.provider.connect(subject.login, budget)
    try:
        yield session, budget
    finally:
        await session.close()


async def scope_of(subject: Subject, instance: provider.Instance) -> str:
    """Return the account of an observation, which must be that of all calls for the instance."""
    async with session_of(subject) as (session, budget):
        await session.look(instance)
    (scope,) = budget.scopes
    return scope


def reading_calls(
    subject: Subject, session: provider.Session, instance: provider.Instance
) -> list[Callable[[], Coroutine[Any, Any, object]]]:
    """Return the calls of a session that change nothing."""
    looks: list[Callable[[], Coroutine[Any, Any, object]]] = [lambda: session.look(instance)]
    if subject.provider.replacement:
        looks.append(
            lambda: session.look_replace(job_of(provider.OperationKind.HOST_REPLACE, instance), InMemoryKeep())
        )
    return looks


async def alive(subject: Subject) -> set[str]:
    """Return the existing instances by spec.providerID."""
    return {name for name, power in (await subject.instances()).items() if power is not provider.Power.GONE}


async def truth_of(subject: Subject) -> dict[str, tuple[provider.Power, int]]:
    """Return the instances with their power and the number of their starts."""
    return {name: (power, await subject.boots(name)) for name, power in (await subject.instances()).items()}


def says_no_secret(
    subject: Subject, text: str, *, login: provider.Login | None = None, known: tuple[str, ...] = ()
) -> bool:
    """Return whether a text contains no secret of the login.

    The subject names keys that are not secret, and parts of the account's names may occur.
    """
    secret, names = (login or subject.login).secret, subject.names if isinstance(subject, Names) else ()
    values = [value.reveal() for key, value in secret.items() if key not in names]
    return not any(value in text for value in values if not any(value in name for name in known))


def assert_fit(
    subject: Subject, text: str, *, login: provider.Login | None = None, known: tuple[str, ...] = ()
) -> None:
    """Check that a text fits a status, which other users can read."""
    assert says_no_secret(subject, text, login=login, known=known), f"what the login holds is not to be told: {text}"
    assert text.isprintable(), f"{text!r} has more than one line, or cannot be printed: see `said`"
    assert len(text) <= MOST_CHARS, f"{len(text)} characters are too many for a status: see `said`: {text}"


def assert_fit_hint(after_s: float | None) -> None:
    """Check that a polling interval of the cloud is plausible."""
    assert after_s is None or 0 <= after_s <= LONGEST_HINT_S, f"{after_s} s: in another zone, or in milliseconds?"


def assert_fit_handle(subject: Subject, handle: str) -> None:
    """Check that a handle can be stored."""
    assert len(handle) <= MAX_HANDLE
    assert_fit_hint(getattr(handle, "again_s", None))
    assert says_no_secret(subject, handle), "a handle is stored where others read it"


def power_job(action: provider.Action, instance: provider.Instance) -> provider.Job:
    job = job_of(KINDS[action], instance)
    return replace(job, parameters={"deallocate": "true"}) if action is provider.Action.DEALLOCATE else job


def job_of(kind: provider.OperationKind, instance: provider.Instance, *, uid: str = "") -> provider.Job:
    return provider.Job(
        operation="operation-1",
        uid=uid or str(uuid.uuid4()),
        kind=kind,
        machine="machine-1",
        machine_uid="00000000-0000-4000-8000-000000000001",
        instance=instance,
    )
