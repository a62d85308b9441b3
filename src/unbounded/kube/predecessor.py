"""The process that led on this machine before, which is known to have ended: its Lease need not expire.

A lock on a file lasts as long as its process. Who gets it knows that the process whose identity stands in the file has
ended, whether it was killed or its container was restarted. The folder is in memory and of this machine alone, as
`/run` is: a folder that machines share would prove nothing.
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
            log.debug("nothing is known of the process before", file=str(self._path), error=repr(error))
            return ""
        return before
