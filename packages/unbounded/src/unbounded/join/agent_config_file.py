"""Reading and validation of the agent's configuration file: faults by key, and unknown keys."""

from __future__ import annotations

import base64
import binascii
import ipaddress
import re
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any, Final, get_args
from urllib.parse import urlsplit

import msgspec
from cryptography import x509

from unbounded.api.failures import Rejected
from unbounded.api.fields import LABEL_KEY, LABEL_VALUE, RELEASE_VERSION, TAINT
from unbounded.api.machine import MAX_MACHINE_NAME
from unbounded.join.agent_config import AgentConfig, ArtifactSource, Downloads
from unbounded.join.labels_and_taints import taken_by_kubelet
from unbounded.join.release_key import public_key

MAX_HEALTH_WINDOW_S: Final = 3600
MAX_VERIFY_S: Final = 3600
MAX_RETRY_S: Final = 86_400
_NAME: Final = re.compile(r"[a-z0-9]([-.a-z0-9]*[a-z0-9])?")
_TOKEN: Final = re.compile(r"[a-z0-9]{6}\.[a-z0-9]{16}")
_SHA256: Final = re.compile(r"[0-9A-Fa-f]{64}")
_SHOWN: Final = 64  # characters of an unknown key in a message
UNSUPPORTED: Final = ("HostPrefix",)  # keys of the public project's agent that this one ignores

NOT_TAKEN: Final = (
    "kubelet may not set such a label of kubernetes.io or k8s.io on itself; use spec.kubernetes.nodeLabels"
)


def read_agent_config(content: bytes, where: str, *, joined: bool = False) -> AgentConfig:
    """Return the configuration, with versions without their v, and addresses with https://.

    Args:
        where: the file's path, for messages.
        joined: the host has a certificate of its own, so the file needs no credential.
    Raises:
        Rejected: the file is invalid; the message names each key and a valid value, and no secret.
    """
    try:
        config = msgspec.json.decode(content, type=AgentConfig)
    except (msgspec.DecodeError, RecursionError) as error:
        raise Rejected(f"{where}: {error}") from None  # without its cause, which may contain the content
    cluster, kubelet = config.cluster, config.kubelet
    server = kubelet.api_server
    if server and "://" not in server:
        kubelet = msgspec.structs.replace(kubelet, api_server=f"https://{server}")
    cluster = msgspec.structs.replace(cluster, version=cluster.version.removeprefix("v"))
    config = msgspec.structs.replace(config, cluster=cluster, kubelet=kubelet)
    if wrong := list(faults(config, joined=joined)):
        raise Rejected(
            f"{where}: " + "; ".join((*wrong, *unknown_keys(content)))
        )  # an unknown key may be the missing one, misspelled
    return config


def unknown_keys(content: bytes) -> tuple[str, ...]:
    """Return messages about ignored keys of a file: `unknown key Upgrade.AllowHttp (AllowHTTP?)`."""
    try:
        body = msgspec.json.decode(content)
    except (msgspec.DecodeError, RecursionError):
        return ()
    return tuple(_unknown(body, AgentConfig, ""))


def _unknown(body: object, kind: Any, above: str) -> Iterator[str]:
    if isinstance(body, list):
        for one in body:
            yield from _unknown(one, kind, above)
    part = next((one for one in (kind, *get_args(kind)) if _is_part(one)), None)
    if part is None or not isinstance(body, dict):
        return
    known = {field.encode_name: field.type for field in msgspec.structs.fields(part)}
    for key, value in body.items():
        if key in known:
            yield from _unknown(value, known[key], f"{above}{key}.")
        elif f"{above}{key}" in UNSUPPORTED:
            yield f"{above}{key} is not supported by this agent"
        else:
            alike = {name.lower(): name for name in known}
            matches = get_close_matches(key.lower(), alike, n=1, cutoff=0.75)
            yield f"unknown key {above}{key[:_SHOWN]}" + (f" ({alike[matches[0]]}?)" if matches else "")


