"""Why executors do not serve now, as told by who starts them: nobody else can know of a process that is not there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from unbounded.operations.ownership import provider_of


@dataclass(frozen=True)
class Absence:
    """Why a provider is not served.

    Args:
        text: what is wrong, and what would be right; the same as long as that is.
        then: what comes next by itself, and when.
        is_trouble: False for a process that is starting.
    """

    text: str
    then: str = ""
    is_trouble: bool = True

    @property
    def whole(self) -> str:
        return f"{self.text}; {self.then}" if self.then else self.text


class Absences:
    """Of providers, by name. Where nobody starts executors, nothing is known here."""

    def __init__(self) -> None:
        self._absent: dict[str, Absence] = {}
        self._changed: list[Callable[[str, Absence | None], None]] = []

    def tell(self, provider: str, absence: Absence | None) -> None:
        """Take note that a provider is not served, or that it is."""
        if self._absent.get(provider) == absence:
            return
        if absence is None:
            del self._absent[provider]
        else:
            self._absent[provider] = absence
        for changed in self._changed:
            changed(provider, absence)

    def all(self) -> dict[str, Absence]:
        """Those that are not served now."""
        return dict(self._absent)

    def of(self, executor: str) -> Absence | None:
        """Return why an executor, as the status names it, does not serve; None where it does, or nothing is known."""
        return self._absent.get(provider_of(executor) or "")

    @contextmanager
    def subscribed(self, changed: Callable[[str, Absence | None], None]) -> Iterator[None]:
        """Be called while inside with each change: the provider, and its absence."""
        self._changed.append(changed)
        try:
            yield
        finally:
            self._changed.remove(changed)
