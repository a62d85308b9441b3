"""Reasons of failed installs, from the output of our programs and from messages of the system."""

from __future__ import annotations

import re
from typing import Final

from unbounded.api.conditions import ON_HOST, ConditionReason
from unbounded.machina.provisioning.progress import CAUSE

_CAUSE_LINE: Final = re.compile(rf"^{CAUSE}(\w+)$", re.MULTILINE)  # lines of install.sh and of the agent
_SYSTEM: Final = (  # messages of the C library that other programs pass on
    (re.compile(r"No space left on device|Disk quota exceeded"), ConditionReason.DISK_FULL),
)
_LAST_LINES: Final = 20


def cause_of(tail: str) -> ConditionReason:
    """Return the reason that the end of the install's output names, or Failed."""
    last = "\n".join(tail.splitlines()[-_LAST_LINES:])
    said = [code for code in _CAUSE_LINE.findall(last) if code in ON_HOST]
    if said:
        return ConditionReason(said[-1])
    return next((reason for pattern, reason in _SYSTEM if pattern.search(last)), ConditionReason.FAILED)
