"""Errors of the API as Status objects of Kubernetes."""

from __future__ import annotations

from typing import Any, Final

from unbounded.explain.chain import SubjectNotFound
from unbounded.kube import api

LONGEST: Final = 2000  # characters of a message


class RequestRejected(Exception):
    """A request that is answered with an error."""

    def __init__(self, code: int, reason: str, message: str, *, retry_after_s: int | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.retry_after_s = retry_after_s


def status_body(rejected: RequestRejected) -> dict[str, Any]:
    """Return the Status object of an error."""
    details = {} if rejected.retry_after_s is None else {"details": {"retryAfterSeconds": rejected.retry_after_s}}
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": str(rejected)[:LONGEST],
        "reason": rejected.reason,
        "code": rejected.code,
        **details,
    }


def bad_request(message: str) -> RequestRejected:
    return RequestRejected(400, "BadRequest", message)


def of_api_error(error: Exception) -> RequestRejected | None:
    """Return the error for what a read by the caller's rights has raised; None for a bug."""
    match error:
        case SubjectNotFound():
            return RequestRejected(404, "NotFound", str(error))
        case api.Forbidden() if error.code == 401:
            return RequestRejected(401, "Unauthorized", "the API server does not accept these credentials")
        case api.Forbidden():
            return RequestRejected(403, "Forbidden", str(error))
        case api.NotFound():
            return RequestRejected(404, "NotFound", str(error))
        case api.InvalidObject():
            return RequestRejected(422, "Invalid", str(error))
        case api.ServerBusy():
            wait_s = max(1, round(error.retry_after_s or 1))
            return RequestRejected(503, "ServiceUnavailable", "the API server is busy", retry_after_s=wait_s)
        case api.ApiError():
            return RequestRejected(502, "BadGateway", "the API server does not answer, or not as expected")
        case _:
            return None
