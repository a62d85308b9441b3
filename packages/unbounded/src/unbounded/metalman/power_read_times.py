"""Times at which the BMC of a host is read after a power action, from the times that earlier hosts of its model needed.

A BMC without events is read when the effect can be there, instead of all the time from the action on. The times are
known to this process only. They move readings, and are no evidence.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Final, TypeVar

from msgspec import Struct
from msgspec.structs import replace

LAG_S: Final = 1.8  # from an effect at a time that was known before to the reading that shows it
TOLERANCE_S: Final = 0.25  # of two readings, which are one
ENOUGH: Final = 3  # effects: fewer may be exceptions
OWN_ENOUGH: Final = 12  # effects of one host that vary, until those of its model are not needed
GAP_S: Final = 10.0  # between two effects, above which the pauses grow
REMEMBERED: Final = 16  # effects of one host, or of one model
EXPLORES_EVERY: Final = 8  # effects: readings before the known times find out that the model became faster
EXPLORED_S: Final = 1.5  # before the first known time: an effect that comes earlier is soon read too late
REMEMBERED_KEYS: Final = 4096  # hosts and models, times the actions

K = TypeVar("K")
V = TypeVar("V")


class Effect(Struct, frozen=True):
    """An action's effect on the power, which came between two times since its answer."""

    after_s: float
    until_s: float

    def is_finer(self, other: Effect) -> bool:
        """Return whether this is a finer measurement of the other one's time."""
        overlap = self.after_s < other.until_s and other.after_s < self.until_s
        return overlap and other.until_s - other.after_s > self.until_s - self.after_s + TOLERANCE_S


class EffectHistory(Struct, frozen=True):
    """The last effects of one action on one host, or on the hosts of a model.

    Args:
        found_first: effects in a row that the first reading found, as it was made at a known time.
    """

    effects: tuple[Effect, ...] = ()
    found_first: int = 0

    @property
    def earliest_s(self) -> float:
        """Return the time before which the next effect is not expected; times that vary may vary more."""
        after = [one.after_s for one in self.effects]
        return max(min(after) - 2 * (max(after) - min(after)) / len(after), 0.0) if after else 0.0

    def with_model(self, model: EffectHistory) -> EffectHistory:
        """Return what is expected of a host: few effects that differ do not show yet how much they vary."""
        after = [one.after_s for one in self.effects]
        is_enough = len(after) >= OWN_ENOUGH or max(after) - min(after) <= 2 * TOLERANCE_S
        return self if is_enough or model == self else replace(self, effects=(*model.effects, *self.effects))

    def adding(self, missed_s: float, found_s: float) -> EffectHistory:
        """Return the history with the effect that came between these two readings; `missed_s` is 0 without a first.

        An effect that the first reading at an expected time finds counts as one that did not come before that.
        """
        earliest_s = self.earliest_s
        is_first = missed_s < earliest_s < found_s
        effect = Effect(earliest_s if is_first else missed_s, found_s)
        former = (effect if effect.is_finer(one) else one for one in self.effects)
        return EffectHistory((*former, effect)[-REMEMBERED:], self.found_first + 1 if is_first else 0)


def first_pauses(own: EffectHistory, model: EffectHistory) -> tuple[float, ...]:
    """Return the seconds between the first readings after an action; empty where too little is known.

    Each remembered time has a reading within `LAG_S`. The times of the model count, too, while those of the host itself
    are few and vary. A host that is not known yet is read half-way, too, as hosts of
    one model may run different systems.

    Args:
        model: the history of the host's model; that of the host again if its model is not known.
    """
    is_known = len(own.effects) >= ENOUGH
    history = own.with_model(model) if is_known else model
    if len(history.effects) < ENOUGH:
        return ()
    times = list(_thinned(list(_times(history))))
    explores = own.found_first % EXPLORES_EVERY == EXPLORES_EVERY - 1
    if times[0] > 2 * LAG_S and (explores or not is_known):
        times = [times[0] / 2, *([times[0] - EXPLORED_S] if explores else ()), *times]
    return tuple(round(time - before, 1) for before, time in zip([0.0, *times], times, strict=False))


