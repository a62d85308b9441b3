"""Client certificates by CertificateSigningRequest: first the key, on disk, then the request, then the certificate.

The name of a request derives from its key. So an interrupted call finds its own request again, and requests once for
each key. Key and certificate of an identity are in one file, which is replaced as a whole: they always match.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from unbounded.api.core import CERTIFICATE_REQUESTS, CertificateRequest
from unbounded.api.failures import Failure, Rejected, Transient
from unbounded.api.names import GROUP_AGENTS, GROUP_NODES, NODE_USER, SIGNER_AGENT, SIGNER_KUBELET
from unbounded.kube.api import AlreadyExists, Api, Forbidden, NotFound
from unbounded.kube.clock import WallClock, utc_now
from unbounded.kube.durable_files import remove_durably, sync_directory, write_durably
from unbounded.kube.logs import Log, SecretStr
from unbounded.kube.tls import ClientCertificate

WITHIN_S: Final = 600.0  # default limit for a decision
MACHINA: Final = "machina"  # approves requests of bootstrap tokens and of valid certificates
_POLLS_S: Final = (0.2, 0.3, 0.5, 1.0, 2.0, 5.0)  # between reads of the decision; the last one repeats
_USAGES: Final = ("digital signature", "client auth")
_RENEW_FROM, _RENEW_TO = 0.7, 0.9  # share of a certificate's lifetime; drawn once for each

AGENT: Final = "agent"  # purpose of the agent's own identity
KUBELET: Final = "kubelet"

ReportText = Callable[[str], None]

log = Log("join")


@dataclass(frozen=True)
class RequestedIdentity:
    """An identity to request.

    Args:
        purpose: prefix of its files' names, and its name in messages.
    """

    purpose: str
    machine: str
    organization: str
    signer: str

    @property
    def common_name(self) -> str:
        return f"{NODE_USER}{self.machine}"


def agent_identity(machine: str) -> RequestedIdentity:
    """Return the identity of a Machine's agent."""
    return RequestedIdentity(AGENT, machine, GROUP_AGENTS, SIGNER_AGENT)


def kubelet_identity(machine: str) -> RequestedIdentity:
    """Return the identity of the kubelet of a Machine's Node."""
    return RequestedIdentity(KUBELET, machine, GROUP_NODES, SIGNER_KUBELET)


@dataclass(frozen=True)
class StoredCertificate:
    """A certificate with its key and validity."""

    certificate: ClientCertificate
    begins: datetime
    ends: datetime

    def renewal(self) -> datetime:
        """Return the time to request the next one: at 70 to 90 % of its lifetime, by the certificate's digest."""
        drawn = int.from_bytes(hashlib.sha256(self.certificate.chain).digest()[:4]) / (1 << 32)
        return self.begins + (self.ends - self.begins) * (_RENEW_FROM + (_RENEW_TO - _RENEW_FROM) * drawn)

    def is_good(self, now: datetime) -> bool:
        return now < self.ends

    def pem(self) -> SecretStr:
        """Certificate and key, in one."""
        return SecretStr((self.certificate.chain + b"\n" + self.certificate.key).decode())


def certificate_file(folder: Path, purpose: str) -> Path:
    """Return the path of an identity's certificate, with its key."""
    return folder / f"{purpose}.pem"


def ignore_progress(_text: str) -> None:
    """Discard a progress message."""


class IdentityFiles:
    """Key and certificate files of one identity: `agent.pem` holds both, `agent.next.key` the key of an open request.
    All are 0600 in a folder of mode 0700.

    A disk error, such as a full disk, is Transient: the present certificate stays valid.
    """

    def __init__(self, folder: Path, desired: RequestedIdentity) -> None:
        self._folder = folder
        self._desired = desired
        self._pem = certificate_file(folder, desired.purpose)
        self._next = folder / f"{desired.purpose}.next.key"

    def stored(self) -> StoredCertificate | None:
        """Return the stored certificate, also an expired one; None while there is no usable one."""
        content = _content(self._pem)
        try:
            return None if content is None else parse_certificate(content, self._desired)
        except Rejected as error:
            log.warning("certificate on disk is unusable", error=error, path=str(self._pem))
            return None

    def next_key(self) -> ec.EllipticCurvePrivateKey:
        """Return the key of the open request, else a new one, which is on disk before its first use."""
        content = _content(self._next)
        try:
            there = serialization.load_pem_private_key(content, None) if content is not None else None
            if isinstance(there, ec.EllipticCurvePrivateKey):
                return there
        except ValueError as error:
            log.warning("key on disk is unusable; creating another one", error=error, path=str(self._next))
        key = ec.generate_private_key(ec.SECP256R1())
        with _disk(self._next):
            self._make_folder()
            write_durably(self._next, _pem(key))
        return key

    def store(self, chain: bytes, key: ec.EllipticCurvePrivateKey) -> StoredCertificate:
        """Replace the stored certificate."""
        content = chain.rstrip() + b"\n" + _pem(key)
        certificate = parse_certificate(content, self._desired)
        with _disk(self._pem):
            write_durably(self._pem, content)
            remove_durably(self._next)
        return certificate

    def forget_request(self) -> None:
        """Remove the key of the open request: the next request gets another one."""
        with _disk(self._next):
            remove_durably(self._next)

    def _make_folder(self) -> None:
        missing = [one for one in (self._folder, *self._folder.parents) if not one.exists()]
        for folder in reversed(missing):
            folder.mkdir(mode=0o700, exist_ok=True)
            sync_directory(folder.parent)


