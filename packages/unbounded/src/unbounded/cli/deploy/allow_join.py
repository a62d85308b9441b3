"""`kubectl unbounded machine allow-join`: permission for a machine to request its certificates once more."""

from __future__ import annotations

from typing import Final

from unbounded.api.core import NODES, Node
from unbounded.api.machine import MACHINES, JoinPurpose, Machine, MachinePhase
from unbounded.cli.plugin.command import CommandSession, Intent, IntentPatch
from unbounded.cli.plugin.intents import execute_intent
from unbounded.kube.errors import Forbidden, NotFound
from unbounded.machina.csr_approval.plan import last_allowed
from unbounded.machina.machines.eligibility import is_set_up_by_join

OPEN: Final = "no change: its agent and its kubelet may each request one certificate already"
ALLOWED: Final = "its agent and its kubelet may each request one more certificate"
INSTALLS: Final = "machina runs the install script on its host again, over SSH"
UNDER_NODE: Final = f"it is Ready, and {INSTALLS}, under the Node that runs now"


def counter_after(machine: Machine) -> int | None:
    """Return the joinCounter that allows one more join; None where the present one still allows both certificates.

    A counter with which the setup of the host has failed is used up: the next one starts another attempt at once.
    """
    used = [last_allowed(machine, purpose) for purpose in JoinPurpose]
    before = machine.status.provisioning
    if before is not None and before.failure is not None:
        used.append(before.join_counter)
    if machine.spec.join_counter > max(used):
        return None
    return max(used) + 1


async def intend(session: CommandSession) -> Intent:
    machine = await session.api.get(MACHINES, session.invocation.args.name)
    counter = counter_after(machine)
    if counter is None:
        return Intent(notes=(OPEN,))
    patch = {
        "metadata": {"resourceVersion": machine.metadata.resource_version},
        "spec": {"joinCounter": counter},
    }
    patches = (IntentPatch(MACHINES, machine.name, patch),)
    if not is_set_up_by_join(machine, await _node(session, machine.name), counter):
        return Intent(patches=patches, notes=(ALLOWED,))
    if machine.status.phase != MachinePhase.READY:
        return Intent(patches=patches, notes=(ALLOWED, INSTALLS))
    return Intent(patches=patches, notes=(ALLOWED,), destroys=(machine.name,), loses=UNDER_NODE)


async def _node(session: CommandSession, name: str) -> Node | None:
    """Return the Node of a Machine; None where there is none, or where the user may not read it."""
    try:
        node: Node = await session.api.get(NODES, name)
    except (NotFound, Forbidden):
        return None
    return node


async def run(session: CommandSession) -> int:
    intent = await intend(session)
    status = await execute_intent(session, intent, wait=False, timeout_s=None)
    if not intent.patches and session.printer.whole:
        kind = MACHINES.raw()
        session.printer.objects(kind, [await session.api.get(kind, session.invocation.args.name)], alone=True)
    elif not intent.patches:
        session.printer.name(MACHINES, session.invocation.args.name, "unchanged")
    return status
