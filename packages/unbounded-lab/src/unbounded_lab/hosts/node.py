"""The installed system of a host: cloud-init's reports, the agent's and the kubelet's certificate, and the Node."""

from __future__ import annotations

import asyncio
import base64
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from unbounded.api.names import GROUP_AGENTS, GROUP_NODES, NODE_USER, SIGNER_AGENT, SIGNER_KUBELET
from unbounded_lab.hosts.installer import InstalledSystem
from unbounded_lab.hosts.wire import BootServer, ClusterApi, HostFailed

STAGES: Final = ("init-local", "modules-final")  # of cloud-init
REQUESTS: Final = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
MACHINES: Final = "/apis/unbounded-cloud.io/v1alpha3/machines"
NODES: Final = "/api/v1/nodes"
LEASES: Final = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
RENEW_S: Final = 10.0
POLL_S: Final = 0.5
VERSION: Final = "lab"
SYSTEM: Final[Mapping[str, Any]] = {
    "osID": "ubuntu",
    "osVersion": "22.04",
    "osCodename": "jammy",
    "kernel": "5.15.0-lab",
}


async def report_first_boot(server: BootServer) -> None:
    """Report what cloud-init reports at the first start of an installed system.

    Raises:
        HostFailed: metalman does not accept it.
    """
    for name in STAGES:
        for kind in ("start", "finish"):
            event = {"name": name, "description": name, "event_type": kind, "origin": "cloudinit", "timestamp": 1.0}
            await server.report("cloudinit/log", event | ({"result": "SUCCESS"} if kind == "finish" else {}))


class LabNode:
    """The agent and the kubelet of one host.

    Args:
        folder: for keys and certificates.
    """

    def __init__(self, system: InstalledSystem, folder: Path) -> None:
        config = system.agent_config
        kubelet = config.get("Kubelet", {})
        self.name = str(config.get("MachineName", system.machine))
        self._kubelet = kubelet
        self._version = config.get("Cluster", {}).get("Version", "")
        self._server = str(kubelet.get("ApiServer", ""))
        self._token = str(kubelet.get("Auth", {}).get("BootstrapToken", ""))
        self._authority = base64.b64decode(config.get("Cluster", {}).get("CaCertBase64", "")).decode()
        self._folder = folder
        self._address = system.address
        self._boot_id = str(uuid.uuid4())

    async def run(self) -> None:
        """Join the cluster, and keep the Node Ready until cancelled.

        Raises:
            HostFailed: the configuration has no API server or no token.
        """
        if not self._server or not self._token:
            raise HostFailed("the agent's configuration has no API server or no bootstrap token")
        agent = await self._certificate("agent", GROUP_AGENTS, SIGNER_AGENT)
        async with ClusterApi(self._server, self._authority, certificate=agent) as api:
            await self._report(api)
        kubelet = await self._certificate("kubelet", GROUP_NODES, SIGNER_KUBELET)
        async with ClusterApi(self._server, self._authority, certificate=kubelet) as api:
            await self._register(api)
            while True:
                await self._renew(api)
                await asyncio.sleep(RENEW_S)

    async def _certificate(self, purpose: str, organization: str, signer: str) -> tuple[str, str]:
        """Return the files of a client certificate, which is requested once for each install."""
        chain, file = self._folder / f"{purpose}.crt", self._folder / f"{purpose}.key"
        if chain.exists():
            return str(chain), str(file)
        key = ec.generate_private_key(ec.SECP256R1())
        file.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        async with ClusterApi(self._server, self._authority, token=self._token) as api:
            chain.write_bytes(await self._signed(api, purpose, organization, signer, key))
        return str(chain), str(file)

    async def _signed(
        self, api: ClusterApi, purpose: str, organization: str, signer: str, key: ec.EllipticCurvePrivateKey
    ) -> bytes:
        subject = x509.Name(
            [
                x509.NameAttribute(NameOID.ORGANIZATION_NAME, organization),
                x509.NameAttribute(NameOID.COMMON_NAME, f"{NODE_USER}{self.name}"),
            ]
        )
        request = x509.CertificateSigningRequestBuilder().subject_name(subject).sign(key, SHA256())
        name = f"lab-{purpose}-{uuid.uuid4().hex[:16]}"
        body = {
            "apiVersion": "certificates.k8s.io/v1",
            "kind": "CertificateSigningRequest",
            "metadata": {"name": name},
            "spec": {
                "request": base64.b64encode(request.public_bytes(Encoding.PEM)).decode(),
                "signerName": signer,
                "usages": ["digital signature", "client auth"],
            },
        }
        await api.until((201, 409), "POST", REQUESTS, body)
        while True:
            _, found = await api.call("GET", f"{REQUESTS}/{name}")
            status = found.get("status", {})
            if status.get("certificate"):
                return base64.b64decode(status["certificate"])
            if any(one["type"] in ("Denied", "Failed") for one in status.get("conditions", [])):
                raise HostFailed(f"the request for the {purpose}'s certificate was denied: {status['conditions']}")
            await asyncio.sleep(POLL_S)

    async def _report(self, api: ClusterApi) -> None:
        """Report the host as its agent does."""
        host = {"hostname": self.name, "address": self._address, **SYSTEM}
        agent = {"version": VERSION, "hostBootID": self._boot_id, "waitsForGrants": True, "host": host}
        await api.until((200,), "PATCH", f"{MACHINES}/{self.name}/status", {"status": {"agent": agent}})

    async def _register(self, api: ClusterApi) -> None:
        labels = dict(self._kubelet.get("Labels", {}))
        taints = [_taint(text) for text in self._kubelet.get("RegisterWithTaints", [])]
        body = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": self.name, "labels": {"kubernetes.io/hostname": self.name, **labels}},
            "spec": {"taints": taints} if taints else {},
        }
        await api.until((201, 409), "POST", NODES, body)

    async def _renew(self, api: ClusterApi) -> None:
        """Report the Node as Ready, and renew its lease; create either if it is gone."""
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        ready = {
            "type": "Ready",
            "status": "True",
            "reason": "KubeletReady",
            "message": "the lab's kubelet runs",
            "lastHeartbeatTime": f"{now[:19]}Z",
            "lastTransitionTime": f"{now[:19]}Z",
        }
        status = {
            "conditions": [ready],
            "addresses": [
                {"type": "InternalIP", "address": self._address},
                {"type": "Hostname", "address": self.name},
            ],
            "nodeInfo": {"bootID": self._boot_id, "kubeletVersion": f"v{self._version.removeprefix('v')}"},
        }
        code, _ = await api.call("PATCH", f"{NODES}/{self.name}/status", {"status": status})
        if code == 404:
            await self._register(api)
        spec = {"holderIdentity": self.name, "leaseDurationSeconds": 40, "renewTime": now}
        code, _ = await api.call("PATCH", f"{LEASES}/{self.name}", {"spec": spec})
        if code == 404:
            body = {
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "metadata": {"name": self.name},
                "spec": spec,
            }
            await api.call("POST", LEASES, body)


def _taint(text: str) -> dict[str, str]:
    pair, _, effect = text.rpartition(":")
    key, _, value = pair.partition("=")
    return {"key": key, "effect": effect, **({"value": value} if value else {})}