@contextmanager
def _disk(path: Path) -> Iterator[None]:
    """Translate disk errors into Transient."""
    try:
        yield
    except OSError as error:
        raise Transient(f"{path}: {error.strerror or error}") from error


def _content(path: Path) -> bytes | None:
    with _disk(path), suppress(FileNotFoundError):
        return path.read_bytes()
    return None


def parse_certificate(pem: bytes, desired: RequestedIdentity) -> StoredCertificate:
    """Parse a certificate with its key, in one.

    Raises:
        Rejected: it is invalid, the two do not match, or they are another identity's.
    """
    private = _private_block(pem)
    try:
        chain = x509.load_pem_x509_certificates(pem)
        key = serialization.load_pem_private_key(private, None)
    except (ValueError, TypeError) as error:
        raise Rejected("not a certificate with its key, in PEM") from error
    leaf = chain[0]
    if leaf.public_key() != key.public_key():
        raise Rejected("the certificate is for another key")
    names = (_subject(leaf, NameOID.COMMON_NAME), _subject(leaf, NameOID.ORGANIZATION_NAME))
    if names != ([desired.common_name], [desired.organization]):
        raise Rejected(f"the certificate is for {names}, not for {desired.common_name} in {desired.organization}")
    text = b"".join(one.public_bytes(serialization.Encoding.PEM) for one in chain)
    return StoredCertificate(ClientCertificate(text, private), leaf.not_valid_before_utc, leaf.not_valid_after_utc)


def request_name(desired: RequestedIdentity, key: ec.EllipticCurvePrivateKey) -> str:
    """Return the name of the CertificateSigningRequest for a key."""
    public = key.public_key().public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    message = "\0".join((desired.signer, desired.common_name, desired.organization)).encode()
    return f"unbounded-{desired.purpose}-{desired.machine}-{hashlib.sha256(message + public).hexdigest()[:20]}"


async def certificate(
    api: Api,
    files: IdentityFiles,
    desired: RequestedIdentity,
    *,
    report: ReportText = ignore_progress,
    within_s: float = WITHIN_S,
    approver: str = MACHINA,
) -> StoredCertificate:
    """Request a certificate, or resume an open request, and wait for the result; the certificate is stored on disk.

    Args:
        api: with an identity that may request it: a bootstrap token, or the certificate to renew.
        report: receives progress messages.
        approver: of the request, for messages.
    Raises:
        Transient: no decision within `within_s`, or no answer; the next call resumes the same request.
        Rejected: it was denied, or the caller's identity may not request it; the next call uses another key.
    """
    key = files.next_key()
    name = request_name(desired, key)
    try:
        request = await _requested(api, name, desired, key)
        stored = files.store(await _issued(api, request, desired, report, within_s, approver), key)
    except Rejected as error:
        if not isinstance(error, Forbidden):  # these credentials may not read the request's state
            _forget(files)
        raise
    log.info("certificate issued", machine=desired.machine, purpose=desired.purpose, until=stored.ends.isoformat())
    return stored


def _forget(files: IdentityFiles) -> None:
    """Forget a rejected request. Its rejection is the error to report; a key that cannot be removed is found by the
    next call.
    """
    try:
        files.forget_request()
    except Transient as error:
        log.warning("cannot remove the key of a denied request yet", error=error)


