"""ConfigMap kube-public/cluster-info: where the API server is, whom to trust, and who has signed that.

kubeadm publishes it, and so does `unbounded up`. For each bootstrap token that may sign it, kube-controller-manager
adds `jws-kubeconfig-ID`: a detached JWS (RFC 7515, appendix F) with HS256, whose key is the secret of the token. So a
host that holds a token can verify address and authority before it shows the token to anybody.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from typing import Final

import msgspec

NAMESPACE: Final = "kube-public"
NAME: Final = "cluster-info"
KUBECONFIG: Final = "kubeconfig"
SIGNATURE: Final = "jws-kubeconfig-"  # the start of a key; the id of a token follows
ALGORITHM: Final = "HS256"


class BadSignature(Exception):
    """A signature that does not belong to this text and token; the message gives the reason."""


def signed(text: str, token_id: str, secret: str) -> str:
    """Return the detached JWS of a text by a token: `HEADER..SIGNATURE`."""
    header = _encode(msgspec.json.encode({"alg": ALGORITHM, "kid": token_id}))
    return f"{header}..{_encode(_mac(header, text, secret))}"


def verify(text: str, jws: str, token_id: str, secret: str) -> None:
    """Check that a token has signed a text.

    Raises:
        BadSignature
    """
    parts = jws.split(".")
    if len(parts) != 3 or parts[1]:
        raise BadSignature("it is not a detached JWS, HEADER..SIGNATURE")
    header, _, signature = parts
    try:
        message = msgspec.json.decode(_decode(header), type=dict[str, object])
        given = _decode(signature)
    except (ValueError, msgspec.DecodeError):
        raise BadSignature("it is not a JWS: header and signature must be base64url") from None
    if message.get("alg") != ALGORITHM or message.get("kid") != token_id or "crit" in message or "b64" in message:
        raise BadSignature(f"its header is not for {ALGORITHM} by token {token_id}")
    if not hmac.compare_digest(given, _mac(header, text, secret)):
        raise BadSignature(f"it was not created with the secret of token {token_id}")


def _mac(header: str, text: str, secret: str) -> bytes:
    return hmac.new(secret.encode(), f"{header}.{_encode(text.encode())}".encode(), hashlib.sha256).digest()


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _decode(text: str) -> bytes:
    return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
