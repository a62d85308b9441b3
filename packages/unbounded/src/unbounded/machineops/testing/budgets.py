"""Budgets with which a test counts, interrupts and delays the calls of a provider; and a store of its state."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from unbounded.machineops.provider import Transient


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
