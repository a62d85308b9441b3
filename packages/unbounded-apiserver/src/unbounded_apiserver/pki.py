"""The server's own certificate authority, its serving certificate, and the kubeconfig of its administrator."""

from __future__ import annotations

import base64
import ipaddress
import ssl
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, cast

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from unbounded.kube.durable_files import write_durably
from unbounded_apiserver.certificates.csr import ParsedCsr
from unbounded_apiserver.data_dir import make_directory

CA_DAYS: Final = 3650
LEAF_DAYS: Final = 365
RENEW_BEFORE: Final = timedelta(days=60)
BACKDATE: Final = timedelta(minutes=5)  # for clients whose clock is slightly behind
ADMIN: Final = "unbounded-admin"
MASTERS: Final = "system:masters"
KUBELET_CLIENT: Final = "kube-apiserver-kubelet-client"  # the API server's user on kubelets
_PURPOSES: Final = {"client auth": ExtendedKeyUsageOID.CLIENT_AUTH, "server auth": ExtendedKeyUsageOID.SERVER_AUTH}


@dataclass(frozen=True)
class IssuedCertificate:
    """A certificate with its key, in PEM."""

    certificate: bytes
    key: bytes

    @property
    def expires(self) -> datetime:
        return x509.load_pem_x509_certificate(self.certificate).not_valid_after_utc


class CertificateAuthority:
    """The CA of one data directory: `pki/ca.crt` and `pki/ca.key` (0600), made on first use."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory / "pki"
        make_directory(self.directory)
        identity = _load(self.directory / "ca") or _new_authority(self.directory / "ca")
        self.certificate = identity.certificate
        self._certificate = x509.load_pem_x509_certificate(identity.certificate)
        self._key = cast("ec.EllipticCurvePrivateKey", serialization.load_pem_private_key(identity.key, None))

    def issue_server(self, hosts: Iterable[str]) -> IssuedCertificate:
        """Return a serving certificate for host names and addresses, from `pki/server.*` while that one fits them."""
        names = [_general_name(host) for host in dict.fromkeys(hosts)]
        stored = _load(self.directory / "server")
        if stored is not None and _is_fresh(stored) and _names_of(stored) == set(names):
            return stored
        identity = self._issue("unbounded-apiserver", (), ExtendedKeyUsageOID.SERVER_AUTH, names)
        _store(self.directory / "server", identity)
        return identity

    def issue_client(self, user: str, groups: Iterable[str] = ()) -> IssuedCertificate:
        """Issue a client certificate: the common name is the user, organisations are groups."""
        return self._issue(user, tuple(groups), ExtendedKeyUsageOID.CLIENT_AUTH, [])

    def sign(self, request: ParsedCsr, usages: Collection[str], begin: datetime, end: datetime) -> bytes:
        """Sign a certificate (PEM) for the key of a request, with its subject and names, for these usages."""
        builder = (
            x509.CertificateBuilder()
            .subject_name(request.subject)
            .issuer_name(self._certificate.subject)
            .public_key(request.key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(begin)
            .not_valid_after(end)
            .add_extension(_key_usage(encipherment="key encipherment" in usages), critical=True)
            .add_extension(x509.ExtendedKeyUsage([_PURPOSES[u] for u in usages if u in _PURPOSES]), critical=False)
        )
        return self._finish(builder, request.names).public_bytes(serialization.Encoding.PEM)

    @property
    def expires(self) -> datetime:
        return self._certificate.not_valid_after_utc

    def _issue(
        self, name: str, groups: tuple[str, ...], usage: x509.ObjectIdentifier, hosts: list[x509.GeneralName]
    ) -> IssuedCertificate:
        key = ec.generate_private_key(ec.SECP256R1())
        attributes = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
        subject = x509.Name([*attributes, x509.NameAttribute(NameOID.COMMON_NAME, name)])
        builder = _builder(subject, self._certificate.subject, key.public_key(), LEAF_DAYS)
        builder = builder.add_extension(_key_usage(), critical=True)
        builder = builder.add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        return IssuedCertificate(self._finish(builder, hosts).public_bytes(serialization.Encoding.PEM), _pem(key))

    def _finish(self, builder: x509.CertificateBuilder, names: Collection[x509.GeneralName]) -> x509.Certificate:
        """Sign a certificate that is not an authority."""
        builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        issuer_key = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        return builder.add_extension(issuer_key, critical=False).sign(self._key, hashes.SHA256())


def server_context(authority: CertificateAuthority, hosts: Iterable[str]) -> ssl.SSLContext:
    """Return the TLS context of the server. Client certificates are optional; each request is authorized by itself."""
    authority.issue_server(hosts)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(authority.directory / "server.crt", authority.directory / "server.key")
    context.load_verify_locations(cadata=authority.certificate.decode())
    context.verify_mode = ssl.CERT_OPTIONAL
    context.set_alpn_protocols(["http/1.1"])
    return context


def write_kubeconfig(path: Path, server: str, authority: CertificateAuthority) -> None:
    """Write the administrator's kubeconfig (0600); a client certificate in it is kept while it is valid."""
    identity = _valid_admin(path, authority) or authority.issue_client(ADMIN, (MASTERS,))
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {
                "name": "unbounded",
                "cluster": {"server": server, "certificate-authority-data": _base64(authority.certificate)},
            }
        ],
        "users": [
            {
                "name": ADMIN,
                "user": {
                    "client-certificate-data": _base64(identity.certificate),
                    "client-key-data": _base64(identity.key),
                },
            }
        ],
        "contexts": [{"name": "unbounded", "context": {"cluster": "unbounded", "user": ADMIN}}],
        "current-context": "unbounded",
    }
    write_durably(path, yaml.dump(config, Dumper=yaml.CSafeDumper, sort_keys=False).encode())


