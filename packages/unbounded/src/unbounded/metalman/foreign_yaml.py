"""Parser of YAML that others wrote: in images, and in the ConfigMaps of Machines."""

from __future__ import annotations

from typing import Any, Final

import yaml

DEEPEST: Final = 32  # levels of collections


def load_foreign(content: bytes) -> Any:
    """Return the value of a YAML text.

    Raises:
        ValueError: it is no YAML, or nests more than 32 levels.
    """
    try:
        deep = _is_deep(content)
        body = None if deep else yaml.load(content, Loader=yaml.CSafeLoader)  # C implementation of the safe loader
    except (yaml.YAMLError, ValueError) as error:  # ValueError: an impossible date, for example
        raise ValueError(f"not YAML: {' '.join(str(error).split())[:300]}") from error
    if deep:
        raise ValueError(f"nested more than {DEEPEST} deep")
    return body


def _is_deep(content: bytes) -> bool:
    """Return whether collections nest too deeply: 30 KB of brackets end the process in libyaml."""
    depth = 0
    for event in yaml.parse(content, Loader=yaml.CSafeLoader):
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > DEEPEST:
            return True
    return False
