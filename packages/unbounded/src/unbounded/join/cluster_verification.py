"""Verification of a cluster by a bootstrap token, before the token is sent to it.

The cluster signs ConfigMap kube-public/cluster-info with each token that it knows (`kube.cluster_info`). A host reads
it anonymously, and compares its CA with the configured one. An attacker with control over the host's CA can hide
signatures. So this check finds mistakes, and servers that do not know the token; it does not secure the configuration's
transport.
"""

from __future__ import annotations

import asyncio
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from unbounded.api.core import CONFIG_MAPS, ConfigMap
from unbounded.api.failures import Rejected
from unbounded.join.cluster_facts import ApiServerEndpoint, InvalidFact, endpoint_of
from unbounded.kube.api import Forbidden, NotFound
from unbounded.kube.client import HttpApi
from unbounded.kube.cluster_info import KUBECONFIG, NAME, NAMESPACE, SIGNATURE, BadSignature, verify
from unbounded.kube.config import ClientConfig
from unbounded.kube.logs import Log, SecretStr

WAIT_S: Final = 5.0  # for the signature of a new token
POLL_S: Final = 0.5
WHERE: Final = f"ConfigMap {NAMESPACE}/{NAME}"

log = Log("join")


async def signed_place(
    server: str, ca_pem: str, token: SecretStr, *, wait_s: float = WAIT_S
) -> ApiServerEndpoint | None:
    """Return the content of cluster-info with a verified signature of a token.

    Args:
        ca_pem: CA of the server's certificate.
        token: `id.secret`; it is not sent.
        wait_s: limit of the wait for its signature where other tokens have signed.
    Returns:
        None where the cluster does not sign with this token, or does not allow anonymous reads.
    Raises:
        Rejected: the signature is wrong, or the signed content is unusable.
        Transient: no answer.
    """
    token_id, _, secret = token.reveal().partition(".")
    loop = asyncio.get_running_loop()
    ends_at = loop.time() + wait_s
    config = ClientConfig(server=server.rstrip("/"), ca=ca_pem.encode())
    async with HttpApi(config, user_agent="unbounded-agent") as api:
        while (info := await _read(api)) is not None:
            if (jws := info.data.get(f"{SIGNATURE}{token_id}")) is not None:
                return _verified(info, jws, token_id, secret)
            if not any(key.startswith(SIGNATURE) for key in info.data) or loop.time() >= ends_at:
                break
            await asyncio.sleep(POLL_S)
    return None


async def _read(api: HttpApi) -> ConfigMap | None:
    try:
        return await api.get(CONFIG_MAPS, NAME, namespace=NAMESPACE)
    except (Forbidden, NotFound):
        return None


def _verified(info: ConfigMap, jws: str, token_id: str, secret: str) -> ApiServerEndpoint:
    try:
        verify(info.data.get(KUBECONFIG, ""), jws, token_id, secret)
        return endpoint_of(info)
    except BadSignature as error:
        reason = f"{WHERE}, key {SIGNATURE}{token_id}: {error}"
        raise Rejected(f"{reason}. The server does not know this bootstrap token, which was not sent to it") from error
    except InvalidFact as error:
        raise Rejected(str(error)) from error


def certificates(pem: str) -> frozenset[bytes]:
    """Return the certificates of a bundle, DER; none for an unreadable one."""
    try:
        found = x509.load_pem_x509_certificates(pem.encode())
    except ValueError:
        return frozenset()
    return frozenset(one.public_bytes(Encoding.DER) for one in found)
