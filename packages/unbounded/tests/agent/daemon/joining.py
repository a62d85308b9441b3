"""Hosts that join an embedded server: their configuration, their tokens, and a stand-in for the approver."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

from tests.apiserver.support import Client
from unbounded.api.names import GROUP_BOOTSTRAP
from unbounded.join.agent_config import AgentConfig, JoinedCluster, Kubelet, KubeletAuth
from unbounded_apiserver.server import ApiServer

OURS: Final = "/apis/unbounded-cloud.io/v1alpha3"
REQUESTS: Final = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
TOKEN: Final = "abcdef.0123456789abcdef"


def config_of(server: ApiServer, machine: str = "m1", *, token: str = TOKEN, **kubelet: Any) -> AgentConfig:
    ca = base64.b64encode((server.data_dir / "pki" / "ca.crt").read_bytes()).decode()
    return AgentConfig(
        machine_name=machine,
        cluster=JoinedCluster(ca_cert_base64=ca, version="1.34.0"),
        kubelet=Kubelet(api_server=server.url, auth=KubeletAuth(bootstrap_token=token), **kubelet),
    )


async def make_token(admin: Client, *groups: str, token: str = TOKEN) -> None:
    """A bootstrap token of every agent's group, and of others."""
    identity, _, secret = token.partition(".")
    data = {
        "token-id": identity,
        "token-secret": secret,
        "usage-bootstrap-authentication": "true",
        "auth-extra-groups": ",".join((GROUP_BOOTSTRAP, *groups)),
    }
    body = {
        "metadata": {"name": f"bootstrap-token-{identity}"},
        "type": "bootstrap.kubernetes.io/token",
        "stringData": data,
    }
    await admin.create("/api/v1/namespaces/kube-system/secrets", body)


async def make_machine(admin: Client, name: str = "m1", **spec: Any) -> Any:
    body = {"apiVersion": "unbounded-cloud.io/v1alpha3", "kind": "Machine", "metadata": {"name": name}, "spec": spec}
    return await admin.create(f"{OURS}/machines", body)


@asynccontextmanager
async def approving(admin: Client, kind: str = "Approved") -> AsyncIterator[list[str]]:
    """Decide every request in this way, and collect the names."""
    decided: list[str] = []

    async def decide() -> None:
        while True:
            for request in (await admin.get(REQUESTS))["items"]:
                name = request["metadata"]["name"]
                if name not in decided:
                    request["status"] = {"conditions": [{"type": kind, "status": "True", "reason": "Test"}]}
                    decided.append(name)  # before its answer: the host may have its certificate earlier
                    await admin.ask("PUT", f"{REQUESTS}/{name}/approval", request)
            await asyncio.sleep(0.05)

    task = asyncio.create_task(decide())
    try:
        yield decided
    finally:
        task.cancel()
        await asyncio.wait({task})
