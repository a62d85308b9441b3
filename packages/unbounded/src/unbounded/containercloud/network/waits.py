"""The waits of a Machine of cluster.k8s.io for its network, from the conditions of its IpamHost. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from unbounded.api.container_cloud.machine import ContainerCloudMachine
from unbounded.api.container_cloud.network import IpamHost
from unbounded.api.meta import Condition
from unbounded.containercloud.machines.model import MachineReason
from unbounded.containercloud.network.model import ADDRESSES, RENDERED
from unbounded.containercloud.network.rendering import NetworkReason
from unbounded.containercloud.waits import CORRECTED, MachineWait

_N = NetworkReason
NETWORK_ENDS: Final[Mapping[str, str]] = {
    _N.NO_TEMPLATE: "a template fits",
    _N.TEMPLATE_AMBIGUOUS: "one template fits",
    _N.TEMPLATE_INVALID: "the template is corrected",
    _N.SUBNET_MISSING: "the Subnet exists",
    _N.SUBNET_INVALID: "the Subnet is corrected",
    _N.SUBNET_FULL: "an address is free",
    _N.CARD_MISSING: "the names fit the cards of the host, which each boot reports again",
    _N.NO_LEASE: "the installer can have an address",
    _N.MACHINE_HAS_NETWORK: "the field is removed",
    _N.NOT_CLAIMED: "a host is claimed",
    _N.HOST_DIRTY: "the host was seen Off",
}
"""Events that end the waits for a network."""


def addresses_wait(machine: ContainerCloudMachine, ipam: IpamHost | None, found: IpamHost | None) -> MachineWait | None:
    """Return the wait for the host's addresses; None once they are allocated.

    Args:
        found: the IpamHost of the Machine's name, perhaps that of an earlier Machine, whose host has its addresses.
    """
    name = f"IpamHost {machine.metadata.namespace}/{machine.name}"
    if found is not None and (ipam is None or found.metadata.deletion_timestamp is not None):
        why = f": {found.status.state.removeprefix('ERR: ')}" if found.status.state else ""
        text = f"{name} is still that of an earlier Machine of this name{why}"
        return MachineWait(MachineReason.NETWORK_PENDING, text, name, "that IpamHost is deleted")
    conditions = () if ipam is None else ipam.status.conditions
    allocated = next((one for one in conditions if one.type == ADDRESSES), None)
    if allocated is None:
        return MachineWait(MachineReason.NETWORK_PENDING, f"{name} has no addresses yet", name, "it has its addresses")
    return None if allocated.status == "True" else _from_condition(name, allocated)


def rendering_wait(ipam: IpamHost | None) -> MachineWait | None:
    """Return the wait for a network that the report of the next boot may correct; None for none."""
    if ipam is None or not (ipam.status.state or "").startswith("ERR"):
        return None
    found = next((one for one in ipam.status.conditions if one.type == RENDERED), None)
    name = f"IpamHost {ipam.metadata.namespace}/{ipam.name}"
    return None if found is None or found.status == "True" else _from_condition(name, found)


def _from_condition(name: str, condition: Condition) -> MachineWait:
    reason = condition.reason or MachineReason.NETWORK_PENDING
    return MachineWait(reason, condition.message, name, NETWORK_ENDS.get(reason, CORRECTED))
