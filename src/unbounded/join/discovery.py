"""Verification of a cluster by a bootstrap token, before the token is shown to it.

The cluster signs ConfigMap kube-public/cluster-info with each token that it knows (`kube.cluster_info`). A host reads
it as nobody, and compares the CA in it with the one that it was given. Whoever gives a host a CA can hide signatures;
so this finds mistakes, and servers that do not know the token, and takes no trust from the way of the configuration.
"""

from __future__ import annotations

import asyncio
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from unbounded.api.core import CONFIG_MAPS, ConfigMap
from unbounded.api.failures import Rejected
from unbounded.join.facts import NoFact, Place, place_of
from unbounded.kube.client import HttpApi
from unbounded.kube.cluster_info import KUBECONFIG, NAME, NAMESPACE, SIGNATURE, BadSignature, verify
from unbounded.kube.config import ClientConfig
from unbounded.kube.errors import Forbidden, NotFound
from unbounded.kube.logs import Log, Secret

WAIT_S: Final = 5.0  # for the signature of a token that has just been made
LOOK_S: Final = 0.5
WHERE: Final = f"ConfigMap {NAMESPACE}/{NAME}"

log = Log("join")


async def signed_place(server: str, ca_pem: str, token: Secret, *, wait_s: float = WAIT_S) -> Place | None:
    """Return what cluster-info says, once the signature of a token was verified.

    Args:
        ca_pem: that the server's certificate has to chain to.
        token: `id.secret`; it is not sent.
        wait_s: how long to wait for its signature where other tokens have signed.
    Returns:
        None where the cluster does not sign for this token, or does not let everybody read what it signs.
    Raises:
        Rejected: the signature is wrong, or what was signed cannot be used.
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
            await asyncio.sleep(LOOK_S)
    return None


async def _read(api: HttpApi) -> ConfigMap | None:
    try:
        return await api.get(CONFIG_MAPS, NAME, namespace=NAMESPACE)
    except (Forbidden, NotFound):
        return None


def _verified(info: ConfigMap, jws: str, token_id: str, secret: str) -> Place:
    try:
        verify(info.data.get(KUBECONFIG, ""), jws, token_id, secret)
        return place_of(info)
    except BadSignature as error:
        reason = f"{WHERE}, key {SIGNATURE}{token_id}: {error}"
        raise Rejected(f"{reason}. The server does not know this bootstrap token, which was not sent to it") from error
    except NoFact as error:
        raise Rejected(str(error)) from error


def certificates(pem: str) -> frozenset[bytes]:
    """Return the certificates of a bundle, DER; none where it cannot be read."""
    try:
        found = x509.load_pem_x509_certificates(pem.encode())
    except ValueError:
        return frozenset()
    return frozenset(one.public_bytes(Encoding.DER) for one in found)
