"""Commands and a service manager with scripted answers, which record their calls."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from unbounded.agent.interfaces import HostCommandResult, UnitFacts
from unbounded.api.failures import Transient

Answer = HostCommandResult | Exception | None


@dataclass
class ScriptedCommands:
    """Args:
    answers: the first whose beginning fits counts; a list is used up, its last stays. None else: it succeeds.
    """

    answers: dict[tuple[str, ...], list[Answer]] = field(default_factory=dict)
    asked: list[tuple[str, ...]] = field(default_factory=list)

    async def run(
        self,
        *argv: str,
        timeout_s: float = 60.0,
        stdin: bytes | None = None,
        env: Mapping[str, str] | None = None,
        check: bool = True,
    ) -> HostCommandResult:
        self.asked.append(argv)
        answer: Answer = None
        for start, answers in self.answers.items():
            if argv[: len(start)] == start:
                answer = answers.pop(0) if len(answers) > 1 else answers[0]
                break
        if isinstance(answer, Exception):
            raise answer
        ran = answer or HostCommandResult(argv, 0, "", "")
        if check and not ran.ok:
            raise Transient(f"{argv[0]}: status {ran.status}: {ran.stderr}")
        return ran

    def ran(self, *start: str) -> int:
        """Return how often a command that begins so was run."""
        return sum(argv[: len(start)] == start for argv in self.asked)


def failed(words: str = "", status: int = 1) -> HostCommandResult:
    return HostCommandResult((), status, "", words)


@dataclass
class ScriptedUnits:
    """A service manager; `states` has the states of the units. `stop` and `start` change them, with these exceptions.

    Args:
        hang: units whose stop has no end within its limit.
        fail: units whose start fails, with these words; each word is used once.
        silent: it does not report the states of units.
    """

    states: dict[str, UnitFacts] = field(default_factory=dict)
    hang: set[str] = field(default_factory=set)
    fail: dict[str, list[str]] = field(default_factory=dict)
    asked: list[tuple[str, ...]] = field(default_factory=list)
    on_start: Callable[[str], None] = lambda _unit: None
    silent: bool = False

    async def observe(self, unit: str) -> UnitFacts:
        if self.silent:
            raise Transient(f"systemctl show {unit}: not complete within 60 s")
        return self.states.get(unit, UnitFacts(unit))

    async def start(self, unit: str, *, timeout_s: float = 90.0) -> None:
        self.asked.append(("start", unit))
        if self.fail.get(unit):
            raise Transient(f"systemctl start {unit}: status 1: {self.fail[unit].pop(0)}")
        self.states[unit] = UnitFacts(unit, "loaded", "active", "running", "enabled", 1)
        self.on_start(unit)

    async def stop(self, unit: str, *, timeout_s: float = 90.0) -> None:
        self.asked.append(("stop", unit))
        if unit in self.hang:
            await asyncio.sleep(0.01)
            raise Transient(f"systemctl stop {unit}: not complete within {timeout_s:g} s")
        self.states.pop(unit, None)

    async def restart(self, unit: str, *, block: bool = True, timeout_s: float = 90.0) -> None:
        await self.start(unit)

    async def kill(self, unit: str, signal: str = "SIGKILL") -> None:
        self.asked.append(("kill", unit))
        self.states.pop(unit, None)

    async def enable(self, *units: str) -> None:
        self.asked.append(("enable", *units))

    async def disable(self, *units: str) -> None:
        self.asked.append(("disable", *units))

    async def mask(self, *units: str) -> None:
        self.asked.append(("mask", *units))

    async def unmask(self, *units: str) -> None:
        self.asked.append(("unmask", *units))

    async def reset_failed(self, unit: str) -> None:
        self.asked.append(("reset-failed", unit))

    async def reload(self) -> None:
        self.asked.append(("reload",))
