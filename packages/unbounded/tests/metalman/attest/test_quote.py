"""Quotes of PCRs: a forged or unfit one is refused with the reason; a boot is compared with the reference."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.metalman.attest.areas import AK, Private, Quoted, ak_area, area_of, ecc_key, rsa_key
from unbounded.api.conditions import split_commands
from unbounded.api.machine_status import PCR_MEANING, PCRValue, QuotedBoot
from unbounded.api.names import PCRPolicy
from unbounded.metalman.attest.quote import QUOTED, BadQuote, judge, verify_quote
from unbounded.metalman.attest.tpm import BadKey, KeyAttributes, parse_public

NONCE = bytes(57)
GOOD = Quoted()
KEYS = pytest.mark.parametrize("key", [rsa_key(), ecc_key()], ids=["rsa", "ecc"])


def verify(quote: Quoted, key: Private, *, signature: bytes = b"", **other: Any) -> None:
    area = parse_public(ak_area(key), "akPub", signs=True)
    signed = signature or quote.signature(key)
    verify_quote(area, other.get("nonce", NONCE), quote.attest, signed, other.get("values", quote.values))


@KEYS
def test_a_quote_that_the_key_signed_is_good(key: Private) -> None:
    verify(GOOD, key)
    broken = bytearray(GOOD.signature(key))
    broken[-1] ^= 1
    with pytest.raises(BadQuote, match="akPub has not signed this quote"):
        verify(GOOD, key, signature=bytes(broken))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"magic": 0}, "magic is 0x00000000; expected TPM_GENERATED_VALUE (0xff544347)"),
        ({"kind": 0x8017}, "type is 0x8017; expected TPM_ST_ATTEST_QUOTE (0x8018)"),
        ({"nonce": b"another"}, "extraData is not the SHA-256 digest of this challenge's nonce"),
        ({"banks": 2}, "it covers 2 banks of PCRs"),
        ({"bank": 4}, "it covers the bank 0x0004; expected SHA-256"),
        ({"select": bytes(3)}, "the TPM's SHA-256 bank of PCRs is not active"),
        ({"select": bytes.fromhex("ff0000")}, "it covers PCR 0, 1, 2, 3, 4, 5, 6, 7; expected PCR 0, 1"),
        ({"select": bytes.fromhex("ff1801")}, "11, 12, 16; expected"),
        ({"select": b""}, "sizeofSelect is 0; expected 1 to 8"),
        ({"digest": bytes(32)}, "its digest is not that of the values in pcrs"),
        ({"digest": b""}, "its digest is not that of the values in pcrs"),
        ({"end": b"x"}, "1 bytes follow its end"),
    ],
)
def test_a_signed_structure_that_is_no_such_quote_is_refused(change: Mapping[str, Any], message: str) -> None:
    with pytest.raises(BadQuote) as refused:
        verify(replace(GOOD, **change), ecc_key())
    assert str(refused.value).startswith("quote: ")
    assert message in str(refused.value)


def test_values_and_signature_have_to_fit_the_quote() -> None:
    swapped = (GOOD.values[1], GOOD.values[0], *GOOD.values[2:])
    cases: list[tuple[dict[str, Any], str]] = [
        ({"values": swapped}, "its digest is not that of the values in pcrs"),
        ({"values": GOOD.values[1:]}, "pcrs must have 10 values of 32 bytes, those of PCR 0, 1, 2"),
        ({"values": (b"", *GOOD.values[1:])}, "pcrs must have 10 values of 32 bytes"),
        ({"signature": GOOD.signature(ecc_key(1))}, "quoteSignature: akPub has not signed this quote"),
        ({"signature": GOOD.signature(rsa_key())}, "quoteSignature: sigAlg is 0x0014, which does not fit akPub"),
        ({"signature": GOOD.signature(ecc_key()) + b"x"}, "quoteSignature: 1 bytes follow its end"),
        ({"signature": GOOD.signature(ecc_key())[:-1]}, "quoteSignature: truncated in signatureS"),
        ({"signature": b"\x00\x18\x00\x04"}, "quoteSignature: hash is 0x0004; expected SHA-256"),
        ({"signature": bytes(5000)}, "quote and quoteSignature have 4096 bytes at most"),
    ]
    for given_, message in cases:
        with pytest.raises(BadQuote) as refused:
            verify(GOOD, ecc_key(), **given_)
        assert message in str(refused.value)


@pytest.mark.parametrize(
    ("area", "message"),
    [
        (area_of(ecc_key()), "sign is not set: expected a restricted signing key"),
        (ak_area(ecc_key(), attributes=AK & ~KeyAttributes.RESTRICTED), "restricted is not set"),
        (ak_area(ecc_key(), attributes=AK & ~KeyAttributes.FIXED_TPM), "fixedTPM is not set"),
        (ak_area(ecc_key(), attributes=AK | KeyAttributes.DECRYPT), "decrypt is set"),
        (ak_area(ecc_key(), scheme=0x14), "scheme is 0x0014; expected RSASSA or ECDSA"),
        (ak_area(rsa_key(), hash_id=4), "scheme.hashAlg is 0x0004"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",  # the areas are of keys that each process makes
)
def test_a_key_that_could_sign_other_data_attests_nothing(area: bytes, message: str) -> None:
    """An unrestricted key signs a structure that its user made up."""
    with pytest.raises(BadKey, match=message):
        parse_public(area, "akPub", signs=True)
    with pytest.raises(BadKey):
        parse_public(ak_area(ecc_key()), "srkPub")


@pytest.mark.slow
@KEYS
@given(st.data())
def test_no_flipped_bit_of_quote_or_signature_is_accepted(key: Private, data: st.DataObject) -> None:
    attest, signature = bytearray(GOOD.attest), bytearray(GOOD.signature(key))
    part = data.draw(st.sampled_from([attest, signature]))
    bit = data.draw(st.integers(0, len(part) * 8 - 1))
    part[bit // 8] ^= 1 << bit % 8
    area = parse_public(ak_area(key), "akPub", signs=True)
    with pytest.raises(BadQuote):
        verify_quote(area, NONCE, bytes(attest), bytes(signature), GOOD.values)


@pytest.mark.slow
@given(st.binary(max_size=300), st.binary(max_size=300), st.lists(st.binary(max_size=40), max_size=12))
def test_any_bytes_are_refused_without_a_crash(attest: bytes, signature: bytes, values: list[bytes]) -> None:
    area = parse_public(ak_area(ecc_key()), "akPub", signs=True)
    for signed in (signature, Quoted(end=attest).signature(ecc_key())):
        with pytest.raises(BadQuote):
            verify_quote(area, NONCE, attest, signed, values)


@pytest.mark.slow
@given(st.binary(max_size=200))
def test_signed_garbage_is_refused_without_a_crash(content: bytes) -> None:
    class Garbage(Quoted):
        @property
        def attest(self) -> bytes:
            return content

    with pytest.raises(BadQuote):
        verify(Garbage(), ecc_key())


# Comparison with the reference


def boot(name: str, **changed: str) -> QuotedBoot:
    """A boot whose PCR n has n's digit, or that of `pcr<n>`."""
    digits = {number: changed.get(f"pcr{number}", f"{number:x}") for number in QUOTED}
    pcrs = tuple(PCRValue(number=number, sha256=digit * 64) for number, digit in digits.items())
    return QuotedBoot(boot=name, at="2026-01-01T00:00:00Z", image_digest=changed.get("image", "sha256:1"), pcrs=pcrs)


