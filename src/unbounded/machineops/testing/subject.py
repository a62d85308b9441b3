"""What a test of the contract knows of a provider and its cloud."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from enum import StrEnum
from typing import Protocol, runtime_checkable

import pytest

from unbounded.machineops.provider import Login, Power, Provider


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
    DOWN = "Down"  # each is answered with a fault of the cloud's own, and nothing is done
    SLOW = "Slow"  # each is answered after about a second
    PAGES = "Pages"  # each list is given one entry at a time, with where it goes on
    FAILING = "Failing"  # changes of power are accepted and come to nothing; only their long calls tell
    IGNORED = "Ignored"  # the same, and nothing tells
    LAGGING = "Lagging"  # lists do not show what is made from now on; what is asked for by its id is shown
    STALE = "Stale"  # lists show what there is as it is now, whatever becomes of it
    UNKNOWN = "Unknown"  # changes are made, no answer to them comes, and lists do not show what is made by them


@runtime_checkable
class Troubled(Protocol):
    """What a subject can do besides, where its cloud can be told to."""

    async def set_trouble(self, trouble: Trouble | None) -> None:
        """From now on, until it is told otherwise; None for a cloud that is well again.

        Raises:
            NotImplementedError: the cloud knows no such trouble.
        """
        ...


@runtime_checkable
class LogsIn(Protocol):
    """What a subject has besides, where the cloud tells one login from another."""

    @property
    def refused(self) -> Login:
        """One that is written well, and that the cloud refuses."""
        ...


@runtime_checkable
class Names(Protocol):
    """What a subject says besides, where its login holds more than secrets."""

    @property
    def names(self) -> Collection[str]:
        """Keys of the login whose values may be told, such as that of a client's ID."""
        ...


@runtime_checkable
class MadeAnew(Protocol):
    """What a subject says besides, where another process could not make its provider as the tests do otherwise: by the
    entry point that leads to it, or by pickling it.
    """

    @property
    def anew(self) -> Callable[[], Provider] | None:
        """Makes it there: a class, a function of a module, a functools.partial of these. None where no other process
        can reach the cloud, as it lives in the one of the tests.
        """
        ...


@runtime_checkable
class Accounts(Protocol):
    """What a subject can do besides, where one login reaches more than one account."""

    async def make_namesake(self, provider_id: str) -> str:
        """A new instance that runs, in another account, with the name of that one; gives back its spec.providerID."""
        ...


def troubled(subject: Subject) -> Troubled:
    """The subject as one whose cloud can be told to make trouble; else the test is skipped."""
    if not isinstance(subject, Troubled):
        pytest.skip("the subject has no set_trouble: its cloud cannot be told to turn requests away or to lose answers")
    return subject


async def bring(subject: Subject, trouble: Trouble) -> Troubled:
    """Bring the trouble on; the test is skipped where the cloud has none of that kind."""
    maker = troubled(subject)
    if not await came(subject, trouble):
        pytest.skip(f"the subject's cloud cannot be told to be {trouble}")
    return maker


async def able(subject: Subject, trouble: Trouble) -> Troubled:
    """The subject as one whose cloud can be told to make this trouble; else the test is skipped."""
    maker = await bring(subject, trouble)
    await maker.set_trouble(None)
    return maker


async def came(subject: Subject, trouble: Trouble) -> bool:
    """Bring the trouble on; whether the cloud has any of that kind."""
    if not isinstance(subject, Troubled):
        return False
    try:
        await subject.set_trouble(trouble)
    except NotImplementedError:
        return False
    return True


def accounts(subject: Subject) -> Accounts:
    """The subject as one whose login reaches more than one account; else the test is skipped."""
    if not isinstance(subject, Accounts):
        pytest.skip("the subject has no make_namesake: its login is taken for one that reaches a single account")
    return subject


def login_refused(subject: Subject) -> Login:
    """A login that the cloud refuses; else the test is skipped."""
    if not isinstance(subject, LogsIn):
        pytest.skip("the subject has no login that is refused")
    return subject.refused
