"""Goal of a node (NodeGoal): from the agent's configuration and facts of the host, and from the Machine.

`desired_node` starts from the goal that the node has now, and reports the differences.
"""

from __future__ import annotations

import base64
import platform
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec
from msgspec.structs import replace

from unbounded.agent.console import NoImage
from unbounded.agent.model import ConfigurationId, NodeGoal
from unbounded.agent.paths import HostPaths
from unbounded.api.configuration import MachineConfigurationVersion, NodeSettings, ProxySettings, node_settings
from unbounded.api.fields import api_name
from unbounded.api.machine import Machine
from unbounded.api.machine_spec import AgentDownloads, DownloadSource
from unbounded.api.names import LABEL_MACHINE
from unbounded.join import labels_and_taints
from unbounded.join.agent_config import AgentConfig, ArtifactSource, Downloads, Proxy

NO_IMAGE: Final = (
    "the image of the node's root file system is not configured: set spec.agent.image of the "
    "Machine, spec.template.agent.image of its MachineConfiguration, or, for all hosts that do not boot from the "
    "network, --agent-image; with AGENT_DISABLE_OCI_IMAGE=true, debootstrap creates it"
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


ARCHITECTURES: Final = {"x86_64": "amd64", "aarch64": "arm64"}
_YES: Final = frozenset({"1", "t", "true"})


def host_facts(paths: HostPaths, environment: Mapping[str, str]) -> HostFacts:
    """Read the facts from the host.

    Args:
        environment: of the agent's process: AGENT_OCI_IMAGE, AGENT_DISABLE_OCI_IMAGE.
    """
    machine = platform.machine()
    return HostFacts(
        arch=ARCHITECTURES.get(machine, machine),
        nvidia=any(paths.at("/dev").glob("nvidia[0-9]*")),
        image=environment.get("AGENT_OCI_IMAGE", ""),
        debootstrap=environment.get("AGENT_DISABLE_OCI_IMAGE", "").strip().lower() in _YES,
    )


@dataclass(frozen=True)
class DesiredNode:
    """Desired goal of a node, with its differences from the present one.

    Args:
        goal: desired goal of the node.
        drift: differences of the node from it, for messages: `kubernetes.version 1.33.1 → 1.34.0`.
        conflicts: fields that the configuration and the Machine's own spec set differently; the configuration wins.
    """

    goal: NodeGoal
    drift: tuple[str, ...]
    conflicts: tuple[str, ...]

    @property
    def same(self) -> bool:
        """True where the node already matches, or differs in nothing that needs another node."""
        return not self.drift


_NOTHING: Final = labels_and_taints.LabelsAndTaints()


@dataclass(frozen=True)
class _Requested:
    """Settings of one side; an empty text is unset."""

    version: str = ""
    image: str = ""
    marks: labels_and_taints.LabelsAndTaints = _NOTHING


def desired_node(machine: Machine, version: MachineConfigurationVersion | None, base: NodeGoal) -> DesiredNode:
    """Return the desired goal of a Machine's node.

    Args:
        version: of the configuration that the Machine is bound to; None for a Machine without one.
        base: goal that the node has now. It supplies all fields that neither the Machine nor its configuration sets:
            the API server and its certificates, and versions from the agent's configuration.
    """
    own, theirs = _of_machine(machine), _of_configuration(version)
    template = None if version is None else version.spec.template
    marks = labels_and_taints.desired_marks(
        machine, template, labels_and_taints.LabelsAndTaints(base.labels, base.taints)
    )
    sources = (machine.spec.agent.downloads if machine.spec.agent else None) or AgentDownloads()
    spec = NodeGoal(
        machine=base.machine,
        kubernetes_version=theirs.version or own.version or base.kubernetes_version,
        api_server=base.api_server,
        ca_pem=base.ca_pem,
        cluster_dns=base.cluster_dns,
        cluster_domain=base.cluster_domain,
        image=theirs.image or own.image or base.image,
        labels={key: value for key, value in (marks.labels or {}).items() if labels_and_taints.taken_by_kubelet(key)},
        taints=marks.taints or (),
        downloads=_sources(sources, base),
        containerd_version=_version(sources.containerd) or base.containerd_version,
        runc_version=_version(sources.runc) or base.runc_version,
        cni_version=_version(sources.cni) or base.cni_version,
        settings=_settings(version, base),
        configuration=None if version is None else configuration_id(version),
    )
    return DesiredNode(spec, tuple(_drift(base, spec)), tuple(_conflicts(own, theirs)))


def same_node(one: NodeGoal, other: NodeGoal) -> bool:
    """Return whether both goals need the same node. Labels and taints do not count: a serving node follows them. Two
    versions of the configuration with equal content are one node.
    """
    followed = {"labels": other.labels, "taints": other.taints, "configuration": other.configuration}
    return msgspec.structs.replace(one, **followed) == other


def configuration_id(version: MachineConfigurationVersion) -> ConfigurationId:
    name = version.configuration or version.metadata.name.rpartition("-v")[0]
    return ConfigurationId(name=name, version=version.spec.version, version_name=version.metadata.name)


def _of_machine(machine: Machine) -> _Requested:
    kubernetes, agent = machine.spec.kubernetes, machine.spec.agent
    image = (agent.image if agent else None) or ""
    version = _version(agent.downloads.kubernetes if agent and agent.downloads else None)
    if kubernetes is None:
        return _Requested(version, image)
    version = version or release_version(kubernetes.version or "")
    return _Requested(version, image, labels_and_taints.marks_of_machine(machine))


def _of_configuration(version: MachineConfigurationVersion | None) -> _Requested:
    if version is None:
        return _Requested()
    template = version.spec.template
    image = template.agent.image if template.agent else ""
    if template.kubernetes is None:
        return _Requested(image=image)
    return _Requested(
        release_version(template.kubernetes.version or ""), image, labels_and_taints.marks_of_template(template)
    )


def _version(source: DownloadSource | None) -> str:
    return release_version((source.version if source else None) or "")


def _sources(sources: AgentDownloads, base: NodeGoal) -> Downloads:
    """Return the download sources. Versions are fields of the goal, except those of crictl and the sandbox image.

    A Machine that names a version and no source keeps the present source, such as the mirror in the agent's
    configuration. A digest belongs to one version and is not kept for another.
    """

    def place(desired: DownloadSource | None, otherwise: ArtifactSource, version: str) -> ArtifactSource:
        if desired is not None and (desired.base_url or desired.url):
            return ArtifactSource(base_url=desired.base_url or "", url=desired.url or "")
        return otherwise if _version(desired) in ("", version) else msgspec.structs.replace(otherwise, sha256="")

    there = base.downloads
    crictl = place(sources.crictl, there.crictl, there.crictl.version)
    sandbox = place(sources.sandbox, there.sandbox, there.sandbox.version)
    return Downloads(
        kubernetes=place(sources.kubernetes, there.kubernetes, base.kubernetes_version),
        containerd=place(sources.containerd, there.containerd, base.containerd_version),
        runc=place(sources.runc, there.runc, base.runc_version),
        cni=place(sources.cni, there.cni, base.cni_version),
        crictl=msgspec.structs.replace(crictl, version=_version(sources.crictl) or there.crictl.version),
        sandbox=msgspec.structs.replace(sandbox, version=_version(sources.sandbox) or there.sandbox.version),
    )


def _settings(version: MachineConfigurationVersion | None, base: NodeGoal) -> NodeSettings:
    """Return the configuration's settings. Proxy and authorities that it omits stay: the host may reach nothing without
    those of the agent's own configuration.
    """
    found = node_settings(None if version is None else version.spec.template)
    proxy = base.settings.proxy if found.proxy is None else found.proxy
    authorities = base.settings.ca_bundle if found.ca_bundle is None else found.ca_bundle
    return msgspec.structs.replace(found, proxy=proxy, ca_bundle=authorities)


def _drift(base: NodeGoal, spec: NodeGoal) -> Iterator[str]:
    if release_version(base.kubernetes_version) != spec.kubernetes_version:
        yield f"kubernetes.version {base.kubernetes_version} → {spec.kubernetes_version}"
    if base.image != spec.image:
        yield f"agent.image {base.image or 'none'} → {spec.image or 'none'}"
    if base.labels != spec.labels:
        changed = sorted(key for key in {*base.labels, *spec.labels} if base.labels.get(key) != spec.labels.get(key))
        yield f"kubernetes.nodeLabels ({', '.join(changed)})"
    if sorted(base.taints) != sorted(spec.taints):
        yield "kubernetes.registerWithTaints"
    before, after = ((one.containerd_version, one.runc_version, one.cni_version) for one in (base, spec))
    if base.downloads != spec.downloads or before != after:
        yield "agent.downloads"
    for part in ("kubelet", "containerd", "proxy", "ca_bundle", "sysctl"):
        if getattr(base.settings, part) != getattr(spec.settings, part):
            yield api_name(part)


def _conflicts(own: _Requested, theirs: _Requested) -> Iterator[str]:
    if own.version and theirs.version and own.version != theirs.version:
        yield "kubernetes.version"
    if own.image and theirs.image and own.image != theirs.image:
        yield "agent.image"
    mine, other = own.marks.labels or {}, theirs.marks.labels or {}
    yield from (f"kubernetes.nodeLabels[{key}]" for key in sorted(mine) if other.get(key, mine[key]) != mine[key])
    taints = {labels_and_taints.taint_key(taint): taint for taint in theirs.marks.taints or ()}
    for taint in own.marks.taints or ():
        if taints.get(labels_and_taints.taint_key(taint), taint) != taint:
            yield f"kubernetes.registerWithTaints[{labels_and_taints.taint_key(taint)[0]}]"
