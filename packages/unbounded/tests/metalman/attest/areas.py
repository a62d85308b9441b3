"""Public areas for tests without a TPM: software keys with the attributes of a TPM's, and the way to unwrap."""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from functools import cache

from cryptography.hazmat.decrepit.ciphers.modes import CFB
from cryptography.hazmat.primitives import hashes, hmac
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa, utils
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

from unbounded.join.attestation import quote_nonce
from unbounded.join.tpm import sized
from unbounded.metalman.attest.tpm import KeyAttributes, kdf_a, kdf_e

Private = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey
EK = (
    KeyAttributes.FIXED_TPM
    | KeyAttributes.FIXED_PARENT
    | KeyAttributes.SENSITIVE_DATA_ORIGIN
    | KeyAttributes.ADMIN_WITH_POLICY
    | KeyAttributes.RESTRICTED
    | KeyAttributes.DECRYPT
)
AK = (
    KeyAttributes.FIXED_TPM
    | KeyAttributes.FIXED_PARENT
    | KeyAttributes.SENSITIVE_DATA_ORIGIN
    | KeyAttributes.USER_WITH_AUTH
    | KeyAttributes.RESTRICTED
    | KeyAttributes.SIGN_ENCRYPT
)
AES_CFB = struct.pack(">HHH", 6, 128, 0x43)
NULL = struct.pack(">H", 0x10)


@cache
def rsa_key(number: int = 0) -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(65537, 2048)


@cache
def ecc_key(number: int = 0) -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def area_of(key: Private, *, attributes: int = EK, policy: bytes = b"") -> bytes:
    """TPM2B_PUBLIC of a key."""
    if isinstance(key, rsa.RSAPrivateKey):
        modulus = key.public_key().public_numbers().n.to_bytes(key.key_size // 8, "big")
        rest = AES_CFB + NULL + struct.pack(">HI", key.key_size, 0) + sized(modulus)
        kind = 1
    else:
        numbers, size = key.public_key().public_numbers(), (key.curve.key_size + 7) // 8
        point = sized(numbers.x.to_bytes(size, "big")) + sized(numbers.y.to_bytes(size, "big"))
        curve = {"secp256r1": 3, "secp384r1": 4, "secp521r1": 5}[key.curve.name]
        rest = AES_CFB + NULL + struct.pack(">H", curve) + NULL + point
        kind = 0x23
    return sized(struct.pack(">HHI", kind, 0xB, attributes) + sized(policy) + rest)


def ak_area(key: Private, *, scheme: int = 0, attributes: int = AK, hash_id: int = 0xB) -> bytes:
    """TPM2B_PUBLIC of an attestation key; it signs by RSASSA or ECDSA."""
    area = area_of(key, attributes=attributes)
    default = 0x14 if isinstance(key, rsa.RSAPrivateKey) else 0x18
    signs = struct.pack(">HHH", 0x10, scheme or default, hash_id)
    return sized(area[2:].replace(AES_CFB + NULL, signs, 1))


@dataclass(frozen=True)
class Quoted:
    """A quote by a software key, as TPM2_Quote makes it; each field can be another one than a TPM's."""

    nonce: bytes = bytes(57)
    values: tuple[bytes, ...] = tuple(bytes([number]) * 32 for number in range(10))
    magic: int = 0xFF544347
    kind: int = 0x8018
    banks: int = 1
    bank: int = 0xB
    select: bytes = bytes.fromhex("ff1800")
    digest: bytes | None = None
    end: bytes = b""

    @property
    def attest(self) -> bytes:
        digest = hashlib.sha256(b"".join(self.values)).digest() if self.digest is None else self.digest
        head = struct.pack(">IH", self.magic, self.kind) + sized(bytes(34)) + sized(quote_nonce(self.nonce))
        selection = struct.pack(">IHB", self.banks, self.bank, len(self.select)) + self.select
        return head + bytes(17 + 8) + selection + sized(digest) + self.end

    def signature(self, key: Private) -> bytes:
        hash_ = hashes.SHA256()
        if isinstance(key, ec.EllipticCurvePrivateKey):
            r, s = utils.decode_dss_signature(key.sign(self.attest, ec.ECDSA(hash_)))
            size = (key.curve.key_size + 7) // 8
            return struct.pack(">HH", 0x18, 0xB) + sized(r.to_bytes(size, "big")) + sized(s.to_bytes(size, "big"))
        return struct.pack(">HH", 0x14, 0xB) + sized(key.sign(self.attest, padding.PKCS1v15(), hash_))


@dataclass(frozen=True)
class Opener:
    """TPM2_ActivateCredential by the book, for SHA-256 and AES-128."""

    owner: Private
    name: bytes

    def open(self, blob: bytes, secret: bytes) -> bytes:
        """Raises InvalidSignature or ValueError for what was not wrapped for these."""
        hash_ = hashes.SHA256()
        seed = self._seed(_only(secret))
        mac, identity = _take(_only(blob))
        outer = hmac.HMAC(kdf_a(hash_, seed, b"INTEGRITY\0", b"", 256), hash_)
        outer.update(identity + self.name)
        outer.verify(mac)
        decryptor = Cipher(algorithms.AES(kdf_a(hash_, seed, b"STORAGE\0", self.name, 128)), CFB(bytes(16))).decryptor()
        return _only(decryptor.update(identity) + decryptor.finalize())

    def _seed(self, secret: bytes) -> bytes:
        hash_ = hashes.SHA256()
        if isinstance(self.owner, rsa.RSAPrivateKey):
            return self.owner.decrypt(secret, padding.OAEP(padding.MGF1(hash_), hash_, b"IDENTITY\0"))
        x, rest = _take(secret)
        y = _only(rest)
        numbers = ec.EllipticCurvePublicNumbers(int.from_bytes(x, "big"), int.from_bytes(y, "big"), self.owner.curve)
        shared = self.owner.exchange(ec.ECDH(), numbers.public_key())
        own = self.owner.public_key().public_numbers().x.to_bytes((self.owner.curve.key_size + 7) // 8, "big")
        return kdf_e(hash_, shared, b"IDENTITY\0", x + own)


def _take(data: bytes) -> tuple[bytes, bytes]:
    size = int(struct.unpack(">H", data[:2])[0])
    assert len(data) >= 2 + size
    return data[2 : 2 + size], data[2 + size :]


def _only(data: bytes) -> bytes:
    content, rest = _take(data)
    assert rest == b""
    return content
