"""Run a command; print its wall time, and the CPU of it and all its descendants, as a line of JSON.

`python -m benchmarks.ssh_peer COMMAND…`. Detached descendants, such as ansible's persistent connections, count too:
this process adopts them, ends them after the command, and waits.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

PR_SET_CHILD_SUBREAPER: Final = 36


def main(command: list[str]) -> int:
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")
    began = time.monotonic()
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=sys.stderr)
    cpu_s, status, wall_s = 0.0, 0, 0.0
    while True:
        try:
            pid, ended, used = os.wait4(-1, 0)
        except ChildProcessError:
            break
        cpu_s += used.ru_utime + used.ru_stime
        if pid == process.pid:
            wall_s, status = time.monotonic() - began, os.waitstatus_to_exitcode(ended)
            process.returncode = status
        if wall_s:
            for left in _children():
                with suppress(ProcessLookupError):
                    os.kill(left, signal.SIGTERM)
    print(msgspec.json.encode({"status": status, "wall_s": wall_s, "cpu_s": cpu_s}).decode(), flush=True)
    return 0


def _children() -> list[int]:
    return [int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
