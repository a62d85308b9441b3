"""Decision whether to provision a host over SSH: once, and again only at the request of a user.

An outage, a missing Node or a newer spec is no reason: a host that serves is never overwritten. At most one of several
Machines that name one host is provisioned, as two installs would collide. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import ip_address
from typing import Final

from msgspec.structs import replace

from unbounded.api.conditions import ConditionType
from unbounded.api.core import Node
from unbounded.api.machine import PROVISIONING, JoinPurpose, Machine, PreviousNode, ProvisioningStatus
from unbounded.api.operation import OperationKind, OperationPhase
from unbounded.kube.cache import Cache
from unbounded.machina.csr_approval.plan import last_allowed
from unbounded.machina.ssh.model import HostPort, host_port

_FROM_AN_IMAGE: Final = frozenset(
    {ConditionType.REPAVED, ConditionType.CLOUD_INIT_DONE, ConditionType.AGENT_BOOTSTRAPPED}
)


def is_attempt_open(provisioning: ProvisioningStatus | None) -> bool:
    """Return whether a recorded attempt has no recorded end."""
    return provisioning is not None and provisioning.ended_at is None


def reason_against(machine: Machine, node: Node | None) -> str | None:
    """Return why the host is not to be provisioned over SSH; None if it is."""
    before = machine.status.provisioning
    allowed = is_join_allowed(machine)
    if is_image_based(machine):
        return "the host is set up by its image, not over SSH"
    if before is None:
        return _never_tried(machine, node, allowed=allowed)
    if allowed:
        return None
    if is_reset(machine):
        return "an AgentReset has reset the host"
    if before.failure is None:
        return "the host was set up"
    return join_evidence(machine, node)


def is_set_up_by_join(machine: Machine, node: Node | None, counter: int) -> bool:
    """Return whether machina provisions the host over SSH once spec.joinCounter has this value."""
    if machine.spec.ssh is None or machine.spec.kubernetes is None or counter <= joins_counted(machine):
        return False
    allowed = replace(machine, spec=replace(machine.spec, join_counter=counter))
    return reason_against(allowed, node) is None


def join_evidence(machine: Machine, node: Node | None) -> str | None:
    """Return the evidence that a failed attempt has succeeded after all: its Node is Ready; None without evidence.

    A Node that was Ready before the attempt is no evidence.
    """
    before = machine.status.provisioning
    if before is None or before.failure is None or node is None or not node.ready:
        return None
    return None if before.node == PreviousNode.READY else f"Node {node.metadata.name} has joined since"


def is_requested_again(machine: Machine, node: Node | None) -> bool:
    """Return whether a user has requested something since the last attempt.

    machina itself names a new Node in the spec. Once the Node exists, other edits concern the agent.
    """
    before = machine.status.provisioning
    if before is None or is_join_allowed(machine):
        return True
    came_since = node is not None and before.node is None
    return before.generation != machine.metadata.generation and not came_since


def is_join_allowed(machine: Machine) -> bool:
    """Return whether a join is allowed again and was not used yet."""
    return machine.spec.join_counter > joins_counted(machine)


def next_attempt(machine: Machine, node: Node | None, fresh: str) -> str:
    """Return the name of the next attempt: a retry has the first attempt's name with a number."""
    before = machine.status.provisioning
    if before is None or before.failure is None or is_requested_again(machine, node):
        return fresh
    first, _, number = before.attempt.partition(_NUMBER)
    return f"{first}{_NUMBER}{int(number) + 1 if number.isdecimal() else 2}"


def is_first(attempt: str) -> bool:
    """Return whether the attempt is not a retry."""
    return _NUMBER not in attempt


def repeats(attempt: str, before: str) -> bool:
    """Return whether both attempts have the same goal; the success of one completes both."""
    return attempt.partition(_NUMBER)[0] == before.partition(_NUMBER)[0]


_NUMBER: Final = "-"


def address_of(machine: Machine) -> str | None:
    """Return host:port of the Machine's host; None without a valid spec.ssh."""
    try:
        return str(host_port(machine.spec.ssh.host)) if machine.spec.ssh is not None else None
    except ValueError:
        return None


def moved_message(machine: Machine) -> str | None:
    """Return the message about an attempt on another host than that of spec.ssh; None if the host is the same."""
    before = machine.status.provisioning
    if before is None or before.host is None or before.host == address_of(machine):
        return None
    return f"spec.ssh.host changed during the setup of {before.host}"


def _never_tried(machine: Machine, node: Node | None, *, allowed: bool) -> str | None:
    if node is not None and node.ready:
        return f"Node {node.metadata.name} has joined already"
    if allowed:
        return None
    if node is not None:
        return f"Node {node.metadata.name} exists already, and is not Ready: {_TO_SET_UP}"
    ref = machine.spec.kubernetes.node_ref if machine.spec.kubernetes is not None else None
    if ref is not None:
        return f"Node {ref.name} had joined, and does not exist any more: {_TO_SET_UP}"
    if machine.status.agent is not None:
        return f"an agent that machina did not install reports from the host: {_TO_SET_UP}"
    return None


_TO_SET_UP: Final = "run `kubectl unbounded machine allow-join` to set up the host over SSH"


def joins_counted(machine: Machine) -> int:
    """Return the highest spec.joinCounter that has led to an attempt or to a join."""
    before = machine.status.provisioning
    return max(before.join_counter if before else 0, last_allowed(machine, JoinPurpose.AGENT))


def is_image_based(machine: Machine) -> bool:
    """Return whether metalman or a cloud provides the host's system with its agent, and has done so once."""
    if machine.spec.pxe is None and not machine.provider:
        return False
    replaced = any(
        one.kind == OperationKind.HOST_REPLACE and one.phase == OperationPhase.COMPLETE
        for one in machine.status.recent_operations
    )
    counted = machine.status.operations is not None and machine.status.operations.repave_counter > 0
    return replaced or counted or any(one.type in _FROM_AN_IMAGE for one in machine.status.conditions)


def last_reset(machine: Machine) -> str | None:
    """Return the UID of the last AgentReset that is known to be complete."""
    resets = (
        one.uid
        for one in reversed(machine.status.recent_operations)
        if one.kind == OperationKind.AGENT_RESET and one.phase == OperationPhase.COMPLETE
    )
    return next(resets, None)


def is_reset(machine: Machine) -> bool:
    """Return whether an AgentReset has reverted the last attempt."""
    before, reset = machine.status.provisioning, last_reset(machine)
    return before is not None and reset is not None and reset != before.reset


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
