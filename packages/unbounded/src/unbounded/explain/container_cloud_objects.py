"""Releases, credentials, profiles and networks of Container Cloud as one link each, from their status. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from unbounded.api.conditions import ConditionStatus
from unbounded.api.container_cloud.cluster import CLUSTER_RELEASES, ClusterRelease
from unbounded.api.container_cloud.host import (
    BARE_METAL_HOST_CREDENTIALS,
    BARE_METAL_HOST_PROFILES,
    BareMetalHostCredential,
    BareMetalHostProfile,
)
from unbounded.api.container_cloud.network import IPAM_HOSTS, L2_TEMPLATES, SUBNETS, IpamHost, L2Template, Subnet
from unbounded.api.meta import Condition, Kind
from unbounded.containercloud.clusters import CONDITION_USABLE
from unbounded.containercloud.hosts.credentials import CONDITION_STORED
from unbounded.containercloud.network.model import ADDRESSES, RENDERED
from unbounded.containercloud.network.rendering import NetworkReason
from unbounded.containercloud.network.subnets import OK
from unbounded.containercloud.profiles.plan import USABLE
from unbounded.explain.facts import CONTAINER_CLOUD
from unbounded.explain.links import ExplainLink, Fix, LinkCode, Topic

ContainerCloudObject = ClusterRelease | BareMetalHostCredential | BareMetalHostProfile | L2Template | Subnet | IpamHost
OBJECTS: Final[Mapping[Topic, Kind[Any]]] = {
    Topic.RELEASE: CLUSTER_RELEASES,
    Topic.CREDENTIAL: BARE_METAL_HOST_CREDENTIALS,
    Topic.PROFILE: BARE_METAL_HOST_PROFILES,
    Topic.TEMPLATE: L2_TEMPLATES,
    Topic.SUBNET: SUBNETS,
    Topic.IPAM_HOST: IPAM_HOSTS,
}
_IMMUTABLE: Final = frozenset({Topic.RELEASE})


@dataclass(frozen=True)
class _Fault:
    reason: str
    message: str
    held_by: str
    since: str = ""


def topic_of(item: ContainerCloudObject) -> Topic:
    """Return the topic of an object."""
    return next(topic for topic, kind in OBJECTS.items() if isinstance(item, kind.type))


def explain_object(item: ContainerCloudObject) -> tuple[ExplainLink, bool]:
    """Explain an object by its status; return the link, and whether nothing blocks its use."""
    kind, meta = OBJECTS[topic_of(item)], item.metadata
    where = f" -n {meta.namespace}" if kind.namespaced else ""
    about = f"{kind.kind.lower()}.{kind.group}/{meta.name}{where}"
    name = f"{kind.plural}.{kind.group} {meta.name}{where}"
    found = _state(item)
    if found is None:
        text = "has not been processed by container-cloud"
        events = Fix(f"kubectl describe {name}", "shows its Events, such as a write that the server refuses")
        return ExplainLink(about, text, LinkCode.NOT_PROCESSED, held_by=CONTAINER_CLOUD, fixes=(events,)), False
    if isinstance(found, str):
        return ExplainLink(about, found, LinkCode.READY), True
    fix = Fix(f"kubectl edit {name}", "corrects the field that the message names")
    if topic_of(item) in _IMMUTABLE:
        fix = Fix(f"kubectl get {name} -o yaml", "shows it: its spec cannot be changed, so create another one")
    link = ExplainLink(about, found.message, found.reason, held_by=found.held_by, since=found.since, fixes=(fix,))
    return link, False


def _state(item: ContainerCloudObject) -> _Fault | str | None:
    """Return the fault of an object, or that it can be used; None before its first report."""
    match item:
        case ClusterRelease():
            return _of_conditions(item.status.conditions, CONDITION_USABLE)
        case BareMetalHostCredential():
            return _of_conditions(item.status.conditions, CONDITION_STORED)
        case BareMetalHostProfile():
            return _of_conditions(item.status.conditions, USABLE)
        case IpamHost():
            return _of_conditions(item.status.conditions, ADDRESSES, RENDERED)
        case L2Template():
            fault = item.status.reason or item.status.state or ""
            return _of_state(item.status.state, NetworkReason.TEMPLATE_INVALID, fault, "hosts can have its network")
        case Subnet():
            return _of_subnet(item)


def _of_conditions(conditions: tuple[Condition, ...], *types: str) -> _Fault | str | None:
    found = [one for kind in types for one in conditions if one.type == kind]
    if not found:
        return None
    for one in found:
        if one.status != ConditionStatus.TRUE:
            held_by = f"condition {one.type}={one.status} ({one.reason})"
            return _Fault(one.reason, one.message or one.reason, held_by, one.since)
    return found[-1].message or f"{found[-1].type}: nothing blocks it"


def _of_subnet(subnet: Subnet) -> _Fault | str | None:
    status = subnet.status
    text = f"{status.allocatable} of {status.capacity} addresses are free"
    if status.state == OK and not status.allocatable:
        return _Fault(NetworkReason.SUBNET_FULL, f"{text}: add some (spec.includeRanges)", "spec.includeRanges")
    return _of_state(status.state, NetworkReason.SUBNET_INVALID, status.state or "", text)


def _of_state(state: str | None, reason: NetworkReason, message: str, usable: str) -> _Fault | str | None:
    if state is None:
        return None
    return usable if state == OK else _Fault(reason, message, f"status.state {state.partition(':')[0]}")
