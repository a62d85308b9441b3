"""kubelet in a slot: its unit, its configuration, its credentials, and its health.

Paths are those inside the machine. kubelet's health endpoint listens in the host's network.
"""

from __future__ import annotations

import asyncio
import base64
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

import msgspec

from unbounded.agent.model import CertificateAccess, ExecAccess, KubeletAccess, NodeGoal, TokenAccess
from unbounded.agent.node.settings import kubelet_fields
from unbounded.agent.node.slot_files import SlotFile, unit_word
from unbounded.api.failures import Rejected
from unbounded.join.agent_config_file import NOT_TAKEN
from unbounded.join.labels_and_taints import taken_by_kubelet

UNIT: Final = "kubelet.service"
BINARY: Final = "/usr/local/bin/kubelet"
CA: Final = "/etc/kubernetes/pki/apiserver-client-ca.crt"
MANIFESTS: Final = "/etc/kubernetes/manifests"
CONFIG: Final = "/var/lib/kubelet/config.json"
KUBECONFIG: Final = "/var/lib/kubelet/kubeconfig"
BOOTSTRAP: Final = "/var/lib/kubelet/bootstrap-kubeconfig"
CERTIFICATES: Final = "/var/lib/kubelet/pki"
CERTIFICATE: Final = f"{CERTIFICATES}/kubelet-client-current.pem"
CONTAINERD: Final = "unix:///run/containerd/containerd.sock"
STOP_S: Final = 15
_CIPHERS: Final = (
    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
    "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
    "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
)


SERVICE: Final = f"""\
[Unit]
Description=kubelet
Documentation=https://kubernetes.io/docs/
Wants=containerd.service
After=containerd.service
StartLimitIntervalSec=0

[Service]
Type=exec
ExecStart={BINARY} $KUBELET_KUBECONFIG_ARGS $KUBELET_NODE_ARGS $KUBELET_SETTINGS_ARGS $KUBELET_EXTRA_ARGS
Restart=always
RestartSec=1
RestartSteps=10
RestartMaxDelaySec=60
KillMode=process
TimeoutStopSec={STOP_S}
OOMScoreAdjust=-999

[Install]
WantedBy=multi-user.target
"""


SERVICE_FILE: Final = SlotFile(f"/etc/systemd/system/{UNIT}", SERVICE.encode())


def configuration_file(document: bytes) -> SlotFile:
    return SlotFile(CONFIG, document)


def unit_files(spec: NodeGoal, access: KubeletAccess) -> tuple[SlotFile, ...]:
    """Return the unit and its drop-ins."""
    folder = f"/etc/systemd/system/{UNIT}.d"
    return (
        SERVICE_FILE,
        _drop_in(f"{folder}/10-kubeconfig.conf", "KUBELET_KUBECONFIG_ARGS", kubeconfig_flags(access)),
        node_drop_in(spec),
        SlotFile(f"{folder}/50-env-file.conf", b"[Service]\nEnvironmentFile=-/etc/default/kubelet\n"),
    )


def node_drop_in(spec: NodeGoal) -> SlotFile:
    """Return the drop-in with the labels and taints of kubelet's Node."""
    return _drop_in(f"/etc/systemd/system/{UNIT}.d/20-node-config.conf", "KUBELET_NODE_ARGS", node_flags(spec))


def kubeconfig_flags(access: KubeletAccess) -> list[str]:
    bootstrap = [f"--bootstrap-kubeconfig={BOOTSTRAP}"] if isinstance(access, TokenAccess) else []
    return [*bootstrap, f"--kubeconfig={KUBECONFIG}", f"--cert-dir={CERTIFICATES}"]


def node_flags(spec: NodeGoal) -> list[str]:
    """Return kubelet's flags. Raises Rejected for a label with which kubelet would not start."""
    if refused := [key for key in sorted(spec.labels) if not taken_by_kubelet(key)]:
        raise Rejected(f"node labels {', '.join(refused)}: {NOT_TAKEN}")
    flags = [f"--config={CONFIG}", f"--hostname-override={spec.machine}"]
    if spec.labels:
        flags.append("--node-labels=" + ",".join(f"{key}={value}" for key, value in sorted(spec.labels.items())))
    if spec.taints:
        flags.append("--register-with-taints=" + ",".join(sorted(spec.taints)))
    return flags


