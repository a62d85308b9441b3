"""Check of a private key by its text alone. Deeper faults show when the key is parsed."""

from __future__ import annotations

from typing import Final

LONGEST: Final = 64 * 1024
_PRIVATE: Final = "PRIVATE KEY-----"
_PUTTY: Final = "PuTTY-User-Key-File"
_PUBLIC: Final = ("ssh-", "ecdsa-", "sk-")


def check_private_key(text: str) -> None:
    """Check that the text has the form of a private key.

    Raises:
        ValueError: it has not. The message continues after the name of the field and quotes nothing of the text.
    """
    begin = text.lstrip()
    if not begin:
        raise ValueError("is empty")
    if len(text) > LONGEST:
        raise ValueError(f"exceeds {LONGEST} characters, the limit for private keys")
    if begin.startswith(_PUTTY):
        raise ValueError("is a PuTTY key; convert it with `puttygen KEY -O private-openssh`")
    if _PRIVATE not in text:
        what = "is a public key" if begin.startswith(_PUBLIC) else "contains no private key"
        raise ValueError(f"{what}; it must be a private key of OpenSSH, or in PEM")