async def good_certificate(
    api: Api,
    files: IdentityFiles,
    desired: RequestedIdentity,
    *,
    report: ReportText = ignore_progress,
    now: WallClock = utc_now,
    within_s: float = WITHIN_S,
    approver: str = MACHINA,
) -> StoredCertificate:
    """Return the certificate on disk; request another one when there is none or its renewal is due. Raises as
    `certificate`.
    """
    stored = files.stored()
    if stored is not None and now() < stored.renewal():
        return stored
    return await certificate(api, files, desired, report=report, within_s=within_s, approver=approver)


async def _requested(
    api: Api, name: str, desired: RequestedIdentity, key: ec.EllipticCurvePrivateKey
) -> CertificateRequest:
    """Return the request of that name, new or existing."""
    body = {
        "metadata": {"name": name},
        "spec": {
            "request": base64.b64encode(_signing_request(desired, key)).decode(),
            "signerName": desired.signer,
            "usages": list(_USAGES),
        },
    }
    try:
        request = await api.create(CERTIFICATE_REQUESTS, body)
    except AlreadyExists:
        return await api.get(CERTIFICATE_REQUESTS, name)
    log.info("certificate requested", request=name, machine=desired.machine, purpose=desired.purpose)
    return request


async def _issued(
    api: Api,
    request: CertificateRequest,
    desired: RequestedIdentity,
    report: ReportText,
    within_s: float,
    approver: str,
) -> bytes:
    """Wait for the certificate of a request."""
    loop = asyncio.get_running_loop()
    began, polls = loop.time(), 0
    trouble: Failure | None = None
    while True:
        state = request.status
        if state.certificate:
            return _decoded(request)
        for refusal in ("Denied", "Failed"):
            if state.has(refusal):
                raise Rejected(_refusal_words(request, refusal, desired))
        left_s = within_s - (loop.time() - began)
        if left_s <= 0:
            raise Transient(_waiting_words(request, desired, approver, within_s)) from trouble
        if polls == len(_POLLS_S) - 2:  # not at once: a decision usually takes a moment
            report(_waiting_words(request, desired, approver))
        await asyncio.sleep(min(_POLLS_S[min(polls, len(_POLLS_S) - 1)], left_s))
        polls += 1
        try:
            request, trouble = await api.get(CERTIFICATE_REQUESTS, request.name), None
        except NotFound as error:
            raise Rejected(f"CertificateSigningRequest {request.name} was deleted before its approval") from error
        except Rejected:
            raise
        except Failure as error:
            trouble = error


def _decoded(request: CertificateRequest) -> bytes:
    try:
        return base64.b64decode(request.status.certificate, validate=True)
    except binascii.Error as error:
        what = f"status.certificate of CertificateSigningRequest {request.name}"
        raise Rejected(f"{what} is not base64: {error}") from error


def _refusal_words(request: CertificateRequest, refusal: str, desired: RequestedIdentity) -> str:
    why = next((one for one in request.status.conditions if one.type == refusal), None)
    message = f": {why.reason}: {why.message}" if why is not None else ""
    what = "denied" if refusal == "Denied" else "approved, but not signed"
    return f"the {desired.purpose}'s certificate for Machine {desired.machine} was {what}{message} ({request.name})"


def _waiting_words(
    request: CertificateRequest, desired: RequestedIdentity, approver: str, within_s: float | None = None
) -> str:
    approved = request.status.has("Approved")
    waits = "signed by the cluster" if approved else f"approved by {approver}"
    remedy = "" if approved else f"; by hand: kubectl certificate approve {request.name}"
    limit = "" if within_s is None else f"; not within {within_s:g} s"
    return (
        f"waiting for CertificateSigningRequest {request.name} of the {desired.purpose} of Machine "
        f"{desired.machine} to be {waits}{remedy}{limit}"
    )


def _signing_request(desired: RequestedIdentity, key: ec.EllipticCurvePrivateKey) -> bytes:
    subject = x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, desired.organization),
            x509.NameAttribute(NameOID.COMMON_NAME, desired.common_name),
        ]
    )
    builder = x509.CertificateSigningRequestBuilder().subject_name(subject)
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _subject(leaf: x509.Certificate, oid: x509.ObjectIdentifier) -> list[str]:
    return [str(one.value) for one in leaf.subject.get_attributes_for_oid(oid)]


def _private_block(pem: bytes) -> bytes:
    """Return the first PEM block that is a private key; empty where there is none."""
    found = re.search(rb"-----BEGIN ([A-Z ]*PRIVATE KEY)-----.*?-----END \1-----\n?", pem, re.DOTALL)
    return found[0] if found else b""