def configuration(spec: NodeGoal, resolv_conf: str) -> bytes:
    """Return the KubeletConfiguration as JSON.

    Args:
        resolv_conf: for Pods that use the host's DNS; it must not name the host's own stub.
    """
    document: dict[str, Any] = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True, "cacheTTL": "2m0s"},
            "x509": {"clientCAFile": CA},
        },
        "authorization": {"mode": "Webhook"},
        "readOnlyPort": 0,
        "cgroupDriver": "systemd",
        "protectKernelDefaults": True,
        "clusterDomain": spec.cluster_domain,
        **({"clusterDNS": [spec.cluster_dns]} if spec.cluster_dns else {}),
        "contentType": "application/json",
        "containerRuntimeEndpoint": CONTAINERD,
        "eventRecordQPS": 0,
        "nodeStatusUpdateFrequency": "10s",
        "resolvConf": resolv_conf,
        "rotateCertificates": True,
        "runtimeRequestTimeout": "15m0s",
        "staticPodPath": MANIFESTS,
        "streamingConnectionIdleTimeout": "4h0m0s",
        "tlsCipherSuites": list(_CIPHERS),
        **kubelet_fields(spec.settings),
    }
    return _json(document)


def credential_files(spec: NodeGoal, access: KubeletAccess) -> tuple[SlotFile, ...]:
    """Return kubelet's credentials for the API server, readable by their owner only."""
    match access:
        case TokenAccess(token=token):
            return (SlotFile(BOOTSTRAP, kubeconfig(spec, {"token": token.reveal()}), 0o600),)
        case ExecAccess():
            return (SlotFile(KUBECONFIG, kubeconfig(spec, {"exec": _exec(access)}), 0o600),)
        case CertificateAccess(pem=pem):
            user = {"client-certificate": CERTIFICATE, "client-key": CERTIFICATE}
            return (
                SlotFile(f"{CERTIFICATES}/{_CARRIED}", pem.reveal().encode(), 0o600),
                SlotFile(KUBECONFIG, kubeconfig(spec, user), 0o600),
            )


_CARRIED: Final = "kubelet-client-carried-over.pem"


def links(access: KubeletAccess) -> Mapping[str, str]:
    """Return symbolic links, by path: kubelet reads its certificate through one, and replaces it at renewal."""
    return {CERTIFICATE: _CARRIED} if isinstance(access, CertificateAccess) else {}


def kubeconfig(spec: NodeGoal, user: Mapping[str, Any]) -> bytes:
    """Return a kubeconfig as JSON, which is YAML."""
    cluster = {"server": spec.api_server, "certificate-authority-data": base64.b64encode(spec.ca_pem.encode()).decode()}
    return _json(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "cluster", "cluster": cluster}],
            "users": [{"name": "kubelet", "user": user}],
            "contexts": [{"name": "kubelet", "context": {"cluster": "cluster", "user": "kubelet"}}],
            "current-context": "kubelet",
        }
    )


def _exec(access: ExecAccess) -> dict[str, Any]:
    return {
        "apiVersion": access.api_version,
        "command": access.command,
        "args": list(access.args),
        "env": [{"name": name, "value": value} for name, value in access.env],
        "interactiveMode": "Never",
        "provideClusterInfo": False,
    }


def _drop_in(path: str, variable: str, flags: list[str]) -> SlotFile:
    """Return a drop-in that sets a variable to flags. The unit splits the variable at spaces, so no flag may contain
    one.
    """
    word = unit_word(f"{variable}={' '.join(flags)}")
    return SlotFile(path, f"[Service]\nEnvironment={word}\n".encode())


def _json(document: object) -> bytes:
    return msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"


PORT: Final = 10248
ANSWER_S: Final = 5.0
_WELL: Final = 200
_MOST: Final = 4096
_LAST_WORDS: Final = re.compile(r'panic: .*|"command failed" .*|(?<!\S)F\d{4} .*')
_LONGEST: Final = 400


async def kubelet_problem(port: int = PORT) -> str:
    """Return why kubelet is not healthy; empty when it reports that it is."""
    try:
        async with asyncio.timeout(ANSWER_S):
            status, answer = await _health(port)
    except TimeoutError:
        return f"kubelet does not answer health checks within {ANSWER_S:g} s"
    except (OSError, ValueError) as error:
        return f"kubelet does not answer health checks: {error}"
    return "" if status == _WELL else f"kubelet reports that it is not healthy: {status} {answer}".rstrip()


def last_error_line(lines: str) -> str:
    """Return the line of kubelet's output that shows the cause of its last exit; empty where there is none."""
    found = _LAST_WORDS.findall(lines)
    return str(found[-1]).removeprefix('"command failed" ')[:_LONGEST] if found else ""


async def _health(port: int) -> tuple[int, str]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(b"GET /healthz HTTP/1.0\r\nHost: localhost\r\n\r\n")
        await writer.drain()
        head, _, body = (await _read(reader)).decode(errors="replace").partition("\r\n\r\n")
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
    words = head.split()
    if len(words) < 2 or not words[0].startswith("HTTP/"):
        raise ValueError("the answer is not HTTP")
    return int(words[1]), " ".join(body.split())


async def _read(reader: asyncio.StreamReader) -> bytes:
    """Return the response, up to a size limit."""
    content = b""
    while len(content) < _MOST and (part := await reader.read(_MOST - len(content))):
        content += part
    return content
