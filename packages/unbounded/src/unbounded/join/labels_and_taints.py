"""Labels and taints of a Node: those that a Machine and its configuration desire, and the changes for them.

Agents and machina both apply them, independently of each other; this module decides which are desired. All is pure
except `read_bound_version`, which reads the version of a Machine's MachineConfiguration on demand, without a watch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from unbounded.api.configuration import (
    MACHINE_CONFIGURATION_VERSIONS,
    MachineConfigurationTemplate,
    MachineConfigurationVersion,
    Taint,
)
from unbounded.api.machine import Machine
from unbounded.api.machine_spec import ConfigurationRef
from unbounded.api.names import LABEL_CONFIGURATION, LABEL_MACHINE, LABEL_SITE
from unbounded.kube.api import Api, NotFound

# kubelet does not start with other labels of these domains in --node-labels
# (k8s.io/kubelet/pkg/apis/well_known_labels.go, and ValidateKubeletFlags in kubelet)
_KUBERNETES: Final = ("kubernetes.io", "k8s.io")
_OF_KUBELET: Final = ("kubelet.kubernetes.io", "node.kubernetes.io")
KUBELET_LABELS: Final = frozenset(
    {
        "kubernetes.io/hostname",
        "kubernetes.io/os",
        "kubernetes.io/arch",
        "beta.kubernetes.io/os",
        "beta.kubernetes.io/arch",
        "beta.kubernetes.io/instance-type",
        "node.kubernetes.io/instance-type",
        "topology.kubernetes.io/zone",
        "topology.kubernetes.io/region",
        "failure-domain.beta.kubernetes.io/zone",
        "failure-domain.beta.kubernetes.io/region",
    }
)

NodeTaint = Mapping[str, Any]  # in the format of a Node


def taken_by_kubelet(key: str) -> bool:
    """Return whether kubelet starts with this label in --node-labels; machina puts the others on the Node."""
    domain = key.rpartition("/")[0]
    return key in KUBELET_LABELS or not _within(domain, _KUBERNETES) or _within(domain, _OF_KUBELET)


def _within(domain: str, domains: tuple[str, ...]) -> bool:
    return any(domain == one or domain.endswith(f".{one}") for one in domains)


@dataclass(frozen=True)
class LabelsAndTaints:
    """Labels, and taints as `key=value:Effect`. None keeps the present ones; empty removes them."""

    labels: Mapping[str, str] | None = None
    taints: tuple[str, ...] | None = None


def marks_of_machine(machine: Machine) -> LabelsAndTaints:
    kubernetes = machine.spec.kubernetes
    return (
        LabelsAndTaints()
        if kubernetes is None
        else LabelsAndTaints(kubernetes.node_labels, kubernetes.register_with_taints)
    )


def marks_of_template(template: MachineConfigurationTemplate | None) -> LabelsAndTaints:
    if template is None or template.kubernetes is None:
        return LabelsAndTaints()
    its = template.kubernetes.register_with_taints
    return LabelsAndTaints(template.kubernetes.node_labels, None if its is None else tuple(map(_taint_text, its)))


def desired_marks(
    machine: Machine, template: MachineConfigurationTemplate | None, before: LabelsAndTaints
) -> LabelsAndTaints:
    """Return the desired labels and taints of a Machine's Node; the configuration wins where both set one.

    Args:
        template: of the version that the Machine is bound to.
        before: present ones, kept where neither sets any; None where unknown.
    """
    own, theirs = marks_of_machine(machine), marks_of_template(template)
    labels = own.labels if own.labels is not None or theirs.labels is not None else before.labels
    taints = own.taints if own.taints is not None or theirs.taints is not None else before.taints
    ours = {LABEL_MACHINE: machine.name} | ({LABEL_SITE: machine.site} if machine.site else {})
    return LabelsAndTaints(
        dict(sorted({**(labels or {}), **(theirs.labels or {}), **ours}.items())),
        _merged(taints or (), theirs.taints or ()),
    )


def bound_version(
    machine: Machine, versions: Iterable[MachineConfigurationVersion]
) -> MachineConfigurationVersion | None:
    """Return the version that a Machine is bound to: that of the number in its spec, else the newest of its
    configuration that is not Bad.
    """
    ref = machine.spec.configuration_ref
    if ref is None:
        return None
    if ref.version is None:
        return newest(versions, ref.name)
    return next((one for one in versions if one.metadata.name == f"{ref.name}-v{ref.version}"), None)


def newest(versions: Iterable[MachineConfigurationVersion], configuration: str) -> MachineConfigurationVersion | None:
    """Return the version with the highest number of a configuration; a Bad one only where there is no other."""
    its = [version for version in versions if version.configuration == configuration]
    return max(its, key=lambda version: (not version.bad, version.spec.version), default=None)


def _taint_text(taint: Taint) -> str:
    """Return a taint in kubelet's format: key=value:Effect; with the equals sign even without a value."""
    return f"{taint.key}={taint.value or ''}:{taint.effect}"