FIRST, SAME, OTHER = boot("a"), boot("b"), boot("b", pcr4="f", pcr7="e")


def test_the_first_boot_becomes_the_reference() -> None:
    for policy in PCRPolicy:
        verdict = judge(FIRST, None, policy, machine="m1")
        assert (verdict.reference, verdict.refused, verdict.reason) == (FIRST, "", "Recorded")
        again = judge(FIRST, FIRST, policy, machine="m1")
        assert (again.status, again.reason, again.message) == (verdict.status, verdict.reason, verdict.message)


def test_a_boot_with_the_same_values_is_unchanged() -> None:
    verdict = judge(SAME, FIRST, PCRPolicy.REQUIRED, machine="m1")
    assert (verdict.status, verdict.reason, verdict.refused) == ("False", "Unchanged", "")
    assert verdict.reference is FIRST


def test_each_deviating_pcr_is_named_with_its_meaning() -> None:
    for number, meaning in PCR_MEANING.items():
        verdict = judge(boot("b", **{f"pcr{number}": "f"}), FIRST, PCRPolicy.RECORDED, machine="m1")
        assert (verdict.status, verdict.reason, verdict.refused) == ("True", "PCRMismatch", "")
        assert f"with the same image: PCR {number} ({meaning}) is ffffffffffff…, and was " in verdict.message
        assert verdict.reference is FIRST


