"""A process with selectable faults, for tests of watchers."""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from collections.abc import Sequence


def main(arguments: Sequence[str]) -> int:
    how, *_, told = arguments
    match how:
        case "refuses":
            print("machine-ops-controller: error: provider Acme lacks what it needs", file=sys.stderr)
            return 2
        case "raises":
            logging.basicConfig()
            logging.error("what it says in its log before that")
            raise ExceptionGroup("of its tasks", [ValueError("no such zone: eu-9")])
        case "exits":
            raise SystemExit("this cannot be meant: --site")
    for _ in range(3):
        os.write(int(told), b".")
        time.sleep(0.02)
    if how in ("starts", "serves"):
        for _ in range(10):
            os.write(int(told), b"+" if how == "serves" else b".")
            time.sleep(0.1)
    if how == "stops":
        os.kill(os.getpid(), signal.SIGSTOP)
    while how == "loops":
        pass
    return 0
