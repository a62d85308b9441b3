"""What a node is to be made from, worked out from the agent's configuration and the host: NodeGoal. Pure."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from unbounded.agent.causes import NoImage
from unbounded.agent.model import NodeGoal
from unbounded.api.names import LABEL_MACHINE
from unbounded.api.node_settings import NodeSettings, ProxySettings
from unbounded.join.agent_config import AgentConfig, Downloads, Proxy, Source

NO_IMAGE: Final = (
    "no image of the node's root file system is named: set spec.agent.image of the Machine,"
    " spec.template.agent.image of its MachineConfiguration, or --agent-image for all hosts;"
    " AGENT_DISABLE_OCI_IMAGE=true has it made by debootstrap"
)
CONTAINERD: Final = "2.1.8"
RUNC: Final = "1.5.0"
CNI: Final = "1.5.1"


@dataclass(frozen=True)
class HostFacts:
    """What of the host a node depends on; `host.facts` reads it.

    Args:
        arch: in Go's words: amd64, arm64.
        nvidia: it has NVIDIA devices.
        image: an image that the surroundings of the agent name; used where the configuration names none.
        debootstrap: where the configuration names no image, the surroundings want a root file system by debootstrap.
    """

    arch: str = "amd64"
    nvidia: bool = False
    image: str = ""
    debootstrap: bool = False


def node_goal(config: AgentConfig, facts: HostFacts) -> NodeGoal:
    """The node as the configuration wants it, with every version said: a later agent with other defaults still
    sees what this one meant.

    Args:
        config: without faults, as read_agent_config gives it.
    """
    downloads = config.downloads
    return NodeGoal(
        machine=config.machine_name,
        kubernetes_version=release(downloads.kubernetes.version or config.cluster.version),
        api_server=config.kubelet.api_server,
        ca_pem=base64.b64decode(config.cluster.ca_cert_base64).decode(),
        cluster_dns=config.cluster.cluster_dns,
        image=rootfs_image(config.oci_image, facts),
        settings=NodeSettings(proxy=_proxy(config.proxy), ca_bundle=config.ca_bundle or None),
        labels=dict(sorted({**config.kubelet.labels, LABEL_MACHINE: config.machine_name}.items())),
        taints=tuple(sorted(config.kubelet.register_with_taints)),
        downloads=_without_versions(downloads),
        containerd_version=release(downloads.containerd.version or config.cri.containerd.version or CONTAINERD),
        runc_version=release(downloads.runc.version or config.cri.runc.version or RUNC),
        cni_version=release(downloads.cni.version or config.cni.plugin_version or CNI),
    )


def _proxy(proxy: Proxy) -> ProxySettings | None:
    if proxy == Proxy():
        return None
    return ProxySettings(http=proxy.http or None, https=proxy.https or None, no_proxy=proxy.no_proxy)


def rootfs_image(configured: str, facts: HostFacts) -> str:
    """The image of the root file system; empty for debootstrap, and where none is named yet.

    Args:
        configured: what the configuration names, which nothing beats.
    """
    if configured.strip():
        return configured.strip()
    if facts.debootstrap:
        return ""
    return facts.image.strip()


def require_image(goal: NodeGoal, facts: HostFacts) -> NodeGoal:
    """Return the goal.

    Raises:
        Rejected: neither an image of the root file system nor debootstrap was asked for.
    """
    if not goal.image and not facts.debootstrap:
        raise NoImage(NO_IMAGE)
    return goal


def release(text: str) -> str:
    """A version as people write it, as its project names the release: `v1.34` is 1.34.0, as all have three numbers."""
    bare = text.strip().removeprefix("v")
    return f"{bare}.0" if bare.count(".") == 1 else bare


def _without_versions(downloads: Downloads) -> Downloads:
    """Where things come from. Versions stand beside it in the goal, but for crictl's, which follows Kubernetes', and
    the sandbox image's, which no node reports."""

    def place(source: Source) -> Source:
        return Source(base_url=source.base_url, url=source.url, sha256=source.sha256.lower())

    return Downloads(
        kubernetes=place(downloads.kubernetes),
        containerd=place(downloads.containerd),
        runc=place(downloads.runc),
        cni=place(downloads.cni),
        crictl=replace(place(downloads.crictl), version=release(downloads.crictl.version)),
        sandbox=replace(place(downloads.sandbox), version=release(downloads.sandbox.version)),
    )
