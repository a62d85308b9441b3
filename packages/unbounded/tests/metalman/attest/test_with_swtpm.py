"""Credentials between our code, a software TPM and tpm2-tools, in both directions."""

from __future__ import annotations

import hashlib
import os
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.software_tpm import CREDENTIAL_HEAD, SoftwareTpm, needs_tpm, software_tpm
from unbounded.join.tpm import TpmError
from unbounded.metalman.attest.tpm import make_credential, parse_public
from unbounded.metalman.attest.trust import fingerprint

pytestmark = [pytest.mark.slow, needs_tpm]
KINDS = pytest.mark.parametrize("kind", ["rsa", "ecc"])


@pytest.fixture
def tpm(tmp_path: Path) -> Iterator[SoftwareTpm]:
    with software_tpm(tmp_path) as running:
        yield running


@KINDS
def test_what_we_wrap_the_tools_open(tpm: SoftwareTpm, kind: str) -> None:
    ek, srk = (parse_public(data, "key") for data in tpm.public_keys(kind))
    secret = os.urandom(32)
    made = make_credential(ek, srk.name, secret)
    assert tpm.activate(made.blob, made.secret) == secret


@KINDS
def test_what_the_tools_wrap_our_commands_open(tpm: SoftwareTpm, kind: str) -> None:
    secret = os.urandom(32)
    (tpm.folder / "secret").write_bytes(secret)
    with tpm.ours() as ours, ours.keys(kind) as keys:
        (tpm.folder / "our-ek.pub").write_bytes(keys.ek_public)
        name = parse_public(keys.srk_public, "srkPub").name.hex()
    tpm.tools("makecredential", "-Q", "-T", "none", "-u", "our-ek.pub", "-s", "secret", "-n", name, "-o", "made")
    content = (tpm.folder / "made").read_bytes()
    assert content.startswith(CREDENTIAL_HEAD)
    size = 2 + struct.unpack(">H", content[8:10])[0]
    with tpm.ours() as ours, ours.keys(kind) as keys:
        assert keys.activate(content[8 : 8 + size], content[8 + size :]) == secret


@KINDS
def test_our_commands_find_the_same_endorsement_key_as_the_tools(tpm: SoftwareTpm, kind: str) -> None:
    theirs, _ = tpm.public_keys(kind)
    with tpm.ours() as ours:
        for _ in range(4):  # more than it has room for, if anything were left behind
            with ours.keys(kind) as keys:
                assert keys.ek_public == theirs


@KINDS
def test_endorsement_key_digest_equals_that_of_tpm2_tools_and_openssl(tpm: SoftwareTpm, kind: str) -> None:
    tpm.tools("createek", "-Q", "-G", kind, "-c", "ek.ctx", "-u", "ek.pem", "-f", "pem")
    tpm.forget()
    der = ["openssl", "pkey", "-pubin", "-in", str(tpm.folder / "ek.pem"), "-outform", "DER"]
    made = subprocess.run(der, capture_output=True, check=True).stdout
    with tpm.ours() as ours, ours.keys(kind) as keys:
        found = fingerprint(parse_public(keys.ek_public, "ekPub").key)
    assert found == f"SHA256:{hashlib.sha256(made).hexdigest()}"


@KINDS
def test_what_was_wrapped_for_others_stays_closed(tpm: SoftwareTpm, tmp_path: Path, kind: str) -> None:
    with software_tpm(tmp_path / "other") as other, other.ours() as theirs, theirs.keys(kind) as foreign:
        ek, srk = foreign.ek_public, foreign.srk_public
    with tpm.ours() as ours, ours.keys(kind) as keys:
        own_ek, own_srk = parse_public(keys.ek_public, "ekPub"), parse_public(keys.srk_public, "srkPub")
        right = make_credential(own_ek, own_srk.name, b"x" * 32)
        assert keys.activate(right.blob, right.secret) == b"x" * 32
        for wrong in (
            make_credential(parse_public(ek, "ekPub"), own_srk.name, b"x" * 32),
            make_credential(own_ek, parse_public(srk, "srkPub").name, b"x" * 32),
        ):
            with pytest.raises(TpmError):
                keys.activate(wrong.blob, wrong.secret)
        swapped = make_credential(own_ek, own_srk.name, b"y" * 32)
        with pytest.raises(TpmError):
            keys.activate(right.blob, swapped.secret)
        with pytest.raises(TpmError):
            keys.activate(right.blob[:-1] + bytes([right.blob[-1] ^ 1]), right.secret)
