"""Errors of the API: `Status` objects worded as by kube-apiserver."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, Final

from unbounded_apiserver.schema import FieldError

MEDIA_TYPES: Final = "application/json, application/yaml"
MODIFIED: Final = "the object has been modified; please apply your changes to the latest version and try again"


WARNING_CHARACTERS: Final = 256
WARNINGS_CHARACTERS: Final = 4096
_unprintable: Final = re.compile(r"[\x00-\x1f\x7f]+")
_quotable: Final = re.compile(r'(["\\])')
_BACKSLASHED: Final = r"\\\1"


class StatusError(Exception):
    """An answer other than success."""

    def __init__(
        self,
        code: int,
        reason: str,
        message: str,
        *,
        details: dict[str, Any] | None = None,
        metadata: dict[str, Any] | None = None,
        warnings: Sequence[str] = (),
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.details = details
        self.metadata = metadata or {}
        self.warnings = list(warnings)
        self.retry_after_s = retry_after_s

    def body(self) -> dict[str, Any]:
        status: dict[str, Any] = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": self.metadata,
            "status": "Failure",
            "message": self.message,
        }
        if self.reason:
            status["reason"] = self.reason
        if self.details is not None:
            status["details"] = self.details
        status["code"] = self.code
        return status


def success(group: str, plural: str, name: str, uid: str) -> dict[str, Any]:
    """Return the Status of a completed deletion."""
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Success",
        "details": {**_details(name, group, plural), "uid": uid},
    }


def bad_request(message: str) -> StatusError:
    return StatusError(400, "BadRequest", message)


def unauthorized() -> StatusError:
    return StatusError(401, "Unauthorized", "Unauthorized")


def forbidden(group: str, plural: str, name: str, why: str, causes: Sequence[dict[str, str]] = ()) -> StatusError:
    details = _details(name, group, plural)
    if causes:
        details["causes"] = list(causes)
    subject = f'{qualified(plural, group)} "{name}"' if name else qualified(plural, group)
    return StatusError(403, "Forbidden", f"{subject} is forbidden: {why}", details=details)


def not_found(group: str, plural: str, name: str) -> StatusError:
    message = f'{qualified(plural, group)} "{name}" not found'
    return StatusError(404, "NotFound", message, details=_details(name, group, plural))


def no_such_resource() -> StatusError:
    return StatusError(404, "NotFound", "the server could not find the requested resource", details={})


def method_not_allowed() -> StatusError:
    message = "the server does not allow this method on the requested resource"
    return StatusError(405, "MethodNotAllowed", message, details={})


def not_supported(group: str, plural: str, verb: str) -> StatusError:
    message = f'{verb} is not supported on resources of kind "{qualified(plural, group)}"'
    return StatusError(405, "MethodNotAllowed", message, details=_details("", group, plural))


def not_acceptable() -> StatusError:
    message = f"only the following media types are accepted: {MEDIA_TYPES}"
    return StatusError(406, "NotAcceptable", message)


def already_exists(group: str, plural: str, name: str, *, terminating: bool = False) -> StatusError:
    prefix = "object is being deleted: " if terminating else ""
    message = f'{prefix}{qualified(plural, group)} "{name}" already exists'
    return StatusError(409, "AlreadyExists", message, details=_details(name, group, plural))


def conflict(group: str, plural: str, name: str, why: str = MODIFIED) -> StatusError:
    message = f'Operation cannot be fulfilled on {qualified(plural, group)} "{name}": {why}'
    return StatusError(409, "Conflict", message, details=_details(name, group, plural))


def expired(message: str, *, continue_token: str = "") -> StatusError:
    return StatusError(410, "Expired", message, metadata={"continue": continue_token} if continue_token else {})


def too_large(limit: int) -> StatusError:
    message = f"Request entity too large: limit is {limit}"
    return StatusError(413, "RequestEntityTooLarge", message)


def too_many() -> StatusError:
    message = "Too many requests, please try again later."
    return StatusError(429, "TooManyRequests", message, details={"retryAfterSeconds": 1}, retry_after_s=1)


def unsupported_media(accepted: Iterable[str]) -> StatusError:
    message = f"the body of the request was in an unknown format - accepted media types include: {', '.join(accepted)}"
    return StatusError(415, "UnsupportedMediaType", message)


def invalid(group: str, kind: str, name: str, errors: Sequence[FieldError]) -> StatusError:
    """Return a 422 with a cause for each error; the message contains each of them once."""
    details = _details(name, group, kind)
    details["causes"] = [{"reason": e.reason, "message": e.message, "field": e.field} for e in errors]
    message = list(dict.fromkeys(f"{e.field}: {e.message}" for e in errors))
    what = message[0] if len(message) == 1 else f"[{', '.join(message)}]"
    return StatusError(422, "Invalid", f'{qualified(kind, group)} "{name}" is invalid: {what}', details=details)


def rejected_patch() -> StatusError:
    message = "the server rejected our request due to an error in our request"
    return StatusError(422, "Invalid", message, details={})


def internal(message: str) -> StatusError:
    return StatusError(500, "InternalError", f"Internal error occurred: {message}")


def too_new(requested: int, current: int) -> StatusError:
    """Return a 504: the client has seen a newer revision than this server has."""
    cause = {"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}
    message = f"Timeout: Too large resource version: {requested}, current: {current}"
    details = {"causes": [cause], "retryAfterSeconds": 1}
    return StatusError(504, "Timeout", message, details=details, retry_after_s=1)


def qualified(word: str, group: str) -> str:
    """Return `widgets.example.com`, or `configmaps` of the core group; the same for kinds."""
    return f"{word}.{group}" if group else word


def warning_headers(texts: Iterable[str]) -> list[str]:
    """Return the values of Warning headers (RFC 7234), each text once; long ones are cut as kube-apiserver does.

    Lines and control characters, which a header cannot contain, become spaces.
    """
    shown = list(dict.fromkeys(_unprintable.sub(" ", text) for text in texts))
    if sum(map(len, shown)) > WARNINGS_CHARACTERS:
        cut = (text[:WARNING_CHARACTERS] for text in shown)
        shown = list(dict.fromkeys(cut))[: WARNINGS_CHARACTERS // WARNING_CHARACTERS]
    return [f'299 - "{_quotable.sub(_BACKSLASHED, text)}"' for text in shown]


def _details(name: str, group: str, kind: str) -> dict[str, Any]:
    details: dict[str, Any] = {}
    if name:
        details["name"] = name
    if group:
        details["group"] = group
    if kind:
        details["kind"] = kind
    return details
