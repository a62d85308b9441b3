"""Detection of bugs that the code under test logs, and that a loop that continues would hide."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager


class _Notes(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.bugs: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            error = record.exc_info[1]
            self.bugs.append(f"{record.getMessage()}: {type(error).__name__}: {error}")


@contextmanager
def noted() -> Iterator[list[str]]:
    """Collect the bugs that are logged; nothing is printed of them, nor of anything less."""
    notes, root = _Notes(), logging.getLogger()
    before, others = root.level, root.handlers[:]
    root.setLevel(logging.ERROR)
    root.handlers[:] = [notes]
    try:
        yield notes.bugs
    finally:
        root.handlers[:] = others
        root.setLevel(before)
