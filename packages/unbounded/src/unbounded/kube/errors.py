"""Errors of a Kubernetes API, as failures that name who acts next."""

from __future__ import annotations

from typing import Any, Final

from unbounded.api.failures import Failure, Rejected, Stale, Transient, Uncertain

READ_FORBIDDEN: Final = "may not be read"  # the words of components that lack a right


class ApiError(Failure):
    """An answer of the API server that is not success: its status code, its reason, and the whole Status object."""

    def __init__(self, message: str, *, code: int = 0, reason: str = "", status: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.status = status or {}


class NotFound(ApiError, Rejected):
    """404: no such object (or no such resource)."""


class AlreadyExists(ApiError, Rejected):
    """409 AlreadyExists."""


class Conflict(ApiError, Stale):
    """409 Conflict: the object has changed since it was read, or a precondition does not hold."""


class Expired(ApiError, Stale):
    """410: the watch or the page starts before what the server still remembers; list again."""


class InvalidObject(ApiError, Rejected):
    """422 (and 400): the object is not valid; the message names the fields."""


class Forbidden(ApiError, Rejected):
    """403, or 401: these credentials may not do that."""


class ServerBusy(ApiError, Transient):
    """429, or 503: the server did nothing; `retry_after_s` is its Retry-After, or None."""

    retry_after_s: float | None = None


class ServerError(ApiError, Uncertain):
    """Another 5xx: a write may have been done."""


class ServerUnreachable(ApiError, Transient):
    """The request did not reach the server."""


class ResponseLost(ApiError, Uncertain):
    """The request was sent and no whole answer came."""


class ReadFailed(ApiError, Transient):
    """A read, or a watch, got no whole answer; nothing can have changed by it."""
