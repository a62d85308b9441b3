"""Exponential back-off with jitter, so that those who failed together do not come back together."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Backoff:
    """Exponential backoff: the pause doubles from `base_s` up to `max_s`, and its second half is random."""

    base_s: float
    max_s: float
    uniform: Callable[[float, float], float] = field(default=random.uniform, compare=False, repr=False)

    def after(self, failures: int) -> float:
        """Seconds to wait; `failures` counts from 1."""
        full_s = min(self.max_s, self.base_s * 2.0 ** min(failures - 1, 60))
        return full_s * self.uniform(0.5, 1.0)
