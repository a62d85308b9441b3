"""Upload that begins a run: a tar of the files in the run's folder."""

from __future__ import annotations

import io
import re
import tarfile
from typing import Final

from unbounded.join.install import exports
from unbounded.machina.provisioning.commands import script
from unbounded.machina.provisioning.model import Install

WHOLE: Final = "whole"  # the last file: a tar without it is incomplete
_VARIABLE: Final = re.compile(r"[A-Z][A-Z0-9_]*")


def payload(install: Install, *, limit_s: float, more: dict[str, str] | None = None) -> bytes:
    """Build the upload.

    Args:
        limit_s: time after which the host itself stops the script.
        more: further files of the folder.
    Raises:
        ValueError: a variable cannot be set in a shell.
    """
    files = {
        "config.json": install.config.reveal(),
        "environment": _environment(install, limit_s),
        "install.sh": install.script,
        "run.sh": script("run.sh"),
        **(more or {}),
        WHOLE: "",
    }
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, text in files.items():
            content = text.encode()
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), 0o600
            tar.addfile(entry, io.BytesIO(content))
    return out.getvalue()


def _environment(install: Install, limit_s: float) -> str:
    for name, value in install.environment.items():
        if not _VARIABLE.fullmatch(name) or "\0" in value:
            raise ValueError(f"{name!r} cannot be set for the install script")
    return f"limit={max(1, round(limit_s))}\n{exports(install.environment)}"  # run.sh parses the first line itself
