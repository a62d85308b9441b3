"""A file of a slot, and the escaping of words in unit files."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class SlotFile:
    """A file that is written into a slot, with its full mode."""

    path: str
    content: bytes
    mode: int = 0o644


def unit_word(text: str) -> str:
    """Return the text as one word of a unit file (systemd.syntax(7), systemd.unit(5))."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{escaped}"'
