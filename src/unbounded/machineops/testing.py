"""The contract of a provider, as tests that its author runs against it with pytest.

    class TestAcme(ProviderContract):
        @pytest.fixture
        def subject(self) -> Subject:
            return AcmeSubject()

The subject makes instances, and says what became of them by another way than the provider's. Each test makes its own.
A replacement is cut off before each call of the cloud, which is where a provider asks its budget, and before something
is kept; and begun again by another session: at the end there is one instance, it is the one that the Machine would be
bound to, and it was given its user data. A subject that is `Troubled`, too, can have the cloud turn requests away and
lose its answers; without that, what a provider makes of it is not tested, and those tests are skipped.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, ClassVar, Final, Protocol, TypeVar, runtime_checkable

import pytest

from unbounded.api.operation import MAX_HANDLE
from unbounded.machineops import registry, replacement
from unbounded.machineops.provider import (
    PUT_BACK,
    Action,
    Instance,
    Job,
    Login,
    Next,
    OperationKind,
    Power,
    Provider,
    Refusal,
    Secret,
    Session,
    State,
    Throttled,
    Transient,
    Uncertain,
)

__all__ = ["ProviderContract", "Subject", "Trouble", "Troubled"]

T = TypeVar("T")

USER_DATA: Final = "#cloud-config\nruncmd: [join]\n"
ENDS_IN: Final = {
    Action.POWER_OFF: frozenset({Power.STOPPED, Power.RELEASED}),
    Action.DEALLOCATE: frozenset({Power.RELEASED}),
    Action.POWER_ON: frozenset({Power.RUNNING}),
}
KINDS: Final = {
    Action.RESTART: OperationKind.HOST_REBOOT,
    Action.POWER_OFF: OperationKind.HOST_POWER_OFF,
    Action.DEALLOCATE: OperationKind.HOST_POWER_OFF,
    Action.POWER_ON: OperationKind.HOST_POWER_ON,
}
_AHEAD_S: Final = 10.0  # what an executor has for an ask
_UNDOES: Final = 5  # so often undoing is asked for
_LOST: Final = 5  # so many answers are lost for a step, which may need as many changes


class Subject(Protocol):
    """A provider, and the cloud behind it, in which the tests may do as they like."""

    @property
    def provider(self) -> Provider: ...

    @property
    def login(self) -> Login:
        """One that the cloud accepts."""
        ...

    @property
    def missing(self) -> str:
        """A spec.providerID that is written well, and names nothing."""
        ...

    async def make(self) -> str:
        """A new instance that runs; gives back its spec.providerID."""
        ...

    async def instances(self) -> Mapping[str, Power]:
        """The instances that there are, by spec.providerID, looked at by another way than the provider's."""
        ...

    async def boots(self, provider_id: str) -> int:
        """How often an instance has started by now, its first time and restarts included; by that other way, too."""
        ...

    async def user_data(self, provider_id: str) -> str | None:
        """What an instance that was made by a replacement was given for its first boot, as its host reads it."""
        ...


class Trouble(StrEnum):
    """What the cloud does to all requests."""

    THROTTLED = "Throttled"  # they are turned away, as there were too many of this account
    LOST = "Lost"  # changes are made, and no answer to them comes; reads are answered


@runtime_checkable
class Troubled(Protocol):
    """What a subject can do besides, where its cloud can be told to."""

    async def set_trouble(self, trouble: Trouble | None) -> None:
        """From now on, until it is told otherwise; None for a cloud that is well again."""
        ...


class _Cut(BaseException):
    """The process has come to its end."""


@dataclass
class _Budget:
    """Counts what the provider is about to send, and cuts it off before one of these."""

    cut_at: int | None = None
    reads: list[str] = field(default_factory=list)
    writes: list[tuple[str, float]] = field(default_factory=list)
    points: int = 0
    counting: bool = True

    @property
    def calls(self) -> int:
        return len(self.reads) + len(self.writes)

    @property
    def scopes(self) -> set[str]:
        return {*self.reads, *(scope for scope, _ in self.writes)}

    async def read(self, scope: str) -> None:
        self.reads.append(scope)
        self.pass_by()

    async def write(self, scope: str, *, before: float) -> None:
        self.writes.append((scope, before))
        if _now() > before:
            raise Transient("the time in which it could be sent is over")
        self.pass_by()

    def left(self, scope: str, *, reads: float | None = None, writes: float | None = None) -> None:
        """Nothing is limited here."""

    def pass_by(self) -> None:
        """One of the places at which a process may come to its end; looking on is one with the first look."""
        self.points += self.counting
        if self.cut_at is not None and self.points > self.cut_at:
            raise _Cut


