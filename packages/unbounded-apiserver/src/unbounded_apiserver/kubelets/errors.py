"""Errors of kubelets, as kube-apiserver passes them on."""

from __future__ import annotations

from typing import Final

from unbounded_apiserver.status import StatusError, bad_request

_RESOURCE: Final = "pods/log"
_MESSAGES: Final = {
    401: ("Unauthorized", "the server has asked for the client to provide credentials"),
    403: ("Forbidden", ""),
    404: ("NotFound", "the server could not find the requested resource"),
    405: ("MethodNotAllowed", "the server does not allow this method on the requested resource"),
    406: ("NotAcceptable", ""),
    409: ("Conflict", "the server reported a conflict"),
    415: ("UnsupportedMediaType", ""),
    422: ("Invalid", "the server rejected our request due to an error in our request"),
    429: ("TooManyRequests", "the server has received too many requests and has asked us to try again later"),
    503: ("ServiceUnavailable", "the server is currently unable to handle the request"),
    504: (
        "Timeout",
        "the server was unable to return a response in the time allotted, but may still be processing the request",
    ),
}  # without a message of its own: the kubelet's


def log_error(code: int, text: str, pod: str) -> StatusError:
    """Return the client's error for a kubelet's answer to a request for logs."""
    if code == 400:
        return bad_request(text)
    if code == 500:
        message = f"Internal error occurred: {text}"
        return StatusError(500, "InternalError", message, details={"causes": [{"message": text}]})
    reason, message = _MESSAGES.get(code, ("", ""))
    if not reason and code > 500:
        reason, message = (
            "InternalError",
            f'an error on the server ("{text}") has prevented the request from succeeding',
        )
    elif not reason:
        message = f"the server responded with the status code {code} but did not return more information"
    shown = f"{message or text} ( {_RESOURCE} {pod})"
    return StatusError(code, reason, shown, details={"name": pod, "kind": _RESOURCE})
