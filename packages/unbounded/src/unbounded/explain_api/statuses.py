"""Errors of the API as Status objects of Kubernetes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from unbounded.explain.chain import SubjectNotFound
from unbounded.kube import api

NO_DETAILS: Final[Mapping[str, Any]] = {}
LONGEST: Final = 2000  # characters of a message


class RequestRejected(Exception):
    """A request that is answered with an error."""

    def __init__(
        self,
        code: int,
        reason: str,
        message: str,
        *,
        retry_after_s: int | None = None,
        details: Mapping[str, Any] = NO_DETAILS,
    ) -> None:
        super().__init__(message)
        self.details = dict(details)
        self.code = code
        self.reason = reason
        self.retry_after_s = retry_after_s


def status_body(rejected: RequestRejected) -> dict[str, Any]:
    """Return the Status object of an error."""
    details = dict(rejected.details)
    if rejected.retry_after_s is not None:
        details["retryAfterSeconds"] = rejected.retry_after_s
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": str(rejected)[:LONGEST],
        "reason": rejected.reason,
        "code": rejected.code,
        **({"details": details} if details else {}),
    }


def bad_request(message: str) -> RequestRejected:
    return RequestRejected(400, "BadRequest", message)


def of_api_error(error: Exception) -> RequestRejected | None:
    """Return the error for what a read by the caller's rights has raised; None for a bug."""
    match error:
        case SubjectNotFound():
            details = {"name": error.name, "kind": "" if error.kind is None else error.kind.plural}
            return RequestRejected(404, "NotFound", str(error), details=details)
        case api.Forbidden() if error.code == 401:
            return RequestRejected(401, "Unauthorized", "the API server does not accept these credentials")
        case api.Forbidden():
            return RequestRejected(403, "Forbidden", str(error))
        case api.NotFound():
            return RequestRejected(404, "NotFound", str(error), details=error.status.get("details") or {})
        case api.InvalidObject():
            return RequestRejected(422, "Invalid", str(error))
        case api.ServerBusy():
            wait_s = max(1, round(error.retry_after_s or 1))
            return RequestRejected(503, "ServiceUnavailable", "the API server is busy", retry_after_s=wait_s)
        case api.ApiError():
            return RequestRejected(502, "BadGateway", "the API server does not answer, or not as expected")
        case _:
            return None