def test_a_deviating_boot_is_refused_where_the_policy_requires_it() -> None:
    verdict = judge(boot("b", pcr4="f", pcr7="e", image="sha256:2"), FIRST, PCRPolicy.REQUIRED, machine="m1")
    assert "with another image: PCR 4 (boot loader) is" in verdict.refused
    assert split_commands(verdict.refused)[1] == ("kubectl unbounded machine replace m1 --accept-pcr 4 --accept-pcr 7",)
    assert verdict.reference is FIRST


def test_accepted_values_become_the_reference_once() -> None:
    accept = {"accepted": frozenset({0, 4, 7}), "requested_by": "alice"}
    verdict = judge(OTHER, FIRST, PCRPolicy.REQUIRED, machine="m1", **accept)  # type: ignore[arg-type]
    assert (verdict.reason, verdict.refused) == ("Accepted", "")
    assert verdict.reference is not None
    assert (verdict.reference.accepted_by, verdict.reference.boot) == ("alice", "b")
    repeated = judge(OTHER, verdict.reference, PCRPolicy.REQUIRED, machine="m1", **accept)  # type: ignore[arg-type]
    assert (repeated.reason, repeated.refused) == ("Accepted", "")
    third = boot("b", pcr4="1")  # of the same boot
    assert judge(third, verdict.reference, PCRPolicy.REQUIRED, machine="m1", **accept).refused  # type: ignore[arg-type]


def test_a_consent_covers_the_named_pcrs_only() -> None:
    for accepted in (frozenset({4}), frozenset[int]()):
        verdict = judge(OTHER, FIRST, PCRPolicy.REQUIRED, machine="m1", accepted=accepted, requested_by="alice")
        assert "PCR 7 (Secure Boot policy and keys)" in verdict.refused
        assert verdict.reference is FIRST


def test_a_reference_without_some_pcrs_deviates_in_them() -> None:
    part = QuotedBoot(boot="a", at=FIRST.at, pcrs=FIRST.pcrs[1:])
    verdict = judge(SAME, part, PCRPolicy.REQUIRED, machine="m1")
    assert "PCR 0 (firmware code) is 000000000000…, and was absent" in verdict.refused


def test_a_host_without_a_quote_gets_a_token_unless_it_is_required() -> None:
    none = QuotedBoot(boot="b", at=FIRST.at)
    for policy, refused in ((PCRPolicy.RECORDED, False), (PCRPolicy.REQUIRED, True)):
        for reference in (None, FIRST):
            verdict = judge(none, reference, policy, machine="m1")
            assert (verdict.status, verdict.reason) == ("Unknown", "QuoteMissing")
            assert (bool(verdict.refused), verdict.reference) == (refused, reference)
