"""Which host key counts. Pure: keys as they come from the wire, pins as they stand in a Machine.

A server may have several keys and shows one, of the first kind on our list that it has. So that a server with three
keys does not look changed, kinds that are pinned come first; and where only a fingerprint is known, which does not
say its kind, the server is asked for its other kinds before it counts as changed.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final

from unbounded.machina.ssh.model import Pins

KINDS: Final[dict[str, tuple[str, ...]]] = {
    "ssh-ed25519": ("ssh-ed25519",),
    "ecdsa-sha2-nistp256": ("ecdsa-sha2-nistp256",),
    "ecdsa-sha2-nistp384": ("ecdsa-sha2-nistp384",),
    "ecdsa-sha2-nistp521": ("ecdsa-sha2-nistp521",),
    "ssh-rsa": ("rsa-sha2-512", "rsa-sha2-256"),
}
"""A kind of key, and how it may sign: RSA never with SHA-1. The order is the order of preference."""


@dataclass(frozen=True)
class HostKey:
    """A public key that a server showed."""

    kind: str
    blob: bytes

    @property
    def fingerprint(self) -> str:
        """As `ssh-keygen -l` prints it: SHA256 and unpadded base64."""
        return "SHA256:" + base64.b64encode(hashlib.sha256(self.blob).digest()).decode().rstrip("=")


def host_key(line: str) -> HostKey | None:
    """A key of `ssh.hostKeys`, "ssh-ed25519 AAAA… comment"; None where that is no key that a server can show us."""
    parts = line.split()
    if len(parts) < 2 or parts[0] not in KINDS:
        return None
    try:
        blob = base64.b64decode(parts[1] + "=" * (-len(parts[1]) % 4), validate=True)
    except (binascii.Error, ValueError):
        return None
    return HostKey(parts[0], blob) if kind_in(blob) == parts[0] else None


def kind_in(blob: bytes) -> str | None:
    """The kind that a key says of itself: its first string (RFC 4253, section 6.6)."""
    length = int.from_bytes(blob[:4], "big")
    name = blob[4 : 4 + length]
    return name.decode("ascii", errors="replace") if len(name) == length and name else None


def trusted(pins: Pins, shown: HostKey) -> bool:
    """Whether it may be the server. On first use, when nothing is pinned, any key may."""
    if pins.keys:
        return shown in pinned_keys(pins)
    if pins.fingerprint:
        return shown.fingerprint == pins.fingerprint.rstrip("=")
    return True


def first_use(pins: Pins) -> bool:
    """Whether the key that is shown is yet to be pinned."""
    return not pins.keys and not pins.fingerprint


def pinned_keys(pins: Pins) -> tuple[HostKey, ...]:
    return tuple(key for key in map(host_key, pins.keys) if key is not None)


def wanted(pins: Pins) -> str:
    """The pinned keys, for a message."""
    if pins.keys:
        return ", ".join(key.fingerprint for key in pinned_keys(pins)) or "no key that can be read"
    return pins.fingerprint or ""


def algorithms(pins: Pins, *, known_kind: str | None = None) -> tuple[str, ...]:
    """What to ask a server for at first, the best first: all that there are, as one that has no key of a pinned kind
    is to show what it has.

    Args:
        known_kind: of the key behind `pins.fingerprint`, where it was seen before.
    """
    first = [key.kind for key in pinned_keys(pins)] if pins.keys else [known_kind] if known_kind else []
    return _algorithms([*first, *KINDS])


def other_algorithms(pins: Pins, *, shown: Collection[str], has: Collection[str] | None) -> tuple[str, ...]:
    """What to ask a server for that has shown keys which do not count; nothing when it cannot have one that does.

    Args:
        shown: kinds that it showed already.
        has: algorithms that it said it has; None where that is not known.
    """
    if first_use(pins):
        return ()
    may_count = [key.kind for key in pinned_keys(pins)] if pins.keys else list(KINDS)
    offered = _algorithms(kind for kind in may_count if kind not in shown)
    return tuple(name for name in offered if has is None or name in has)


def _algorithms(kinds: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for kind in kinds for name in KINDS[kind]))
