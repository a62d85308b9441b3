"""Epochs: generations of a process that execute one after the other, so that each knows which of the others have ended.

A line is whatever lets one generation begin only when the one before can no longer act: a Lease, the lock on the data
of `unbounded up`, a parent process that waits for the end of its child. The file lock of a `Predecessor` proves that
the previous process on this machine has ended, so that its Lease need not expire.
"""

from __future__ import annotations

import fcntl
import math
import os
import re
import socket
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from unbounded.api.failures import Stale
from unbounded.kube.clock import loop_time
from unbounded.kube.logs import Log

_NAME: Final = re.compile(r"([A-Za-z0-9-]{1,64})\.([0-9]{1,15})")
SYSTEM: Final = Path("/run/unbounded")
_LONGEST: Final = 256

log = Log("process")


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

    def check_leads(self) -> None:
        """Check that no other process may lead yet: one that does acts on the same objects.

        Raises:
            Stale: the Lease may have expired.
        """
        if loop_time() > self.acts_until():
            raise Stale("the Lease may have expired")

    def has_ended(self, identity: str) -> bool:
        """Return whether another process surely acts no more. Of other lines nothing is known."""
        if self.epoch is None:
            return False
        try:
            other = parse_epoch(identity.partition("_")[0])
        except ValueError:
            return False
        return other.line == self.epoch.line and other.number < self.epoch.number


def runtime_folder(environ: Mapping[str, str]) -> Path:
    """Return where a process keeps what ends with this machine: for users what systemd gives them, else /run."""
    given = environ.get("XDG_RUNTIME_DIR")
    return Path(given) / "unbounded" if given and os.geteuid() != 0 else SYSTEM


class Predecessor:
    """File lock of this process for one Lease, held for as long as the process lives.

    The process that acquires the lock knows that the one whose identity the file holds has ended, by a signal or by a
    restart of its container. The folder is in memory and belongs to this machine alone, as `/run` does: a folder that
    machines share would prove nothing.

    Args:
        name: of the Lease.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self._path = folder / f"{name}.lease"
        self._descriptor: int | None = None

    def succeed(self, identity: str) -> str:
        """Take the place of the process before, and leave this identity for the next one.

        Returns:
            The identity of the one that has ended; empty where nothing is known: there was none, it lives, or the
            folder cannot be used.
        """
        try:
            if self._descriptor is None:
                self._path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
                descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._descriptor = descriptor
            before = os.pread(self._descriptor, _LONGEST, 0).decode(errors="replace")
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, identity.encode(), 0)
        except OSError as error:
            log.debug("no record of the predecessor process", file=str(self._path), error=repr(error))
            return ""
        return before
