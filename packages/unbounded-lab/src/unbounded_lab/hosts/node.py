"""The installed system of a host: cloud-init's reports, certificates of agent and kubelet, and the Node."""

from __future__ import annotations

import asyncio
import base64
import json
import uuid
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from unbounded.api.names import GROUP_AGENTS, GROUP_NODES, NODE_USER, SIGNER_AGENT, SIGNER_KUBELET
from unbounded_lab.hosts.agent import NODES, PREPARING, STARTING, LabAgent, LabNodeGoal
from unbounded_lab.hosts.installer import InstalledSystem, LabHardware
from unbounded_lab.hosts.wire import BootServer, ClusterApi, HostFailed

STAGES: Final = ("init-local", "modules-final")  # of cloud-init
REQUESTS: Final = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
LEASES: Final = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
RENEW_S: Final = 10.0
POLL_S: Final = 0.5


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
        folder: for keys, certificates, and the record of the Node.
        start_s: time from the start of a kubelet until it registers its Node, which starts in a machine of its own.
        hardware: that the agent reports.
    """

    def __init__(
        self, system: InstalledSystem, folder: Path, start_s: float = 0.0, *, hardware: LabHardware | None = None
    ) -> None:
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
        self._start_s = start_s
        self._hardware = hardware

    async def run(self) -> None:
        """Join the cluster, and keep the Node Ready until cancelled; returns after a reset of the host.

        Raises:
            HostFailed: the configuration has no API server or no token.
        """
        if not self._server or not self._token:
            raise HostFailed("the agent's configuration has no API server or no bootstrap token")
        async with AsyncExitStack() as stack:
            certificate = await self._certificate("agent", GROUP_AGENTS, SIGNER_AGENT)
            api = await stack.enter_async_context(ClusterApi(self._server, self._authority, certificate=certificate))
            kubelet = LabKubelet(self.name, self._address, self._kubelet, self._version, self._start_s)
            agent = LabAgent(api, self.name, node_uid=lambda: kubelet.node_uid, recreate=self._recreate(kubelet))
            record = self._folder / "node.json"
            stage = STARTING if record.exists() else PREPARING
            await agent.report(self._address, self._boot_id, stage, hardware=self._hardware)
            built = LabNodeGoal(*json.loads(record.read_bytes())) if record.exists() else await agent.first_goal()
            certificate = await self._certificate("kubelet", GROUP_NODES, SIGNER_KUBELET)
            kubelet.api = await stack.enter_async_context(
                ClusterApi(self._server, self._authority, certificate=certificate)
            )
            stack.push_async_callback(kubelet.stop)
            await kubelet.start(built.kubernetes)
            record.write_text(json.dumps(built))
            await agent.run(built)

    def _recreate(self, kubelet: LabKubelet) -> Callable[[LabNodeGoal], Awaitable[None]]:
        async def recreate(goal: LabNodeGoal) -> None:
            await kubelet.stop()
            await kubelet.start(goal.kubernetes)
            (self._folder / "node.json").write_text(json.dumps(goal))

        return recreate

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


class LabKubelet:
    """The kubelet of one host: it registers the Node at each start, and renews it until it is stopped.

    Args:
        settings: of kubelet, in the agent's configuration.
        version: of Kubernetes, where the start names none.
        start_s: time of a start.
        renew_s: between two heartbeats.
    """

    api: ClusterApi

    def __init__(
        self,
        name: str,
        address: str,
        settings: Mapping[str, Any],
        version: str,
        start_s: float,
        *,
        renew_s: float = RENEW_S,
    ) -> None:
        self._name = name
        self._start_s = start_s
        self._renew_s = renew_s
        self._address = address
        self._settings = settings
        self._default = version
        self._renewing: asyncio.Task[None] | None = None
        self.node_uid = ""  # of the Node that the last start has registered

    async def start(self, version: str) -> None:
        """Register the Node, and report it as Ready; then renew it in the background."""
        self._version = (version or self._default).removeprefix("v")
        self._boot_id = str(uuid.uuid4())  # of the machine in which a kubelet runs
        await asyncio.sleep(self._start_s)
        self._ready_since = _now()
        await self._register()
        while not (uid := await self._renew()):
            await asyncio.sleep(POLL_S)
            await self._register()
        self.node_uid = uid
        self._renewing = asyncio.create_task(self._renew_forever(), name=f"kubelet {self._name}")

    async def stop(self) -> None:
        """Stop; the Node stays as it was reported last."""
        task, self._renewing = self._renewing, None
        if task is not None:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def _renew_forever(self) -> None:
        while True:
            await asyncio.sleep(self._renew_s)
            await self._renew()  # a Node that was deleted is registered at the next start only

    async def _register(self) -> None:
        labels = dict(self._settings.get("Labels", {}))
        taints = [_taint(text) for text in self._settings.get("RegisterWithTaints", [])]
        body = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": self._name, "labels": {"kubernetes.io/hostname": self._name, **labels}},
            "spec": {"taints": taints} if taints else {},
        }
        await self.api.until((201, 409), "POST", NODES, body)

    async def _renew(self) -> str:
        """Report the Node as Ready, and renew its lease; return the UID of the Node, empty after a failure."""
        now = _now()
        ready = {
            "type": "Ready",
            "status": "True",
            "reason": "KubeletReady",
            "message": "the lab's kubelet runs",
            "lastHeartbeatTime": f"{now[:19]}Z",
            "lastTransitionTime": f"{self._ready_since[:19]}Z",
        }
        status = {
            "conditions": [ready],
            "addresses": [
                {"type": "InternalIP", "address": self._address},
                {"type": "Hostname", "address": self._name},
            ],
            "nodeInfo": {"bootID": self._boot_id, "kubeletVersion": f"v{self._version}"},
        }
        code, node = await self.api.call("PATCH", f"{NODES}/{self._name}/status", {"status": status})
        if code != 200:
            return ""
        spec = {"holderIdentity": self._name, "leaseDurationSeconds": 40, "renewTime": now}
        code, _ = await self.api.call("PATCH", f"{LEASES}/{self._name}", {"spec": spec})
        if code == 404:
            body = {
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "metadata": {"name": self._name},
                "spec": spec,
            }
            await self.api.call("POST", LEASES, body)
        return str(node["metadata"]["uid"])


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _taint(text: str) -> dict[str, str]:
    pair, _, effect = text.rpartition(":")
    key, _, value = pair.partition("=")
    return {"key": key, "effect": effect, **({"value": value} if value else {})}
