"""Quotes of PCRs, and the comparison of a quoted boot with the reference. Pure.

A quote is TPMS_ATTEST with a TPMT_SIGNATURE (TPM 2.0 Library part 2, 10.12.8 and 11.3.4). It is good when the
attestation key signed it for this nonce, and covers exactly PCR_MEANING's PCRs of the SHA-256 bank with the values that
came with it. Its clock, reset counter and firmware version decide nothing.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa, utils
from msgspec.structs import replace

from unbounded.api.conditions import ConditionReason, ConditionStatus
from unbounded.api.machine import Machine
from unbounded.api.machine_status import PCR_MEANING, PCRValue, QuotedBoot, accept_command, pcr_text
from unbounded.api.names import PCRPolicy
from unbounded.join.attestation import quote_nonce
from unbounded.metalman.attest.tpm import HASHES, Algorithm, FieldReader, PublicArea

QUOTED: Final = tuple(PCR_MEANING)
LARGEST: Final = 4096
_DIGEST_BYTES: Final = 32
_MAGIC: Final = 0xFF544347  # TPM_GENERATED_VALUE: the TPM made the structure itself
_ATTEST_QUOTE: Final = 0x8018
_CLOCK_BYTES: Final = 8 + 4 + 4 + 1  # clock, resetCount, restartCount, safe
_FIRMWARE_BYTES: Final = 8
_SELECT_BYTES: Final = range(1, 9)
_SHOWN: Final = 12  # digits of a value in messages


class BadQuote(ValueError):
    """The quote is malformed, or does not prove the values; the message names the field."""


def verify_quote(key: PublicArea, nonce: bytes, attest: bytes, signature: bytes, values: Sequence[bytes]) -> None:
    """Verify a quote of the PCRs in `QUOTED`.

    Args:
        key: the attestation key.
        nonce: of the challenge.
        attest: TPMS_ATTEST.
        signature: TPMT_SIGNATURE.
        values: of the PCRs, in their order.
    Raises:
        BadQuote
    """
    if max(len(attest), len(signature)) > LARGEST:
        raise BadQuote(f"quote and quoteSignature have {LARGEST} bytes at most")
    if len(values) != len(QUOTED) or any(len(one) != _DIGEST_BYTES for one in values):
        raise BadQuote(f"pcrs must have {len(QUOTED)} values of {_DIGEST_BYTES} bytes, those of {_numbers(QUOTED)}")
    _verify_signature(key, attest, signature)
    selected, digest = _parse_quote(attest, nonce)
    if not selected:
        raise BadQuote("quote: the TPM's SHA-256 bank of PCRs is not active; activate it in the firmware's setup")
    if selected != QUOTED:
        raise BadQuote(f"quote: it covers {_numbers(selected)}; expected {_numbers(QUOTED)}")
    if not hmac.compare_digest(digest, hashlib.sha256(b"".join(values)).digest()):
        raise BadQuote("quote: its digest is not that of the values in pcrs")


def _numbers(pcrs: Sequence[int]) -> str:
    return f"PCR {', '.join(map(str, pcrs))}"


def _parse_quote(attest: bytes, nonce: bytes) -> tuple[tuple[int, ...], bytes]:
    """Return the PCRs of the SHA-256 bank that a quote for this nonce covers, and its digest."""
    reader = FieldReader("quote", attest)
    try:
        if (magic := reader.u32("magic")) != _MAGIC:
            raise reader.bad(f"magic is {magic:#010x}; expected TPM_GENERATED_VALUE ({_MAGIC:#010x})")
        if (kind := reader.u16("type")) != _ATTEST_QUOTE:
            raise reader.bad(f"type is {kind:#06x}; expected TPM_ST_ATTEST_QUOTE ({_ATTEST_QUOTE:#06x})")
        reader.sized("qualifiedSigner")
        if not hmac.compare_digest(reader.sized("extraData"), quote_nonce(nonce)):
            raise reader.bad("extraData is not the SHA-256 digest of this challenge's nonce")
        reader.take(_CLOCK_BYTES, "clockInfo")
        reader.take(_FIRMWARE_BYTES, "firmwareVersion")
        selected = _selection(reader)
        digest = reader.sized("pcrDigest")
        reader.end()
    except ValueError as error:
        raise BadQuote(str(error)) from None
    return selected, digest


def _selection(reader: FieldReader) -> tuple[int, ...]:
    """Parse a TPML_PCR_SELECTION that has the SHA-256 bank alone."""
    if (banks := reader.u32("pcrSelect.count")) != 1:
        raise reader.bad(f"it covers {banks} banks of PCRs; expected the SHA-256 bank alone")
    if (bank := reader.u16("pcrSelect.hash")) != Algorithm.SHA256:
        raise reader.bad(f"it covers the bank {bank:#06x}; expected SHA-256 ({Algorithm.SHA256.value:#06x})")
    size = reader.take(1, "pcrSelect.sizeofSelect")[0]
    if size not in _SELECT_BYTES:
        raise reader.bad(f"pcrSelect.sizeofSelect is {size}; expected 1 to 8")
    bits = int.from_bytes(reader.take(size, "pcrSelect.pcrSelect"), "little")
    return tuple(number for number in range(8 * size) if bits >> number & 1)


def _verify_signature(key: PublicArea, attest: bytes, signature: bytes) -> None:
    reader = FieldReader("quoteSignature", signature)
    try:
        scheme, hash_id = reader.u16("sigAlg"), reader.u16("hash")
        if hash_id not in HASHES:
            raise reader.bad(f"hash is {hash_id:#06x}; expected SHA-256, SHA-384 or SHA-512")
        hash_ = HASHES[hash_id]()
        match key.key, scheme:
            case rsa.RSAPublicKey() as public, Algorithm.RSASSA:
                signed = reader.sized("sig")
                reader.end()
                public.verify(signed, attest, padding.PKCS1v15(), hash_)
            case ec.EllipticCurvePublicKey() as public, Algorithm.ECDSA:
                r, s = (int.from_bytes(reader.sized(part), "big") for part in ("signatureR", "signatureS"))
                reader.end()
                public.verify(utils.encode_dss_signature(r, s), attest, ec.ECDSA(hash_))
            case _:
                raise reader.bad(f"sigAlg is {scheme:#06x}, which does not fit akPub")
    except InvalidSignature:
        raise BadQuote("quoteSignature: akPub has not signed this quote") from None
    except ValueError as error:
        raise BadQuote(str(error)) from None


# Comparison with the reference


def pcr_policy(machine: Machine, default: PCRPolicy) -> PCRPolicy:
    """Return the policy of a Machine: its own, else the site's."""
    attestation = machine.spec.pxe.attestation if machine.spec.pxe else None
    named = attestation.pcr_policy if attestation else None
    return PCRPolicy(named) if named in set(PCRPolicy) else default


