"""The public key of releases in settings, and the signatures that it checks."""

from __future__ import annotations

import base64
import hashlib
import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from tests.join import signing
from tests.join.signing import ANOTHER, KEY, PUBLIC_KEY, signature, word_of
from unbounded.api.core import ConfigMap
from unbounded.api.failures import Rejected
from unbounded.join.agent_config import AgentConfig, UpgradeConfig, config_text
from unbounded.join.agent_config_file import faults
from unbounded.join.release_key import (
    WANTED,
    check_signature,
    fingerprint,
    pem_of,
    public_key,
    published_key,
    signature_url,
)


def _public(key: rsa.RSAPrivateKey | ed25519.Ed25519PrivateKey) -> str:
    return key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()


RSA = _public(rsa.generate_private_key(65537, 2048))
ED25519 = _public(ed25519.Ed25519PrivateKey.generate())
PRIVATE = KEY.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()

OPENSSL: Final = shutil.which("openssl")


def test_a_key_is_given_in_pem_or_as_its_lines() -> None:
    assert public_key(signing.pem_of(KEY)) == public_key(PUBLIC_KEY) == PUBLIC_KEY
    assert public_key("") == ""


@pytest.mark.parametrize(
    "text",
    [
        "x",
        PUBLIC_KEY[:-8],
        base64.b64encode(b"\0" * 91).decode(),
        signing.pem_of(ec.generate_private_key(ec.SECP384R1())),
        RSA,
        ED25519,
        PRIVATE,
        "-----BEGIN CERTIFICATE-----",
        PUBLIC_KEY[:-10] + ("A" if PUBLIC_KEY[-10] != "A" else "B") + PUBLIC_KEY[-9:],
    ],
    ids=range(9),
)
def test_what_is_no_such_key_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected the PEM of an EC public key on the curve P-256"):
        public_key(text)


def test_a_signature_is_of_one_file_by_one_key(tmp_path: Path) -> None:
    file = tmp_path / "release"
    file.write_bytes(b"content")
    check_signature(PUBLIC_KEY, file, signature(b"content"))
    for wrong in (signature(b"other"), signature(b"content", ANOTHER), b"", b"x" * 70):
        with pytest.raises(Rejected, match="its signature is of another file, or by another key"):
            check_signature(PUBLIC_KEY, file, wrong)
    with pytest.raises(Rejected):
        check_signature(word_of(ANOTHER), file, signature(b"content"))


@pytest.mark.skipif(OPENSSL is None, reason="needs openssl")
def test_openssl_signature_is_accepted_for_the_signed_file_only(tmp_path: Path) -> None:
    """With the commands of docs/release.md."""
    release, key, public, beside = (tmp_path / name for name in ("release", "key.pem", "key.pub", "release.sig"))
    release.write_bytes(b"content")
    for words in (
        ("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", key),
        ("ec", "-in", key, "-pubout", "-out", public),
        ("dgst", "-sha256", "-sign", key, "-out", beside, release),
    ):
        subprocess.run([OPENSSL or "openssl", *words], check=True, capture_output=True)
    word = public_key(public.read_text())
    check_signature(word, release, beside.read_bytes())
    release.write_bytes(b"Content")
    with pytest.raises(Rejected, match="its signature is of another file, or by another key"):
        check_signature(word, release, beside.read_bytes())


def test_a_configuration_with_another_kind_of_key_names_it() -> None:
    config = AgentConfig(upgrade=UpgradeConfig(public_key="x"))
    assert f"Upgrade.PublicKey: {WANTED}" in list(faults(config))
    assert not [
        one for one in faults(AgentConfig(upgrade=UpgradeConfig(public_key=PUBLIC_KEY))) if one.startswith("Upgrade.")
    ]
    assert '"PublicKey"' in config_text(AgentConfig(upgrade=UpgradeConfig(public_key=PUBLIC_KEY)))


@pytest.mark.parametrize(
    ("url", "beside"),
    [
        ("https://example.com/a.tar.gz", "https://example.com/a.tar.gz.sig"),
        ("https://example.com/a.tar.gz?sv=1&sig=x", "https://example.com/a.tar.gz.sig?sv=1&sig=x"),
    ],
)
def test_a_signature_lies_beside_its_release(url: str, beside: str) -> None:
    assert signature_url(url) == beside


def test_a_key_is_published_in_pem_and_known_by_its_fingerprint() -> None:
    assert pem_of(PUBLIC_KEY) == signing.pem_of(KEY)
    assert public_key(pem_of(PUBLIC_KEY)) == PUBLIC_KEY
    der = subprocess.run(["base64", "-d"], input=PUBLIC_KEY.encode(), capture_output=True, check=True).stdout
    assert fingerprint(PUBLIC_KEY) == f"sha256:{hashlib.sha256(der).hexdigest()[:16]}"


@pytest.mark.parametrize(
    ("config_map", "key"),
    [
        (None, ""),
        (ConfigMap(), ""),
        (ConfigMap(data={"publicKey": "\n"}), ""),
        (ConfigMap(data={"publicKey": signing.pem_of(KEY)}), PUBLIC_KEY),
        (ConfigMap(data={"publicKey": PUBLIC_KEY}), PUBLIC_KEY),
    ],
)
def test_what_is_published_is_read(config_map: ConfigMap | None, key: str) -> None:
    assert published_key(config_map) == key


@pytest.mark.parametrize("text", ["x", RSA, ED25519, signing.pem_of(KEY)[:-40], PRIVATE], ids=range(5))
def test_another_kind_of_key_is_named_by_the_config_map(text: str) -> None:
    with pytest.raises(ValueError, match=r"^ConfigMap unbounded-kube/unbounded-releases, key publicKey: expected"):
        published_key(ConfigMap(data={"publicKey": text}))
