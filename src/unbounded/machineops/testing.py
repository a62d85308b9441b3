"""The contract of a provider, as tests that its author runs against it with pytest.

    class TestAcme(ProviderContract):
        @pytest.fixture
        def subject(self) -> Subject:
            return AcmeSubject()

The subject makes instances, and says what became of them by another way than the provider's. Each test makes its own.
A replacement is cut off before each call of the cloud, which is where a provider asks its budget, and begun again by
another session: at the end there is one instance, and it is the one that the Machine would be bound to.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Final, Protocol, TypeVar

import pytest

from unbounded.api.operation import MAX_HANDLE
from unbounded.machineops import registry, replacement
from unbounded.machineops.provider import (
    Action,
    Instance,
    Job,
    Login,
    Next,
    OperationKind,
    Power,
    Provider,
    Secret,
    Session,
    State,
    Transient,
)

__all__ = ["ProviderContract", "Subject"]

T = TypeVar("T")

USER_DATA: Final = "#cloud-config\nruncmd: [join]\n"
OFF: Final = frozenset({Power.STOPPED, Power.RELEASED})
_AHEAD_S: Final = 10.0  # what an executor has for an ask


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


class _Cut(BaseException):
    """The process has come to its end."""


@dataclass
class _Budget:
    """Counts what the provider is about to send, and cuts it off before one of these."""

    cut_at: int | None = None
    reads: list[str] = field(default_factory=list)
    writes: list[tuple[str, float]] = field(default_factory=list)

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
        if self.cut_at is not None and self.calls > self.cut_at:
            raise _Cut


@dataclass
class _Keep:
    content: bytes | None = None
    place: str = "the tests' own keep"

    async def load(self) -> bytes | None:
        return self.content

    async def former(self) -> bytes | None:
        return None

    async def store(self, content: bytes) -> None:
        assert len(content) <= 900_000
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
            for kind, action, wanted in (
                (OperationKind.HOST_POWER_OFF, Action.POWER_OFF, OFF),
                (OperationKind.HOST_POWER_ON, Action.POWER_ON, {Power.RUNNING}),
            ):
                if kind not in subject.provider.kinds:
                    continue
                for _ in range(2):
                    job = _job(kind, instance)
                    await self._ask_and_follow(subject, job, action)
                    await self._until_power(subject, instance, wanted)
                assert (await subject.instances())[provider_id] in wanted

        self.run(story())

    def test_a_restart_ends_with_the_instance_running(self, subject: Subject) -> None:
        async def story() -> None:
            provider_id = await subject.make()
            instance = subject.provider.instance(provider_id)
            await self._ask_and_follow(subject, _job(OperationKind.HOST_REBOOT, instance), Action.RESTART)
            await self._until_power(subject, instance, {Power.RUNNING})
            assert (await subject.instances())[provider_id] is Power.RUNNING

        if OperationKind.HOST_REBOOT in subject.provider.kinds:
            self.run(story())

    def test_what_comes_too_late_is_not_sent(self, subject: Subject) -> None:
        async def story() -> None:
            provider_id = await subject.make()
            instance = subject.provider.instance(provider_id)
            async with _session(subject) as (session, _):
                with pytest.raises(Transient):
                    await session.ask(_job(OperationKind.HOST_POWER_OFF, instance), Action.POWER_OFF, before=_now() - 1)
            assert (await subject.instances())[provider_id] is Power.RUNNING

        if OperationKind.HOST_POWER_OFF in subject.provider.kinds:
            self.run(story())

    async def _ask_and_follow(self, subject: Subject, job: Job, action: Action) -> None:
        """Ask in one session, and follow in others, as a controller does that is started again."""
        async with _session(subject) as (session, budget):
            before = _now() + _AHEAD_S
            handle = await session.ask(job, action, before=before)
            assert budget.writes
            assert budget.scopes == {await self._scope(subject, job.instance)}
            assert all(limit <= before for _, limit in budget.writes)
        if handle is None:
            return
        assert len(handle) <= MAX_HANDLE
        for value in subject.login.secret.values():
            assert value.reveal() not in handle
        async with _session(subject) as (session, budget):
            progress = await self._until(
                lambda: session.follow(job, handle), lambda one: one.state is not State.RUNNING
            )
            assert budget.scopes == {await self._scope(subject, job.instance)}
        assert progress.state is State.DONE, progress

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

    def test_a_replacement_that_is_cut_off_anywhere_is_gone_on_with(self, subject: Subject) -> None:
        async def story() -> None:
            whole = _Driven(self, subject, await subject.make())
            await whole.to_the_end()
            assert whole.calls
            for cut_at in sorted({whole.calls * n // self.cuts for n in range(self.cuts)}):
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
            await self._until(lambda: session.look(instance), lambda one: one.power in wanted)

    async def _until(self, look: Callable[[], Coroutine[Any, Any, T]], done: Callable[[T], bool]) -> T:
        """Look until it is as it should be; the last look stands in the message."""
        until = _now() + self.within_s
        while not done(found := await look()):
            assert _now() < until, f"still {found} after {self.within_s:g} s"
            await asyncio.sleep(self.poll_s)
        return found


@dataclass
class _Driven:
    """A replacement as a controller carries it out, without its waits."""

    contract: ProviderContract
    subject: Subject
    provider_id: str  # what the Machine is bound to
    asks: int = 1
    uid: str = field(default_factory=lambda: str(uuid.uuid4()))
    keep: _Keep = field(default_factory=_Keep)
    stages: list[str] = field(default_factory=list)
    scopes: set[str] = field(default_factory=set)
    calls: int = 0

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
            while (found := await self._next(session)).step is not None:
                await self._take(session, found, found.step)
            self.calls = budget.calls
            self.scopes |= budget.scopes

    async def _next(self, session: Session) -> Next:
        async def look() -> Next:
            return await session.look_replace(self.job, self.keep)

        found = await self.contract._until(look, lambda one: not one.under_way)
        assert found.where
        assert found.detail
        return found

    async def _take(self, session: Session, found: Next, stage: str) -> None:
        assert self.stages.count(stage) < 10, f"{stage} does not come to its end: {found}"
        self.stages.append(stage)
        step = replacement.step_of(self.subject.provider.replacement, stage)
        if step.hands_over:
            assert found.new_instance
            self.provider_id = found.new_instance
            return
        user_data = USER_DATA if step.needs_user_data else ""
        for _ in range(self.asks):
            await session.act_replace(self.job, stage, self.keep, user_data, before=_now() + _AHEAD_S)

    async def judge(self, before: set[str]) -> None:
        """Beside those that were there before, there is the one that the Machine is bound to, and it runs; all calls
        for it counted for its account.
        """
        there = {name: power for name, power in (await self.subject.instances()).items() if name not in before}
        there = {name: power for name, power in there.items() if power is not Power.GONE}
        assert there == {self.provider_id: Power.RUNNING}
        assert self.scopes == {await self.contract._scope(self.subject, self.job.instance)}


@asynccontextmanager
async def _session(subject: Subject, cut_at: int | None = None) -> AsyncIterator[tuple[Session, _Budget]]:
    budget = _Budget(cut_at)
    session = subject.provider.connect(subject.login, budget)
    try:
        yield session, budget
    finally:
        await session.close()


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
