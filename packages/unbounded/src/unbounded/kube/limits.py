"""Limits that the operating system sets for this process."""

from __future__ import annotations

import resource


def open_files(wanted: int) -> int:
    """Raise the limit of open files up to `wanted`, and return the limit; at most `wanted`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return wanted
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(allowed, soft), hard))
    return max(allowed, soft)
