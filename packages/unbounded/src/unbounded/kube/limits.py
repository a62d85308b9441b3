"""Limits that the operating system sets for this process."""

from __future__ import annotations

import resource


def open_files(desired: int) -> int:
    """Raise the limit of open files up to `desired`, and return the limit; at most `desired`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= desired:
        return desired
    allowed = desired if hard == resource.RLIM_INFINITY else min(desired, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(allowed, soft), hard))
    return max(allowed, soft)
