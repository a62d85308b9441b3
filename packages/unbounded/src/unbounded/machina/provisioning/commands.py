"""Command lines for hosts. Every user of a host can read them, so secrets go by stdin."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from typing import Final

_NAME: Final = re.compile(r"[0-9A-Za-z][0-9A-Za-z-]{0,63}")
_NOT_TAKEN: Final = frozenset("'\\!")
_AS_ROOT: Final = (
    "LC_ALL=C; export LC_ALL; code=$1; shift; "
    '[ "$(id -u)" = 0 ] && exec sh -c "$code" sh "$@"; exec sudo -n -- sh -c "$code" sh "$@"'
)


@cache
def script(name: str) -> str:
    """Read a file of scripts/."""
    return (files(__package__) / "scripts" / name).read_text()


def command(name: str, *words: str) -> str:
    """Build the line that runs a script as root under any login shell.

    Args:
        words: arguments of the script, which need no quotes.
    Raises:
        ValueError: an argument needs quotes.
    """
    if wrong := [word for word in words if not _NAME.fullmatch(word)]:
        raise ValueError(f"{wrong[0]!r} is not allowed in a command")
    return " ".join(("exec sh -c", f"'{_AS_ROOT}'", "sh", f"'{_code(name)}'", *words))


@cache
def _code(name: str) -> str:
    lines = (line.strip() for line in (script("common.sh") + script(name)).splitlines())
    code = " ".join(line for line in lines if line and not line.startswith("#"))
    if wrong := _NOT_TAKEN & set(code):
        raise ValueError(f"{name}: {''.join(sorted(wrong))} differs between shells")
    return code
