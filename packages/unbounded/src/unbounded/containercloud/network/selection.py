"""The template of a host, and the Subnets that it uses. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from unbounded.api.container_cloud.machine import ContainerCloudMachine
from unbounded.api.container_cloud.names import LABEL_CLUSTER, LABEL_DEFAULT_TEMPLATE
from unbounded.api.container_cloud.network import IpamHost, L2Template, L3Layout, Subnet
from unbounded.api.meta import Object
from unbounded.containercloud.network.rendering import NetworkReason, TemplateNetworkFault, check_template
from unbounded.containercloud.network.subnets import AddressPool, SubnetFault

GLOBAL_NAMESPACE: Final = "default"  # of Subnets with scope global


def choose_template(ipam: IpamHost, machine: ContainerCloudMachine, templates: Sequence[L2Template]) -> L2Template:
    """Return the template of a Machine: by name, else by label, else the default one of the Cluster.

    Raises:
        TemplateNetworkFault: there is none, or there are several.
    """
    selector, cluster = ipam.spec.l2_template_selector, machine.cluster
    own = [one for one in templates if one.metadata.labels.get(LABEL_CLUSTER, cluster) == cluster]
    where = f"namespace {ipam.metadata.namespace}, Cluster {cluster or 'none'}"
    if selector is not None and selector.name:
        found = [one for one in own if one.name == selector.name]
        wanted = f"spec.l2TemplateSelector.name: there is no L2Template {selector.name} in {where}"
    elif selector is not None and selector.label:
        found = [one for one in own if selector.label in one.metadata.labels]
        wanted = f"spec.l2TemplateSelector.label: no L2Template in {where} has the label {selector.label}"
    else:
        found = [one for one in own if LABEL_DEFAULT_TEMPLATE in one.metadata.labels]
        wanted = (
            f"no L2Template in {where} has the label {LABEL_DEFAULT_TEMPLATE}, and spec.l2TemplateSelector is empty"
        )
    if not found:
        raise TemplateNetworkFault(NetworkReason.NO_TEMPLATE, wanted)
    if len(found) > 1:
        names = ", ".join(sorted(one.name for one in found))
        raise TemplateNetworkFault(
            NetworkReason.TEMPLATE_AMBIGUOUS, f"several L2Templates fit ({names}): set spec.l2TemplateSelector.name"
        )
    return found[0]


def layout_subnets(template: L2Template, cluster: str, subnets: Sequence[Subnet]) -> dict[str, Subnet]:
    """Return the Subnets of `spec.l3Layout`, by the names that macros use.

    Raises:
        TemplateNetworkFault: an entry has none, or several.
    """
    found: dict[str, Subnet] = {}
    for at, entry in enumerate(template.spec.l3_layout):
        candidates = [one for one in subnets if _fits(entry, one, template.metadata.namespace or "", cluster)]
        place = f"L2Template {full_name(template)}: spec.l3Layout[{at}]: scope {entry.scope}"
        wanted = ", ".join(f"{key}={value}" for key, value in sorted(entry.label_selector.items()))
        if not candidates:
            raise TemplateNetworkFault(
                NetworkReason.SUBNET_MISSING,
                f"{place} has no Subnet " + (f"with the labels {wanted}" if wanted else entry.subnet_name),
            )
        if len(candidates) > 1:
            names = ", ".join(sorted(one.name for one in candidates))
            raise TemplateNetworkFault(
                NetworkReason.SUBNET_INVALID, f"{place} has several Subnets with {wanted}: {names}"
            )
        found[entry.subnet_name] = candidates[0]
    return found


def _fits(entry: L3Layout, subnet: Subnet, namespace: str, cluster: str) -> bool:
    labels = subnet.metadata.labels
    if subnet.metadata.namespace != (GLOBAL_NAMESPACE if entry.scope == "global" else namespace):
        return False
    if entry.scope == "cluster" and labels.get(LABEL_CLUSTER) != cluster:
        return False
    if entry.label_selector:
        return all(labels.get(key) == value for key, value in entry.label_selector.items())
    return subnet.name == entry.subnet_name


def full_name(item: Object) -> str:
    return f"{item.metadata.namespace}/{item.name}"


def pool_of(subnet: Subnet) -> AddressPool:
    try:
        return AddressPool.of(subnet.spec)
    except SubnetFault as fault:
        raise TemplateNetworkFault(NetworkReason.SUBNET_INVALID, f"Subnet {full_name(subnet)}: {fault}") from fault


def check_layout(template: L2Template, subnets: Sequence[Subnet]) -> str:
    """Return why no host can have the network of a template; empty if hosts can."""
    cluster = template.metadata.labels.get(LABEL_CLUSTER)
    try:
        check_template(full_name(template), template.spec.np_template)
        entries = [one for one in template.spec.l3_layout if cluster is not None or one.scope != "cluster"]
        known = replace(template, spec=replace(template.spec, l3_layout=tuple(entries)))
        for subnet in layout_subnets(known, cluster or "", subnets).values():
            pool_of(subnet)
    except TemplateNetworkFault as fault:
        return str(fault)
    return ""
