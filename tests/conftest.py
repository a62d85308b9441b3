"""How many examples property tests try: as many as `make test` has time for, fewer in `make quick`, more in a soak."""

from __future__ import annotations

from typing import Final

from hypothesis import settings

EXAMPLES: Final = {"quick": 40, "test": 200, "soak": 2000}

for name, count in EXAMPLES.items():
    settings.register_profile(name, settings(), max_examples=count, deadline=None)
settings.load_profile("test")
