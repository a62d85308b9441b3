"""Keys of ConfigMap unbounded-kube/unbounded-components, which `unbounded up` writes for its controllers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from unbounded.operations.executor_selection import Unavailability

COMPONENTS: Final = "unbounded-components"
ABSENT: Final = "not-served."  # prefix of the keys of providers
STARTING: Final = "starting."  # prefix for a state that passes in a moment


def absent_in(data: Mapping[str, str]) -> dict[str, Unavailability]:
    """Return why providers are not served, by their names."""
    return {
        key.removeprefix(prefix): Unavailability(why, is_problem=prefix == ABSENT)
        for prefix in (STARTING, ABSENT)
        for key, why in data.items()
        if key.startswith(prefix)
    }
