"""What can come of fetching, sorted by who acts next."""

from __future__ import annotations

from unbounded.api.failures import Rejected, Transient


class Unavailable(Transient):
    """No whole answer, or one that says "later"; `retry_after_s` as the server said, else None."""

    def __init__(self, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class Missing(Rejected):
    """There is no such repository, tag, blob or file."""


class Denied(Rejected):
    """The server wants another login, or none will do."""


class Corrupt(Rejected):
    """What came has another digest or size than was asked for, more than once."""


class TooLarge(Rejected):
    """More than a limit allows; the message names the limit."""


class Unusable(Rejected):
    """It came whole and is nothing that can be used: another format, no such platform, an archive that is not safe."""
