"""The agent's configuration: its keys, and the values that components write for a Machine when they install the agent.

Keys are those of the public project's agent (`MachineName`, `Cluster.CaCertBase64`, …), so that either agent reads it.
The agent reads it by agent_config_file.py.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from unbounded.api.configuration import MachineConfigurationTemplate, NodeSettings, ProxySettings
from unbounded.api.machine import Machine
from unbounded.api.machine_spec import DownloadSource
from unbounded.api.names import LABEL_MACHINE, LABEL_SITE
from unbounded.join.cluster_facts import ClusterFacts
from unbounded.join.labels_and_taints import taken_by_kubelet

_PROJECTS: Final = ("kubernetes", "containerd", "runc", "cni", "crictl", "sandbox")  # of a node's artifacts
JSON_PREFIX: Final = " " * 4  # indentation of every line but the first in a cloud-config
_CAPITALS: Final = {
    "cri": "CRI",
    "cni": "CNI",
    "oci": "OCI",
    "url": "URL",
    "dns": "DNS",
    "http": "HTTP",
    "https": "HTTPS",
    "sha256": "SHA256",
}


def _key(field: str) -> str:
    """Return the key of a field: `cluster_dns` is ClusterDNS, `ca_cert_base64` CaCertBase64, `base_url` BaseURL."""
    return "".join(_CAPITALS.get(word, word.capitalize()) for word in field.split("_"))


class _ConfigPart(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename=_key):
    """Part of the file. Absent and empty are the same: the file omits unset keys."""


class JoinedCluster(_ConfigPart, frozen=True, kw_only=True):
    """The cluster that the host joins.

    Args:
        ca_cert_base64: base64 of PEM.
        version: of Kubernetes, without a v.
    """

    ca_cert_base64: str = ""
    cluster_dns: str = ""
    version: str = ""


class ExecVariable(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    value: str = ""


class ExecCredential(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """A program that prints a credential, with the keys of a kubeconfig."""

    command: str = ""
    args: tuple[str, ...] = ()
    env: tuple[ExecVariable, ...] = ()
    api_version: str = "client.authentication.k8s.io/v1"

    def __repr__(self) -> str:  # arguments and variables may be secret
        return f"ExecCredential({self.command})"


class KubeletAuth(_ConfigPart, frozen=True, kw_only=True):
    """kubelet's first credential; absent where attestation supplies the token."""

    bootstrap_token: str = ""
    exec_credential: ExecCredential | None = None

    def __repr__(self) -> str:
        return f"Auth(token={'set' if self.bootstrap_token else 'none'}, exec={self.exec_credential!r})"


class Kubelet(_ConfigPart, frozen=True, kw_only=True):
    api_server: str = ""
    auth: KubeletAuth = KubeletAuth()
    labels: dict[str, str] = {}
    register_with_taints: tuple[str, ...] = ()


class ComponentVersion(_ConfigPart, frozen=True, kw_only=True):
    version: str = ""


class Cri(_ConfigPart, frozen=True, kw_only=True):
    containerd: ComponentVersion = ComponentVersion()
    runc: ComponentVersion = ComponentVersion()


class Cni(_ConfigPart, frozen=True, kw_only=True):
    plugin_version: str = ""


class Attest(_ConfigPart, frozen=True, kw_only=True):
    """Attestation by the host's TPM.

    Args:
        url: to which /attest is appended.
    """

    url: str = ""


class ArtifactSource(_ConfigPart, frozen=True, kw_only=True):
    """Source of an artifact.

    Args:
        sha256: required digest, which overrides a published one.
    """

    base_url: str = ""
    url: str = ""
    version: str = ""
    sha256: str = ""


class Downloads(_ConfigPart, frozen=True, kw_only=True):
    kubernetes: ArtifactSource = ArtifactSource()
    containerd: ArtifactSource = ArtifactSource()
    runc: ArtifactSource = ArtifactSource()
    cni: ArtifactSource = ArtifactSource()
    crictl: ArtifactSource = ArtifactSource()
    sandbox: ArtifactSource = ArtifactSource()


class Proxy(_ConfigPart, frozen=True, kw_only=True):
    """Proxies of the agent's downloads, of containerd and of kubelet."""

    http: str = ""
    https: str = ""
    no_proxy: tuple[str, ...] = ()


class UpgradeConfig(_ConfigPart, frozen=True, kw_only=True):
    """Upgrades of the agent itself.

    Args:
        allow_http: releases may come over plain http; else only over https.
        health_window_seconds: for which a new version has to stay healthy; 0 for the default.
        public_key: key that has to verify releases; empty where any release may run.
    """

    allow_http: bool = False
    health_window_seconds: int = 0
    public_key: str = ""


class RecreationConfig(_ConfigPart, frozen=True, kw_only=True):
    """Recreations of the node.

    Args:
        verify_seconds: limit for a new node to be proven, before the old one is restored; 0 for the default.
        retry_seconds: time from a failure to the next attempt; 0 for the default.
    """

    verify_seconds: int = 0
    retry_seconds: int = 0


