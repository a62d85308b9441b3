"""Owners of bootstrap tokens, by the groups that the API server has received."""

from __future__ import annotations

from collections.abc import Sequence

from unbounded.join.bootstrap_tokens import machine_group


def machine_of(groups: Sequence[str]) -> str | None:
    """The UID of the Machine that a token with these groups was made for; None for none, or for more than one."""
    prefix = machine_group("")
    found = [group.removeprefix(prefix) for group in groups if group.startswith(prefix)]
    return found[0] if len(found) == 1 else None