def _is_part(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def faults(config: AgentConfig, *, joined: bool = False) -> Iterator[str]:
    """Yield the faults of a configuration, key by key; `joined` as for read_agent_config."""
    if not _NAME.fullmatch(config.machine_name) or len(config.machine_name) > MAX_MACHINE_NAME:
        yield (
            f"MachineName {config.machine_name!r}: must be the name of a Machine, at most {MAX_MACHINE_NAME} characters"
        )
    if config.node_name not in ("", config.machine_name):
        yield f"NodeName {config.node_name!r}: must be absent or equal to MachineName: the Node has the Machine's name"
    yield from _cluster_faults(config)
    yield from _url_faults("Kubelet.ApiServer", config.kubelet.api_server, schemes=("https",), needed=True)
    yield from _auth_faults(config, joined=joined)
    yield from _node_faults(config)
    yield from _url_faults("Attest.URL", config.attest.url)
    yield from _version_faults("CRI.Containerd.Version", config.cri.containerd.version)
    yield from _version_faults("CRI.Runc.Version", config.cri.runc.version)
    yield from _version_faults("CNI.PluginVersion", config.cni.plugin_version)
    for key, seconds, most in (
        ("Upgrade.HealthWindowSeconds", config.upgrade.health_window_seconds, MAX_HEALTH_WINDOW_S),
        ("Recreation.VerifySeconds", config.recreation.verify_seconds, MAX_VERIFY_S),
        ("Recreation.RetrySeconds", config.recreation.retry_seconds, MAX_RETRY_S),
    ):
        if not 0 <= seconds <= most:
            yield f"{key} {seconds}: must be from 1 to {most}"
    try:
        public_key(config.upgrade.public_key)
    except ValueError as error:
        yield f"Upgrade.PublicKey: {error}"
    yield from _url_faults("Proxy.HTTP", config.proxy.http)
    yield from _url_faults("Proxy.HTTPS", config.proxy.https)
    for one in config.proxy.no_proxy:
        if not re.fullmatch(r"[^\s,]+", one):
            yield f"Proxy.NoProxy {one!r}: each entry must be one host, domain, address or network"
    if config.ca_bundle and not _holds_certificates(base64.b64encode(config.ca_bundle.encode()).decode()):
        yield "CaBundle: must contain at least one PEM certificate"
    for name, source in _sources(config.downloads).items():
        yield from _source_faults(f"Downloads.{name}", source)


def _cluster_faults(config: AgentConfig) -> Iterator[str]:
    cluster = config.cluster
    yield from _version_faults("Cluster.Version", cluster.version, needed=True)
    if not _holds_certificates(cluster.ca_cert_base64):
        yield "Cluster.CaCertBase64: must be base64 of at least one PEM certificate"
    if cluster.cluster_dns:
        try:
            ipaddress.ip_address(cluster.cluster_dns)
        except ValueError:
            yield f"Cluster.ClusterDNS {cluster.cluster_dns!r}: must be one address, such as 10.96.0.10"


def _holds_certificates(data: str) -> bool:
    try:
        pem = base64.b64decode(data, validate=True)
        pem.decode()  # files get it as text
        return bool(x509.load_pem_x509_certificates(pem))
    except (binascii.Error, ValueError, x509.InvalidVersion):
        return False


def _auth_faults(config: AgentConfig, *, joined: bool) -> Iterator[str]:
    auth = config.kubelet.auth
    given = [
        name
        for name, value in (("BootstrapToken", auth.bootstrap_token), ("ExecCredential", auth.exec_credential))
        if value
    ]
    if len(given) > 1:
        yield "Kubelet.Auth: BootstrapToken and ExecCredential exclude each other"
    if not given and not config.attest.url and not joined:
        yield "Kubelet.Auth: needs BootstrapToken or ExecCredential, or Attest.URL, which provides a token"
    if auth.bootstrap_token and not _TOKEN.fullmatch(auth.bootstrap_token):
        yield "Kubelet.Auth.BootstrapToken: must be six lower-case letters or digits, a point, and sixteen more"
    if auth.exec_credential is not None and not auth.exec_credential.command:
        yield "Kubelet.Auth.ExecCredential.command: must name the program that prints the credential"


def _node_faults(config: AgentConfig) -> Iterator[str]:
    for key, value in config.kubelet.labels.items():
        if not re.fullmatch(LABEL_KEY, key) or not re.fullmatch(LABEL_VALUE, value) or len(value) > 63:
            yield f"Kubelet.Labels {key!r}={value!r}: not a valid label"
        elif not taken_by_kubelet(key):
            yield f"Kubelet.Labels {key!r}: {NOT_TAKEN}"
    for taint in config.kubelet.register_with_taints:
        if not re.fullmatch(TAINT, taint):
            yield f"Kubelet.RegisterWithTaints {taint!r}: must be key=value:NoSchedule, PreferNoSchedule or NoExecute"


def _sources(downloads: Downloads) -> Mapping[str, ArtifactSource]:
    return {
        "Kubernetes": downloads.kubernetes,
        "Containerd": downloads.containerd,
        "Runc": downloads.runc,
        "CNI": downloads.cni,
        "Crictl": downloads.crictl,
        "Sandbox": downloads.sandbox,
    }


def _source_faults(key: str, source: ArtifactSource) -> Iterator[str]:
    yield from _url_faults(f"{key}.BaseURL", source.base_url)
    yield from _url_faults(f"{key}.URL", source.url)
    yield from _version_faults(f"{key}.Version", source.version)
    if not source.sha256:
        return
    if key == "Downloads.Kubernetes":
        yield f"{key}.SHA256: not allowed, as it consists of three files"
    elif not _SHA256.fullmatch(source.sha256):
        yield f"{key}.SHA256: must be 64 hexadecimal digits"
    elif not source.version:
        yield f"{key}.SHA256: needs {key}.Version, as each version has its own digest"


def _version_faults(key: str, version: str, *, needed: bool = False) -> Iterator[str]:
    if (version or needed) and not re.fullmatch(RELEASE_VERSION, version):
        yield f"{key} {version!r}: must be a version such as 1.34.0"


def _url_faults(
    name: str, url: str, *, schemes: tuple[str, ...] = ("http", "https"), needed: bool = False
) -> Iterator[str]:
    if not url and not needed:
        return
    try:
        parts = urlsplit(url)
        fine = parts.scheme in schemes and bool(parts.hostname) and parts.username is None and parts.port != 0
    except ValueError:
        fine = False
    if not fine:
        yield (
            f"{name}: must be a URL that begins with {' or '.join(f'{scheme}://' for scheme in schemes)}, "
            "without a user"
        )
