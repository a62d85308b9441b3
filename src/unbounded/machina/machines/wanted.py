"""Whether a host is to be set up over SSH: once, and again only where somebody has asked for it.

An outage, a Node that is away or a newer spec is no reason: a host that serves is never installed over.
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from unbounded.api.conditions import ConditionType
from unbounded.api.core import Node
from unbounded.api.machine import JoinPurpose, Machine, NodeThen, ProvisioningStatus
from unbounded.api.operation import OperationKind, OperationPhase
from unbounded.machina.approval.causes import last_allowed
from unbounded.machina.ssh.model import host_port

_FROM_AN_IMAGE: Final = frozenset(
    {ConditionType.REPAVED, ConditionType.CLOUD_INIT_DONE, ConditionType.AGENT_BOOTSTRAPPED}
)


def is_open(provisioning: ProvisioningStatus | None) -> bool:
    """Whether an attempt is written down whose end is not."""
    return provisioning is not None and provisioning.ended_at is None


def why_not(machine: Machine, node: Node | None) -> str | None:
    """Why the host is not to be set up over SSH; None where it is."""
    before = machine.status.provisioning
    allowed = is_allowed(machine)
    if made_by_an_image(machine):
        return "the host is set up by its image, not over SSH"
    if before is None:
        return _never_tried(machine, node, allowed=allowed)
    if allowed:
        return None
    if is_reset(machine):
        return "an AgentReset has taken the host back"
    if before.failure is None:
        return "the host was set up"
    return joined_since(machine, node)


def is_set_up_by_join(machine: Machine, node: Node | None, counter: int) -> bool:
    """Return whether machina sets the host up over SSH as soon as spec.joinCounter is so high."""
    if machine.spec.ssh is None or machine.spec.kubernetes is None or counter <= joins_counted(machine):
        return False
    allowed = replace(machine, spec=replace(machine.spec, join_counter=counter))
    return why_not(allowed, node) is None


def joined_since(machine: Machine, node: Node | None) -> str | None:
    """What shows that an attempt which was given up on has gone well after all: its Node is Ready; None without that.

    A Node that was Ready before the attempt says nothing of it.
    """
    before = machine.status.provisioning
    if before is None or before.failure is None or node is None or not node.ready:
        return None
    return None if before.node == NodeThen.READY else f"Node {node.metadata.name} has joined since"


def is_asked_anew(machine: Machine, node: Node | None) -> bool:
    """Whether somebody has asked for something since the last attempt.

    A Node that came since is named in the spec by machina itself; what else was edited is the agent's business by then.
    """
    before = machine.status.provisioning
    if before is None or is_allowed(machine):
        return True
    came_since = node is not None and before.node is None
    return before.generation != machine.metadata.generation and not came_since


def is_allowed(machine: Machine) -> bool:
    """Whether its join is allowed anew, and nothing has come of that yet."""
    return machine.spec.join_counter > joins_counted(machine)


def next_attempt(machine: Machine, node: Node | None, fresh: str) -> str:
    """The name for one more attempt: of those that only repeat what failed it is the first one's, with a number."""
    before = machine.status.provisioning
    if before is None or before.failure is None or is_asked_anew(machine, node):
        return fresh
    first, _, number = before.attempt.partition(_NUMBER)
    return f"{first}{_NUMBER}{int(number) + 1 if number.isdecimal() else 2}"


def is_first(attempt: str) -> bool:
    """Whether no other was an attempt at the same thing before it."""
    return _NUMBER not in attempt


def repeats(attempt: str, before: str) -> bool:
    """Whether both are attempts at the same thing: then it is done once one of them has ended well."""
    return attempt.partition(_NUMBER)[0] == before.partition(_NUMBER)[0]


_NUMBER: Final = "-"


def address_of(machine: Machine) -> str | None:
    """host:port of its host; None where spec.ssh names none that makes sense."""
    try:
        return str(host_port(machine.spec.ssh.host)) if machine.spec.ssh is not None else None
    except ValueError:
        return None


def moved(machine: Machine) -> str | None:
    """What is said where an attempt is carried out on another host than spec.ssh names by now; None where it is not."""
    before = machine.status.provisioning
    if before is None or before.host is None or before.host == address_of(machine):
        return None
    return f"spec.ssh.host was changed while {before.host} was set up"


def _never_tried(machine: Machine, node: Node | None, *, allowed: bool) -> str | None:
    if node is not None and node.ready:
        return f"Node {node.metadata.name} has joined already"
    if allowed:
        return None
    if node is not None:
        return f"Node {node.metadata.name} is there already, and is not Ready: {_TO_SET_UP}"
    ref = machine.spec.kubernetes.node_ref if machine.spec.kubernetes is not None else None
    if ref is not None:
        return f"Node {ref.name} had joined, and is gone: {_TO_SET_UP}"
    if machine.status.agent is not None:
        return f"an agent that machina did not install has reported from the host: {_TO_SET_UP}"
    return None


_TO_SET_UP: Final = "`kubectl unbounded machine allow-join` has the host set up over SSH"


def joins_counted(machine: Machine) -> int:
    """The highest spec.joinCounter that has led to an attempt, or to a join."""
    before = machine.status.provisioning
    return max(before.join_counter if before else 0, last_allowed(machine, JoinPurpose.AGENT))


def made_by_an_image(machine: Machine) -> bool:
    """Whether the host gets its system, and its agent in it, from metalman or a cloud, and has got it once."""
    if machine.spec.pxe is None and not machine.provider:
        return False
    replaced = any(
        one.kind == OperationKind.HOST_REPLACE and one.phase == OperationPhase.COMPLETE
        for one in machine.status.recent_operations
    )
    counted = machine.status.operations is not None and machine.status.operations.repave_counter > 0
    return replaced or counted or any(one.type in _FROM_AN_IMAGE for one in machine.status.conditions)


def last_reset(machine: Machine) -> str | None:
    """The UID of the last AgentReset that is known to be complete."""
    resets = (
        one.uid
        for one in reversed(machine.status.recent_operations)
        if one.kind == OperationKind.AGENT_RESET and one.phase == OperationPhase.COMPLETE
    )
    return next(resets, None)


def is_reset(machine: Machine) -> bool:
    """Whether an AgentReset has taken back what the last attempt has done."""
    before, reset = machine.status.provisioning, last_reset(machine)
    return before is not None and reset is not None and reset != before.reset
