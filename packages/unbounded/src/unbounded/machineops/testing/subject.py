"""Interface of a provider and its cloud for the tests of the contract, and the budgets and store of a test's session.

The budgets count, interrupt and delay the calls of a provider.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol, runtime_checkable

import pytest

from unbounded.machineops.provider import Login, Power, Provider, Transient


class Subject(Protocol):
    """A provider, and its cloud, in which the tests may do anything."""

    @property
    def provider(self) -> Provider: ...

    @property
    def login(self) -> Login:
        """Login that the cloud accepts."""
        ...

    @property
    def missing(self) -> str:
        """Valid spec.providerID of an instance that does not exist."""
        ...

    async def make(self) -> str:
        """Create a running instance; return its spec.providerID."""
        ...

    async def instances(self) -> Mapping[str, Power]:
        """Return the existing instances by spec.providerID, observed by another way than the provider's."""
        ...

    async def boots(self, provider_id: str) -> int:
        """Return the number of an instance's starts with the first one and restarts; observed by that way, too."""
        ...

    async def user_data(self, provider_id: str) -> str | None:
        """Return the user data of an instance that a replacement created, as its host reads it."""
        ...


class Trouble(StrEnum):
    """Troubles of the cloud, for all requests."""

    THROTTLED = "Throttled"  # requests are refused by a rate limit of this account
    LOST = "Lost"  # changes are executed without an answer; reads are answered
    DOWN = "Down"  # each request gets a server error, and nothing is done
    SLOW = "Slow"  # each is answered after about a second
    PAGES = "Pages"  # each list has pages of one entry
    FAILING = "Failing"  # power changes are accepted and fail; only their long calls show it
    IGNORED = "Ignored"  # the same, and nothing shows it
    LAGGING = "Lagging"  # lists do not show new resources; reads by id do
    STALE = "Stale"  # lists stay as they are now, whatever changes
    UNKNOWN = "Unknown"  # changes are executed without an answer, and lists do not show new resources


@runtime_checkable
class Troubled(Protocol):
    """Optional interface of a subject whose cloud can simulate failures."""

    async def set_trouble(self, trouble: Trouble | None) -> None:
        """Set the trouble until the next call; None for a healthy cloud.

        Raises:
            NotImplementedError: the cloud cannot simulate this trouble.
        """
        ...


@runtime_checkable
class LogsIn(Protocol):
    """Optional interface of a subject whose cloud verifies logins."""

    @property
    def refused(self) -> Login:
        """Valid login that the cloud refuses."""
        ...


@runtime_checkable
class Names(Protocol):
    """Optional interface of a subject whose login holds more than secrets."""

    @property
    def names(self) -> Collection[str]:
        """Keys of the login whose values are not secret, such as a client's ID."""
        ...


@runtime_checkable
class MadeAnew(Protocol):
    """Optional interface of a subject whose provider another process can create neither by its entry point nor by
    pickle.
    """

    @property
    def anew(self) -> Callable[[], Provider] | None:
        """Factory for the other process: a class, a function of a module, or a functools.partial of these.

        None if other processes cannot reach the cloud, as it lives in the process of the tests.
        """
        ...


@runtime_checkable
class Accounts(Protocol):
    """Optional interface of a subject whose login reaches several accounts."""

    async def make_namesake(self, provider_id: str) -> str:
        """Create a running instance of the same name in another account; return its spec.providerID."""
        ...


def troubled(subject: Subject) -> Troubled:
    """Return the subject with its optional interface for failures, or skip the test."""
    if not isinstance(subject, Troubled):
        pytest.skip("the subject has no set_trouble: its cloud cannot be told to turn requests away or to lose answers")
    return subject


async def bring(subject: Subject, trouble: Trouble) -> Troubled:
    """Set the trouble; skip the test if the cloud cannot simulate it."""
    maker = troubled(subject)
    if not await came(subject, trouble):
        pytest.skip(f"the subject's cloud cannot be told to be {trouble}")
    return maker


async def able(subject: Subject, trouble: Trouble) -> Troubled:
    """Return the subject if its cloud can simulate this trouble, else skip the test."""
    maker = await bring(subject, trouble)
    await maker.set_trouble(None)
    return maker


async def came(subject: Subject, trouble: Trouble) -> bool:
    """Set the trouble; return whether the cloud can simulate it."""
    if not isinstance(subject, Troubled):
        return False
    try:
        await subject.set_trouble(trouble)
    except NotImplementedError:
        return False
    return True


def accounts(subject: Subject) -> Accounts:
    """Return the subject with its optional interface for accounts, or skip the test."""
    if not isinstance(subject, Accounts):
        pytest.skip("the subject has no make_namesake: its login is taken for one that reaches a single account")
    return subject


def login_refused(subject: Subject) -> Login:
    """Return a login that the cloud refuses, or skip the test."""
    if not isinstance(subject, LogsIn):
        pytest.skip("the subject has no login that is refused")
    return subject.refused


class ProcessCut(BaseException):
    """The simulated process has ended."""


@dataclass
class CountingBudget:
    """Budget that counts the provider's calls, and interrupts before one of them."""

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
        self.count_point()

    async def write(self, scope: str, *, before: float) -> None:
        self.writes.append((scope, before))
        if now() > before:
            raise Transient("the time in which it could be sent is over")
        self.count_point()

    def left(self, scope: str, *, reads: float | None = None, writes: float | None = None) -> None:
        """Ignore the remainders: this budget has no limits."""

    def count_point(self) -> None:
        """Count a place at which a process may end, once while a step is under way; end at the chosen place."""
        self.points += self.counting
        if self.cut_at is not None and self.points > self.cut_at:
            raise ProcessCut


@dataclass
class DelayedBudget(CountingBudget):
    """Budget that delays the first change."""

    reached: asyncio.Event = field(default_factory=asyncio.Event)
    goes_on: asyncio.Event = field(default_factory=asyncio.Event)

    async def write(self, scope: str, *, before: float) -> None:
        await super().write(scope, before=before)
        self.reached.set()
        await self.goes_on.wait()


@dataclass
class InMemoryKeep:
    content: bytes | None = None
    place: str = "the tests' own keep"
    budget: CountingBudget = field(default_factory=CountingBudget)  # of the session that stores the state
    left: bytes | None = None  # by a failed replacement

    async def load(self) -> bytes | None:
        return self.content

    async def former(self) -> bytes | None:
        return self.left

    async def store(self, content: bytes) -> None:
        assert len(content) <= 900_000
        self.budget.count_point()
        self.content = content


def now() -> float:
    return asyncio.get_running_loop().time()
