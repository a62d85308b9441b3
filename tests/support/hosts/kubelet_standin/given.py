"""Settings of the stand-in's behaviour, from the mirror of artifacts or a file on the host."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

VERSION = "0.0.0"  # the mirror of artifacts fills this in
DIALS = ""
DIALS_FILE = Path("/etc/kubelet-standin")


def say(text: str) -> None:
    print(f"kubelet-standin: {text}", file=sys.stderr, flush=True)


def dials() -> set[str]:
    text = DIALS + " " + (DIALS_FILE.read_text() if DIALS_FILE.exists() else "")
    parts = (part.partition("@") for part in text.replace(",", " ").split())
    return {dial for dial, _, host in parts if host in ("", socket.gethostname())}
