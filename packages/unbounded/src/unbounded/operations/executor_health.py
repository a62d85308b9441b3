"""Unavailable providers and the reasons, as reported by the process that starts the executors.

No other component can observe a process that does not run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from unbounded.operations.ownership import provider_of


@dataclass(frozen=True)
class Unavailability:
    """The reason why a provider is not served.

    Args:
        text: the problem and its fix; constant as long as the problem lasts.
        then: the next automatic step and its time.
        is_trouble: False for a process that is starting.
    """

    text: str
    then: str = ""
    is_trouble: bool = True

    @property
    def whole(self) -> str:
        return f"{self.text}; {self.then}" if self.then else self.text


class ExecutorHealth:
    """Unavailable providers by name; empty where no process starts executors."""

    def __init__(self) -> None:
        self._absent: dict[str, Unavailability] = {}
        self._changed: list[Callable[[str, Unavailability | None], None]] = []

    def report(self, provider: str, absence: Unavailability | None) -> None:
        """Record that a provider is not served, or (None) that it is."""
        if self._absent.get(provider) == absence:
            return
        if absence is None:
            del self._absent[provider]
        else:
            self._absent[provider] = absence
        for changed in self._changed:
            changed(provider, absence)

    def all(self) -> dict[str, Unavailability]:
        """Return the providers that are not served now."""
        return dict(self._absent)

    def of(self, executor: str) -> Unavailability | None:
        """Return the reason why an executor does not serve; None where it serves, or nothing is known.

        Args:
            executor: as the status names it.
        """
        return self._absent.get(provider_of(executor) or "")

    @contextmanager
    def subscribed(self, changed: Callable[[str, Unavailability | None], None]) -> Iterator[None]:
        """Call `changed` with the provider and its absence at each change, while the context is entered."""
        self._changed.append(changed)
        try:
            yield
        finally:
            self._changed.remove(changed)
