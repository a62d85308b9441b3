"""Writes for a Machine of cluster.k8s.io that the API server refuses now, from all controllers of a leadership term.

The controller that writes retries after backoff. The Machine's status names the refusal until a write is accepted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from unbounded.kube.api import ApiError, ObjectKey, is_refusal, refused_by
from unbounded.kube.logs import Log

MAX_ANSWER: Final = 512  # characters of an answer in a status

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


class WriteAttempt:
    """The write that a controller tries for a Machine; it names each write before it."""

    what = "write"


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
