"""Names in Oracle's form: OCIDs, availability domains, addresses. All are derived from a seed."""

from __future__ import annotations

import hashlib
from base64 import b32encode
from typing import Final

REGION: Final = "us-phoenix-1"
REGION_KEY: Final = "phx"
REALM: Final = "oc1"
AVAILABILITY_DOMAINS: Final = ("lAbX:PHX-AD-1", "lAbX:PHX-AD-2", "lAbX:PHX-AD-3")
FAULT_DOMAINS: Final = ("FAULT-DOMAIN-1", "FAULT-DOMAIN-2", "FAULT-DOMAIN-3")
GLOBAL_KINDS: Final = frozenset({"tenancy", "compartment", "user"})
"""Kinds whose OCIDs name no region."""


def digest(*parts: object) -> bytes:
    return hashlib.blake2b("/".join(map(str, parts)).encode(), digest_size=32).digest()


def ocid(kind: str, *parts: object) -> str:
    """Return `ocid1.<kind>.oc1.<region>.<60 characters>`, which differs for other parts."""
    is_global = kind in GLOBAL_KINDS
    unique = b32encode(digest(kind, *parts)).decode().rstrip("=").lower()
    return f"ocid1.{kind}.{REALM}.{'' if is_global else REGION_KEY}.{'aaaaaaaa' if is_global else 'anyhqljs'}{unique}"


def mac(*parts: object) -> str:
    """Return a locally administered address."""
    return ":".join(f"{byte:02X}" for byte in (0x02, *digest("mac", *parts)[:5]))


def public_ip(number: int) -> str:
    """Return an address that RFC 5737 reserves for examples, and after these one for benchmarks (RFC 2544)."""
    if number < 254:
        return f"203.0.113.{number + 1}"
    return f"198.18.{number // 256 % 256}.{number % 256}"