@dataclass
class _Keep:
    content: bytes | None = None
    place: str = "the tests' own keep"
    budget: _Budget = field(default_factory=_Budget)  # of the session that keeps something

    async def load(self) -> bytes | None:
        return self.content

    async def former(self) -> bytes | None:
        return None

    async def store(self, content: bytes) -> None:
        assert len(content) <= 900_000
        self.budget.pass_by()
        self.content = content


class ProviderContract:
    """Tests that every provider passes. A subclass has the fixture `subject`, and may change these numbers."""

    within_s: ClassVar[float] = 120.0
    """How long a change of power, or one step of a replacement, may take."""
    poll_s: ClassVar[float] = 0.05
    cuts: ClassVar[int] = 40
    """At how many places a replacement is cut off, at most; they are spread over all."""

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
            budget = _Budget()
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
            async with _session(subject) as (session, budget):
                instance = subject.provider.instance(await subject.make())
                record = await self._until(lambda: session.look(instance), lambda one: one.power is Power.RUNNING)
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
            scopes = {(each.scope, await self._scope(subject, each)) for each in instances}
            assert len(scopes) == len({each.scope for each in instances}), scopes

        self.run(story())

    def test_power_follows_what_is_asked_for_and_asking_twice_does_it_once(self, subject: Subject) -> None:
        async def story() -> None:
            provider_id = await subject.make()
            instance = subject.provider.instance(provider_id)
            boots = await subject.boots(provider_id)
            for action in self._actions(subject):
                if action is Action.RESTART:
                    continue
                for _ in range(2):
                    await self._ask_and_follow(subject, _power_job(action, instance), action)
                    await self._until_power(subject, instance, ENDS_IN[action])
                assert (await subject.instances())[provider_id] in ENDS_IN[action]
                boots += action is Action.POWER_ON
                assert await subject.boots(provider_id) == boots, f"after {action}"

        self.run(story())

    def test_a_restart_starts_the_instance_once_more_and_ends_with_it_running(self, subject: Subject) -> None:
        async def story() -> None:
            provider_id = await subject.make()
            boots = await subject.boots(provider_id)
            instance = subject.provider.instance(provider_id)
            is_followed = await self._ask_and_follow(subject, _power_job(Action.RESTART, instance), Action.RESTART)
            if is_followed:
                assert await subject.boots(provider_id) == boots + 1, "it was said to be done"
            await self._until_restarted(subject, provider_id, boots)

        if OperationKind.HOST_REBOOT in subject.provider.kinds:
            self.run(story())

    def test_what_comes_too_late_is_not_sent(self, subject: Subject) -> None:
        async def story() -> None:
            instance = subject.provider.instance(await subject.make())
            truth = await _truth(subject)
            for action in self._actions(subject):
                async with _session(subject) as (session, _):
                    if action is not Action.POWER_ON:  # it is on
                        with pytest.raises(Transient):
                            await session.ask(_power_job(action, instance), action, before=_now() - 1)
                assert await _truth(subject) == truth, f"{action} was sent"

        self.run(story())

    def test_an_instance_that_is_not_there_is_refused(self, subject: Subject) -> None:
        async def story() -> None:
            missing = subject.provider.instance(subject.missing)
            async with _session(subject) as (session, _):
                for action in self._actions(subject):
                    with pytest.raises(Refusal):
                        await session.ask(_power_job(action, missing), action, before=_now() + _AHEAD_S)
                if subject.provider.replacement:
                    with pytest.raises(Refusal):
                        await session.look_replace(_job(OperationKind.HOST_REPLACE, missing), _Keep())

        self.run(story())

    def test_an_account_that_is_throttled_is_said_to_be_and_nothing_is_done(self, subject: Subject) -> None:
        troubled = _troubled(subject)

        async def story() -> None:
            instance = subject.provider.instance(await subject.make())
            truth = await _truth(subject)
            async with _session(subject) as (session, _):
                await session.look(instance)  # it is logged in
                await troubled.set_trouble(Trouble.THROTTLED)
                with pytest.raises(Throttled) as raised:
                    await session.look(instance)
                assert raised.value.after_s > 0
                for action in self._actions(subject):
                    with pytest.raises(Throttled):
                        await session.ask(_power_job(action, instance), action, before=_now() + _AHEAD_S)
                if subject.provider.replacement:
                    with pytest.raises(Throttled):
                        await session.look_replace(_job(OperationKind.HOST_REPLACE, instance), _Keep())
                await troubled.set_trouble(None)
            assert await _truth(subject) == truth

        self.run(story())

    def test_a_restart_whose_answer_was_lost_is_uncertain_and_is_done_once(self, subject: Subject) -> None:
        troubled = _troubled(subject)

        async def story() -> None:
            provider_id = await subject.make()
            instance = subject.provider.instance(provider_id)
            boots = await subject.boots(provider_id)
            async with _session(subject) as (session, _):
                await session.look(instance)
                await troubled.set_trouble(Trouble.LOST)
                job = _power_job(Action.RESTART, instance)
                with pytest.raises(Uncertain):
                    await session.ask(job, Action.RESTART, before=_now() + _AHEAD_S)
                await troubled.set_trouble(None)
                for _ in range(2 if subject.provider.restarts_once else 1):  # while it goes on, and when it is over
                    if subject.provider.restarts_once:
                        await session.ask(job, Action.RESTART, before=_now() + _AHEAD_S)
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

    async def _ask_and_follow(self, subject: Subject, job: Job, action: Action) -> bool:
        """Ask in one session, and follow in others, as a controller does that is started again; whether there was
        something to follow.
        """
        async with _session(subject) as (session, budget):
            before = _now() + _AHEAD_S
            handle = await session.ask(job, action, before=before)
            assert budget.writes
            assert budget.scopes == {await self._scope(subject, job.instance)}
            assert all(limit <= before for _, limit in budget.writes)
        if handle is None:
            return False
        assert len(handle) <= MAX_HANDLE
        for value in subject.login.secret.values():
            assert value.reveal() not in handle
        async with _session(subject) as (session, budget):
            progress = await self._until(
                lambda: session.follow(job, handle), lambda one: one.state is not State.RUNNING
            )
            assert budget.scopes == {await self._scope(subject, job.instance)}
        assert progress.state is State.DONE, progress
        return True

    # Replacement

    def test_a_replacement_ends_with_one_instance_that_can_join(self, subject: Subject) -> None:
        async def story() -> None:
            before = set(await subject.instances())
            driven = _Driven(self, subject, await subject.make())
            await driven.to_the_end()
            order = [step.stage for step in subject.provider.replacement]
            assert driven.stages == sorted(driven.stages, key=order.index)
            await driven.judge(before)

        if subject.provider.replacement:
            self.run(story())

    def test_every_step_of_a_replacement_that_is_asked_for_twice_is_done_once(self, subject: Subject) -> None:
        async def story() -> None:
            before = set(await subject.instances())
            driven = _Driven(self, subject, await subject.make(), asks=2)
            await driven.to_the_end()
            await driven.judge(before)

        if subject.provider.replacement:
            self.run(story())

    def test_a_step_of_a_replacement_that_comes_too_late_is_not_sent(self, subject: Subject) -> None:
        async def story() -> None:
            before = set(await subject.instances())
            driven = _Driven(self, subject, await subject.make(), late=True)
            await driven.to_the_end()
            await driven.judge(before)

        if subject.provider.replacement:
            self.run(story())

    def test_a_replacement_whose_answers_are_lost_is_uncertain_and_is_done_once(self, subject: Subject) -> None:
        troubled = _troubled(subject)

        async def story() -> None:
            before = set(await subject.instances())
            driven = _Driven(self, subject, await subject.make(), losing=troubled)
            await driven.to_the_end()
            await driven.judge(before)

        if subject.provider.replacement:
            self.run(story())

    def test_a_replacement_that_is_left_off_where_it_can_be_undone_leaves_all_as_it_was(self, subject: Subject) -> None:
        async def story() -> None:
            for step in (one for one in subject.provider.replacement if one.undo):
                before = set(await subject.instances())
                left = _Driven(self, subject, await subject.make())
                truth = await _truth(subject)
                await left.put_back_before(step.stage)
                assert await _truth(subject) == truth, f"after {step.stage} was undone"
                again = _Driven(self, subject, left.provider_id)
                await again.to_the_end()
                await again.judge(before)

        self.run(story())

    def test_a_replacement_that_is_cut_off_anywhere_is_gone_on_with(self, subject: Subject) -> None:
        async def story() -> None:
            whole = _Driven(self, subject, await subject.make())
            await whole.to_the_end()
            for cut_at in sorted({whole.points * n // self.cuts for n in range(self.cuts)}):
                before = set(await subject.instances())
                driven = _Driven(self, subject, await subject.make())
                try:
                    await driven.to_the_end(cut_at=cut_at)
                except _Cut:
                    await driven.to_the_end()
                await driven.judge(before)

        if subject.provider.replacement:
            self.run(story())

    # Looking

    async def _scope(self, subject: Subject, instance: Instance) -> str:
        """What a look at an instance counts for, and all other calls for it, too."""
        async with _session(subject) as (session, budget):
            await session.look(instance)
        (scope,) = budget.scopes
        return scope

    async def _until_power(self, subject: Subject, instance: Instance, wanted: Collection[Power]) -> None:
        async with _session(subject) as (session, _):
            record = await self._until(
                lambda: session.look(instance), lambda one: one.power in wanted or one.power is Power.GONE
            )
            assert record.power in wanted, record

    async def _until_restarted(self, subject: Subject, provider_id: str, boots: int) -> None:
        """Until it has started once more than so often, and no more often than that."""
        await self._until(lambda: subject.boots(provider_id), lambda found: found > boots)
        await self._until_power(subject, subject.provider.instance(provider_id), {Power.RUNNING})
        assert await subject.boots(provider_id) == boots + 1
        assert (await subject.instances())[provider_id] is Power.RUNNING

    async def _until(self, look: Callable[[], Coroutine[Any, Any, T]], done: Callable[[T], bool]) -> T:
        """Look until it is as it should be; the last look stands in the message."""
        until = _now() + self.within_s
        while not done(found := await look()):
            assert _now() < until, f"still {found} after {self.within_s:g} s"
            await asyncio.sleep(self.poll_s)
        return found


@dataclass
class _Driven:
    """A replacement as a controller carries it out, without its waits.

    Args:
        asks: how often each step is asked for.
        late: each is asked for when it is too late, first.
        losing: a cloud that loses the answers to steps.
    """

    contract: ProviderContract
    subject: Subject
    provider_id: str  # what the Machine is bound to
    asks: int = 1
    late: bool = False
    losing: Troubled | None = None
    uid: str = field(default_factory=lambda: str(uuid.uuid4()))
    keep: _Keep = field(default_factory=_Keep)
    stages: list[str] = field(default_factory=list)
    scopes: set[str] = field(default_factory=set)
    points: int = 0

    @property
    def user_data(self) -> str:
        """Its own: a host that has it was made by this replacement."""
        return f"{USER_DATA}# for {self.uid}\n"

    @property
    def job(self) -> Job:
        instance = self.subject.provider.instance(self.provider_id)
        return _job(OperationKind.HOST_REPLACE, instance, uid=self.uid)

    async def to_the_end(self, *, cut_at: int | None = None) -> None:
        """Take the steps that come next until there is none.

        Raises:
            _Cut: before that call of the cloud.
        """
        async with _session(self.subject, cut_at) as (session, budget):
            self.keep.budget = budget
            while (found := await self._next(session, budget)).step is not None:
                await self._take(session, budget, found, found.step)
            self.points = budget.points
            self.scopes |= budget.scopes

    async def put_back_before(self, stage: str) -> None:
        """Take the steps up to this one, and undo them."""
        async with _session(self.subject) as (session, budget):
            self.keep.budget = budget
            while (found := await self._next(session, budget)).step not in (stage, None):
                await self._take(session, budget, found, found.step or "")
            for _ in range(_UNDOES):
                if found.is_as_it_was:
                    return
                await session.act_replace(self.job, PUT_BACK, self.keep, "", before=_now() + _AHEAD_S)
                found = await self._next(session, budget)
        raise AssertionError(f"{PUT_BACK} before {stage} does not come to its end: {found}")

    async def _next(self, session: Session, budget: _Budget) -> Next:
        async def look() -> Next:
            found = await session.look_replace(self.job, self.keep)
            budget.counting = not found.under_way
            return found

        found = await self.contract._until(look, lambda one: not one.under_way)
        assert found.where
        assert found.detail
        return found

    async def _take(self, session: Session, budget: _Budget, found: Next, stage: str) -> None:
        assert self.stages.count(stage) < 10, f"{stage} does not come to its end: {found}"
        self.stages.append(stage)
        step = replacement.step_of(self.subject.provider.replacement, stage)
        if step.hands_over:
            assert found.new_instance
            self.provider_id = found.new_instance
            return
        user_data = self.user_data if step.needs_user_data else ""
        truth, writes = await _truth(self.subject), len(budget.writes)
        if self.late:
            with suppress(Transient):  # there may be nothing to send
                await session.act_replace(self.job, stage, self.keep, user_data, before=_now() - 1)
            assert await _truth(self.subject) == truth, f"{stage} was sent when it was too late"
            writes = len(budget.writes)
        for _ in range(self.asks):
            before = _now() + _AHEAD_S
            async with self._losing(stage):
                await session.act_replace(self.job, stage, self.keep, user_data, before=before)
            assert all(limit <= before for _, limit in budget.writes[writes:]), f"{stage} could be sent too late"
        if await _truth(self.subject) != truth:
            assert len(budget.writes) > writes, f"{stage} did not ask its budget for what it changed"

    @asynccontextmanager
    async def _losing(self, stage: str) -> AsyncIterator[None]:
        """What is sent meanwhile gets no answer, which a provider has to say."""
        if self.losing is None or self.stages.count(stage) > _LOST:
            yield
            return
        await self.losing.set_trouble(Trouble.LOST)
        try:
            with suppress(Uncertain):
                yield
        finally:
            await self.losing.set_trouble(None)

    async def judge(self, before: set[str]) -> None:
        """Beside those that were there before, there is the one that the Machine is bound to, and it runs, made with
        the user data of this replacement; all calls for it counted for its account.
        """
        there = {name: power for name, power in (await self.subject.instances()).items() if name not in before}
        there = {name: power for name, power in there.items() if power is not Power.GONE}
        assert there == {self.provider_id: Power.RUNNING}
        assert await self.subject.user_data(self.provider_id) == self.user_data
        assert self.scopes == {await self.contract._scope(self.subject, self.job.instance)}


@asynccontextmanager
async def _session(subject: Subject, cut_at: int | None = None) -> AsyncIterator[tuple[Session, _Budget]]:
    budget = _Budget(cut_at)
    session = subject.provider.connect(subject.login, budget)
    try:
        yield session, budget
    finally:
        await session.close()


def _troubled(subject: Subject) -> Troubled:
    if not isinstance(subject, Troubled):
        pytest.skip("the subject has no set_trouble: its cloud cannot be told to turn requests away or to lose answers")
    return subject


async def _truth(subject: Subject) -> dict[str, tuple[Power, int]]:
    return {name: (power, await subject.boots(name)) for name, power in (await subject.instances()).items()}


def _power_job(action: Action, instance: Instance) -> Job:
    job = _job(KINDS[action], instance)
    return replace(job, parameters={"deallocate": "true"}) if action is Action.DEALLOCATE else job


def _job(kind: OperationKind, instance: Instance, *, uid: str = "") -> Job:
    return Job(
        operation="operation-1",
        uid=uid or str(uuid.uuid4()),
        kind=kind,
        machine="machine-1",
        machine_uid="00000000-0000-4000-8000-000000000001",
        instance=instance,
    )


def _now() -> float:
    return asyncio.get_running_loop().time()
