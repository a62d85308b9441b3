"""Address and CA of the API server, and the cluster's DNS server: used by a host, and published by the cluster. Pure.

The cluster publishes them where a new host reads them: in ConfigMap cluster-info (kube-root-ca.crt where there is none)
and in Service kube-dns. The host follows the CA as published. Address and DNS server may be specific to this host; it
follows them only when the published value changes.
"""

from __future__ import annotations

import base64
import hashlib
from typing import Any, Final

import msgspec
import yaml
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from unbounded.agent.model import NodeGoal
from unbounded.api.failures import Rejected
from unbounded.join.agent_config import AgentConfig

_SHOWN: Final = 16  # hex digits of a digest


class ClusterAccess(msgspec.Struct, frozen=True):
    """Access to a cluster: its API server and DNS server.

    Args:
        server: https://…, without a trailing slash; empty where unknown.
        ca_pem: CA certificates that the server's chain ends in.
        dns: IP address of the DNS server; empty for none.
    """

    server: str = ""
    ca_pem: str = ""
    dns: str = ""

    def __str__(self) -> str:
        return f"{self.server}, CA {fingerprint(self.ca_pem)}, DNS server {self.dns or 'none'}"

    def same(self, other: ClusterAccess) -> bool:
        """Return whether both are equal, however their certificates are encoded."""
        ours, theirs = ((one.server, fingerprint(one.ca_pem), one.dns) for one in (self, other))
        return ours == theirs


def fingerprint(pem: str) -> str:
    """Return a digest of the certificates, independent of their order; `none` for an empty text.

    Raises:
        Rejected: the text contains no certificates.
    """
    if not pem:
        return "none"
    try:
        found = sorted(one.public_bytes(Encoding.DER) for one in x509.load_pem_x509_certificates(pem.encode()))
    except ValueError as error:
        raise Rejected(f"the cluster's CA is not PEM certificates: {error}") from error
    unique = dict.fromkeys(found)
    return f"sha256:{hashlib.sha256(b''.join(unique)).hexdigest()[:_SHOWN]}"


def access_of_config(config: AgentConfig) -> ClusterAccess:
    """Return the access that the agent uses."""
    pem = base64.b64decode(config.cluster.ca_cert_base64).decode()
    return ClusterAccess(config.kubelet.api_server.rstrip("/"), pem, config.cluster.cluster_dns)


def access_of_goal(spec: NodeGoal) -> ClusterAccess:
    """Return the access that kubelet in a slot uses."""
    return ClusterAccess(spec.api_server.rstrip("/"), spec.ca_pem, spec.cluster_dns)


def desired_access(used: ClusterAccess, published: ClusterAccess, known: ClusterAccess | None) -> ClusterAccess:
    """Return the access that the host should use.

    Args:
        published: by the cluster now; an empty field is unknown.
        known: published when the host last followed it; None where the host never read it.
    """

    def followed(ours: str, theirs: str, before: str | None) -> str:
        return theirs if theirs and before is not None and theirs != before else ours

    return ClusterAccess(
        server=followed(used.server, published.server, None if known is None else known.server),
        ca_pem=published.ca_pem or used.ca_pem,
        dns=followed(used.dns, published.dns, None if known is None else known.dns),
    )


def config_with(config: AgentConfig, access: ClusterAccess) -> AgentConfig:
    """Return the agent's configuration with this access."""
    replace, ca = msgspec.structs.replace, base64.b64encode(access.ca_pem.encode()).decode()
    return replace(
        config,
        cluster=replace(config.cluster, ca_cert_base64=ca, cluster_dns=access.dns),
        kubelet=replace(config.kubelet, api_server=access.server),
    )


def goal_with(spec: NodeGoal, access: ClusterAccess) -> NodeGoal:
    """Return a node's goal with this access."""
    return msgspec.structs.replace(spec, api_server=access.server, ca_pem=access.ca_pem, cluster_dns=access.dns)


def kubeconfig_with(content: bytes, access: ClusterAccess) -> bytes:
    """Return a kubeconfig with this server and CA for all its clusters, as JSON.

    Raises:
        Rejected: the content is no kubeconfig.
    """
    try:
        document: Any = yaml.load(content, Loader=yaml.CSafeLoader)
        for one in document["clusters"]:
            one["cluster"].pop("certificate-authority", None)
            one["cluster"]["server"] = access.server
            one["cluster"]["certificate-authority-data"] = base64.b64encode(access.ca_pem.encode()).decode()
    except (yaml.YAMLError, KeyError, TypeError, AttributeError) as error:
        raise Rejected(f"kubelet's kubeconfig is invalid: {error}") from error
    return msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"


def kubelet_config_with(content: bytes, access: ClusterAccess) -> bytes:
    """Return a KubeletConfiguration with this DNS server.

    Raises:
        Rejected: the content is not JSON.
    """
    try:
        document = msgspec.json.decode(content, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise Rejected(f"kubelet's configuration: {error}") from error
    if access.dns:
        document["clusterDNS"] = [access.dns]
    return msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"
