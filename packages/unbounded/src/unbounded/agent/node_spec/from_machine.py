"""Desired goal of a node, from the Machine, its configuration, and the goal that the node has now. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import msgspec

from unbounded.agent.model import ConfigurationId, NodeGoal
from unbounded.agent.node_spec.from_config import release_version
from unbounded.api.configuration import MachineConfigurationVersion
from unbounded.api.fields import api_name
from unbounded.api.machine import Machine
from unbounded.api.machine_spec import AgentDownloads, DownloadSource
from unbounded.api.node_settings import NodeSettings, node_settings
from unbounded.join.agent_config import ArtifactSource, Downloads
from unbounded.join.node_marks import (
    LabelsAndTaints,
    desired_marks,
    marks_of_machine,
    marks_of_template,
    taint_key,
    taken_by_kubelet,
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


_NOTHING: Final = LabelsAndTaints()


@dataclass(frozen=True)
class _Requested:
    """Settings of one side; an empty text is unset."""

    version: str = ""
    image: str = ""
    marks: LabelsAndTaints = _NOTHING


def desired_node(machine: Machine, version: MachineConfigurationVersion | None, base: NodeGoal) -> DesiredNode:
    """Return the desired goal of a Machine's node.

    Args:
        version: of the configuration that the Machine is bound to; None for a Machine without one.
        base: goal that the node has now. It supplies all fields that neither the Machine nor its configuration sets:
            the API server and its certificates, and versions from the agent's configuration.
    """
    own, theirs = _of_machine(machine), _of_configuration(version)
    template = None if version is None else version.spec.template
    marks = desired_marks(machine, template, LabelsAndTaints(base.labels, base.taints))
    sources = (machine.spec.agent.downloads if machine.spec.agent else None) or AgentDownloads()
    spec = NodeGoal(
        machine=base.machine,
        kubernetes_version=theirs.version or own.version or base.kubernetes_version,
        api_server=base.api_server,
        ca_pem=base.ca_pem,
        cluster_dns=base.cluster_dns,
        cluster_domain=base.cluster_domain,
        image=theirs.image or own.image or base.image,
        labels={key: value for key, value in (marks.labels or {}).items() if taken_by_kubelet(key)},
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
    return _Requested(version, image, marks_of_machine(machine))


def _of_configuration(version: MachineConfigurationVersion | None) -> _Requested:
    if version is None:
        return _Requested()
    template = version.spec.template
    image = template.agent.image if template.agent else ""
    if template.kubernetes is None:
        return _Requested(image=image)
    return _Requested(release_version(template.kubernetes.version or ""), image, marks_of_template(template))


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
    taints = {taint_key(taint): taint for taint in theirs.marks.taints or ()}
    for taint in own.marks.taints or ():
        if taints.get(taint_key(taint), taint) != taint:
            yield f"kubernetes.registerWithTaints[{taint_key(taint)[0]}]"
