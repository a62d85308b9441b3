"""Errors of the API server: which of them refuse a write, and what refuses it."""

from __future__ import annotations

import json

import pytest

from unbounded.kube.api import ServerUnreachable, is_refusal, refused_by
from unbounded.kube.object_codec import error_from

CALL = 'Post "https://guard.example.svc:443/?timeout=10s": dial tcp 10.96.0.9:443: connect: connection refused'


@pytest.mark.parametrize(
    ("code", "reason", "message", "by"),
    [
        (403, "Forbidden", 'nodes "m1" is forbidden: User "u" cannot delete resource "nodes"', "the API server"),
        (422, "Invalid", 'Machine "m1" is invalid: spec.pxe: Required value', "the API server"),
        (400, "BadRequest", "the body is no JSON", "the API server"),
        (
            422,
            "Invalid",
            "widgets.example.com \"v\" is forbidden: ValidatingAdmissionPolicy 'size.example.com' with binding 'b' "
            "denied request: size must be below 50",
            "ValidatingAdmissionPolicy size.example.com",
        ),
        (403, "", 'admission webhook "w.example" denied the request: no', "admission webhook w.example"),
        (
            409,
            "Conflict",
            'admission webhook "w.example" denied the request: no',
            "admission webhook w.example",
        ),
        (500, "", 'admission webhook "w.example" denied the request: oops', "admission webhook w.example"),
        (
            500,
            "InternalError",
            f'Internal error occurred: failed calling webhook "w.example": failed to call webhook: {CALL}',
            "admission webhook w.example",
        ),
        (401, "Unauthorized", "Unauthorized", None),
        (404, "NotFound", 'nodes "m1" not found', None),
        (409, "Conflict", "the object has been modified", None),
        (409, "AlreadyExists", 'machineoperations "m1" already exists', None),
        (408, "Timeout", "the request took too long", None),
        (429, "TooManyRequests", "too many requests", None),
        (503, "ServiceUnavailable", "the server is shutting down", None),
        (500, "InternalError", "Internal error occurred: etcdserver: request timed out", None),
    ],
)
def test_a_refusal_is_told_from_an_error_that_passes(code: int, reason: str, message: str, by: str | None) -> None:
    status = {"kind": "Status", "code": code, "reason": reason, "message": message}
    error = error_from(json.dumps(status).encode(), code=code, writing=True)
    assert is_refusal(error) is (by is not None)
    assert by is None or refused_by(error) == by


def test_a_server_that_does_not_answer_refuses_nothing() -> None:
    assert not is_refusal(ServerUnreachable("connection refused"))
