"""TPM2_MakeCredential without a TPM: wrap a secret that only a TPM with two given keys can open."""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from typing import Final

from cryptography.hazmat.decrepit.ciphers.modes import CFB
from cryptography.hazmat.primitives import hashes, hmac
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

from unbounded.metalman.attest.public import PublicArea

_IDENTITY: Final = b"IDENTITY\0"
_BLOCK_BYTES: Final = 16


@dataclass(frozen=True)
class WrappedSecret:
    """Input of TPM2_ActivateCredential: TPM2B_ID_OBJECT and TPM2B_ENCRYPTED_SECRET, each after its size."""

    blob: bytes
    secret: bytes


def make_credential(owner: PublicArea, name: bytes, secret: bytes) -> WrappedSecret:
    """Wrap a secret.

    Args:
        owner: the endorsement key.
        name: of the key that has to be in the same TPM.
        secret: at most as many bytes as the owner's hash has.
    """
    seed, encrypted = _seed(owner)
    bits = owner.hash.digest_size * 8
    cipher = Cipher(
        algorithms.AES(kdf_a(owner.hash, seed, b"STORAGE\0", name, owner.aes_bits)), CFB(bytes(_BLOCK_BYTES))
    )
    encryptor = cipher.encryptor()
    identity = encryptor.update(sized(secret)) + encryptor.finalize()
    outer = hmac.HMAC(kdf_a(owner.hash, seed, b"INTEGRITY\0", b"", bits), owner.hash)
    outer.update(identity + name)
    return WrappedSecret(sized(sized(outer.finalize()) + identity), sized(encrypted))


def sized(content: bytes) -> bytes:
    """A TPM2B: its size in two bytes, and the content."""
    return struct.pack(">H", len(content)) + content


def _seed(owner: PublicArea) -> tuple[bytes, bytes]:
    """A new seed, and the form in which only the owner's TPM can get at it."""
    if isinstance(owner.key, rsa.RSAPublicKey):
        seed = os.urandom(owner.hash.digest_size)
        oaep = padding.OAEP(padding.MGF1(owner.hash), owner.hash, _IDENTITY)
        return seed, owner.key.encrypt(seed, oaep)
    own, shared = _exchange(owner.key)
    size = (owner.key.curve.key_size + 7) // 8
    x, y = (number.to_bytes(size, "big") for number in (own.x, own.y))
    party = owner.key.public_numbers().x.to_bytes(size, "big")
    return kdf_e(owner.hash, shared, _IDENTITY, x + party), sized(x) + sized(y)


def _exchange(key: ec.EllipticCurvePublicKey) -> tuple[ec.EllipticCurvePublicNumbers, bytes]:
    """Return an ephemeral key and the shared secret.

    A key whose numbers begin with a zero byte is discarded: TPMs differ in whether they strip that byte.
    """
    least_bits = 8 * ((key.curve.key_size + 7) // 8 - 1)
    while True:
        made = ec.generate_private_key(key.curve)
        numbers = made.public_key().public_numbers()
        shared = made.exchange(ec.ECDH(), key)
        if min(number.bit_length() for number in (numbers.x, numbers.y, int.from_bytes(shared, "big"))) > least_bits:
            return numbers, shared


def kdf_a(hash_: hashes.HashAlgorithm, key: bytes, label: bytes, context: bytes, bits: int) -> bytes:
    """SP 800-108 in counter mode with HMAC; `label` ends with a zero byte, `context` is both of its halves."""
    size, made, counter = (bits + 7) // 8, b"", 0
    while len(made) < size:
        counter += 1
        mac = hmac.HMAC(key, hash_)
        mac.update(struct.pack(">I", counter) + label + context + struct.pack(">I", bits))
        made += mac.finalize()
    return made[:size]


def kdf_e(hash_: hashes.HashAlgorithm, shared: bytes, label: bytes, parties: bytes) -> bytes:
    """SP 800-56A, for as many bits as the hash has: one round."""
    digest = hashes.Hash(hash_)
    digest.update(struct.pack(">I", 1) + shared + label + parties)
    return digest.finalize()
