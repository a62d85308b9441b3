"""The public key of releases in settings, and the signatures that it checks."""

from __future__ import annotations

import base64
import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from tests.join.signing import ANOTHER, KEY, PUBLIC_KEY, pem_of, signature, word_of
from unbounded.api.failures import Rejected
from unbounded.api.machine import AgentSpec
from unbounded.join.agent_config import AgentConfig, Upgrade, config_text
from unbounded.join.config_file import faults
from unbounded.join.install import AgentOrigin, install_environment, origin_of, with_key
from unbounded.join.release_key import WANTED, check_signature, public_key, signature_url

OPENSSL: Final = shutil.which("openssl")


def test_a_key_is_given_in_pem_or_as_its_lines() -> None:
    assert public_key(pem_of(KEY)) == public_key(PUBLIC_KEY) == PUBLIC_KEY
    assert public_key("") == ""


@pytest.mark.parametrize(
    "text",
    [
        "x",
        PUBLIC_KEY[:-8],
        base64.b64encode(b"\0" * 91).decode(),
        pem_of(ec.generate_private_key(ec.SECP384R1())),
        "-----BEGIN CERTIFICATE-----",
    ],
)
def test_what_is_no_such_key_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="wanted the PEM of an EC public key on the curve P-256"):
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
def test_a_key_and_a_signature_of_openssl_are_taken_for_the_file_that_it_signed(tmp_path: Path) -> None:
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
    config = AgentConfig(upgrade=Upgrade(public_key="x"))
    assert f"Upgrade.PublicKey: {WANTED}" in list(faults(config))
    assert not [one for one in faults(with_key(AgentConfig(), PUBLIC_KEY)) if one.startswith("Upgrade.")]
    assert '"PublicKey"' in config_text(with_key(AgentConfig(), PUBLIC_KEY))


@pytest.mark.parametrize(
    ("url", "beside"),
    [
        ("https://example.com/a.tar.gz", "https://example.com/a.tar.gz.sig"),
        ("https://example.com/a.tar.gz?sv=1&sig=x", "https://example.com/a.tar.gz.sig?sv=1&sig=x"),
    ],
)
def test_a_signature_lies_beside_its_release(url: str, beside: str) -> None:
    assert signature_url(url) == beside


@pytest.mark.parametrize("spec", [None, AgentSpec(), AgentSpec(url="https://h/a"), AgentSpec(version="v2")])
def test_no_machine_does_without_the_key_of_the_settings(spec: AgentSpec | None) -> None:
    origin = origin_of(spec, AgentOrigin(base_url="https://h", public_key=PUBLIC_KEY))
    assert install_environment(origin)["AGENT_PUBLIC_KEY"] == PUBLIC_KEY
