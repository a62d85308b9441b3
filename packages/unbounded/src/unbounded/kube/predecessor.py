"""Proof that the process that led on this machine before has ended, so that its Lease need not expire.

A file lock lasts as long as its process. The process that acquires it knows that the one whose identity the file holds
has ended, whether by a signal or by a restart of its container. The folder is in memory and belongs to this machine
alone, as `/run` does: a folder that machines share would prove nothing.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from unbounded.kube.logs import Log

SYSTEM: Final = Path("/run/unbounded")
_LONGEST: Final = 256

log = Log("process")


def runtime_folder(environ: Mapping[str, str]) -> Path:
    """Return where a process keeps what ends with this machine: for users what systemd gives them, else /run."""
    given = environ.get("XDG_RUNTIME_DIR")
    return Path(given) / "unbounded" if given and os.geteuid() != 0 else SYSTEM


class Predecessor:
    """Held for as long as the process lives; one object for each Lease.

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
