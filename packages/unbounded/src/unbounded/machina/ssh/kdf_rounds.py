"""Limit on the work of decrypting a private key, read from the key before its decryption.

Key derivation is slow on purpose, the key sets its rounds, and a running derivation cannot be stopped.
"""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Iterator
from typing import Final

from asyncssh.asn1 import ASN1DecodeError, der_decode

MOST_BCRYPT: Final = 1024  # some ten seconds; ssh-keygen writes 16 or 24 unless -a sets another number
MOST_PBKDF2: Final = 2_000_000  # some seconds; openssl writes 2048
_BLOCK: Final = re.compile(r"-----BEGIN ([A-Z ]*)PRIVATE KEY-----\n(.*?)-----END ", re.DOTALL)
_OPENSSH: Final = b"openssh-key-v1\0"


def check_rounds(text: str) -> None:
    """Check the number of rounds of key derivation. A key that cannot be parsed passes; its parser reports the fault.

    Raises:
        ValueError: too many rounds, with a message for the user.
    """
    if (block := _BLOCK.search(text)) is None:
        return
    try:
        content = b64decode("".join(line for line in block[2].splitlines() if ":" not in line))
        rounds, most = _rounds(block[1].strip(), content)
    except (ValueError, RecursionError, ASN1DecodeError):
        return
    if rounds > most:
        raise ValueError(f"the private key needs {rounds} key derivation rounds; the limit is {most}")


def _rounds(kind: str, content: bytes) -> tuple[int, int]:
    """Return the number of rounds and its limit."""
    if kind == "OPENSSH" and content.startswith(_OPENSSH):
        _cipher, rest = _string(content[len(_OPENSSH) :])
        kdf, rest = _string(rest)
        options, _ = _string(rest)
        return (int.from_bytes(_string(options)[1][:4], "big") if kdf == b"bcrypt" else 0), MOST_BCRYPT
    # PKCS #8 (RFC 5958, section 3): an algorithm with its parameters, and the encrypted content
    if kind == "ENCRYPTED":
        match der_decode(content):
            case (algorithm, bytes()):
                return max(_numbers(algorithm), default=0), MOST_PBKDF2
    return 0, 0


def _string(content: bytes) -> tuple[bytes, bytes]:
    """Split off one SSH string (RFC 4251, section 5); return it and the rest."""
    end = 4 + int.from_bytes(content[:4], "big")
    return content[4:end], content[end:]


def _numbers(value: object) -> Iterator[int]:
    """Yield all integers of an ASN.1 value. Salts are bytes, so the largest integer is the number of rounds."""
    if isinstance(value, tuple):
        for part in value:
            yield from _numbers(part)
    elif isinstance(value, int):
        yield value
