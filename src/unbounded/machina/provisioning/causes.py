"""Why an install on a host failed, as a reason: what its programs say of it, and what the system says to them."""

from __future__ import annotations

import re
from typing import Final

from unbounded.api.conditions import ON_HOST, ConditionReason
from unbounded.machina.provisioning.progress import CAUSE

_SAID: Final = re.compile(rf"^{CAUSE}(\w+)$", re.MULTILINE)  # install.sh and the agent say it
_SYSTEM: Final = (  # words of the C library, which programs that are not ours pass on
    (re.compile(r"No space left on device|Disk quota exceeded"), ConditionReason.DISK_FULL),
)
_LAST_LINES: Final = 20


def cause_of(tail: str) -> ConditionReason:
    """Return the reason, from the end of what the install said; Failed where nothing says more."""
    last = "\n".join(tail.splitlines()[-_LAST_LINES:])
    said = [code for code in _SAID.findall(last) if code in ON_HOST]
    if said:
        return ConditionReason(said[-1])
    return next((reason for pattern, reason in _SYSTEM if pattern.search(last)), ConditionReason.FAILED)
