"""Exit statuses that more than one part of the program gives. It imports nothing: `version` has to be quick."""

from __future__ import annotations

from typing import Final

INTERRUPTED: Final = 130  # by a signal
