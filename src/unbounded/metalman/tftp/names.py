"""The names that clients ask for, made plain."""

from __future__ import annotations

from typing import Final

LONGEST: Final = 400


def plain(name: str) -> str | None:
    """The name without leading, double and back slashes and without `.`; None if it points out of its folder.

    Firmware asks for `/x`, shim for `//x`, and some loaders for `\\x`.
    """
    parts = [part for part in name.replace("\\", "/").split("/") if part not in ("", ".")]
    if not parts or ".." in parts or len(name) > LONGEST or not name.isprintable():
        return None
    return "/".join(parts)
