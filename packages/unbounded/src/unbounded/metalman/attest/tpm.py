"""Keys of TPM 2.0: a strict parser of their public areas, and secrets that only the TPM of two keys can open.

Public areas are TPM2B_PUBLIC (TPM 2.0 Library part 2, 12.2.5). Attestation needs RSA and ECC keys that a TPM created
and does not export, for use in ways that the TPM defines (restricted). Endorsement keys and storage root keys decrypt,
attestation keys sign. A software key that claims these attributes is accepted, too: a public area proves nothing, only
opening a wrapped secret does. Such a secret is made by TPM2_MakeCredential, here without a TPM.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum, IntFlag
from typing import Final

from cryptography.hazmat.decrepit.ciphers.modes import CFB
from cryptography.hazmat.primitives import hashes, hmac, serialization
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

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


LARGEST: Final = 4096  # bytes; the area of an RSA key of 4096 bits has about 600
_LARGEST_FIELD: Final = 1024
_EXPONENT: Final = 65537


class BadKey(ValueError):
    """The bytes are not a TPM key that attestation accepts; the message has the reason."""


class Algorithm(IntEnum):
    """TPM_ALG_ID values that are valid in such a key, or in a signature."""

    RSA = 0x0001
    AES = 0x0006
    SHA256 = 0x000B
    SHA384 = 0x000C
    SHA512 = 0x000D
    NULL = 0x0010
    RSASSA = 0x0014
    ECDSA = 0x0018
    ECC = 0x0023
    CFB = 0x0043


class KeyAttributes(IntFlag):
    """TPMA_OBJECT."""

    FIXED_TPM = 1 << 1
    ST_CLEAR = 1 << 2
    FIXED_PARENT = 1 << 4
    SENSITIVE_DATA_ORIGIN = 1 << 5
    USER_WITH_AUTH = 1 << 6
    ADMIN_WITH_POLICY = 1 << 7
    NO_DA = 1 << 10
    ENCRYPTED_DUPLICATION = 1 << 11
    RESTRICTED = 1 << 16
    DECRYPT = 1 << 17
    SIGN_ENCRYPT = 1 << 18


_KNOWN: Final = sum(KeyAttributes)
_NEEDED: Final[Mapping[KeyAttributes, str]] = {
    KeyAttributes.FIXED_TPM: "fixedTPM",
    KeyAttributes.FIXED_PARENT: "fixedParent",
    KeyAttributes.SENSITIVE_DATA_ORIGIN: "sensitiveDataOrigin",
    KeyAttributes.RESTRICTED: "restricted",
}
_DECRYPT: Final = (KeyAttributes.DECRYPT, "decrypt")
_SIGN: Final = (KeyAttributes.SIGN_ENCRYPT, "sign")
_DUPLICATED: Final = (KeyAttributes.ENCRYPTED_DUPLICATION, "encryptedDuplication")
HASHES: Final[Mapping[int, type[hashes.HashAlgorithm]]] = {
    Algorithm.SHA256: hashes.SHA256,
    Algorithm.SHA384: hashes.SHA384,
    Algorithm.SHA512: hashes.SHA512,
}
_CURVES: Final[Mapping[int, type[ec.EllipticCurve]]] = {3: ec.SECP256R1, 4: ec.SECP384R1, 5: ec.SECP521R1}
_RSA_BITS: Final = (2048, 3072, 4096)
_AES_BITS: Final = (128, 192, 256)

Key = rsa.RSAPublicKey | ec.EllipticCurvePublicKey


@dataclass(frozen=True)
class PublicArea:
    """Public part of a key.

    Args:
        area: TPMT_PUBLIC as received, without its size.
        hash: of the key's name, and of keys derived for it.
        aes_bits: key size with which it protects its children; 0 for a key that signs.
    """

    area: bytes
    hash: hashes.HashAlgorithm
    attributes: KeyAttributes
    aes_bits: int
    key: Key

    @property
    def name(self) -> bytes:
        """Name of the key in the TPM: the id of the hash, and the hash of the public area."""
        digest = hashes.Hash(self.hash)
        digest.update(self.area)
        return self.area[2:4] + digest.finalize()

    @property
    def pem(self) -> str:
        """The key itself, as PEM of SubjectPublicKeyInfo."""
        encoding, form = serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        return self.key.public_bytes(encoding, form).decode()


class FieldReader:
    """Big-endian fields, one after the other; `what` names their structure in messages."""

    def __init__(self, what: str, data: bytes) -> None:
        self.what = what
        self._data = data
        self._at = 0

    def bad(self, text: str) -> BadKey:
        return BadKey(f"{self.what}: {text}")

    def take(self, count: int, field: str) -> bytes:
        taken = self._data[self._at : self._at + count]
        if len(taken) < count:
            raise self.bad(f"truncated in {field}: {count - len(taken)} bytes are missing")
        self._at += count
        return taken

    def u16(self, field: str) -> int:
        return int(struct.unpack(">H", self.take(2, field))[0])

    def u32(self, field: str) -> int:
        return int(struct.unpack(">I", self.take(4, field))[0])

    def sized(self, field: str) -> bytes:
        """Read a TPM2B: its size, and so many bytes."""
        size = self.u16(f"size of {field}")
        if size > _LARGEST_FIELD:
            raise self.bad(f"{field} has {size} bytes; the limit is {_LARGEST_FIELD}")
        return self.take(size, field)

    def end(self) -> None:
        if rest := len(self._data) - self._at:
            raise self.bad(f"{rest} bytes follow its end")


def parse_public(data: bytes, what: str, *, signs: bool = False) -> PublicArea:
    """Parse a TPM2B_PUBLIC.

    Args:
        what: its name in messages, such as ekPub.
        signs: expect a restricted key that signs, in place of one that decrypts.
    Raises:
        BadKey: the bytes are not a key that attestation accepts.
    """
    if len(data) > LARGEST:
        raise BadKey(f"{what}: {len(data)} bytes; the public area of a key has at most {LARGEST}")
    outer = FieldReader(what, data)
    area = outer.take(outer.u16("its size"), "the public area")
    outer.end()
    return _parse_area(area, what, signs=signs)


def _parse_area(area: bytes, what: str, *, signs: bool) -> PublicArea:
    reader = FieldReader(what, area)
    kind = reader.u16("type")
    hash_id = reader.u16("nameAlg")
    if hash_id not in HASHES:
        raise reader.bad(f"nameAlg is {hash_id:#06x}; expected SHA-256, SHA-384 or SHA-512")
    attributes = _attributes(reader, signs=signs)
    policy = reader.sized("authPolicy")
    hash_ = HASHES[hash_id]()
    if len(policy) not in (0, hash_.digest_size):
        raise reader.bad(f"authPolicy has {len(policy)} bytes; its nameAlg requires 0 or {hash_.digest_size}")
    match kind:
        case Algorithm.RSA:
            aes_bits = _protection(reader, (Algorithm.RSASSA,) if signs else ())
            key: Key = _rsa(reader)
        case Algorithm.ECC:
            aes_bits = _protection(reader, (Algorithm.ECDSA,) if signs else ())
            key = _ecc(reader)
        case _:
            raise reader.bad(f"type is {kind:#06x}; expected an RSA or ECC key")
    reader.end()
    return PublicArea(area, hash_, attributes, aes_bits, key)


def _attributes(reader: FieldReader, *, signs: bool) -> KeyAttributes:
    value = reader.u32("objectAttributes")
    if value & ~_KNOWN:
        raise reader.bad(f"objectAttributes {value:#010x} has reserved bits set")
    attributes = KeyAttributes(value)
    purpose, other = (_SIGN, _DECRYPT) if signs else (_DECRYPT, _SIGN)
    expected = f"expected a restricted {'signing' if signs else 'decryption'} key that its TPM created and protects"
    for flag, name in (*_NEEDED.items(), purpose):
        if flag not in attributes:
            raise reader.bad(f"{name} is not set: {expected}")
    for flag, name in (other, _DUPLICATED):
        if flag in attributes:
            raise reader.bad(f"{name} is set: {expected}")
    return attributes


def _protection(reader: FieldReader, schemes: tuple[Algorithm, ...]) -> int:
    """Parse the symmetric algorithm and the scheme, one of `schemes`; without them, the key has to protect others."""
    if not schemes:
        aes_bits = _symmetric(reader)
        _null(reader, "scheme")
        return aes_bits
    _null(reader, "symmetric")
    scheme = reader.u16("scheme")
    if scheme not in schemes:
        raise reader.bad(f"scheme is {scheme:#06x}; expected RSASSA or ECDSA, as the type of the key is")
    if (hash_id := reader.u16("scheme.hashAlg")) not in HASHES:
        raise reader.bad(f"scheme.hashAlg is {hash_id:#06x}; expected SHA-256, SHA-384 or SHA-512")
    return 0


def _symmetric(reader: FieldReader) -> int:
    """Parse a TPMT_SYM_DEF_OBJECT; return the key size of AES in bits."""
    algorithm = reader.u16("symmetric")
    if algorithm != Algorithm.AES:
        raise reader.bad(f"symmetric is {algorithm:#06x}; expected AES")
    bits, mode = reader.u16("symmetric.keyBits"), reader.u16("symmetric.mode")
    if bits not in _AES_BITS or mode != Algorithm.CFB:
        raise reader.bad(f"symmetric is AES with {bits} bits in mode {mode:#06x}; expected 128, 192 or 256 bits in CFB")
    return bits


def _null(reader: FieldReader, field: str) -> None:
    value = reader.u16(field)
    if value != Algorithm.NULL:
        raise reader.bad(f"{field} is {value:#06x}; such a restricted key has none")


def _rsa(reader: FieldReader) -> rsa.RSAPublicKey:
    bits, exponent = reader.u16("keyBits"), reader.u32("exponent") or _EXPONENT
    if bits not in _RSA_BITS:
        raise reader.bad(f"RSA key of {bits} bits; expected 2048, 3072 or 4096")
    if exponent != _EXPONENT:
        raise reader.bad(f"RSA exponent {exponent}; expected {_EXPONENT}")
    modulus = int.from_bytes(raw := reader.sized("modulus"), "big")
    if len(raw) * 8 != bits or modulus.bit_length() != bits or not modulus & 1:
        raise reader.bad(f"the modulus does not have {bits} bits")
    try:
        return rsa.RSAPublicNumbers(exponent, modulus).public_key()
    except ValueError as error:
        raise reader.bad("modulus and exponent are not an RSA key") from error


def _ecc(reader: FieldReader) -> ec.EllipticCurvePublicKey:
    curve_id = reader.u16("curveID")
    if curve_id not in _CURVES:
        raise reader.bad(f"curve {curve_id:#06x}; expected NIST P-256, P-384 or P-521")
    curve = _CURVES[curve_id]()
    _null(reader, "kdf")
    x, y = reader.sized("x"), reader.sized("y")
    if max(len(x), len(y)) > (curve.key_size + 7) // 8:
        raise reader.bad(f"a coordinate has {max(len(x), len(y))} bytes, too many for {curve.name}")
    try:
        numbers = ec.EllipticCurvePublicNumbers(int.from_bytes(x, "big"), int.from_bytes(y, "big"), curve)
        return numbers.public_key()
    except ValueError as error:
        raise reader.bad(f"x and y are not a point of {curve.name}") from error
