"""Writes that clients have requested and a server has acknowledged, compared with its content after a crash.

Every write carries a token of its own, a deletion an empty one. Each key has one writer, so that its writes have an
order.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple


class Seen(NamedTuple):
    """One change, as reported by a watch."""

    revision: int
    key: str
    token: str


@dataclass(eq=False)
class Step:
    """One requested write. `revision` is 0 until the server has reported it."""

    key: str
    token: str
    revision: int = 0
    acknowledged: bool = False


class Loss(AssertionError):
    """The server has lost, invented or changed something."""


@dataclass
class Ledger:
    """The steps in the order in which they were begun, and those that were acknowledged, in that order."""

    begun: list[Step] = field(default_factory=list)
    acknowledged: list[Step] = field(default_factory=list)

    def begin(self, key: str, token: str) -> Step:
        step = Step(key, token)
        self.begun.append(step)
        return step

    def acknowledge(self, step: Step, revision: int = 0) -> None:
        step.revision = revision
        step.acknowledged = True
        self.acknowledged.append(step)

    def rewind(self, acknowledged: int, begun: int) -> None:
        """Forget what came after a moment at which this many were acknowledged and begun."""
        for step in self.acknowledged[acknowledged:]:
            step.acknowledged = False
            step.revision = 0
        del self.acknowledged[acknowledged:]
        del self.begun[begun:]

    def state(self) -> dict[str, Step]:
        """The last step of each key whose object is there."""
        last = {step.key: step for step in self.begun}
        return {key: step for key, step in last.items() if step.token}

    def newest(self) -> int:
        """Return the newest revision that a client has received."""
        return max((step.revision for step in self.begun), default=0)

    def settle(self, changes: Iterable[Seen], since: int) -> None:
        """Hold the changes after `since` against the ledger; of what was not acknowledged, keep what has happened.

        Raises:
            Loss
        """
        told = self._in_order(changes, since)
        for key, steps in self._by_key().items():
            self._settle_key(key, steps, told.pop(key, []), since)
        if told:
            raise Loss(f"changes of keys that nobody has written: {sorted(told)}")

    def _in_order(self, changes: Iterable[Seen], since: int) -> dict[str, list[Seen]]:
        told: dict[str, list[Seen]] = defaultdict(list)
        last = since
        for change in changes:
            if change.revision <= last:
                raise Loss(f"revision {change.revision} comes after {last}")
            last = change.revision
            told[change.key].append(change)
        return told

    def _by_key(self) -> dict[str, list[Step]]:
        by_key: dict[str, list[Step]] = defaultdict(list)
        for step in self.begun:
            by_key[step.key].append(step)
        return by_key

    def _settle_key(self, key: str, steps: list[Step], told: list[Seen], since: int) -> None:
        open_steps = next((i for i, step in enumerate(reversed(steps)) if step.acknowledged), len(steps))
        for lost in range(open_steps + 1):
            kept = steps[: len(steps) - lost]
            if _agree(kept, told, since):
                for step, seen in zip(reversed(kept), reversed(told), strict=False):
                    step.revision = seen.revision
                for step in kept[len(kept) - open_steps + lost :]:
                    self.acknowledge(step, step.revision)
                for step in steps[len(kept) :]:
                    self.begun.remove(step)
                return
        shown = [(step.token, step.revision, step.acknowledged) for step in steps[-5:]]
        raise Loss(f"{key} after revision {since}: asked for {shown}, found {told[-5:]}")


def _agree(steps: list[Step], told: list[Seen], since: int) -> bool:
    """Return whether the reported changes are exactly the last of the steps, and all of those after `since`."""
    if len(told) > len(steps):
        return False
    split = len(steps) - len(told)
    if any(step.revision > since or not step.acknowledged for step in steps[:split]):
        return False
    return all(
        step.token == seen.token and step.revision in {0, seen.revision}
        for step, seen in zip(steps[split:], told, strict=True)
    )
