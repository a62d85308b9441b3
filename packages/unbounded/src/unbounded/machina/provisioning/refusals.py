"""Causes why a host rejects a command, from its output."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from unbounded.api.conditions import ConditionReason
from unbounded.machina.provisioning.redact import end_of_text, redacted

_R = ConditionReason


class CommandRefusal(NamedTuple):
    """Cause of a rejected command: a message, and the reason of the condition Provisioning."""

    words: str
    reason: ConditionReason = _R.FAILED


_ROWS: Final = (  # patterns of one line
    (
        r"^(?>.*?sudo: ).*(?:password|terminal|tty)",  # atomic, so that a line with many matches is scanned once
        _R.SUDO_REFUSED,
        "sudo asks for a password: let the user run it without one (`USER ALL=(ALL) NOPASSWD: ALL`), or log in as root",
    ),
    (
        r"not in the sudoers|may not run sudo|not allowed to (?:execute|run)",
        _R.SUDO_REFUSED,
        "sudo does not let this user become root: `USER ALL=(ALL) NOPASSWD: ALL` would, or log in as root",
    ),
    (
        r"sudo: (?:command )?not found|unknown command:? *.?sudo",
        _R.SUDO_REFUSED,
        "there is no sudo, and the user is not root",
    ),
    (r"^\w+ is not installed on this host", _R.COMMAND_MISSING, "a program that the install needs is missing"),
    (r"No space left on device|Disk quota exceeded", _R.DISK_FULL, "the disk is full"),
    (r"Read-only file system", _R.FAILED, "the file system is read-only"),
    (r"Cannot allocate memory|fork: (?:retry|Resource)", _R.FAILED, "the host has no memory left"),
    (r"This account is|nologin|not available", _R.FAILED, "the user may not run commands there"),
)
_LAST_BYTES: Final = 300
_READ_BYTES: Final = 16384  # of the output, from its end


def refusal_of(status: int | None, stderr: bytes, stdout: bytes) -> CommandRefusal:
    """Return the cause of a rejected command, with the last output of the host."""
    said = redacted(_end(stderr)).strip() or redacted(_end(stdout)).strip()
    last = end_of_text(said.splitlines()[-1] if said else "", _LAST_BYTES)
    for pattern, reason, words in _ROWS:
        if (found := re.search(pattern, said, re.IGNORECASE | re.MULTILINE)) is not None:
            line = said[said.rfind("\n", 0, found.start()) + 1 :].partition("\n")[0]
            return CommandRefusal(f"{words} ({end_of_text(line, _LAST_BYTES)})", reason)
    if last:
        return CommandRefusal(f"the host says: {last}")
    return CommandRefusal(f"the command ended with status {status}, and said nothing")


def _end(said: bytes) -> str:
    """Return the end without a cut first line, which may begin within a secret, unless it is the only line."""
    last = said[-_READ_BYTES:]
    if len(said) > _READ_BYTES:
        last = last.partition(b"\n")[2] or last
    return last.decode(errors="replace")
