"""The rescue system of a HostRescue: its host key, and the form of the keys that may log in."""

from __future__ import annotations

import base64
import binascii
import hashlib
from typing import Annotated, Final

from unbounded.api.fields import ApiStruct, Field

RESCUE_KEYS_MAX: Final = 16
_TYPES: Final = "|".join(
    ("ssh-ed25519", "ssh-rsa", "ecdsa-sha2-nistp(256|384|521)", "sk-ssh-ed25519@openssh[.]com",
     "sk-ecdsa-sha2-nistp256@openssh[.]com")
)  # fmt: skip
# A comment has no quotes and no backslash: the installer reads the keys from JSON. Go refuses nested counts above 1000.
_KEY: Final = f"({_TYPES}) AAAA[A-Za-z0-9+/]+={{0,2}}( [-A-Za-z0-9 .,:;@+=_/()]+)?"
RESCUE_KEYS: Final = f"^{_KEY}(\\n{_KEY}){{0,{RESCUE_KEYS_MAX - 1}}}\\n?$"
RESCUE_KEY_FORM: Final = "such as ssh-ed25519 AAAA… me@here"
HOST_KEY_TYPE: Final = "ssh-ed25519"
_LENGTH_BYTES: Final = 4


class RescueSystem(ApiStruct, frozen=True, kw_only=True):
    """The SSH server of a HostRescue."""

    address: Annotated[str, Field("Address that the rescue system reported from.", max_length=64)]
    host_key: Annotated[str, Field("Public host key of its SSH server, made for this boot.", max_length=256)]


def is_ssh_key(line: str) -> bool:
    """Return whether the binary part of a public key is whole, and of the type that the line names."""
    kind, _, rest = line.partition(" ")
    blob = _blob(rest.partition(" ")[0])
    found = blob[:_LENGTH_BYTES], blob[_LENGTH_BYTES : _LENGTH_BYTES + len(kind)]
    return found == (len(kind).to_bytes(_LENGTH_BYTES, "big"), kind.encode()) and _is_whole(blob)


def fingerprint(line: str) -> str:
    """Return the fingerprint of a public key as `ssh-keygen -l` prints it: SHA256 and base64 without padding."""
    digest = hashlib.sha256(_blob(line.split()[1])).digest()
    return f"SHA256:{base64.b64encode(digest).decode().rstrip('=')}"


def rescue_text(system: RescueSystem) -> str:
    """Return how to connect to a rescue system, and the fingerprint of its host key, for the user."""
    return f"the rescue system runs: ssh root@{system.address}, host key {fingerprint(system.host_key)} (ED25519)"


def _blob(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        return b""


def _is_whole(blob: bytes) -> bool:
    """Return whether a key consists of fields with their lengths (RFC 4253, section 6.6), to its last byte."""
    at = 0
    while at < len(blob):
        at += _LENGTH_BYTES + int.from_bytes(blob[at : at + _LENGTH_BYTES], "big")
    return at == len(blob) > 0
