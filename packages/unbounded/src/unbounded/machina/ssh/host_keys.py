"""Verification of the host keys that servers show against those that are pinned.

A server may have several host keys and shows one, of the first type on the client's list that it has. Pinned types come
first, so that a server with three keys does not seem changed. A fingerprint does not reveal its type. With only a
fingerprint pinned, the client requests the other types before the server counts as changed.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final

from unbounded.machina.ssh.model import HostKeyPins

KINDS: Final[dict[str, tuple[str, ...]]] = {
    "ssh-ed25519": ("ssh-ed25519",),
    "ecdsa-sha2-nistp256": ("ecdsa-sha2-nistp256",),
    "ecdsa-sha2-nistp384": ("ecdsa-sha2-nistp384",),
    "ecdsa-sha2-nistp521": ("ecdsa-sha2-nistp521",),
    "ssh-rsa": ("rsa-sha2-512", "rsa-sha2-256"),
}
"""Types of keys and their signature algorithms, in order of preference: RSA never with SHA-1."""


@dataclass(frozen=True)
class HostKey:
    """A public key that a server showed."""

    kind: str
    blob: bytes

    @property
    def fingerprint(self) -> str:
        """Fingerprint as `ssh-keygen -l` prints it: SHA256 and unpadded base64."""
        return "SHA256:" + base64.b64encode(hashlib.sha256(self.blob).digest()).decode().rstrip("=")


def host_key(line: str) -> HostKey | None:
    """Parse a key of `ssh.hostKeys`, "ssh-ed25519 AAAA… comment"; return None for an unsupported or invalid key."""
    parts = line.split()
    if len(parts) < 2 or parts[0] not in KINDS:
        return None
    try:
        blob = base64.b64decode(parts[1] + "=" * (-len(parts[1]) % 4), validate=True)
    except (binascii.Error, ValueError):
        return None
    return HostKey(parts[0], blob) if key_type(blob) == parts[0] else None


def key_type(blob: bytes) -> str | None:
    """Return the type inside the key, its first string (RFC 4253, section 6.6)."""
    length = int.from_bytes(blob[:4], "big")
    name = blob[4 : 4 + length]
    return name.decode("ascii", errors="replace") if len(name) == length and name else None


def trusted(pins: HostKeyPins, shown: HostKey) -> bool:
    """Return whether the pins allow the key. Without pins (first use) every key is allowed."""
    if pins.keys:
        return shown in pinned_keys(pins)
    if pins.fingerprint:
        return shown.fingerprint == pins.fingerprint.rstrip("=")
    return True


def first_use(pins: HostKeyPins) -> bool:
    """Return whether nothing is pinned yet."""
    return not pins.keys and not pins.fingerprint


def pinned_keys(pins: HostKeyPins) -> tuple[HostKey, ...]:
    return tuple(key for key in map(host_key, pins.keys) if key is not None)


def pinned_text(pins: HostKeyPins) -> str:
    """Return the pinned keys for a message."""
    if pins.keys:
        return ", ".join(key.fingerprint for key in pinned_keys(pins)) or "no readable key"
    return pins.fingerprint or ""


def algorithms(pins: HostKeyPins, *, known_kind: str | None = None) -> tuple[str, ...]:
    """Return the algorithms of the first attempt, the preferred ones first.

    All algorithms are on the list: a server without a key of a pinned type then shows a key that it has.

    Args:
        known_kind: type of the key behind `pins.fingerprint`, if an earlier login has shown it.
    """
    first = [key.kind for key in pinned_keys(pins)] if pins.keys else [known_kind] if known_kind else []
    return _algorithms([*first, *KINDS])


def other_algorithms(pins: HostKeyPins, *, shown: Collection[str], has: Collection[str] | None) -> tuple[str, ...]:
    """Return the algorithms for a server whose keys so far are not trusted; none if it cannot have a trusted key.

    Args:
        shown: types of the keys that it has shown.
        has: algorithms that it offers; None if unknown.
    """
    if first_use(pins):
        return ()
    may_count = [key.kind for key in pinned_keys(pins)] if pins.keys else list(KINDS)
    offered = _algorithms(kind for kind in may_count if kind not in shown)
    return tuple(name for name in offered if has is None or name in has)


def _algorithms(kinds: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for kind in kinds for name in KINDS[kind]))
