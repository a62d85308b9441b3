"""Unguessable part of a boot's URLs: equal on every replica and after every restart, and not stored anywhere."""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from typing import Final

from unbounded.api.core import SECRETS, Secret
from unbounded.api.failures import Rejected
from unbounded.api.names import NAMESPACE
from unbounded.kube.errors import AlreadyExists, NotFound
from unbounded.kube.logs import Log
from unbounded.kube.port import Api

KEY_SECRET: Final = "metalman-netboot"  # noqa: S105 - the name of an object
DATA_KEY: Final = "key"
KEY_BYTES: Final = 32
PREFIX_BYTES: Final = 20  # 160 bits, which are 32 letters without padding
LOOKUP_LETTERS: Final = 8  # the part that an index may be searched by; the rest is compared in constant time

log = Log("metalman.netboot")


class PrefixKey:
    """Key from which prefixes are derived; its `repr` hides it."""

    __slots__ = ("_key",)

    def __init__(self, key: bytes) -> None:
        """Take a key.

        Raises:
            ValueError: the key is too short.
        """
        if len(key) < KEY_BYTES:
            raise ValueError(f"it has {len(key)} bytes and needs {KEY_BYTES}")
        self._key = key

    def __repr__(self) -> str:
        return "PrefixKey(…)"

    def prefix(self, machine_uid: str, boot: str) -> str:
        """Return 32 letters and digits that identify one boot of one Machine."""
        digest = hmac.new(self._key, f"{machine_uid}/{boot}".encode(), hashlib.sha256).digest()
        return base64.b32encode(digest[:PREFIX_BYTES]).decode().lower()

    def derived(self, purpose: str) -> bytes:
        """Return 32 bytes for another purpose that all replicas share; a prefix reveals nothing about them."""
        return hmac.new(self._key, purpose.encode(), hashlib.sha256).digest()


def is_same_prefix(given: str, known: str) -> bool:
    """Return whether two prefixes are equal, in a time that does not depend on the equal part."""
    return hmac.compare_digest(given.encode(errors="replace"), known.encode())


async def prefix_key(api: Api) -> PrefixKey:
    """Read the key of this cluster, and create it if there is none.

    Raises:
        ApiError: the Secret can be neither read nor created.
        Rejected: the Secret does not contain a key. Deleting it creates a new one and ends the running boots.
    """
    try:
        found = await api.get(SECRETS, KEY_SECRET, namespace=NAMESPACE)
    except NotFound:
        found = await _create_key(api)
    try:
        return PrefixKey(found.value(DATA_KEY) or b"")
    except ValueError as error:  # raised also if the value is not base64
        text = (
            f"Secret {NAMESPACE}/{KEY_SECRET}: data.{DATA_KEY} is not a valid key: {error}; delete the Secret "
            "to create a new one"
        )
        raise Rejected(text) from None


async def _create_key(api: Api) -> Secret:
    body = {
        "metadata": {"name": KEY_SECRET},
        "type": "Opaque",
        "data": {DATA_KEY: base64.b64encode(secrets.token_bytes(KEY_BYTES)).decode()},
    }
    try:
        made = await api.create(SECRETS, body, namespace=NAMESPACE)
    except AlreadyExists:  # another replica was faster
        return await api.get(SECRETS, KEY_SECRET, namespace=NAMESPACE)
    log.info("key of boot URLs created", secret=f"{NAMESPACE}/{KEY_SECRET}")
    return made
