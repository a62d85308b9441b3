"""Goal of a node (NodeGoal), from the agent's configuration and facts of the host. Pure."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from unbounded.agent.causes import NoImage
from unbounded.agent.model import NodeGoal
from unbounded.api.names import LABEL_MACHINE
from unbounded.api.node_settings import NodeSettings, ProxySettings
from unbounded.join.agent_config import AgentConfig, ArtifactSource, Downloads, Proxy

NO_IMAGE: Final = (
    "the image of the node's root file system is not configured: set spec.agent.image of the "
    "Machine, spec.template.agent.image of its MachineConfiguration, or --agent-image for all hosts; "
    "with AGENT_DISABLE_OCI_IMAGE=true, debootstrap creates it"
)
CONTAINERD: Final = "2.1.8"
RUNC: Final = "1.5.0"
CNI: Final = "1.5.1"


@dataclass(frozen=True)
class HostFacts:
    """Facts of the host that a node depends on, as `host.facts` reads them.

    Args:
        arch: in Go's words: amd64, arm64.
        nvidia: the host has NVIDIA devices.
        image: from the agent's environment; used where the configuration names none.
        debootstrap: the agent's environment requests a root file system by debootstrap; used where the configuration
            names no image.
    """

    arch: str = "amd64"
    nvidia: bool = False
    image: str = ""
    debootstrap: bool = False


def goal_from_config(config: AgentConfig, facts: HostFacts) -> NodeGoal:
    """Return the goal of the configuration, with every version explicit: a later agent with other defaults reads the
    same.

    Args:
        config: validated, from read_agent_config.
    """
    downloads = config.downloads
    return NodeGoal(
        machine=config.machine_name,
        kubernetes_version=release_version(downloads.kubernetes.version or config.cluster.version),
        api_server=config.kubelet.api_server,
        ca_pem=base64.b64decode(config.cluster.ca_cert_base64).decode(),
        cluster_dns=config.cluster.cluster_dns,
        image=rootfs_image(config.oci_image, facts),
        settings=NodeSettings(proxy=_proxy(config.proxy), ca_bundle=config.ca_bundle or None),
        labels=dict(sorted({**config.kubelet.labels, LABEL_MACHINE: config.machine_name}.items())),
        taints=tuple(sorted(config.kubelet.register_with_taints)),
        downloads=_without_versions(downloads),
        containerd_version=release_version(downloads.containerd.version or config.cri.containerd.version or CONTAINERD),
        runc_version=release_version(downloads.runc.version or config.cri.runc.version or RUNC),
        cni_version=release_version(downloads.cni.version or config.cni.plugin_version or CNI),
    )


def _proxy(proxy: Proxy) -> ProxySettings | None:
    if proxy == Proxy():
        return None
    return ProxySettings(http=proxy.http or None, https=proxy.https or None, no_proxy=proxy.no_proxy)


def rootfs_image(configured: str, facts: HostFacts) -> str:
    """Return the image of the root file system; empty for debootstrap, and where no image is named yet.

    Args:
        configured: image of the configuration, which overrides all others.
    """
    if configured.strip():
        return configured.strip()
    if facts.debootstrap:
        return ""
    return facts.image.strip()


def require_image(spec: NodeGoal, facts: HostFacts) -> NodeGoal:
    """Return the goal.

    Raises:
        Rejected: it has no image of the root file system, and debootstrap is not requested.
    """
    if not spec.image and not facts.debootstrap:
        raise NoImage(NO_IMAGE)
    return spec


def release_version(text: str) -> str:
    """Return a version as its project names the release: `v1.34` is 1.34.0, as all have three numbers."""
    bare = text.strip().removeprefix("v")
    return f"{bare}.0" if bare.count(".") == 1 else bare


def _without_versions(downloads: Downloads) -> Downloads:
    """Return the download sources without versions. Versions are fields of the goal, with two exceptions: crictl's,
    which follows Kubernetes', and the sandbox image's, which no node reports.
    """

    def place(source: ArtifactSource) -> ArtifactSource:
        return ArtifactSource(base_url=source.base_url, url=source.url, sha256=source.sha256.lower())

    return Downloads(
        kubernetes=place(downloads.kubernetes),
        containerd=place(downloads.containerd),
        runc=place(downloads.runc),
        cni=place(downloads.cni),
        crictl=replace(place(downloads.crictl), version=release_version(downloads.crictl.version)),
        sandbox=replace(place(downloads.sandbox), version=release_version(downloads.sandbox.version)),
    )
