"""Parser of CertificateSigningRequests: the requested certificate and its requester, as validated types."""

from __future__ import annotations

import base64
import binascii
import re
from dataclasses import dataclass
from typing import Any, Final

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.x509.oid import ExtensionOID, NameOID

from unbounded.api.core import CertificateRequest
from unbounded.api.machine import JoinPurpose
from unbounded.api.names import GROUP_AGENTS, GROUP_BOOTSTRAP, GROUP_NODES, NODE_USER, SIGNER_AGENT, SIGNER_KUBELET
from unbounded.join.bootstrap_tokens import machine_group

PURPOSES: Final = {SIGNER_AGENT: JoinPurpose.AGENT, SIGNER_KUBELET: JoinPurpose.KUBELET}
ORGANIZATIONS: Final = {JoinPurpose.AGENT: GROUP_AGENTS, JoinPurpose.KUBELET: GROUP_NODES}
DECIDED: Final = ("Approved", "Denied", "Failed")

_INTRODUCED: Final = "system:bootstrap:"
_CLIENT_AUTH: Final = "client auth"
_SERVER_AUTH: Final = "server auth"
_OF_KEYS: Final = ("digital signature", "key encipherment")
# One PEM block and nothing else: with two blocks the approver and the signer could read different ones.
_BLOCK: Final = re.compile(
    rb"\s*-----BEGIN CERTIFICATE REQUEST-----\r?\n([A-Za-z0-9+/=\r\n]+)-----END CERTIFICATE REQUEST-----\s*"
)
_UNREADABLE: Final = (
    *(TypeError, ValueError, UnsupportedAlgorithm),
    *(x509.DuplicateExtension, x509.InvalidVersion, x509.UnsupportedGeneralNameType),
)


class UnfitRequest(Exception):
    """The request is not one that an agent or a kubelet makes; the message names the difference."""


@dataclass(frozen=True)
class Joiner:
    """Requester with a bootstrap token.

    Args:
        machine_uids: the Machines that the token is for; empty for a token of a whole site.
    """

    machine_uids: tuple[str, ...]


@dataclass(frozen=True)
class Holder:
    """Requester with a certificate of a Machine."""

    machine: str
    purpose: JoinPurpose


def purpose_of(request: CertificateRequest) -> JoinPurpose | None:
    """Return the purpose of the certificate; None for a signer that neither agents nor kubelets use."""
    return PURPOSES.get(request.spec.signer_name)


def requester_of(request: CertificateRequest) -> Joiner | Holder | None:
    """Return the requester as the API server recorded it; None for one without a relation to our Machines."""
    user, groups = request.spec.username, request.spec.groups
    if user.startswith(_INTRODUCED) and GROUP_BOOTSTRAP in groups:
        prefix = machine_group("")
        return Joiner(tuple(group.removeprefix(prefix) for group in groups if group.startswith(prefix)))
    if not user.startswith(NODE_USER):
        return None
    for group, purpose in ((GROUP_NODES, JoinPurpose.KUBELET), (GROUP_AGENTS, JoinPurpose.AGENT)):
        if group in groups:  # a requester in both groups has the lesser right
            return Holder(user.removeprefix(NODE_USER), purpose)
    return None


def is_decided(request: CertificateRequest) -> bool:
    return bool(request.status.certificate) or any(map(request.status.has, DECIDED))


def requested_machine(request: CertificateRequest, purpose: JoinPurpose) -> str:
    """Return the Machine that the certificate would name.

    Raises:
        UnfitRequest: not a certificate of an agent or a kubelet.
    """
    _check_usages(request.spec.usages, _CLIENT_AUTH)
    found = _read(request.spec.request)
    if any(extension.oid == ExtensionOID.SUBJECT_ALTERNATIVE_NAME for extension in _extensions(found)):
        raise UnfitRequest("a client certificate must not have subject alternative names")
    return _named(found.subject, ORGANIZATIONS[purpose])


def serving_names(request: CertificateRequest) -> tuple[str, tuple[x509.DNSName | x509.IPAddress, ...]]:
    """Return the Machine of a serving certificate, and all names and addresses of the certificate.

    Raises:
        UnfitRequest: not a serving certificate of a kubelet.
    """
    _check_usages(request.spec.usages, _SERVER_AUTH)
    if _OF_KEYS[0] not in request.spec.usages:  # required by the signer
        raise UnfitRequest(f"its usages must be {_SERVER_AUTH} and {_OF_KEYS[0]}, not {_list(request.spec.usages)}")
    found = _read(request.spec.request)
    extensions = _extensions(found)
    if any(not isinstance(extension.value, x509.SubjectAlternativeName) for extension in extensions):
        raise UnfitRequest("subject alternative names are the only extension that it may have")
    names = tuple(name for extension in extensions for name in extension.value)
    if wrong := [name for name in names if not isinstance(name, x509.DNSName | x509.IPAddress)]:
        raise UnfitRequest(f"it may name only hosts and addresses, not {type(wrong[0]).__name__}")
    if not names:
        raise UnfitRequest("it must name a host or an address")
    return _named(found.subject, GROUP_NODES), names


def organizations_of(request: CertificateRequest) -> tuple[str, ...]:
    """Return the groups of the certificate; empty if the request cannot be parsed."""
    try:
        return _values(_read(request.spec.request).subject, NameOID.ORGANIZATION_NAME)
    except UnfitRequest:
        return ()


def _read(text: str) -> x509.CertificateSigningRequest:
    try:
        block = _BLOCK.fullmatch(base64.b64decode(text, validate=True))
    except (binascii.Error, ValueError):
        block = None
    if block is None:
        raise UnfitRequest("it must contain exactly one PEM block of type CERTIFICATE REQUEST")
    try:
        found = x509.load_der_x509_csr(base64.b64decode(block[1]))
        valid = found.is_signature_valid
    except _UNREADABLE as error:
        raise UnfitRequest("it is not a valid certificate request (PKCS #10)") from error
    if not valid:
        raise UnfitRequest("its signature is not by the key that it contains")
    return found


def _check_usages(usages: tuple[str, ...], needed: str) -> None:
    if needed not in usages or not {needed, *_OF_KEYS}.issuperset(usages):
        raise UnfitRequest(f"its usages must be {needed}, {' and '.join(_OF_KEYS)}, not {_list(usages)}")


def _extensions(found: x509.CertificateSigningRequest) -> tuple[x509.Extension[Any], ...]:
    try:
        return tuple(found.extensions)
    except _UNREADABLE as error:
        raise UnfitRequest("its extensions cannot be decoded") from error


def _named(subject: x509.Name, organization: str) -> str:
    common, organizations = _values(subject, NameOID.COMMON_NAME), _values(subject, NameOID.ORGANIZATION_NAME)
    if len(common) != 1 or organizations != (organization,) or len(list(subject)) != 2:
        shown = subject.rfc4514_string()
        raise UnfitRequest(
            f"its subject must be O={organization}, CN={NODE_USER}MACHINE and nothing else, not {shown!r}"
        )
    if not common[0].startswith(NODE_USER) or common[0] == NODE_USER:
        raise UnfitRequest(f"its common name must be {NODE_USER} and the name of the Machine, not {common[0]!r}")
    return common[0].removeprefix(NODE_USER)


def _values(subject: x509.Name, oid: x509.ObjectIdentifier) -> tuple[str, ...]:
    return tuple(str(attribute.value) for attribute in subject.get_attributes_for_oid(oid))


def _list(usages: tuple[str, ...]) -> str:
    return ", ".join(usages) or "none"