def _thinned(times: Sequence[float]) -> Iterator[float]:
    """Leave out times between two others that are not more than `LAG_S` apart."""
    last_s = -LAG_S
    for time, following in zip(times, (*times[1:], float("inf")), strict=True):
        if following - last_s > LAG_S:
            yield (last_s := time)


def _times(history: EffectHistory) -> Iterator[float]:
    """Yield times of readings that show each remembered effect, and those close to it, within `LAG_S`."""
    last_s, is_first = history.earliest_s, True
    for effect in sorted(history.effects, key=lambda one: (one.after_s, one.until_s)):
        pause_s = LAG_S
        while effect.after_s - last_s > GAP_S and not is_first:
            yield (last_s := min(last_s + pause_s, effect.after_s))
            pause_s *= 2
        while is_first or last_s + TOLERANCE_S < effect.until_s:
            yield (last_s := min(last_s + LAG_S, max(effect.until_s, last_s + TOLERANCE_S)))
            is_first = False


class PendingEffect(Struct, frozen=True):
    """An accepted action whose effect was not read yet.

    Args:
        is_repeated: it was sent again, so that nothing can be learned from its effect.
        pauses_s: between the first readings, as known when the action was accepted.
    """

    action: str
    since: float
    missed_s: float = 0.0
    is_repeated: bool = False
    pauses_s: tuple[float, ...] = ()


class ReadTimes:
    """Histories of all hosts of a process, by their names, and of their models."""

    def __init__(self) -> None:
        self._histories: OrderedDict[tuple[str, str], EffectHistory] = OrderedDict()  # by host or model, and action
        self._models: OrderedDict[str, str] = OrderedDict()  # by host
        self._pending: OrderedDict[str, PendingEffect] = OrderedDict()  # by host

    def accepted(self, host: str, action: str, now: float) -> None:
        """Record that the BMC accepted an action."""
        before = self._pending.get(host)
        is_repeated = before is not None and before.action == action
        pauses_s = () if is_repeated else self._pauses_s(host, action)
        _keep(self._pending, host, PendingEffect(action, now, is_repeated=is_repeated, pauses_s=pauses_s))

    def failed(self, host: str) -> None:
        """Record that an action failed, or that its outcome is unknown."""
        self._pending.pop(host, None)

    def read(self, host: str, model: str, action: str, at: float, now: float, *, is_effective: bool) -> None:
        """Record a reading from `at` to `now`, which shows the effect of an action or not.

        Args:
            action: the one that the reader waits for; "" for none.
        """
        _keep(self._models, host, model)
        pending = self._pending.get(host)
        if pending is None or at < pending.since:
            return
        if pending.action != action:
            del self._pending[host]
        elif not is_effective:
            self._pending[host] = replace(pending, missed_s=at - pending.since)
        else:
            del self._pending[host]
            for key in () if pending.is_repeated else self._keys(host, action):
                history = self._histories.get(key, EffectHistory())
                _keep(self._histories, key, history.adding(pending.missed_s, now - pending.since))

    def first_pauses(self, host: str, action: str) -> tuple[float, ...]:
        """Return the seconds between the first readings of a host after an accepted action; empty for any other."""
        pending = self._pending.get(host)
        return () if pending is None or pending.action != action else pending.pauses_s

    def _pauses_s(self, host: str, action: str) -> tuple[float, ...]:
        known = [self._histories.get(key, EffectHistory()) for key in self._keys(host, action)]
        return first_pauses(known[0], known[-1])

    def _keys(self, host: str, action: str) -> Iterator[tuple[str, str]]:
        yield f"host {host}", action
        if model := self._models.get(host):
            yield f"model {model}", action


def _keep(kept: OrderedDict[K, V], key: K, value: V) -> None:
    """Store a value; the one that was stored longest ago gives way."""
    kept[key] = value
    kept.move_to_end(key)
    if len(kept) > REMEMBERED_KEYS:
        kept.popitem(last=False)
