"""Serving certificates of kubelets: for the names and addresses of a Node that belong to no other part of the cluster.

A kubelet reports the addresses of its Node itself. So a reported address counts only if nothing else in the cluster has
it. Addresses of the Machine's spec, which no node can write, always count. Pure.
"""

from __future__ import annotations

import contextlib
import ipaddress
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from cryptography import x509

from unbounded.api.core import CertificateRequest, Node
from unbounded.api.machine import JoinPurpose, Machine
from unbounded.api.names import SIGNER_SERVING
from unbounded.machina.csr_approval import plan
from unbounded.machina.csr_approval.request import Holder, UnfitRequest, is_decided, requester_of, serving_names
from unbounded.machina.ssh.model import host_port

_API: Final = ("kubernetes", "kubernetes.default")
_DOMAINS: Final = ("localhost", "svc", "cluster.local")  # domains of Services, and names that every host has for itself


@dataclass(frozen=True)
class NameOwners:
    """Owners of names and addresses in the cluster.

    Args:
        node: the current Node of the Machine; None if there is none.
        api: names and addresses of the API server and of the cluster's DNS server.
        machines: names and addresses in the specs of other Machines: `{name or address: owner}`.
        nodes: names and addresses that other kubelets report: `{name or address: owner}`.
    """

    node: Node | None = None
    api: frozenset[str] = frozenset()
    machines: Mapping[str, str] = field(default_factory=dict)
    nodes: Mapping[str, str] = field(default_factory=dict)


def is_serving(request: CertificateRequest) -> bool:
    """Return whether `plan_serving` may have to decide this request."""
    return request.spec.signer_name == SIGNER_SERVING and requester_of(request) is not None and not is_decided(request)


def machine_serving(request: CertificateRequest) -> str | None:
    """Return the Machine of the requester; None for a bootstrap token, which has none."""
    asker = requester_of(request)
    return asker.machine if isinstance(asker, Holder) else None


def plan_serving(
    request: CertificateRequest, machine: Machine | None, around: NameOwners, *, waited: bool = False
) -> plan.Verdict:
    """Decide about a request for a serving certificate.

    Args:
        machine: the current Machine of `machine_serving`; None if it does not exist.
        waited: whether the time for the Node to report its addresses has passed.
    """
    asker = requester_of(request)
    if asker is None or not is_serving(request):
        return plan.NotOurs()
    if not isinstance(asker, Holder) or asker.purpose is not JoinPurpose.KUBELET:
        return plan.Deny(
            plan.DenialReason.FOREIGN_IDENTITY,
            f"{request.spec.username} is not a kubelet; only kubelets may request serving certificates",
        )
    if machine is None:
        return plan.NotOurs()  # a Node that is not a Machine of ours
    if machine.metadata.deletion_timestamp is not None:
        return plan.missing_machine(machine.name, machine)
    try:
        named, names = serving_names(request)
    except UnfitRequest as unfit:
        return plan.Deny(plan.DenialReason.UNFIT_REQUEST, f"refused: {unfit}")
    if named != machine.name:
        words = f"{request.spec.username} may request its own certificates only, not those of {named}"
        return plan.Deny(plan.DenialReason.FOREIGN_IDENTITY, words)
    return _decide_names(machine, tuple(_text(name) for name in names), around, waited=waited)


def _decide_names(machine: Machine, names: tuple[str, ...], around: NameOwners, *, waited: bool) -> plan.Verdict:
    of_spec = set(addresses_of(machine))
    reported = set() if around.node is None else {normalize(one.address) for one in around.node.status.addresses}
    unknown = []
    for name in names:
        if words := _forbidden_reason(name):
            return plan.Deny(plan.DenialReason.FOREIGN_NAME, f"{name} {words}")
        if name in around.machines:
            return plan.Deny(plan.DenialReason.FOREIGN_NAME, f"{name} belongs to {around.machines[name]}")
        if name in of_spec:
            continue
        if name in around.api:
            return plan.Deny(
                plan.DenialReason.FOREIGN_NAME, f"{name} belongs to the API server or the cluster's DNS server"
            )
        if name == machine.name:
            continue
        if name in around.nodes:
            return plan.Deny(plan.DenialReason.FOREIGN_NAME, f"{name} belongs to {around.nodes[name]}")
        if not _is_address(name) or name not in reported:
            unknown.append(name)
    if not unknown:
        return plan.ApproveServing(names)
    if not waited and all(map(_is_address, unknown)):
        return plan.Defer()  # a kubelet may request a certificate before its Node reports the address
    words = (
        f"{', '.join(unknown)}: neither the name of the Machine ({machine.name}), nor an address of its Node or Machine"
    )
    return plan.Deny(plan.DenialReason.UNKNOWN_NAME, words)


def addresses_of(machine: Machine) -> Iterator[str]:
    """Yield the names and addresses in a Machine's spec: of SSH and of DHCP leases.

    Only administrators write them. The name of a Machine does not count here: a host with a token of a site chooses it.
    """
    if machine.spec.ssh is not None:
        with contextlib.suppress(ValueError):
            yield normalize(host_port(machine.spec.ssh.host).host)
    for lease in machine.spec.pxe.dhcp_leases if machine.spec.pxe is not None else ():
        yield normalize(lease.ipv4)


def names_of_other_machines(name: str, machines: Iterable[Machine]) -> dict[str, str]:
    """Return the names and addresses in the specs of all other Machines: `{name or address: owner}`."""
    others = [one for one in machines if one.name != name]
    return {one: f"Machine {other.name}" for other in others for one in (other.name, *addresses_of(other))}


def names_of_other_nodes(name: str, nodes: Iterable[Node]) -> dict[str, str]:
    """Return the names and addresses of all other Nodes: `{name or address: owner}`."""
    found: dict[str, str] = {}
    for node in nodes:
        if node.metadata.name != name:
            reported = (normalize(one.address) for one in node.status.addresses)
            found |= dict.fromkeys((node.metadata.name, *reported), f"Node {node.metadata.name}")
    return found


def _forbidden_reason(name: str) -> str:
    """Return why no node may have the name or address; empty if a node may."""
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        labels = name.split(".")
        ends = {".".join(labels[at:]) for at in range(len(labels))}
        return "is a name of the cluster itself" if name in _API or ends.intersection(_DOMAINS) else ""
    special = address.is_loopback or address.is_unspecified or address.is_multicast or address.is_link_local
    return "is not an address of a node" if special else ""


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _text(name: x509.GeneralName) -> str:
    return normalize(str(name.value))


def normalize(text: str) -> str:
    """Normalize a name to lower case and an address to its canonical form, IPv4-mapped IPv6 to IPv4."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return text.lower().rstrip(".")
    mapped = getattr(address, "ipv4_mapped", None)
    return str(mapped or address)
