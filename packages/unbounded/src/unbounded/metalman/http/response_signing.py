"""Statements of a site: signatures of answers, for installers that believe no others.

A client draws a nonce and sends it as `Unbounded-Nonce`. The answer then has `Unbounded-Statement`: an Ed25519
signature of the request and the answer, with the nonce. So it is valid for no other request, and for no other boot.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Final

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from unbounded.metalman.http.boot_service import OnDisk

NONCE_FIELD: Final = "Unbounded-Nonce"
STATEMENT_FIELD: Final = "Unbounded-Statement"
NONCE: Final = re.compile(r"[0-9a-f]{64}", re.ASCII)
LARGEST_PART_BYTES: Final = 256 << 20  # the agent is the largest file that is requested at once
CACHED_PARTS: Final = 8192  # images never change, and a thousand machines read the same parts
READ_BYTES: Final = 1 << 20


class StatementKey:
    """Key that signs the answers of a site; its `repr` hides it."""

    __slots__ = ("_key",)

    def __init__(self, pem: bytes) -> None:
        """Take a private key.

        Raises:
            ValueError: it is no Ed25519 key in PEM, or has a password.
        """
        try:
            key = load_pem_private_key(pem, None)
        except (TypeError, UnsupportedAlgorithm) as error:
            raise ValueError(str(error)) from None
        if not isinstance(key, Ed25519PrivateKey):
            raise ValueError("not an Ed25519 key")  # noqa: TRY004 - the content is wrong
        self._key = key

    def __repr__(self) -> str:
        return "StatementKey(…)"

    def sign(self, statement: bytes) -> str:
        return base64.b64encode(self._key.sign(statement)).decode()


StatementKeySource = Callable[[], Awaitable[StatementKey | None]]


async def no_statements() -> None:
    """Return no key: of a site that signs nothing."""


def statement(
    method: str, target: str, nonce: str, sent: bytes, *, code: int, content_range: str | None, digest: str
) -> bytes:
    """Return what is signed of a request and its answer.

    Args:
        target: the path as the client sent it.
        sent: the body of the request.
        digest: SHA-256 of the body of the answer, in hex.
    """
    lines = (
        "unbounded-statement 1",
        f"{method} {target}",
        nonce,
        hashlib.sha256(sent).hexdigest(),
        str(code),
        content_range or "-",
        digest,
    )
    return "".join(f"{line}\n" for line in lines).encode()


class PartDigests:
    """SHA-256 of parts of files, which do not change."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[str, str, int, int], str] = OrderedDict()

    def of(self, found: OnDisk, start: int, stop: int) -> str | None:
        """Return the digest of a part; None if it is too large or cannot be read. Blocks: call it in a thread."""
        key = (str(found.path), found.etag, start, stop)
        digest = self._known.get(key) or _digest(found, start, stop)
        if digest is not None:
            self._known[key] = digest
            while len(self._known) > CACHED_PARTS:
                self._known.popitem(last=False)
        return digest


def _digest(found: OnDisk, start: int, stop: int) -> str | None:
    if stop - start > LARGEST_PART_BYTES:
        return None
    digest, left = hashlib.sha256(), stop - start
    try:
        with found.path.open("rb", buffering=0) as file:
            file.seek(start)
            while left and (piece := file.read(min(READ_BYTES, left))):
                digest.update(piece)
                left -= len(piece)
    except OSError:
        return None
    return None if left else digest.hexdigest()
