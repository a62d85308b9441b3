"""Failures of downloads, classified by who acts next."""

from __future__ import annotations

from unbounded.api.failures import Rejected, Transient


class Unavailable(Transient):
    """No complete answer, or one that says "later"; `retry_after_s` is the server's, else None."""

    def __init__(self, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class NotPublished(Rejected):
    """There is no such repository, tag, blob or file."""


class Denied(Rejected):
    """The server requires another login, or rejects all."""


class Corrupt(Rejected):
    """The content has another digest or size than expected, more than once."""


class TooLarge(Rejected):
    """A limit is exceeded; the message names the limit."""


class UnusableContent(Rejected):
    """The content is complete and unusable: another format, no such platform, an archive that is not safe."""