class AgentConfig(_ConfigPart, frozen=True, kw_only=True):
    """The whole file.

    Args:
        node_name: empty, or the Machine's name: a Node has no other.
        ca_bundle: PEM of authorities that are trusted in addition to the system's.
    """

    machine_name: str = ""
    node_name: str = ""
    cluster: JoinedCluster = JoinedCluster()
    kubelet: Kubelet = Kubelet()
    cri: Cri = Cri()
    cni: Cni = Cni()
    oci_image: str = ""
    attest: Attest = Attest()
    downloads: Downloads = Downloads()
    proxy: Proxy = Proxy()
    ca_bundle: str = ""
    upgrade: UpgradeConfig = UpgradeConfig()
    recreation: RecreationConfig = RecreationConfig()


def agent_config(
    machine: Machine,
    facts: ClusterFacts,
    *,
    attest_url: str | None = None,
    token: str | None = None,
    settings: NodeSettings | None = None,
) -> AgentConfig:
    """Return the configuration of the agent on this Machine's host. It omits labels that kubelet rejects: machina puts
    those on the Node.

    Args:
        attest_url: of attestation by TPM, which supplies a token; without `/attest` at its end.
        token: a bootstrap token, `id.secret`, for a host without attestation.
        settings: of its MachineConfiguration; only those that the host needs before it can read that are written. A
            whole template also supplies version and image, which the checks of the host need.
    """
    proxy = (settings.proxy if settings else None) or ProxySettings()
    template = settings if isinstance(settings, MachineConfigurationTemplate) else MachineConfigurationTemplate()
    kubernetes, agent = machine.spec.kubernetes, machine.spec.agent
    downloads = agent.downloads if agent else None
    sources = Downloads(**{name: _source(getattr(downloads, name) if downloads else None) for name in _PROJECTS})
    ours = {LABEL_MACHINE: machine.name} | ({LABEL_SITE: machine.site} if machine.site else {})
    labels = ((kubernetes.node_labels if kubernetes else None) or {}) | ours
    desired = template.kubernetes.version if template.kubernetes else None  # which counts before that of the Machine
    version = desired or (kubernetes.version if kubernetes else None) or facts.kubernetes_version
    image = template.agent.image if template.agent else agent.image if agent else None
    return AgentConfig(
        machine_name=machine.name,
        node_name=machine.name,
        cluster=JoinedCluster(
            ca_cert_base64=base64.b64encode(facts.ca_pem.encode()).decode(),
            cluster_dns=facts.cluster_dns,
            version=version.removeprefix("v"),
        ),
        kubelet=Kubelet(
            api_server=facts.apiserver_url,
            auth=KubeletAuth(bootstrap_token=token or ""),
            labels={key: value for key, value in sorted(labels.items()) if taken_by_kubelet(key)},
            register_with_taints=(kubernetes.register_with_taints if kubernetes else None) or (),
        ),
        cri=Cri(
            containerd=ComponentVersion(version=sources.containerd.version),
            runc=ComponentVersion(version=sources.runc.version),
        ),
        cni=Cni(plugin_version=sources.cni.version),
        oci_image=image or "",
        attest=Attest(url=(attest_url or "").rstrip("/")),
        downloads=sources,
        proxy=Proxy(http=proxy.http or "", https=proxy.https or "", no_proxy=proxy.no_proxy),
        ca_bundle=(settings.ca_bundle if settings else None) or "",
        upgrade=UpgradeConfig(public_key=facts.release_key),
    )


def _source(source: DownloadSource | None) -> ArtifactSource:
    if source is None:
        return ArtifactSource()
    return ArtifactSource(base_url=source.base_url or "", url=source.url or "", version=source.version or "")


def with_mirror(config: AgentConfig, mirror: str) -> AgentConfig:
    """Return the configuration with a mirror for all artifacts without a source of their own. Paths below the mirror
    are those of the projects: `v1.34.0/bin/linux/amd64/kubelet`, `v2.1.8/containerd-2.1.8-linux-amd64.tar.gz`, …

    Args:
        mirror: a base URL; empty for none.
    """
    if not mirror:
        return config
    sources = {name: _from(getattr(config.downloads, name), mirror.rstrip("/")) for name in _PROJECTS}
    return replace(config, downloads=Downloads(**sources))


def _from(source: ArtifactSource, mirror: str) -> ArtifactSource:
    return source if source.url or source.base_url else replace(source, base_url=mirror)


def agent_config_json(
    machine: Machine,
    facts: ClusterFacts,
    attest_url: str | None = None,
    token: str | None = None,
    settings: NodeSettings | None = None,
    mirror: str = "",
) -> str:
    """Return the file for a cloud-config template: JSON with every line but the first indented by four spaces."""
    config = agent_config(machine, facts, attest_url=attest_url, token=token, settings=settings)
    return config_text(with_mirror(config, mirror)).replace("\n", f"\n{JSON_PREFIX}")


def config_text(config: AgentConfig) -> str:
    """Return the file: JSON in lines, without a final newline, and without empty values."""
    return msgspec.json.format(msgspec.json.encode(_filled(msgspec.to_builtins(config))), indent=2).decode()


def _filled(part: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part without empty values."""
    members = ((key, _filled(value) if isinstance(value, dict) else value) for key, value in part.items())
    return {key: value for key, value in members if value not in ({}, [], "", None)}
