"""Counters of a Machine: `machine reboot`, `machine repave`, and `machine allow-join`.

`reboot` and `repave` raise a counter, and wait until the status has reached it. A repave raises its own counter only:
it restarts the machine anyway. A raised rebootCounter would be a second operation that reboots the fresh host.

`allow-join` raises the joinCounter: it permits the machine to request its certificates once more.
"""

from __future__ import annotations

from typing import Final

from unbounded.api.core import NODES, Node
from unbounded.api.machine import MACHINES, JoinPurpose, Machine, MachinePhase
from unbounded.api.operation import OperationKind, OperationsStatus
from unbounded.cli.operation_commands import lookup
from unbounded.cli.plugin.command import DONE, CliError, CommandSession
from unbounded.cli.plugin.intents import execute_current
from unbounded.cli.plugin.wait import report_result, wait_counter
from unbounded.intents.operations import loss_text
from unbounded.kube.api import Forbidden, NotFound
from unbounded.machina.csr_approval.plan import last_allowed
from unbounded.machina.machines.eligibility import is_set_up_by_join
from unbounded.plan.consequences import INSTALLS, UNDER_NODE
from unbounded.plan.intent import Intent, IntentPatch, Raw, bound_to

FIELDS: Final = {"reboot": ("rebootCounter", "reboot_counter"), "repave": ("repaveCounter", "repave_counter")}
OPEN: Final = "no change: its agent and its kubelet may each request one certificate already"
ALLOWED: Final = "its agent and its kubelet may each request one more certificate"


async def run(session: CommandSession) -> int:
    args, word = session.invocation.args, session.invocation.args.path[-1]
    machine = await _raise_counter(session)
    if not args.wait:
        return DONE
    target = next_value(machine, word)
    name = f"{machine.name}-{word}-{target}"
    end = await wait_counter(session, machine, name, lambda now: _reached(now, word) >= target, timeout_s=args.timeout)
    return await report_result(session, name, end)


async def _raise_counter(session: CommandSession) -> Machine:
    """Raise the counter; returns the Machine as it was read for the write."""
    machines: list[Machine] = []

    async def read() -> Intent:
        machines.append(await lookup.machine(session, session.invocation.args.machine))
        return _intent(session, machines[-1])

    await execute_current(session, read)
    return machines[-1]


async def intend(session: CommandSession) -> Intent:
    return _intent(session, await lookup.machine(session, session.invocation.args.machine))


def _intent(session: CommandSession, machine: Machine) -> Intent:
    word = session.invocation.args.path[-1]
    if machine.spec.pxe is None or machine.spec.pxe.redfish is None:
        text = f"Machine {machine.name} has no spec.pxe.redfish: counters are for machines with a BMC"
        verb = "host-reboot" if word == "reboot" else "replace"
        raise CliError(text, next_step=f"use `{session.invocation.program} machine {verb} {machine.name}`")
    field = FIELDS[word][0]
    body = _as_read(machine, {"spec": {"operations": {field: next_value(machine, word)}}})
    patch = IntentPatch(MACHINES, machine.name, body, verb=f"requested {word} {next_value(machine, word)}")
    if word != "repave":
        return Intent(patches=(patch,))
    return Intent(patches=(patch,), destroys=(machine.name,), loses=loss_text(OperationKind.HOST_REPLACE))


def next_value(machine: Machine, word: str) -> int:
    """Return one more than the larger one of the requested and the reached value."""
    desired = machine.spec.operations or OperationsStatus()
    return max(int(getattr(desired, FIELDS[word][1])), _reached(machine, word)) + 1


def _reached(machine: Machine, word: str) -> int:
    return int(getattr(machine.status.operations or OperationsStatus(), FIELDS[word][1]))


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


async def intend_join(session: CommandSession) -> Intent:
    machine = await lookup.machine(session, session.invocation.args.name)
    counter = counter_after(machine)
    if counter is None:
        return Intent(notes=(OPEN,))
    patches = (IntentPatch(MACHINES, machine.name, _as_read(machine, {"spec": {"joinCounter": counter}})),)
    if not is_set_up_by_join(machine, await _node(session, machine.name), counter):
        return Intent(patches=patches, notes=(ALLOWED,))
    if machine.status.phase != MachinePhase.READY:
        return Intent(patches=patches, notes=(ALLOWED, INSTALLS))
    return Intent(patches=patches, notes=(ALLOWED,), destroys=(machine.name,), loses=UNDER_NODE)


def _as_read(machine: Machine, body: Raw) -> Raw:
    """Return a merge patch that the server refuses once the Machine has changed."""
    version = {"metadata": {"resourceVersion": machine.metadata.resource_version}}
    return bound_to(machine.metadata.uid, version | body)


async def _node(session: CommandSession, name: str) -> Node | None:
    """Return the Node of a Machine; None where there is none, or where the user may not read it."""
    try:
        node: Node = await session.api.get(NODES, name)
    except (NotFound, Forbidden):
        return None
    return node


async def allow_join(session: CommandSession) -> int:
    status, intent = await execute_current(session, lambda: intend_join(session))
    if not intent.patches and session.printer.whole:
        kind = MACHINES.raw()
        session.printer.objects(kind, [await session.api.get(kind, session.invocation.args.name)], alone=True)
    elif not intent.patches:
        session.printer.name(MACHINES, session.invocation.args.name, "unchanged")
    return status
