"""Consent of a user to the loss of data: the question, and the text that the user has to type."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

SHOWN: Final = 20


def typed_consent(machines: Sequence[str]) -> str:
    """Return the text to type: the name of the Machine at risk; of several, their number."""
    return machines[0] if len(machines) == 1 else f"{len(machines)} machines"


def consent_question(machines: Sequence[str], what: str) -> str:
    """Return what happens to the Machines.

    Args:
        what: the effect on them.
    """
    head = f"{typed_consent(machines)}: {what}."
    if len(machines) == 1:
        return head
    more = f" and {len(machines) - SHOWN} more" if len(machines) > SHOWN else ""
    return f"{head}\n  {', '.join(machines[:SHOWN])}{more}"
