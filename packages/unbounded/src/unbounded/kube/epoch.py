"""Epochs: generations of a process that execute one after the other, so that each knows which of the others have ended.

A line is whatever lets one generation begin only when the one before can no longer act: a Lease, the lock on the data
of `unbounded up`, a parent process that waits for the end of its child.
"""

from __future__ import annotations

import math
import re
import socket
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

_NAME: Final = re.compile(r"([A-Za-z0-9-]{1,64})\.([0-9]{1,15})")


def _unbounded() -> float:
    return math.inf


def new_identity() -> str:
    """Return a name that no process has had."""
    return f"{socket.gethostname()}_{uuid.uuid4()}"


@dataclass(frozen=True)
class Epoch:
    """One generation.

    Args:
        line: names the line, and no other one, ever: the UID of a Lease, an id in the data folder.
        number: grows with each generation of the line.
    """

    line: str
    number: int

    def __str__(self) -> str:
        return f"{self.line}.{self.number}"


def parse_epoch(text: str) -> Epoch:
    """Parse LINE.NUMBER.

    Raises:
        ValueError: the text has another form.
    """
    found = _NAME.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is not an epoch: write LINE.NUMBER")
    return Epoch(found[1], int(found[2]))


@dataclass(frozen=True)
class ProcessEpoch:
    """The epoch of a running process, as it records it and as it is fenced by it.

    Args:
        epoch: its place in a line; None where nothing is known of other generations.
        acts_until: returns the time of the event loop until which the process may act, such as the time until which
            its Lease is surely its own.
    """

    epoch: Epoch | None = None
    acts_until: Callable[[], float] = _unbounded
    unique: str = field(default_factory=new_identity)

    @property
    def identity(self) -> str:
        """The name that no other process has, in this epoch or another."""
        return self.unique if self.epoch is None else f"{self.epoch}_{self.unique}"

    def has_ended(self, identity: str) -> bool:
        """Return whether another process surely acts no more. Of other lines nothing is known."""
        if self.epoch is None:
            return False
        try:
            other = parse_epoch(identity.partition("_")[0])
        except ValueError:
            return False
        return other.line == self.epoch.line and other.number < self.epoch.number