def _valid_admin(path: Path, authority: CertificateAuthority) -> IssuedCertificate | None:
    try:
        config = yaml.load(path.read_bytes(), Loader=yaml.CSafeLoader)
        cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        if base64.b64decode(cluster["certificate-authority-data"]) != authority.certificate:
            return None
        certificate, key = (base64.b64decode(user[f"client-{part}-data"]) for part in ("certificate", "key"))
    except (OSError, yaml.YAMLError, KeyError, IndexError, TypeError, ValueError):
        return None
    identity = IssuedCertificate(certificate, key)
    return identity if _is_fresh(identity) else None


def _new_authority(stem: Path) -> IssuedCertificate:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "unbounded-ca")])
    builder = _builder(name, name, key.public_key(), CA_DAYS)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_key_usage(signs=True), critical=True)
    builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    certificate = builder.sign(key, hashes.SHA256())
    identity = IssuedCertificate(certificate.public_bytes(serialization.Encoding.PEM), _pem(key))
    _store(stem, identity)
    return identity


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATE)
        .not_valid_after(now + timedelta(days=days))
    )


def _key_usage(*, signs: bool = False, encipherment: bool = False) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=encipherment,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _names_of(identity: IssuedCertificate) -> set[x509.GeneralName]:
    certificate = x509.load_pem_x509_certificate(identity.certificate)
    return set(certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value)


def _is_fresh(identity: IssuedCertificate) -> bool:
    return identity.expires - datetime.now(UTC) > RENEW_BEFORE


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _load(stem: Path) -> IssuedCertificate | None:
    certificate, key = stem.with_suffix(".crt"), stem.with_suffix(".key")
    if not (certificate.exists() and key.exists()):
        return None
    return IssuedCertificate(certificate.read_bytes(), key.read_bytes())


def _store(stem: Path, identity: IssuedCertificate) -> None:
    """Store a key and its certificate, the key first: a certificate without its key is useless and is issued again."""
    write_durably(stem.with_suffix(".key"), identity.key)
    write_durably(stem.with_suffix(".crt"), identity.certificate)
