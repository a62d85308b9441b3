"""A child process that loads a disk, as a database or a build beside the server does.

`python -m benchmarks.foreign_writer FOLDER` writes and syncs 32 MiB in a loop, in one file of at most 256 MiB. It is
ready after the first sync, and ends with its input.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from typing import Final

PART: Final = os.urandom(2**20)
PARTS: Final = 32
FILE_BYTES: Final = 256 * 2**20


def write_on(path: Path, started: threading.Event) -> None:
    """Write until the process ends."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
    while True:
        for _ in range(PARTS):
            os.write(descriptor, PART)
        os.fsync(descriptor)
        started.set()
        if os.fstat(descriptor).st_size >= FILE_BYTES:
            os.ftruncate(descriptor, 0)
            os.lseek(descriptor, 0, os.SEEK_SET)


def main(folder: Path) -> None:
    started = threading.Event()
    threading.Thread(target=write_on, args=(folder / f"foreign-{os.getpid()}", started), daemon=True).start()
    started.wait()
    sys.stdout.buffer.write(b"{}\n")
    sys.stdout.buffer.flush()
    sys.stdin.buffer.read()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
