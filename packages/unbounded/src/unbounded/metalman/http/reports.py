"""Parsers of the reports that a booted host posts."""

from __future__ import annotations

import re
from typing import Final

import msgspec

from unbounded.metalman.http.ports import CloudInitEvent, ProgressReport

# the path becomes a word of a kernel's command line
DISK: Final = re.compile(r"/dev/disk/by-id/[A-Za-z0-9#+.:=@_-]{1,200}")


def cloud_init_event(body: bytes) -> CloudInitEvent | None:
    """Parse an event of cloud-init's webhook; None for other content, which the host cannot correct."""
    try:
        return msgspec.json.decode(body, type=CloudInitEvent, strict=False)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def progress_report(body: bytes) -> ProgressReport:
    """Parse a report of the installer.

    Raises:
        ValueError: the content is not a report; the message names the wrong field.
    """
    try:
        report = msgspec.json.decode(body, type=ProgressReport)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if report.percent is not None and not 0 <= report.percent <= 100:
        raise ValueError("percent: must be between 0 and 100")
    if report.disk and not DISK.fullmatch(report.disk):
        raise ValueError("disk: must be a path below /dev/disk/by-id")
    return report
