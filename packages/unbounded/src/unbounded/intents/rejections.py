"""Rejection of a request before anything is written."""

from __future__ import annotations

from unbounded.api.failures import Rejected


class IntentRejected(Rejected):
    """A request that would be rejected, or that nothing can carry out.

    Args:
        next_step: what the user can do, such as a command; empty where nothing is known.
        is_usage: the request itself is wrong, whatever the objects are.
    """

    def __init__(self, text: str, *, next_step: str = "", is_usage: bool = False) -> None:
        super().__init__(text)
        self.next_step, self.is_usage = next_step, is_usage
