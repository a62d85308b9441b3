"""Plans of releases, profiles, templates and Subnets: whether Machines can use them, and which of them will."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Final

import msgspec

from unbounded.api.container_cloud.cluster import CLUSTERS, ClusterRelease
from unbounded.api.container_cloud.host import BARE_METAL_HOST_PROFILES, BareMetalHostProfile
from unbounded.api.container_cloud.machine import CONTAINER_CLOUD_MACHINES, ContainerCloudMachine
from unbounded.api.container_cloud.names import ANNOTATION_HOST_PROFILE
from unbounded.api.container_cloud.network import IPAM_HOSTS, L2_TEMPLATES, SUBNETS, IpamHost, L2Template, Subnet
from unbounded.api.profile import MACHINE_PROFILES
from unbounded.containercloud.network.rendering import TemplateNetworkFault
from unbounded.containercloud.network.selection import check_layout, choose_template
from unbounded.containercloud.network.subnets import OK, subnet_status
from unbounded.containercloud.profiles.plan import (
    ProfileReason,
    ProfileView,
    choose_profile,
    full_name,
    layout_name,
    plan_profile,
)
from unbounded.containercloud.releases import release_fault
from unbounded.kube.api import Api, key_of

SHOWN: Final = 5  # names in a line
NEXT_INSTALL: Final = "counts at the next install of"


async def release_lines(api: Api, release: ClusterRelease) -> tuple[str, ...]:
    """Return whether Clusters can use a ClusterRelease, and which do."""
    fault = release_fault(release)
    ids = ", ".join(f"{one.id}{' (default)' if one.default else ''}" for one in release.spec.allowed_distributions)
    usable = f"has Kubernetes {release.spec.kubernetes.version} on {ids}"
    users = [str(key_of(one)) for one in (await api.list(CLUSTERS)).items if one.value.release == release.name]
    of_users = f"Clusters that name it: {_few(users)}" if users else "no Cluster names it"
    return (usable if fault is None else f"Clusters would wait (ReleaseUnusable): {fault}", of_users)


async def profile_lines(api: Api, profile: BareMetalHostProfile) -> tuple[str, ...]:
    """Return the layout of a BareMetalHostProfile, and the Machines whose next install it is for."""
    layouts = (await api.list(MACHINE_PROFILES)).items
    whose = full_name(profile)
    own = [one for one in layouts if one.metadata.annotations.get(ANNOTATION_HOST_PROFILE) == whose]
    taken = layout_name(profile) in {one.name for one in layouts} - {one.name for one in own}
    planned = plan_profile(ProfileView(profile, own, taken=taken))
    is_usable = planned.reason is ProfileReason.USABLE
    line = planned.message if is_usable else f"installs would wait ({planned.reason}): {planned.message}"
    others = [one for one in (await api.list(BARE_METAL_HOST_PROFILES)).items if full_name(one) != whose]
    machines = (await api.list(CONTAINER_CLOUD_MACHINES)).items
    users = [one for one in machines if choose_profile(one, [*others, profile]).profile is profile]
    return (line, _next_install(users))


async def subnet_lines(_api: Api, subnet: Subnet) -> tuple[str, ...]:
    """Return the addresses that a Subnet has for hosts."""
    status = subnet_status(subnet)
    if status.state != OK:
        return (f"hosts would wait (SubnetInvalid): {status.state}",)
    return (f"has {status.capacity} addresses for hosts, {status.allocatable} of them free",)


async def template_lines(api: Api, template: L2Template) -> tuple[str, ...]:
    """Return whether hosts can have the network of an L2Template, and the Machines whose next install it is for."""
    namespace = template.metadata.namespace or ""
    fault = check_layout(template, (await api.list(SUBNETS)).items)
    others = (await api.list(L2_TEMPLATES, namespace=namespace)).items
    templates = [template, *(one for one in others if one.name != template.name)]
    machines = (await api.list(CONTAINER_CLOUD_MACHINES, namespace=namespace)).items
    hosts = {one.name: one for one in (await api.list(IPAM_HOSTS, namespace=namespace)).items}
    users = [one for one in machines if _template_of(hosts.get(one.name), one, templates) is template]
    names = ", ".join(entry.subnet_name for entry in template.spec.l3_layout) or "no Subnet"
    line = f"hosts would wait: {fault}" if fault else f"gives hosts a network with addresses of {names}"
    return (line, _next_install(users))


async def ipam_host_lines(api: Api, ipam: IpamHost) -> tuple[str, ...]:
    """Return the template of an IpamHost, and the Machine whose next install it is for."""
    namespace = ipam.metadata.namespace or ""
    machines = (await api.list(CONTAINER_CLOUD_MACHINES, namespace=namespace)).items
    machine = next((one for one in machines if one.name == ipam.name), None)
    if machine is None:
        return (f"has no effect: there is no Machine {namespace}/{ipam.name}",)
    try:
        template = choose_template(ipam, machine, (await api.list(L2_TEMPLATES, namespace=namespace)).items)
    except TemplateNetworkFault as fault:
        return (f"the install would wait ({fault.reason}): {fault}",)
    return (f"its network follows L2Template {template.name}", _next_install([machine]))


def _template_of(
    ipam: IpamHost | None, machine: ContainerCloudMachine, templates: list[L2Template]
) -> L2Template | None:
    """Return the template of a Machine: that of its IpamHost, or of the one that it would get."""
    if ipam is None:
        selector = machine.value.l2_template_selector
        spec = {} if selector is None else {"l2TemplateSelector": msgspec.to_builtins(selector)}
        meta = {"name": machine.name, "namespace": machine.metadata.namespace}
        ipam = msgspec.convert({"metadata": meta, "spec": spec}, IpamHost)
    with suppress(TemplateNetworkFault):
        return choose_template(ipam, machine, templates)
    return None


def _next_install(machines: Iterable[ContainerCloudMachine]) -> str:
    names = sorted(str(key_of(one)) for one in machines)
    return f"{NEXT_INSTALL} {_few(names)}" if names else "no Machine uses it"


def _few(names: list[str]) -> str:
    return f"{', '.join(names[:SHOWN])}{f' and {len(names) - SHOWN} more' if len(names) > SHOWN else ''}"
