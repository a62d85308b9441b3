"""Machines that name one host: at most one of them is provisioned, as two installs would collide. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import ip_address
from typing import Final

from unbounded.api.machine import PROVISIONING, Machine
from unbounded.kube.cache import Cache
from unbounded.machina.ssh.model import HostPort, host_port

INDEX_HOST: Final = "ssh host"

HostAddress = tuple[HostPort, ...]


def host_address(machine: Machine) -> HostAddress | None:
    """Return the normalized addresses of a Machine's host and bastion; None if an address is invalid.

    Private addresses repeat, so hosts behind different bastions count as different hosts.
    """
    ssh = machine.spec.ssh
    if ssh is None:
        return None
    try:
        return tuple(_spelled(text) for text in (ssh.host, *([ssh.bastion.host] if ssh.bastion is not None else [])))
    except ValueError:
        return None


def by_host(machine: Machine) -> tuple[str, ...]:
    """Return the addresses of a Machine's host, as the key of an index."""
    way = host_address(machine)
    return () if way is None else (_words(way),)


def sharing_host(machines: Cache[Machine], machine: Machine) -> tuple[Machine, ...]:
    """Return the other Machines of the same host.

    Args:
        machines: indexed by INDEX_HOST.
    """
    found = (one for key in by_host(machine) for one in machines.by(INDEX_HOST, key))
    return tuple(one for one in found if one.name != machine.name)


def host_text(machine: Machine) -> str:
    """Return the address of the host for a message; empty if it is invalid."""
    return next(iter(by_host(machine)), "")


def first_of(machine: Machine, sharing: Iterable[Machine]) -> Machine:
    """Return the one Machine of a host that may be provisioned: a started one, else the oldest candidate."""
    return min((machine, *filter(_counts, sharing)), key=_order)


def _counts(machine: Machine) -> bool:
    is_wanted = machine.spec.kubernetes is not None and machine.metadata.deletion_timestamp is None
    return is_wanted or is_begun(machine)


def parts_for_host(machine: Machine | None) -> object:
    """Return the parts of a Machine that concern others of the same host."""
    return None if machine is None else (host_address(machine), _order(machine), _counts(machine))


def _order(machine: Machine) -> tuple[bool, str, str]:
    return (not is_begun(machine), machine.metadata.creation_timestamp or "", machine.name)


def is_begun(machine: Machine) -> bool:
    """Return whether something may have been installed on the host for this Machine."""
    status, slot = machine.status, machine.status.active_operation
    before = status.provisioning
    touched = before is not None and not (before.ended_at is not None and before.untouched)
    return touched or status.agent is not None or (slot is not None and slot.kind == PROVISIONING)


def _spelled(text: str) -> HostPort:
    at = host_port(text)
    try:
        return HostPort(str(ip_address(at.host)), at.port)
    except ValueError:
        return HostPort(at.host.lower().rstrip("."), at.port)


def _words(way: HostAddress) -> str:
    host, *bastion = map(str, way)
    return f"{host} through the bastion {bastion[0]}" if bastion else host
