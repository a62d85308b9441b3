"""The public key of releases: with one, hosts run signed releases only.

The signature of a release is a file of its own: `FILE.sig` is ECDSA over SHA-256 on the curve P-256, in DER, as
`openssl dgst -sha256 -sign` writes it. The key is one word in settings: the base64 lines of its PEM without the first
and the last.

machina publishes the key of its settings in a ConfigMap. Components that set up hosts read it there, and so do agents:
it reaches hosts that have joined before, too.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit, urlunsplit

from unbounded.api.failures import Rejected
from unbounded.api.names import CONFIGMAP_RELEASES, NAMESPACE

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric import ec

    from unbounded.api.core import ConfigMap  # a slow import

SUFFIX: Final = ".sig"
PUBLISHED: Final = "publicKey"  # key of the ConfigMap
_SHOWN: Final = 16  # digits of a fingerprint
_LINE: Final = 64  # characters of a line of PEM
LARGEST_SIGNATURE: Final = 1024
# prefix of every such key in DER
_HEAD: Final = bytes.fromhex("3059301306072a8648ce3d020106082a8648ce3d03010703420004")
_LENGTH: Final = len(_HEAD) + 64
_POINT: Final = 65  # with the leading 4 of the uncompressed form
_PEM: Final = re.compile(r"-----BEGIN PUBLIC KEY-----(.*)-----END PUBLIC KEY-----", re.DOTALL)
WANTED: Final = "expected the PEM of an EC public key on the curve P-256, or only its base64 lines"


def public_key(text: str) -> str:
    """Return the base64 of a public key, from base64 or PEM; empty for none. Raise ValueError."""
    found = _PEM.search(text)
    word = "".join((found[1] if found else text).split())
    if not word:
        return ""
    try:
        key = base64.b64decode(word, validate=True)
    except binascii.Error:
        raise ValueError(WANTED) from None
    if len(key) != _LENGTH or not key.startswith(_HEAD):
        raise ValueError(WANTED)
    try:
        _point(word)
    except ValueError:
        raise ValueError(f"it is not a point of the curve: {WANTED}") from None
    return word


def _point(word: str) -> ec.EllipticCurvePublicKey:
    """Return the key. Raise ValueError where it is not on the curve."""
    from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415  # takes a while

    point = base64.b64decode(word)[-_POINT:]
    return ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), point)


def pem_of(key: str) -> str:
    """Return the PEM of a public key."""
    lines = "\n".join(key[at : at + _LINE] for at in range(0, len(key), _LINE))
    return f"-----BEGIN PUBLIC KEY-----\n{lines}\n-----END PUBLIC KEY-----\n"


def fingerprint(key: str) -> str:
    """Return the first digits of the SHA-256 of a key's DER."""
    return f"sha256:{hashlib.sha256(base64.b64decode(key)).hexdigest()[:_SHOWN]}"


def published_key(config_map: ConfigMap | None) -> str:
    """Return the key that the ConfigMap publishes; empty where it publishes none.

    Raises:
        ValueError: the value is no such key; the message names the ConfigMap and its key.
    """
    try:
        return public_key(config_map.data.get(PUBLISHED, "")) if config_map is not None else ""
    except ValueError as error:
        raise ValueError(f"ConfigMap {NAMESPACE}/{CONFIGMAP_RELEASES}, key {PUBLISHED}: {error}") from None


def signature_url(url: str) -> str:
    """Return the URL of a release's signature: the release's URL with .sig, and with the same query."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(path=f"{parts.path}{SUFFIX}"))


def check_signature(key: str, file: Path, signature: bytes) -> None:
    """Verify the signature of a file.

    Raises:
        Rejected: it is of another file, or by another key.
    """
    from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm  # noqa: PLC0415  # takes a while
    from cryptography.hazmat.primitives import hashes  # noqa: PLC0415
    from cryptography.hazmat.primitives.asymmetric import ec, utils  # noqa: PLC0415

    with file.open("rb") as opened:
        digest = hashlib.file_digest(opened, "sha256").digest()
    try:
        _point(public_key(key)).verify(signature, digest, ec.ECDSA(utils.Prehashed(hashes.SHA256())))
    except InvalidSignature:
        raise Rejected("its signature is of another file, or by another key") from None
    except (ValueError, UnsupportedAlgorithm) as error:
        raise Rejected(f"cannot verify its signature: {error}") from None
