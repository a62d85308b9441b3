"""Test class of the contract, with the tests of a provider's description and of concurrent and consecutive sessions."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import stat
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import Final

import pytest

from unbounded.machineops import installed_providers
from unbounded.machineops.provider import API_VERSION, Action, Instance, OperationKind, Power, SecretStr, Session, State
from unbounded.machineops.testing import driver
from unbounded.machineops.testing.base import ENDS_IN, Contract
from unbounded.machineops.testing.failures import TroubleTests
from unbounded.machineops.testing.operations import PowerTests, ReplacementTests
from unbounded.machineops.testing.other_process import HINT, other_process_session
from unbounded.machineops.testing.subject import CountingBudget, Subject, now

SESSIONS: Final = 8  # one after the other
FOLDERS: Final = ("/proc/self/fd", "/dev/fd")
CLOSES_IN_S: Final = 1.0  # real seconds until the other side of a connection has closed, too
_LOOK_S: Final = 0.005


class SharingTests(Contract):
    def test_operations_of_one_session_act_on_their_own_instances(self, subject: Subject) -> None:
        async def story() -> None:
            others = await self._others(subject)
            names = [await subject.make() for _ in range(2)]
            action = Action.POWER_OFF if OperationKind.HOST_POWER_OFF in subject.provider.kinds else None
            async with driver.session_of(subject) as (session, budget):
                if action is not None:
                    jobs = [driver.power_job(action, subject.provider.instance(name)) for name in names]
                    await asyncio.gather(*(session.ask(job, action, before=now() + driver.AHEAD_S) for job in jobs))
                    for job in jobs:
                        await self._until_power(subject, job.instance, ENDS_IN[action])
                if subject.provider.replacement:
                    fresh = [
                        driver.DrivenReplacement(self.pace, subject, await subject.make(), shared=True)
                        for _ in range(2)
                    ]
                    for one in fresh:
                        one.keep.budget = budget
                    await asyncio.gather(*(one.resume(session, budget) for one in fresh))
                    for one in fresh:
                        assert await subject.user_data(one.provider_id) in one.told
                        assert (await subject.instances())[one.provider_id] is Power.RUNNING
            truth = await driver.truth_of(subject)
            assert {name: truth.get(name) for name in others} == others, "an instance of another owner was changed"

        self.run(story())

    def test_another_process_continues_a_requested_call(self, subject: Subject) -> None:
        async def story() -> None:
            others = await self._others(subject)
            provider_id = await subject.make()
            instance = subject.provider.instance(provider_id)
            async with other_process_session(subject) as there, driver.session_of(subject) as here:
                for session, _ in (here, there):
                    record = await session.look(instance)
                    assert record.power is Power.RUNNING, f"{provider_id} is there, and was told to be {record}. {HINT}"
                for action, (asking, following) in zip(
                    self._actions(subject), cycle([(here[0], there[0]), (there[0], here[0])]), strict=False
                ):
                    job = driver.power_job(action, instance)
                    handle = await asking.ask(job, action, before=now() + driver.AHEAD_S)
                    if handle is not None:
                        progress = await self._ended(subject, following, job, handle)
                        ends = {State.DONE} | ({State.ACCEPTED} if action is Action.RESTART else set())
                        assert progress.state in ends, f"another process cannot follow {action}: {progress}"
                    for session in (following, asking):
                        await self._until_it_shows(subject, session, instance, ENDS_IN.get(action, {Power.RUNNING}))
                if subject.provider.replacement:
                    driven = driver.DrivenReplacement(self.pace, subject, provider_id)
                    await driven.alternate(here, there)
                    driven.scopes = here[1].scopes | there[1].scopes
                    await driven.judge(others)

        self.run(story())

    def test_closed_session_leaves_no_connection_open(self, subject: Subject) -> None:
        async def story() -> None:
            instance = subject.provider.instance(await subject.make())
            # References prevent a garbage collection from closing the sessions. The first session opens shared
            # resources, too.
            used: list[Session] = [await self._used_session(subject, instance)]
            before, threads = open_files() | open_tasks(), open_threads()
            with unclosed() as thrown_away:
                for count in range(1, SESSIONS + 1):
                    used.append(await self._used_session(subject, instance))
                    still = await opened_since(before)
                    message = "; ".join(still)
                    assert not still, (
                        f"session.close() has returned ({count} times), and there are still open: {message}"
                    )
                more = [each for key, each in open_threads().items() if key not in threads]
                assert len(more) < SESSIONS, f"after {SESSIONS} sessions there are more threads: {', '.join(more)}"
                used.clear()
            assert not thrown_away, f"session.close() has closed all but what was thrown away: {'; '.join(thrown_away)}"

        self.run(story())

    async def _used_session(self, subject: Subject, instance: Instance) -> Session:
        """Return a session that was used and closed."""
        async with driver.session_of(subject) as (session, _):
            await asyncio.gather(*(observe() for observe in driver.reading_calls(subject, session, instance)))
        return session


def open_files() -> dict[object, str]:
    """Return descriptions of open files by identity; empty if the system does not list them."""
    folder = next((Path(each) for each in FOLDERS if os.path.isdir(each)), None)
    found: dict[object, str] = {}
    for name in os.listdir(folder) if folder is not None else ():
        with suppress(OSError, ValueError):  # such as the descriptor that reads the folder
            status = os.fstat(int(name))
            found["file", name, status.st_dev, status.st_ino] = _words(int(name), status.st_mode)
    return found


def open_tasks() -> dict[object, str]:
    """Return the running tasks without the current one."""
    ours = asyncio.current_task()
    return {("task", id(task)): f"task {task!r}" for task in asyncio.all_tasks() if task is not ours}


def open_threads() -> dict[object, str]:
    return {("thread", thread.ident): f"thread {thread.name}" for thread in threading.enumerate()}


async def opened_since(before: dict[object, str]) -> list[str]:
    """Return what is open now and was not before, after a time for closing."""
    end = time.monotonic() + CLOSES_IN_S
    while True:
        there = open_files() | open_tasks()
        found = [words for key, words in there.items() if key not in before]
        if not found or time.monotonic() > end:
            return found
        await asyncio.sleep(_LOOK_S)


@contextmanager
def unclosed() -> Iterator[list[str]]:
    """Collect the warnings about objects in the block that are dropped without being closed."""
    gc.collect()  # objects that were dropped before the block
    found: list[str] = []
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always", ResourceWarning)
        try:
            yield found
        finally:
            gc.collect()
            found += [str(one.message) for one in warned if issubclass(one.category, ResourceWarning)]


def _words(number: int, mode: int) -> str:
    if stat.S_ISSOCK(mode):
        with socket.socket(fileno=os.dup(number)) as one:
            return f"socket {_name(one.getsockname())} to {_peer(one)}"
    with suppress(OSError):
        return f"file {os.readlink(f'{FOLDERS[0]}/{number}')}"
    return f"file {number}"


def _peer(one: socket.socket) -> str:
    try:
        return _name(one.getpeername())
    except OSError:
        return "nobody"


def _name(address: object) -> str:
    return f"{address[0]}:{address[1]}" if isinstance(address, tuple) else str(address or "somebody of this host")


class DescriptionTests(Contract):
    def test_provider_properties_are_consistent(self, subject: Subject) -> None:
        assert hasattr(subject.provider, "api_version"), f"it does not declare api_version, such as {API_VERSION!r}"
        assert installed_providers.faults(subject.provider) == []
        assert subject.provider.modes

    def test_provider_id_is_parsed_and_other_text_rejected_with_a_message(self, subject: Subject) -> None:
        instance = subject.provider.instance(subject.missing)
        assert instance == subject.provider.instance(subject.missing)
        assert instance.id
        assert instance.scope
        assert instance.name
        for text in ("", " ", "elsewhere://a/b", "/", subject.missing.partition(":")[0] + ":"):
            with pytest.raises(ValueError, match=r"\w"):
                subject.provider.instance(text)

    def test_spellings_of_an_instance_have_one_id(self, subject: Subject) -> None:
        async def story() -> None:
            provider_id = await subject.make()
            one = subject.provider.instance(provider_id)
            async with driver.session_of(subject) as (session, _):
                for spelling in _spellings(provider_id):
                    try:
                        other = subject.provider.instance(spelling)
                    except ValueError:
                        continue
                    if other.id != one.id:
                        assert await self._is_gone(session, other), f"{spelling!r} finds {one.name} under another id"
                    else:
                        assert other.scope == one.scope, f"{spelling!r} counts for another account"

        self.run(story())

    async def _is_gone(self, session: Session, instance: Instance) -> bool:
        try:
            return (await session.look(instance)).power is Power.GONE
        except Exception:  # the account of this login may not exist
            return True

    def test_connect_sends_nothing_and_names_an_invalid_key(self, subject: Subject) -> None:
        async def story() -> None:
            budget = CountingBudget()
            session = subject.provider.connect(subject.login, budget)
            await session.close()
            assert budget.calls == 0
            garbage = "g4rb4ge-\x00"
            for key in subject.login.secret:
                broken = replace(subject.login, secret={**subject.login.secret, key: SecretStr(garbage)})
                try:
                    await subject.provider.connect(broken, budget).close()
                except ValueError as error:
                    assert key in str(error)
                    assert garbage not in str(error)

        self.run(story())


def _spellings(provider_id: str) -> list[str]:
    """Return other spellings, as users and tools produce them."""
    scheme, mark, rest = provider_id.partition("://")
    return [
        f"{scheme}{mark}{rest.upper()}",
        f"{scheme}{mark}{rest.lower()}",
        f"{scheme.upper()}{mark}{rest}",
        f"{provider_id}/",
        f"{provider_id} ",
        f"{scheme}{mark}/{rest}",
        f"{scheme}{mark}{rest.replace('/', '//')}",
    ]


class ProviderContract(DescriptionTests, PowerTests, TroubleTests, SharingTests, ReplacementTests):
    """Tests that every provider must pass. A subclass has the fixture `subject`, and may change the numbers."""
