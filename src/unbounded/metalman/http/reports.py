"""Reports of a booted host, as they are posted."""

from __future__ import annotations

import re
from typing import Final

import msgspec

from unbounded.metalman.http.ports import CloudInitEvent, ProgressReport

DISK: Final = re.compile(r"/dev/disk/by-id/[A-Za-z0-9#+.:=@_-]{1,200}")  # it becomes a word of a kernel's command line


def cloud_init_event(body: bytes) -> CloudInitEvent | None:
    """An event of cloud-init's webhook; None for what is none, which is nobody's fault here."""
    try:
        return msgspec.json.decode(body, type=CloudInitEvent, strict=False)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def progress_report(body: bytes) -> ProgressReport:
    """A report of the installer.

    Raises:
        ValueError: it is none; the text says which field is wrong.
    """
    try:
        report = msgspec.json.decode(body, type=ProgressReport)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if report.percent is not None and not 0 <= report.percent <= 100:
        raise ValueError("percent: between 0 and 100 is wanted")
    if report.disk and not DISK.fullmatch(report.disk):
        raise ValueError("disk: a path below /dev/disk/by-id is wanted")
    return report
