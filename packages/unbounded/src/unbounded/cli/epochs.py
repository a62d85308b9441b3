"""Process epochs of `unbounded up`: the lock on the data directory lets a start begin only after the one before has
ended.
"""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

from unbounded.kube.durable import write_durably
from unbounded.kube.epoch import Epoch, parse_epoch


class EpochFile:
    """The last epoch, in a file of the data directory. Only the process with the lock on the directory uses it."""

    def __init__(self, data: Path) -> None:
        self._file = data / "epoch"

    def next(self) -> Epoch:
        """Return an epoch later than all before it. A file that cannot be read starts a new line of epochs."""
        try:
            last = parse_epoch(self._file.read_text().strip())
        except (OSError, ValueError):
            last = Epoch(uuid4().hex, 0)
        epoch = Epoch(last.line, last.number + 1)
        write_durably(self._file, f"{epoch}\n".encode())
        return epoch
