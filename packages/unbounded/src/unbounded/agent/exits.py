"""Exit statuses that several commands share. This module imports nothing, so that `version` answers at once."""

from __future__ import annotations

from typing import Final

INTERRUPTED: Final = 130  # by a signal