@dataclass(frozen=True)
class BootVerdict:
    """The result of a comparison.

    Args:
        status, reason, message: of the condition BootChanged.
        refused: the text for a host that receives no token; empty for one that does.
        quote, reference: for the status of the TPM.
    """

    status: ConditionStatus
    reason: ConditionReason
    message: str
    quote: QuotedBoot
    reference: QuotedBoot | None
    refused: str = ""


def judge(
    quote: QuotedBoot,
    reference: QuotedBoot | None,
    policy: PCRPolicy,
    *,
    machine: str,
    accepted: frozenset[int] = frozenset(),
    requested_by: str = "",
) -> BootVerdict:
    """Compare a boot with the reference.

    Args:
        quote: the boot, verified; without values for a host that cannot quote.
        reference: None for the first boot.
        accepted: PCRs that may deviate in this boot, once.
        requested_by: the user who accepts them.
    """
    required = policy is PCRPolicy.REQUIRED
    if not quote.pcrs:
        text = "the host proved its TPM without a quote of its PCRs; install an image with a newer agent"
        refused = f"{text}, as the PCR policy is {PCRPolicy.REQUIRED}" if required else ""
        return BootVerdict(ConditionStatus.UNKNOWN, ConditionReason.QUOTE_MISSING, text, quote, reference, refused)
    if reference is None:
        return _of_reference(quote, quote)
    changed = quote.deviations(reference)
    if not changed and reference.boot == quote.boot:  # a repeated request of the boot that became the reference
        return _of_reference(quote, reference)
    if not changed:
        text = f"its PCRs have the values of the reference of {reference.at}"
        return BootVerdict(ConditionStatus.FALSE, ConditionReason.UNCHANGED, text, quote, reference)
    if reference.boot != quote.boot and changed <= accepted:
        return _of_reference(quote, replace(quote, accepted_by=requested_by[:1024]))
    text = _deviation_text(reference, quote, changed)
    remedy = f"the command at the end accepts it once, if it is expected\n{accept_command(machine, changed)}\n"
    refused = f"{text}; {remedy}" if required else ""
    return BootVerdict(ConditionStatus.TRUE, ConditionReason.PCR_MISMATCH, text, quote, reference, refused)


def _of_reference(quote: QuotedBoot, reference: QuotedBoot) -> BootVerdict:
    by = reference.accepted_by
    text = "the PCRs of this boot are the reference for later ones" + (f", as {by} accepted" if by else "")
    reason = ConditionReason.ACCEPTED if by else ConditionReason.RECORDED
    return BootVerdict(ConditionStatus.FALSE, reason, text, quote, reference)


def quoted(values: Sequence[bytes], *, boot: str, at: str, image_digest: str | None) -> QuotedBoot:
    """Return a boot with the values of a verified quote."""
    pcrs = tuple(PCRValue(number=one, sha256=value.hex()) for one, value in zip(QUOTED, values, strict=False))
    return QuotedBoot(boot=boot, at=at, image_digest=image_digest, pcrs=pcrs)


def _deviation_text(reference: QuotedBoot, quote: QuotedBoot, changed: frozenset[int]) -> str:
    each = "; ".join(
        f"{pcr_text(one)} is {_short(quote.values.get(one))}, and was {_short(reference.values.get(one))}"
        for one in sorted(changed)
    )
    image = "another image" if reference.image_digest != quote.image_digest else "the same image"
    return f"this boot deviates from the reference of {reference.at}, with {image}: {each}"


def _short(value: str | None) -> str:
    return f"{value[:_SHOWN]}…" if value else "absent"
