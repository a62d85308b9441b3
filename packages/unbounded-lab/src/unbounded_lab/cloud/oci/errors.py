"""Errors in the form of the service: a code with its status, and a sentence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

STATUSES: Final[Mapping[str, int]] = {
    "CannotParseRequest": 400,
    "InvalidParameter": 400,
    "MissingParameter": 400,
    "LimitExceeded": 400,
    "QuotaExceeded": 400,
    "RelatedResourceNotAuthorizedOrNotFound": 400,
    "NotAuthenticated": 401,
    "NotAuthorized": 403,
    "NotAuthorizedOrNotFound": 404,
    "NotFound": 404,
    "MethodNotAllowed": 405,
    "Conflict": 409,
    "IncorrectState": 409,
    "InvalidatedRetryToken": 409,
    "NoEtagMatch": 412,
    "TooManyRequests": 429,
    "InternalError": 500,
    "InternalServerError": 500,
    "OutOfHostCapacity": 500,
    "ServiceUnavailable": 503,
}
"""The codes that are answered, from Oracle's table of API errors."""

GATEWAYS: Final[Mapping[str, int]] = {"BadGateway": 502, "GatewayTimeout": 504}
"""Statuses of what stands in front of the service and has no code of its own, by their names in SAID."""

ERRORS: Final[Mapping[str, tuple[str, str]]] = {
    "InvalidParameter": ("InvalidParameter", "The request has an invalid parameter."),
    "MissingParameter": ("MissingParameter", "The request is missing a required parameter."),
    "RelatedResourceNotAuthorizedOrNotFound": (
        "RelatedResourceNotAuthorizedOrNotFound",
        "Authorization failed or related resource not found.",
    ),
    "LimitExceeded": (
        "LimitExceeded",
        "The following service limits were exceeded: standard3-core-count. Request a service limit increase from the "
        "service limits page in the console. ",
    ),
    "QuotaExceeded": ("QuotaExceeded", "The following compartment quotas were exceeded: standard3-core-count."),
    "NotAuthenticated": (
        "NotAuthenticated",
        "The required information to complete authentication was not provided or was incorrect.",
    ),
    "NotAuthorized": ("NotAuthorized", "You are not authorized to perform this request."),
    "NotAuthorizedOrNotFound": (
        "NotAuthorizedOrNotFound",
        "Authorization failed or requested resource not found.",
    ),
    "Conflict": ("Conflict", "The resource is currently being modified, try again later."),
    "IncorrectState": ("IncorrectState", "The requested state for the resource conflicts with its current state."),
    "InvalidatedRetryToken": (
        "InvalidatedRetryToken",
        "The retry token you provided was used in an earlier request that resulted in a system update, but a "
        "subsequent operation has invalidated the token.",
    ),
    "NoEtagMatch": ("NoEtagMatch", "The ETag given in If-Match is not that of the resource."),
    "TooManyRequests": ("TooManyRequests", "Too many requests for the user"),
    "TooManyRequestsOfTenant": ("TooManyRequests", "Too many requests for the tenant"),
    "InternalServerError": ("InternalServerError", "An internal server error occurred."),
    "OutOfHostCapacity": ("OutOfHostCapacity", "Out of host capacity."),
    "InternalErrorOutOfHostCapacity": ("InternalError", "Out of host capacity."),
    "ServiceUnavailable": ("ServiceUnavailable", "The service is currently unavailable."),
    "BadGateway": ("InternalError", "Bad Gateway"),  # turbot/steampipe-plugin-oci#652
    "GatewayTimeout": ("InternalError", "Gateway Timeout"),
}
"""Code and sentence by the names that the fault `errors` takes. InternalError is what LaunchInstance really says when
there is no host (jpetazzo/ampernetacle#54); the table of API errors has OutOfHostCapacity."""

RETRY_LATER: Final = frozenset({"TooManyRequests", "ServiceUnavailable"})
"""Codes that may come with Retry-After."""


class OciProblem(Exception):
    """A request that is answered with an error.

    Args:
        code: a key of STATUSES.
        status: in place of the code's own.
    """

    def __init__(self, code: str, message: str, status: int | None = None) -> None:
        super().__init__(code, message)
        self.code = code
        self.message = message
        self.status = status or STATUSES[code]


def problem_named(name: str) -> OciProblem:
    """Return a problem with the code and message of SAID."""
    return OciProblem(*ERRORS[name], GATEWAYS.get(name))


def not_found() -> OciProblem:
    """Return the error for resources that do not exist, or that the caller may not see."""
    return problem_named("NotAuthorizedOrNotFound")


def invalid(message: str) -> OciProblem:
    return OciProblem("InvalidParameter", message)
