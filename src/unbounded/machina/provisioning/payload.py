"""What is sent to a host to begin a run: a tar of what lies in its folder."""

from __future__ import annotations

import io
import re
import tarfile
from typing import Final

from unbounded.join.install import exports
from unbounded.machina.provisioning.commands import script
from unbounded.machina.provisioning.model import Install

WHOLE: Final = "whole"  # the last one: without it something was cut off
_VARIABLE: Final = re.compile(r"[A-Z][A-Z0-9_]*")


def payload(install: Install, *, limit_s: float, more: dict[str, str] | None = None) -> bytes:
    """Args:
        limit_s: after which the host itself stops the script.
        more: further files beside it.
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
    return f"limit={max(1, round(limit_s))}\n{exports(install.environment)}"  # run.sh reads the first line itself
