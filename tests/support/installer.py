"""Simulated installs on hosts: their duration and end are dials. For virtual time, too.

Its requests go through the `Shell`, so that the dials of `tests.support.machina` apply: a broken connection, a silent
host. `tests.machina.provisioning.test_contract` compares it with the real one, which uses real shells.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from unbounded.api.conditions import ConditionReason
from unbounded.api.failures import Failure
from unbounded.machina.provisioning.model import (
    Finished,
    HostRefuses,
    Install,
    Interrupted,
    NoRun,
    ObservedRun,
    RunInProgress,
)
from unbounded.machina.ssh.model import Shell, SshUncertain

CALL_S = 60.0


@dataclass
class FakeInstalls:
    """The state of one Machine's installs on one host. It continues without a connection.

    Attributes:
        takes_s, status, tail: of the next one.
        refuses, why: the host's refusal of the next one, and its reason.
        takes_nothing: the error of every command, such as of a user without root.
        loses_answer: the next one starts, and its answer is lost.
        begun: attempts that were begun, in order.
        cleared, resets: how often.
        reset_status: of a reset.
    """

    takes_s: float = 60.0
    status: int = 0
    tail: str = ""
    refuses: str | None = None
    why: ConditionReason = ConditionReason.FAILED
    takes_nothing: Failure | None = None
    loses_answer: bool = False
    reset_takes_s: float = 5.0
    reset_status: int = 0
    begun: list[Install] = field(default_factory=list)
    cleared: int = 0
    resets: int = 0
    at_once: int = 0  # the most that ever ran beside each other
    _began_at: float = 0.0
    _ends_at: float = 0.0
    _ended: ObservedRun | None = None

    @property
    def attempts(self) -> list[str]:
        return [install.attempt for install in self.begun]

    def begin(self, install: Install) -> None:
        self.begun.append(install)
        self._began_at, self._ended = _now(), None
        self._ends_at = self._began_at + self.takes_s
        self.at_once = max(self.at_once, 1)

    def end(self, status: int, tail: str) -> None:
        """The one that runs ends now."""
        self.status, self.tail, self._ends_at = status, tail, _now()

    def clear(self) -> None:
        """Remove the output of the last install; its result stays."""
        self.cleared += 1
        if isinstance(now := self.now(), Finished):
            self._ended = replace(now, tail="")

    def reboot(self) -> None:
        """The host goes down, and what runs with it."""
        if isinstance(now := self.now(), RunInProgress):
            self._ended = Interrupted(now.attempt, "the host was rebooted")

    def now(self) -> ObservedRun:
        if not self.begun:
            return NoRun()
        attempt = self.begun[-1].attempt
        if self._ended is None and _now() >= self._ends_at:
            self._ended = Finished(attempt, self.status, self.tail)
        if self._ended is not None:
            return self._ended
        seconds = _now() - self._began_at
        return RunInProgress(attempt, int(seconds), f"step {int(seconds) // 10}")


class FakeInstaller:
    """The `Installer` of those hosts, by the UID of the Machine."""

    def __init__(self) -> None:
        self.hosts: dict[str, FakeInstalls] = {}

    def of(self, uid: str) -> FakeInstalls:
        return self.hosts.setdefault(uid, FakeInstalls())

    async def observe(self, shell: Shell, uid: str) -> ObservedRun:
        return (await self._asked(shell, uid, "look")).now()

    async def begin(self, shell: Shell, install: Install) -> ObservedRun:
        host = await self._asked(shell, install.uid, "begin", install.config.reveal().encode())
        if host.refuses is not None:
            raise HostRefuses(host.refuses, host.why)
        now, been = host.now(), isinstance(host.now(), Finished) and host.attempts[-1] == install.attempt
        if not isinstance(now, RunInProgress) and not been:
            host.begin(install)
            now = host.now()
        if host.loses_answer:
            host.loses_answer = False
            raise SshUncertain("the line broke")
        return now

    async def follow(self, shell: Shell, install: Install, report: Callable[[str], None]) -> ObservedRun:
        host = self.of(install.uid)
        while isinstance(now := host.now(), RunInProgress):
            await shell.run("tail", limit_s=CALL_S)
            report(now.progress)
            await asyncio.sleep(1.0)
        return now

    async def clear(self, shell: Shell, uid: str) -> None:
        (await self._asked(shell, uid, "clear")).clear()

    async def reset(
        self, shell: Shell, machine: str, uid: str, *, limit_s: float, report: Callable[[str], None]
    ) -> Finished:
        await shell.run("reset", limit_s=limit_s)
        host = self.of(uid)
        report("the node goes")
        await asyncio.sleep(host.reset_takes_s)
        host.resets += 1
        return Finished("reset", host.reset_status, host.tail)

    async def _asked(self, shell: Shell, uid: str, command: str, stdin: bytes = b"") -> FakeInstalls:
        host = self.of(uid)
        if host.takes_nothing is not None:
            raise host.takes_nothing
        await shell.run(command, stdin=stdin, limit_s=CALL_S)
        return host


def _now() -> float:
    return asyncio.get_running_loop().time()
