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
from unbounded.join.attestation import quote_nonce
from unbounded.join.tpm import TpmError
from unbounded.metalman.attest.quote import QUOTED, BadQuote, verify_quote
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


SELECTION = "sha256:" + ",".join(map(str, QUOTED))
NONCE = bytes(range(57))


def tools_quote(tpm: SoftwareTpm, kind: str, selection: str = SELECTION, nonce: bytes = NONCE) -> tuple[bytes, ...]:
    """Public area, quote and signature of a key that tpm2-tools made, and quoted with."""
    tpm.tools("createek", "-Q", "-G", "rsa", "-c", "ek.ctx", "-u", "ek.pub")
    tpm.forget()
    tpm.tools(
        *("createak", "-Q", "-C", "ek.ctx", "-c", "ak.ctx", "-G", kind, "-g", "sha256"),
        *("-u", "ak.pub", "-f", "tss", "-n", "ak.name"),
    )
    tpm.forget()
    qualification = ("-q", quote_nonce(nonce).hex())
    tpm.tools("quote", "-Q", "-c", "ak.ctx", "-l", selection, *qualification, "-m", "quote", "-s", "signature")
    tpm.forget()
    return tuple((tpm.folder / name).read_bytes() for name in ("ak.pub", "quote", "signature"))


def tools_accept(tpm: SoftwareTpm, area: bytes, quote: bytes, signature: bytes, nonce: bytes = NONCE) -> bool:
    """Return the verdict of tpm2_checkquote."""
    for name, content in (("ak.check", area), ("quote.check", quote), ("signature.check", signature)):
        (tpm.folder / name).write_bytes(content)
    arguments = ("-u", "ak.check", "-m", "quote.check", "-s", "signature.check", "-q", quote_nonce(nonce).hex())
    try:
        tpm.tools("checkquote", *arguments)
    except AssertionError:
        return False
    return True


def we_accept(area: bytes, quote: bytes, signature: bytes, values: list[bytes], nonce: bytes = NONCE) -> bool:
    try:
        verify_quote(parse_public(area, "akPub", signs=True), nonce, quote, signature, values)
    except BadQuote:
        return False
    return True


def extended(tpm: SoftwareTpm) -> list[bytes]:
    """Extend some PCRs, and return the values of all."""
    for number in (0, 4, 7, 12):
        tpm.tools("pcrextend", f"{number}:sha256={number:064x}")
    with tpm.ours() as ours:
        return ours.read_pcrs(QUOTED)


def test_our_values_of_pcrs_are_those_of_the_tools(tpm: SoftwareTpm) -> None:
    values = extended(tpm)
    tpm.tools("pcrread", "-Q", SELECTION, "-o", "values")
    assert b"".join(values) == (tpm.folder / "values").read_bytes()


@KINDS
def test_a_quote_of_the_tools_is_good_and_a_tampered_one_is_not(tpm: SoftwareTpm, kind: str) -> None:
    values = extended(tpm)
    area, quote, signature = tools_quote(tpm, kind)
    assert tools_accept(tpm, area, quote, signature)
    assert we_accept(area, quote, signature, values)
    for at in (0, 5, 42, 60, 80, len(quote) - 40, len(quote) - 1):  # magic to digest
        tampered = quote[:at] + bytes([quote[at] ^ 1]) + quote[at + 1 :]
        assert not tools_accept(tpm, area, tampered, signature), at
        assert not we_accept(area, tampered, signature, values), at
    forged = signature[:-1] + bytes([signature[-1] ^ 1])
    assert not tools_accept(tpm, area, quote, forged)
    assert not we_accept(area, quote, forged, values)
    assert not tools_accept(tpm, area, quote, signature, b"another nonce")
    assert not we_accept(area, quote, signature, values, b"another nonce")


@pytest.mark.parametrize("selection", ["sha256:0,1,2,3,4,5,6,7", f"{SELECTION},16", "sha1:0", f"sha1:0+{SELECTION}"])
def test_a_quote_of_other_pcrs_is_refused(tpm: SoftwareTpm, selection: str) -> None:
    values = extended(tpm)
    area, quote, signature = tools_quote(tpm, "ecc", selection)
    assert tools_accept(tpm, area, quote, signature)  # a good quote, and not the one that was requested
    assert not we_accept(area, quote, signature, values)


@KINDS
def test_our_quote_is_good_for_the_tools(tpm: SoftwareTpm, kind: str) -> None:
    extended(tpm)
    with tpm.ours() as ours, ours.keys(kind) as keys:
        made, area = keys.quote(quote_nonce(NONCE), QUOTED), keys.ak_public
    assert tools_accept(tpm, area, made.attest, made.signature)
    assert we_accept(area, made.attest, made.signature, made.values)
    tpm.tools("pcrextend", f"7:sha256={1:064x}")
    with tpm.ours() as ours, ours.keys(kind) as keys:
        after = keys.quote(quote_nonce(NONCE), QUOTED)
    assert [one for one, old, new in zip(QUOTED, made.values, after.values, strict=True) if old != new] == [7]
    assert not we_accept(area, after.attest, after.signature, made.values)


@KINDS
def test_only_the_tpm_of_the_attestation_key_opens_its_challenge(tpm: SoftwareTpm, tmp_path: Path, kind: str) -> None:
    with software_tpm(tmp_path / "other") as other, other.ours() as theirs, theirs.keys(kind) as foreign:
        foreign_ak = foreign.ak_public
    with tpm.ours() as ours, ours.keys(kind) as keys:
        ek, ak = parse_public(keys.ek_public, "ekPub"), parse_public(keys.ak_public, "akPub", signs=True)
        made = make_credential(ek, ak.name, b"x" * 32)
        assert keys.activate_ak(made.blob, made.secret) == b"x" * 32
        with pytest.raises(TpmError):
            keys.activate(made.blob, made.secret)
        wrong = make_credential(ek, parse_public(foreign_ak, "akPub", signs=True).name, b"x" * 32)
        with pytest.raises(TpmError):
            keys.activate_ak(wrong.blob, wrong.secret)
