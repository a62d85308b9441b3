"""Public areas are read strictly: what is cut off, forged or of another kind is refused, with what is wrong."""

from __future__ import annotations

import os
import struct

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given
from hypothesis import strategies as st

from tests.metalman.attest.areas import EK, Opener, Private, area_of, ecc_key, rsa_key
from unbounded.join.tpm import sized
from unbounded.metalman.attest.tpm import BadKey, KeyAttributes, make_credential, parse_public

KEYS = [rsa_key(), ecc_key(), ec.generate_private_key(ec.SECP384R1()), ec.generate_private_key(ec.SECP521R1())]
EACH = pytest.mark.parametrize("key", KEYS, ids=["rsa", "p256", "p384", "p521"])


@EACH
def test_a_key_is_read_and_keeps_its_name(key: Private) -> None:
    policy = os.urandom(32)
    area = area_of(key, policy=policy)
    read = parse_public(area, "ekPub")
    assert read.key.public_numbers() == key.public_key().public_numbers()
    assert read.area == area[2:]
    assert read.name[:2] == b"\x00\x0b"
    assert read.pem.startswith("-----BEGIN PUBLIC KEY-----\n")
    assert (read.attributes, read.aes_bits) == (EK, 128)


@EACH
def test_every_truncation_is_refused(key: Private) -> None:
    area = area_of(key)
    for end in range(len(area)):
        with pytest.raises(BadKey, match=r"^ekPub: truncated in "):
            parse_public(area[:end], "ekPub")
    for end in range(2, len(area)):  # also when its size fits
        with pytest.raises(BadKey, match=r"^ekPub: "):
            parse_public(sized(area[2:end]), "ekPub")


@EACH
def test_what_is_left_over_is_refused(key: Private) -> None:
    area = area_of(key)
    for longer in (area + b"\0", sized(area[2:] + b"\0")):
        with pytest.raises(BadKey, match="1 bytes follow its end"):
            parse_public(longer, "ekPub")


def changed(area: bytes, at: int, new: bytes) -> bytes:
    return area[:at] + new + area[at + len(new) :]


RSA, ECC = area_of(rsa_key()), area_of(ecc_key())


@pytest.mark.parametrize(
    ("area", "said"),
    [
        (changed(RSA, 2, b"\x00\x08"), "type is 0x0008; expected an RSA or ECC key"),
        (changed(RSA, 4, b"\x00\x04"), "nameAlg is 0x0004; expected SHA-256, SHA-384 or SHA-512"),
        (area_of(rsa_key(), attributes=EK & ~KeyAttributes.FIXED_TPM), "fixedTPM is not set"),
        (area_of(rsa_key(), attributes=EK & ~KeyAttributes.RESTRICTED), "restricted is not set"),
        (area_of(rsa_key(), attributes=EK | KeyAttributes.SIGN_ENCRYPT), "sign is set"),
        (area_of(rsa_key(), attributes=EK | 1), "has reserved bits set"),
        (area_of(rsa_key(), policy=b"short"), "authPolicy has 5 bytes; its nameAlg requires 0 or 32"),
        (changed(RSA, 12, b"\x00\x10"), "symmetric is 0x0010; expected AES"),
        (changed(RSA, 16, b"\x00\x44"), "in mode 0x0044"),
        (changed(RSA, 18, b"\x00\x14"), "scheme is 0x0014"),
        (changed(RSA, 20, struct.pack(">H", 1024)), "RSA key of 1024 bits"),
        (changed(RSA, 22, struct.pack(">I", 3)), "RSA exponent 3"),
        (changed(RSA, 28, b"\x00"), "the modulus does not have 2048 bits"),
        (changed(RSA, len(RSA) - 1, b"\x00"), "the modulus does not have 2048 bits"),
        (changed(ECC, 20, b"\x00\x10"), "curve 0x0010"),
        (changed(ECC, 22, b"\x00\x20"), "kdf is 0x0020"),
        (changed(ECC, 26, bytes(32)), "x and y are not a point of secp256r1"),
        (bytes(5000), "5000 bytes; the public area of a key has at most 4096"),
        (b"", "truncated in its size: 2 bytes are missing"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",  # the areas are of keys that each process makes
)
def test_what_is_no_key_of_a_tpm_is_refused_with_the_reason(area: bytes, said: str) -> None:
    with pytest.raises(BadKey) as caught:
        parse_public(area, "srkPub")
    assert said in str(caught.value)
    assert str(caught.value).startswith("srkPub: ")


@pytest.mark.slow
@given(
    st.binary(max_size=400)
    | st.tuples(st.sampled_from([RSA, ECC]), st.integers(0, 400), st.binary(max_size=4)).map(
        lambda t: changed(t[0], t[1], t[2])
    )
)
def test_garbage_is_refused_or_read_and_never_a_crash(data: bytes) -> None:
    try:
        read = parse_public(data, "key")
    except BadKey as error:
        said = str(error)
    else:
        said = "key: read"
        assert sized(read.area) == data
    assert said.startswith("key: ")


@pytest.mark.parametrize("owner", [rsa_key(), ecc_key()], ids=["rsa", "ecc"])
def test_only_the_right_key_beside_the_right_name_opens(owner: Private) -> None:
    read = parse_public(area_of(owner), "ekPub")
    other = rsa_key(1) if owner is rsa_key() else ecc_key(1)
    name, secret = parse_public(area_of(other), "srkPub").name, os.urandom(32)
    made = make_credential(read, name, secret)
    assert Opener(owner, name).open(made.blob, made.secret) == secret
    assert make_credential(read, name, secret) != made
    for wrong in (Opener(owner, read.name), Opener(other, name)):
        with pytest.raises((InvalidSignature, ValueError)):
            wrong.open(made.blob, made.secret)
