"""Signatures of cluster-info: those that kube-controller-manager makes, and no others."""

from __future__ import annotations

import base64
import json
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unbounded.kube.cluster_info import BadSignature, signed, verify

# Signatures of kube-controller-manager 1.36.2 (bootstrap-signer-controller) for this text and two tokens.
TEXT: Final = (
    'apiVersion: v1\nkind: Config\nclusters:\n- name: ""\n  cluster:\n    server: https://10.0.0.1:6443\n'
    "    certificate-authority-data: LS0t\n"
)
RECORDED: Final = [
    (
        "abcdef",
        "0123456789abcdef",
        "eyJhbGciOiJIUzI1NiIsImtpZCI6ImFiY2RlZiJ9..j2b0ivqUV7YNx5vOPVtQIhpYUOSXm05mNUqDaSUs_2Y",
    ),
    (
        "aaaaaa",
        "zzzzzzzzzzzzzzzz",
        "eyJhbGciOiJIUzI1NiIsImtpZCI6ImFhYWFhYSJ9..lbwLJbr32cwDuRVR2kQ3Jy_ReucVyOu7XIBEVDh_SPo",
    ),
]


@pytest.mark.parametrize(("token_id", "secret", "jws"), RECORDED)
def test_signatures_are_those_of_kube_controller_manager(token_id: str, secret: str, jws: str) -> None:
    assert signed(TEXT, token_id, secret) == jws
    verify(TEXT, jws, token_id, secret)


def header(**said: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(said).encode()).decode().rstrip("=")


JWS: Final = RECORDED[0][2]
MAC: Final = JWS.rpartition(".")[2]


@pytest.mark.parametrize(
    ("text", "jws", "token_id", "secret"),
    [
        (TEXT + " ", JWS, "abcdef", "0123456789abcdef"),
        (TEXT, JWS, "abcdef", "0123456789abcdee"),
        (TEXT, JWS, "abcdeg", "0123456789abcdef"),
        (TEXT, JWS.replace("..", ".eyJ9."), "abcdef", "0123456789abcdef"),
        (TEXT, "", "abcdef", "0123456789abcdef"),
        (TEXT, "..", "abcdef", "0123456789abcdef"),
        (TEXT, JWS[:-4], "abcdef", "0123456789abcdef"),
        (TEXT, f"{header(alg='none', kid='abcdef')}..", "abcdef", "0123456789abcdef"),
        (TEXT, f"{header(alg='none', kid='abcdef')}..{MAC}", "abcdef", "0123456789abcdef"),
        (TEXT, f"{header(alg='HS256', kid='abcdef', b64=False)}..{MAC}", "abcdef", "0123456789abcdef"),
        (TEXT, f"{header(alg='HS256', kid='abcdef', crit=['x'])}..{MAC}", "abcdef", "0123456789abcdef"),
        (TEXT, f"{header()}..{MAC}", "abcdef", "0123456789abcdef"),
        (TEXT, f"[]..{MAC}", "abcdef", "0123456789abcdef"),
    ],
)
def test_no_other_signature_is_taken(text: str, jws: str, token_id: str, secret: str) -> None:
    with pytest.raises(BadSignature):
        verify(text, jws, token_id, secret)


@pytest.mark.slow
@given(st.text(), st.text(alphabet="abc019", min_size=6, max_size=6), st.text(min_size=1, max_size=16))
def test_what_was_signed_is_verified_and_nothing_else(text: str, token_id: str, secret: str) -> None:
    jws = signed(text, token_id, secret)
    verify(text, jws, token_id, secret)
    with pytest.raises(BadSignature):
        verify(text + "x", jws, token_id, secret)


@given(st.text(max_size=60))
def test_garbage_is_refused_and_never_a_crash(jws: str) -> None:
    with pytest.raises(BadSignature):
        verify(TEXT, jws, "abcdef", "0123456789abcdef")
