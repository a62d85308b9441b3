"""The epochs of what `unbounded up` runs: the lock on its data lets one start begin only when that before has ended."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

from unbounded.kube.durable import write_durably
from unbounded.kube.epoch import Epoch, parse_epoch


class EpochFile:
    """The last epoch, in a file of the data folder. Used by one process, which holds the lock on that folder."""

    def __init__(self, data: Path) -> None:
        self._file = data / "epoch"

    def next(self) -> Epoch:
        """Return an epoch after all that were given out before; a file that cannot be read begins another line."""
        try:
            last = parse_epoch(self._file.read_text().strip())
        except (OSError, ValueError):
            last = Epoch(uuid4().hex, 0)
        epoch = Epoch(last.line, last.number + 1)
        write_durably(self._file, f"{epoch}\n".encode())
        return epoch
