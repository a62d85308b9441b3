"""Writes that the API server refuses now, for the status of the object that they are for, or an Event on it.

The controller that writes retries after backoff. `RefusedWrites` has those for Machines of cluster.k8s.io from all
controllers of a leadership term: the Machine's status names the refusal until a write is accepted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from unbounded.kube.api import ApiError, ObjectKey, is_refusal, key_of, refused_by
from unbounded.kube.events import AnyEventSink, EventSubject
from unbounded.kube.logs import Log

MAX_ANSWER: Final = 512  # characters of an answer in a status
WRITE_REFUSED: Final = "WriteRefused"  # reason of Events

log = Log("refused")


@dataclass(frozen=True)
class RefusedWrite:
    """A write that the server refuses.

    Args:
        what: the write, as a verb with its object: `claim BareMetalHost default/master-0`.
        by: what refuses it: a webhook, a policy or the API server.
    """

    what: str
    by: str
    answer: str

    @property
    def text(self) -> str:
        return f"cannot {self.what}: {self.answer}"

    @property
    def with_holder(self) -> str:
        """The text for places without a field for the holder."""
        return f"{self.by} refuses a write: {self.text}"


def refused_write(what: str, error: ApiError) -> RefusedWrite:
    """Return the refusal of a write, with an answer of limited length."""
    return RefusedWrite(what, refused_by(error), str(error)[:MAX_ANSWER])


@dataclass
class WriteAttempt:
    """The write that a controller tries for an object; it names each write before it."""

    what: str = "write"


class RefusedWrites:
    """The refused writes by Machine and by the controller that makes them."""

    def __init__(self) -> None:
        self._found: dict[ObjectKey, dict[str, RefusedWrite]] = {}
        self._notify: list[Callable[[ObjectKey], None]] = []

    def subscribe(self, notify: Callable[[ObjectKey], None]) -> None:
        """Call `notify` with the key of a Machine, one of whose writes is refused or accepted from now on."""
        self._notify.append(notify)

    def of(self, machine: ObjectKey) -> RefusedWrite | None:
        """Return the first write for a Machine that is refused; None for none."""
        return next(iter(self._found.get(machine, {}).values()), None)

    def forget(self, machine: ObjectKey, writer: str = "") -> None:
        """Forget the refused writes of a controller for a Machine; without one, all for a Machine that is gone."""
        known = self._found.get(machine)
        if known is None:
            return
        is_known = not writer or known.pop(writer, None) is not None
        if not writer or not known:
            del self._found[machine]
        if is_known:
            self._changed(machine)

    @contextmanager
    def recorded(self, machine: ObjectKey, writer: str) -> Iterator[WriteAttempt]:
        """Record the refusal of a write by a controller, until one of its passes for the Machine succeeds.

        The first answer stays, as another text would be a change of the status, which ends the backoff.
        """
        attempt, known = WriteAttempt(), self._found.get(machine, {}).get(writer)
        try:
            yield attempt
        except ApiError as error:
            found = refused_write(attempt.what, error)
            if is_refusal(error) and (known is None or (known.what, known.by) != (found.what, found.by)):
                log.warning("write refused", error=error, machine=str(machine), what=attempt.what, by=found.by)
                self._found.setdefault(machine, {})[writer] = found
                self._changed(machine)
            raise
        if known is not None:
            self.forget(machine, writer)

    def _changed(self, machine: ObjectKey) -> None:
        for notify in self._notify:
            notify(machine)


class RefusalEvents:
    """Events on objects of one kind, about refused writes that their status cannot show."""

    def __init__(self, emit: AnyEventSink) -> None:
        self._emit = emit
        self._first: dict[ObjectKey, RefusedWrite] = {}

    @contextmanager
    def recorded(self, item: EventSubject, what: str) -> Iterator[WriteAttempt]:
        """Create an Event for a write that is refused.

        Args:
            what: the write, as a verb with its object, until the attempt names another one.
        """
        attempt = WriteAttempt(what)
        try:
            yield attempt
        except ApiError as error:
            if is_refusal(error):
                self.record(item, attempt.what, error)
            raise
        self.forget(key_of(item))

    def record(self, item: EventSubject, what: str, error: ApiError) -> None:
        """Create an Event for a refusal, with the first answer of who refuses the write: equal Events are counted."""
        found, first = refused_write(what, error), self._first.get(key_of(item))
        if first is None or (first.what, first.by) != (found.what, found.by):
            self._first[key_of(item)] = first = found
        self._emit(item, "Warning", WRITE_REFUSED, first.with_holder)

    def forget(self, item: ObjectKey) -> None:
        """Forget the refusal for an object that is gone, or was written."""
        self._first.pop(item, None)
