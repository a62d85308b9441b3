"""Normalization of requested file names."""

from __future__ import annotations

from typing import Final

LONGEST: Final = 400


def normalized_name(name: str) -> str | None:
    r"""Return the name without leading, double and back slashes and without `.`; None if it points out of its folder.

    Firmware requests `/x`, shim `//x`, and some loaders `\x`.
    """
    parts = [part for part in name.replace("\\", "/").split("/") if part not in ("", ".")]
    if not parts or ".." in parts or len(name) > LONGEST or not name.isprintable():
        return None
    return "/".join(parts)
