"""Waits for the long calls of clouds: when each is polled again, and the observation that counts until then."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from unbounded.kube.clock import loop_time
from unbounded.operations.executor_protocol import Target
from unbounded.workflow.procedure import Observation

MAX_PAUSE_S: Final = 300.0  # whatever a cloud requests
RESOLUTION_S: Final = 0.05  # of the engine's timers, which may fire a little early


@dataclass(frozen=True)
class _Pause:
    """Pause between two polls of one call.

    Args:
        on: the requested action and the request of the user; if one changes, the cloud is polled once more.
        interval_s: interval between polls.
    """

    until: float
    on: tuple[object, ...]
    observation: Observation
    interval_s: float


class LongCalls:
    """The long calls of one executor, with the intervals at which their clouds want to be polled."""

    def __init__(self) -> None:
        self._pauses: dict[str, _Pause] = {}

    def last_observation(self, target: Target) -> Observation | None:
        """Return the last observation of a target's call; None if the cloud is to be polled now."""
        pause, now = self._pause(target), loop_time()
        if pause is None or pause.until <= now or target.ends_at <= now:
            return None
        return replace(pause.observation, next_poll_s=pause.until + RESOLUTION_S - now)

    def interval_s(self, target: Target) -> float | None:
        """Return the last interval that the cloud named, perhaps when it accepted the call."""
        pause = self._pause(target)
        return None if pause is None else pause.interval_s

    def pause(self, target: Target, observation: Observation, interval_s: float | None) -> Observation:
        """Keep an observation until the cloud wants to be polled again; None: at the engine's own pace."""
        uid, now = target.operation.metadata.uid, loop_time()
        self._pauses.pop(uid, None)
        while self._pauses and next(iter(self._pauses.values())).until <= now - MAX_PAUSE_S:  # the first is the oldest
            del self._pauses[next(iter(self._pauses))]
        if interval_s is None:
            return observation
        interval_s = min(interval_s, MAX_PAUSE_S)
        self._pauses[uid] = _Pause(now + interval_s, _request_key(target), observation, interval_s)
        return replace(observation, next_poll_s=interval_s + RESOLUTION_S)

    def _pause(self, target: Target) -> _Pause | None:
        pause = self._pauses.get(target.operation.metadata.uid)
        return pause if pause is not None and pause.on == _request_key(target) else None


def _request_key(target: Target) -> tuple[object, ...]:
    """Return the requested action and the version of the user's request."""
    of = target.operation.metadata
    return (target.run.intent, of.generation, of.deletion_timestamp)