def taint_key(taint: str) -> tuple[str, str]:
    """Return the identity of a taint: key and effect."""
    name, _, effect = taint.rpartition(":")
    return name.partition("=")[0], effect


def _merged(own: tuple[str, ...], theirs: tuple[str, ...]) -> tuple[str, ...]:
    """Return the merged taints, sorted, so that their order makes no other node."""
    return tuple(sorted({taint_key(taint): taint for taint in (*own, *theirs)}.values()))


# Changes


def label_changes(
    there: Mapping[str, str], before: Mapping[str, str], desired: Mapping[str, str]
) -> dict[str, str | None]:
    """Return the changes of labels: by key, the new value, or None for a label to remove.

    Args:
        before: labels that were set; those of them that are no longer desired are removed.
    """
    removed = {key: None for key in before if key not in desired and key in there}
    return {**removed, **{key: value for key, value in desired.items() if there.get(key) != value}}


def taints_after(there: Sequence[NodeTaint], before: Sequence[str], desired: Sequence[str]) -> list[NodeTaint]:
    """Return the Node's taints after the change; two are the same one when key and effect are equal."""
    new = {_which(taint): taint for taint in map(parsed_taint, desired)}
    ours = {taint_key(text) for text in before}
    others = [taint for taint in there if _which(taint) not in ours or _which(taint) in new]
    stay = [taint if _same(taint, new.get(_which(taint), taint)) else new[_which(taint)] for taint in others]
    known = {_which(taint) for taint in stay}
    return [*stay, *(taint for which, taint in new.items() if which not in known)]


def parsed_taint(text: str) -> NodeTaint:
    """Parse `key=value:Effect`, or `key:Effect`."""
    name, _, effect = text.rpartition(":")
    key, _, value = name.partition("=")
    return {"key": key, **({"value": value} if value else {}), "effect": effect}


def _which(taint: NodeTaint) -> tuple[str, str]:
    return str(taint.get("key", "")), str(taint.get("effect", ""))


def _same(one: NodeTaint, other: NodeTaint) -> bool:
    return (one.get("value") or "") == (other.get("value") or "")


class NoVersion(Exception):
    """There is no such configuration, or no such version; the text names it."""


async def read_bound_version(api: Api, ref: ConfigurationRef) -> MachineConfigurationVersion:
    """Return the version with the reference's number, else the newest of the configuration that is not Bad.

    Raises:
        NoVersion
        ApiError: it cannot be read.
    """
    if ref.version is not None:
        name = f"{ref.name}-v{ref.version}"
        try:
            return await api.get(MACHINE_CONFIGURATION_VERSIONS, name)
        except NotFound:
            raise NoVersion(f"MachineConfigurationVersion {name} does not exist") from None
    listing = await api.list(MACHINE_CONFIGURATION_VERSIONS, labels=f"{LABEL_CONFIGURATION}={ref.name}")
    found = newest(listing.items, ref.name)
    if found is None:
        raise NoVersion(f"MachineConfiguration {ref.name} has no version")
    return found
