"""Foreign text in one line, each character of which is seen."""

from __future__ import annotations

import json


def visible_text(text: str, keep: str = "") -> str:
    """Escape what a reader cannot see, as JSON has it: line ends, other controls, and marks that set a direction.

    Args:
        keep: characters that stay as they are.
    """
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() or one in keep else json.dumps(one)[1:-1] for one in text)
