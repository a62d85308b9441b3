"""Endorsement certificates: from the TPM's to one that the operator trusts, and every way in which that fails."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from hypothesis import given
from hypothesis import strategies as st

from tests.support.software_tpm import needs_tpm, software_tpm
from unbounded.api.failures import Rejected
from unbounded.metalman.attest.tpm import parse_public
from unbounded.metalman.attest.trust import EK_CERTIFICATE, NotTrusted, TrustedRoots

NOW = datetime(2026, 6, 1, tzinfo=UTC)
DER = serialization.Encoding.DER


def name_of(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)] if text else [])


@dataclass(frozen=True)
class Authority:
    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    @property
    def der(self) -> bytes:
        return self.certificate.public_bytes(DER)


Change = Callable[[x509.CertificateBuilder], x509.CertificateBuilder]


def sign(
    subject: str,
    key: ec.EllipticCurvePublicKey,
    issuer: str,
    by: ec.EllipticCurvePrivateKey,
    *extensions: tuple[x509.ExtensionType, bool],
    days: int = 365,
) -> x509.Certificate:
    start = NOW - timedelta(days=1)
    builder = x509.CertificateBuilder(
        name_of(issuer), name_of(subject), key, x509.random_serial_number(), start, start + timedelta(days=days)
    )
    for extension, critical in extensions:
        builder = builder.add_extension(extension, critical)
    return builder.sign(by, hashes.SHA256())


def authority(
    name: str, parent: Authority | None = None, *, ca: bool = True, depth: int | None = None, days: int = 365
) -> Authority:
    key = ec.generate_private_key(ec.SECP256R1())
    by = parent or Authority(key, None)  # type: ignore[arg-type]
    issuer = name if parent is None else by.certificate.subject.rfc4514_string().removeprefix("CN=")
    constraints = (x509.BasicConstraints(ca=ca, path_length=depth), True)
    return Authority(key, sign(name, key.public_key(), issuer, by.key, constraints, days=days))


ROOT = authority("maker root")
BETWEEN = authority("maker intermediate", ROOT)
EK = ec.generate_private_key(ec.SECP256R1()).public_key()
USAGE = (x509.ExtendedKeyUsage([EK_CERTIFICATE]), False)
TPM_NAME = (x509.SubjectAlternativeName([x509.DirectoryName(name_of("TPM model"))]), True)


def ek_certificate(by: Authority, *extensions: tuple[x509.ExtensionType, bool], days: int = 365) -> bytes:
    issuer = by.certificate.subject.rfc4514_string().removeprefix("CN=")
    return sign("", EK, issuer, by.key, *(extensions or (USAGE, TPM_NAME)), days=days).public_bytes(DER)


TRUSTED = TrustedRoots([ROOT.certificate])


def test_a_chain_ends_at_what_is_trusted() -> None:
    assert TRUSTED.vouch(ek_certificate(ROOT), (), EK, NOW) == "'maker root'"
    assert TRUSTED.vouch(ek_certificate(BETWEEN), [BETWEEN.der], EK, NOW) == "'maker root'"
    assert TrustedRoots([BETWEEN.certificate]).vouch(ek_certificate(BETWEEN), (), EK, NOW) == "'maker intermediate'"


def test_what_fills_the_rest_of_a_tpms_memory_does_not_matter() -> None:
    for filling in (bytes(100), b"\xff" * 100):
        TRUSTED.vouch(ek_certificate(ROOT) + filling, (), EK, NOW)
    with pytest.raises(NotTrusted, match="ekCert is not a DER certificate"):
        TRUSTED.vouch(ek_certificate(ROOT) + b"x", (), EK, NOW)


def test_the_order_of_what_stands_between_does_not_matter_and_strangers_neither() -> None:
    second = authority("second intermediate", BETWEEN)
    strangers = [authority("stranger").der, authority("maker root").der]
    given_ = [*strangers, second.der, BETWEEN.der]
    assert TRUSTED.vouch(ek_certificate(second), given_, EK, NOW) == "'maker root'"


IMPOSTOR = authority("maker root")
TIGHT = authority("tight root", depth=0)
CONSTRAINED = (x509.NameConstraints([x509.DNSName("x")], None), True)


@pytest.mark.parametrize(
    ("certificate", "chain", "roots", "said"),
    [
        (b"nothing", (), TRUSTED, "ekCert is not a DER certificate"),
        (ek_certificate(ROOT)[:-1], (), TRUSTED, "ekCert is not a DER certificate"),
        (ek_certificate(ROOT), (b"x",), TRUSTED, r"ekCertChain\[0\] is not a DER certificate"),
        (ek_certificate(ROOT), (b"x",) * 9, TRUSTED, "ekCertChain has 9 certificates"),
        (ek_certificate(BETWEEN), (), TRUSTED, "issued by 'maker intermediate', and does not chain"),
        (ek_certificate(IMPOSTOR), (), TRUSTED, "does not chain to a certificate of --ek-ca"),
        (ek_certificate(IMPOSTOR), (IMPOSTOR.der,), TRUSTED, "does not chain"),
        (ek_certificate(authority("no authority", ROOT, ca=False)), (), TRUSTED, "does not chain"),
        (ek_certificate(authority("late", ROOT, days=1)), (), TRUSTED, "does not chain"),
        (ek_certificate(ROOT, USAGE, days=1), (), TRUSTED, "ekCert is valid from 2026-05-31 to 2026-06-01 only"),
        (
            ek_certificate(ROOT, (x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False)),
            (),
            TRUSTED,
            "its extended key usage lacks 2.23.133.8.1",
        ),
        (ek_certificate(ROOT, (x509.BasicConstraints(True, None), True)), (), TRUSTED, "certificate of an authority"),
        (ek_certificate(ROOT, USAGE, CONSTRAINED), (), TRUSTED, "unknown critical extensions"),
        (ROOT.der, (), TRUSTED, "ekCert is for a key other than ekPub"),
    ],
)
def test_what_does_not_vouch_is_refused_with_the_reason(
    certificate: bytes, chain: tuple[bytes, ...], roots: TrustedRoots, said: str
) -> None:
    with pytest.raises(NotTrusted, match=said):
        roots.vouch(certificate, chain, EK, NOW + timedelta(seconds=1))


def test_authorities_that_may_have_none_below_have_none() -> None:
    child = authority("child", TIGHT)
    tight = TrustedRoots([TIGHT.certificate])
    assert tight.vouch(ek_certificate(TIGHT), (), EK, NOW)
    with pytest.raises(NotTrusted, match="does not chain"):
        tight.vouch(ek_certificate(child), [child.der], EK, NOW)


@pytest.mark.slow
@given(st.integers(0, 2000), st.integers(1, 255))
def test_no_certificate_with_a_flipped_byte_vouches(at: int, flip: int) -> None:
    der = bytearray(ek_certificate(ROOT))
    signed = len(x509.load_der_x509_certificate(bytes(der)).tbs_certificate_bytes)
    der[at % (signed + 4)] ^= flip
    with pytest.raises(NotTrusted):
        TRUSTED.vouch(bytes(der), (), EK, NOW)


def test_a_file_without_certificates_is_named(tmp_path: Path) -> None:
    (tmp_path / "empty.pem").write_text("nothing")
    for file, said in (("empty.pem", "must contain PEM certificates of TPM makers"), ("missing.pem", "No such file")):
        with pytest.raises(Rejected, match=f"{file}: {said}"):
            TrustedRoots.load(tmp_path / file)


@pytest.mark.slow
@needs_tpm
@pytest.mark.parametrize("kind", ["rsa", "ecc"])
def test_the_certificate_of_a_software_tpm_is_vouched_for_by_its_maker(tmp_path: Path, kind: str) -> None:
    with software_tpm(tmp_path, maker=True) as tpm, tpm.ours() as ours:
        certificate = ours.certificate(kind)
        with ours.keys(kind) as keys:
            key = parse_public(keys.ek_public, "ekPub").key
    maker = tmp_path / "maker.pem"
    maker.write_bytes(b"".join(path.read_bytes() for path in sorted((tmp_path / "ca").glob("*cert.pem"))))
    if kind == "rsa":
        assert TrustedRoots.load(maker).vouch(certificate, (), key, datetime.now(UTC) + timedelta(seconds=5))
    with pytest.raises(NotTrusted):
        TrustedRoots([ROOT.certificate]).vouch(certificate, (), key, datetime.now(UTC))
