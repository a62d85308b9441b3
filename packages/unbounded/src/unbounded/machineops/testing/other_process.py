"""The provider in another process, without any state of this one.

The provider is created there as by a restarted controller on another host: with a login, a job and a handle, in another
time zone, and without any state of a module or a session of this process.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import sys
import traceback
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Final

import pytest

from unbounded.kube.options import SettingsError
from unbounded.machineops import installed_providers
from unbounded.machineops.provider import (
    Action,
    Instance,
    Job,
    Keep,
    Login,
    Next,
    Progress,
    Provider,
    Record,
    Session,
    Taken,
)
from unbounded.machineops.testing.subject import CountingBudget, InMemoryKeep, MadeAnew, Subject, now

MAIN: Final = f"from {__name__} import main; main()"
ZONE: Final = "<+14>-14"  # a day before or after most time zones
ENDS_IN_S: Final = 5.0
_SIZE: Final = 8  # bytes of the length prefix
HINT: Final = (
    "Where the cloud lives in the process of the tests, no other one can reach it: `anew = None` in the subject leaves "
    "this out. Else give it `anew`, with which another process makes the provider: a class, a function of a module, or "
    "a functools.partial of these"
)


@dataclass(frozen=True)
class _Call:
    """Request to the other process; times are in seconds from now, as each loop has its own clock."""

    method: str
    arguments: tuple[Any, ...]
    kept: bytes | None = None
    within_s: float | None = None


@dataclass(frozen=True)
class _Answer:
    outcome: Any = None
    kept: bytes | None = None
    reads: list[str] = field(default_factory=list)
    writes: list[tuple[str, float]] = field(default_factory=list)
    trouble: str = ""


class OtherProcessSession:
    """Session in the other process. Requests to its budget are served here."""

    def __init__(self, process: asyncio.subprocess.Process, budget: CountingBudget) -> None:
        self._process = process
        self._budget = budget

    async def begin(self, recipe: bytes) -> None:
        answer = await self._answer(recipe)
        if answer.trouble:
            pytest.fail(f"the provider cannot be made in another process. {HINT}\n{answer.trouble}")

    async def look(self, instance: Instance) -> Record:
        found: Record = await self._call("look", instance)
        return found

    async def ask(self, job: Job, action: Action, *, before: float) -> str | None:
        handle: str | None = await self._call("ask", job, action, before=before)
        return handle

    async def follow(self, job: Job, handle: str) -> Progress:
        progress: Progress = await self._call("follow", job, handle)
        return progress

    async def look_replace(self, job: Job, keep: Keep) -> Next:
        found: Next = await self._call("look_replace", job, keep=keep)
        return found

    async def act_replace(self, job: Job, step: str, keep: Keep, user_data: str, *, before: float) -> Taken:
        given: Taken = await self._call("act_replace", job, step, user_data, keep=keep, before=before)
        return given

    async def close(self) -> None:
        await self._call("close")

    async def _call(self, method: str, *arguments: Any, keep: Keep | None = None, before: float | None = None) -> Any:
        kept, since = None if keep is None else await keep.load(), now()
        within_s = None if before is None else before - since
        answer = await self._answer(_framed(_Call(method, arguments, kept, within_s)))
        if answer.trouble:
            pytest.fail(f"{method} failed in a process that knows nothing of what another one did:\n{answer.trouble}")
        for scope in answer.reads:
            await self._budget.read(scope)
        self._budget.writes += [(scope, since + limit_s) for scope, limit_s in answer.writes]
        if keep is not None and answer.kept is not None and answer.kept != kept:
            await keep.store(answer.kept)
        return answer.outcome

    async def _answer(self, frame: bytes) -> _Answer:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(frame)
            size = int.from_bytes(await self._process.stdout.readexactly(_SIZE), "big")
            answer: _Answer = pickle.loads(await self._process.stdout.readexactly(size))  # noqa: S301  # of our own process
        except (asyncio.IncompleteReadError, OSError):
            pytest.fail("the other process has ended; what it said stands in what was captured of stderr")
        return answer


@asynccontextmanager
async def other_process_session(subject: Subject) -> AsyncIterator[tuple[Session, CountingBudget]]:
    """Provide a session in another process; skip the test if the subject rules that out."""
    recipe = _recipe(subject)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", MAIN),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": _path(), "TZ": ZONE, "PYTHONHASHSEED": "random"},
    )
    budget = CountingBudget()
    try:
        session = OtherProcessSession(process, budget)
        await session.begin(recipe)
        yield session, budget
        await session.close()
    finally:
        await _end(process)


async def _end(process: asyncio.subprocess.Process) -> None:
    assert process.stdin is not None
    process.stdin.close()
    try:
        async with asyncio.timeout(ENDS_IN_S):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()


def _path() -> str:
    """Return the import path of this process, which pytest has extended."""
    return os.pathsep.join(str(Path(entry).absolute()) for entry in sys.path)


def _recipe(subject: Subject) -> bytes:
    """Return the data from which another process creates the provider, before any request to it."""
    provider = subject.provider
    if isinstance(subject, MadeAnew):
        make = subject.anew
        if make is None:
            pytest.skip("the subject's anew is None: whether another process can go on with it is not tested")
    elif _is_installed(provider):
        make = partial(installed_providers.load, provider.name)
    else:
        make = partial(_same, provider)
    try:
        return _framed((make, subject.login))
    except Exception as error:
        pytest.fail(f"the provider cannot be made in another process ({type(error).__name__}: {error}). {HINT}")


def _is_installed(provider: Provider) -> bool:
    try:
        return installed_providers.load(provider.name) is provider
    except SettingsError:
        return False


def _same(provider: Provider) -> Provider:
    return provider


def _framed(what: object) -> bytes:
    content = pickle.dumps(what)
    return len(content).to_bytes(_SIZE, "big") + content


# Code of the other process


def main() -> None:
    """Serve requests until the input ends."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # output of a provider must not mix with responses
    with asyncio.Runner() as runner:
        served = _ServedSession()
        while (frame := _read(sys.stdin.buffer)) is not None:
            answers.write(_framed(runner.run(served.answer(frame))))
            answers.flush()


def _read(source: BinaryIO) -> bytes | None:
    size = source.read(_SIZE)
    return source.read(int.from_bytes(size, "big")) if len(size) == _SIZE else None


class _ServedSession:
    """The session, created by the first request."""

    def __init__(self) -> None:
        self._budget = CountingBudget()
        self._recipe: bytes | None = None
        self._session: Session | None = None

    async def answer(self, frame: bytes) -> _Answer:
        try:
            if self._session is None:
                make, login = pickle.loads(frame)  # noqa: S301  # of the process that has started this one
                self._session = _connected(make, login, self._budget)
                return _Answer()
            return await self._answered(self._session, pickle.loads(frame))  # noqa: S301  # likewise
        except Exception:
            return _Answer(trouble=traceback.format_exc())

    async def _answered(self, session: Session, call: _Call) -> _Answer:
        keep, since = InMemoryKeep(call.kept), now()
        self._budget.reads, self._budget.writes = [], []
        named: dict[str, Any] = {} if call.within_s is None else {"before": since + call.within_s}
        arguments = list(call.arguments)
        if call.method.endswith("_replace"):
            arguments.insert(1 if call.method == "look_replace" else 2, keep)
        outcome = await getattr(session, call.method)(*arguments, **named)
        writes = [(scope, limit - since) for scope, limit in self._budget.writes]
        return _Answer(outcome, keep.content, self._budget.reads, writes)


def _connected(make: Callable[[], Provider], login: Login, budget: CountingBudget) -> Session:
    return make().connect(login, budget)
