"""How much work it is to open a private key with its passphrase, read from the key before any of it is done.

The work is slow on purpose, the key says how slow, and nobody can stop it once it has begun.
"""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Iterator
from typing import Final

from asyncssh.asn1 import ASN1DecodeError, der_decode

MOST_BCRYPT: Final = 1024  # some ten seconds; ssh-keygen writes 16 or 24, unless -a tells it otherwise
MOST_PBKDF2: Final = 2_000_000  # some seconds; openssl writes 2048
_BLOCK: Final = re.compile(r"-----BEGIN ([A-Z ]*)PRIVATE KEY-----\n(.*?)-----END ", re.DOTALL)
_OPENSSH: Final = b"openssh-key-v1\0"


def check_rounds(text: str) -> None:
    """What cannot be read here is passed over: who parses the key says what is wrong with it.

    Raises:
        ValueError: more than is done in a moment, with words for the user.
    """
    if (block := _BLOCK.search(text)) is None:
        return
    try:
        content = b64decode("".join(line for line in block[2].splitlines() if ":" not in line))
        rounds, most = _rounds(block[1].strip(), content)
    except (ValueError, RecursionError, ASN1DecodeError):
        return
    if rounds > most:
        raise ValueError(f"opening the private key takes {rounds} rounds, and no more than {most} are done here")


def _rounds(kind: str, content: bytes) -> tuple[int, int]:
    """How many it takes, and how many it may take."""
    if kind == "OPENSSH" and content.startswith(_OPENSSH):
        _cipher, rest = _string(content[len(_OPENSSH) :])
        kdf, rest = _string(rest)
        options, _ = _string(rest)
        return (int.from_bytes(_string(options)[1][:4], "big") if kdf == b"bcrypt" else 0), MOST_BCRYPT
    if kind == "ENCRYPTED":  # PKCS #8 (RFC 5958, section 3): an algorithm with its parameters, and what is encrypted
        match der_decode(content):
            case (algorithm, bytes()):
                return max(_numbers(algorithm), default=0), MOST_PBKDF2
    return 0, 0


def _string(content: bytes) -> tuple[bytes, bytes]:
    """One of SSH's strings (RFC 4251, section 5), and what follows it."""
    end = 4 + int.from_bytes(content[:4], "big")
    return content[4:end], content[end:]


def _numbers(value: object) -> Iterator[int]:
    """All of them in a value of ASN.1: salts are bytes, so the largest is the one of the rounds."""
    if isinstance(value, tuple):
        for part in value:
            yield from _numbers(part)
    elif isinstance(value, int):
        yield value
