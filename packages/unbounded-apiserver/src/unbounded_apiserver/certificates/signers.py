"""The signers of this server: the requests that each of them signs, and errors worded as by Kubernetes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from datetime import datetime, timedelta
from typing import Final

from unbounded_apiserver.certificates.csr import ParsedCsr

CLIENT: Final = "kubernetes.io/kube-apiserver-client"
KUBELET_CLIENT: Final = "kubernetes.io/kube-apiserver-client-kubelet"
KUBELET_SERVING: Final = "kubernetes.io/kubelet-serving"
LEGACY: Final = "kubernetes.io/legacy-unknown"
NODES: Final = "system:nodes"
NODE_PREFIX: Final = "system:node:"

SIGNATURE: Final = "digital signature"
ENCIPHERMENT: Final = "key encipherment"
CLIENT_AUTH: Final = "client auth"
SERVER_AUTH: Final = "server auth"

LONGEST: Final = timedelta(days=365)
SHORTEST: Final = timedelta(minutes=10)
BACKDATE: Final = timedelta(minutes=5)
SHORT: Final = timedelta(hours=8)  # a shorter lifetime is not cut by the backdating

Check = Callable[[ParsedCsr, Collection[str]], str]


def _client(_request: ParsedCsr, usages: Collection[str]) -> str:
    for usage in usages:
        if usage not in {SIGNATURE, ENCIPHERMENT, CLIENT_AUTH}:
            return f"invalid usage for client certificate: {usage}"
    return "" if CLIENT_AUTH in usages else f"missing required usage for client certificate: {CLIENT_AUTH}"


def _kubelet_client(request: ParsedCsr, usages: Collection[str]) -> str:
    if request.organizations != (NODES,):
        return f"subject organization is not {NODES}"
    named = (("DNS", request.dns), ("Email", request.emails), ("IP", request.addresses), ("URI", request.uris))
    for kind, names in named:
        if names:
            return f"{kind} subjectAltNames are not allowed"
    return _node_name(request) or _usages(usages, CLIENT_AUTH)


def _kubelet_serving(request: ParsedCsr, usages: Collection[str]) -> str:
    if request.organizations != (NODES,):
        return f"subject organization is not {NODES}"
    if not request.dns and not request.addresses:
        return "DNS or IP subjectAltName is required"
    for kind, names in (("Email", request.emails), ("URI", request.uris)):
        if names:
            return f"{kind} subjectAltNames are not allowed"
    return _usages(usages, SERVER_AUTH) or _node_name(request)


def _node_name(request: ParsedCsr) -> str:
    begins = request.common_name.startswith(NODE_PREFIX)
    return "" if begins else f"subject common name does not begin with {NODE_PREFIX}"


def _usages(usages: Collection[str], purpose: str) -> str:
    """Require exactly these usages; key encipherment is optional, as only RSA keys support it."""
    required = {SIGNATURE, ENCIPHERMENT, purpose}
    if set(usages) in (required, required - {ENCIPHERMENT}):
        return ""
    return f"usages did not match [{' '.join(sorted(required))}]"


SIGNERS: Final[Mapping[str, Check]] = {
    CLIENT: _client,
    KUBELET_CLIENT: _kubelet_client,
    KUBELET_SERVING: _kubelet_serving,
}


def validity(now: datetime, asked_s: int | None, end: datetime) -> tuple[datetime, datetime]:
    """Return the beginning and the end of a certificate's validity.

    Args:
        asked_s: spec.expirationSeconds; a year at most, and by default.
        end: when the authority's own certificate expires; the end is never later.
    """
    length = LONGEST if asked_s is None else min(max(timedelta(seconds=asked_s), SHORTEST), LONGEST)
    until = now + length - (BACKDATE if length >= SHORT else timedelta())
    return now - BACKDATE, min(until, end)
