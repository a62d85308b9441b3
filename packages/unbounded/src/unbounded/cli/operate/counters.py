"""`machine reboot` and `machine repave`: raise a counter of the Machine, and wait until its status has reached it.

A repave raises its own counter only: it restarts the machine anyway. A raised rebootCounter would be a second
operation that reboots the fresh host.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from unbounded.api.machine import MACHINES, Machine
from unbounded.api.operation import OperationKind, OperationsStatus
from unbounded.cli.operate import lookup, manifests
from unbounded.cli.plugin.command import DONE, CliError, CommandSession, Intent, IntentPatch
from unbounded.cli.plugin.intents import confirm, execute_intent
from unbounded.cli.plugin.wait import report_result, wait_counter
from unbounded.kube.errors import Conflict

TRIES: Final = 5
FIELDS: Final = {"reboot": ("rebootCounter", "reboot_counter"), "repave": ("repaveCounter", "repave_counter")}


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
    machine = await lookup.machine(session, session.invocation.args.machine)
    intent = _intent(session, machine)
    # once, even if a conflict makes it read the Machine several times
    await confirm(session.invocation, intent.destroys, intent.loses)
    for left in reversed(range(TRIES)):
        try:
            await execute_intent(session, replace(_intent(session, machine), destroys=()), wait=False, timeout_s=None)
            break
        except Conflict:  # another client wrote the Machine meanwhile, perhaps the same counter
            if not left:
                raise
            machine = await lookup.machine(session, machine.name)
    return machine


async def intend(session: CommandSession) -> Intent:
    return _intent(session, await lookup.machine(session, session.invocation.args.machine))


def _intent(session: CommandSession, machine: Machine) -> Intent:
    word = session.invocation.args.path[-1]
    if machine.spec.pxe is None or machine.spec.pxe.redfish is None:
        text = f"Machine {machine.name} has no spec.pxe.redfish: counters are for machines with a BMC"
        verb = "host-reboot" if word == "reboot" else "replace"
        raise CliError(text, next_step=f"use `{session.invocation.program} machine {verb} {machine.name}`")
    field = FIELDS[word][0]
    body: dict[str, Any] = {
        "metadata": {"resourceVersion": machine.metadata.resource_version},
        "spec": {"operations": {field: next_value(machine, word)}},
    }
    patch = IntentPatch(MACHINES, machine.name, body, verb=f"requested {word} {next_value(machine, word)}")
    if word != "repave":
        return Intent(patches=(patch,))
    return Intent(patches=(patch,), destroys=(machine.name,), loses=manifests.loss_text(OperationKind.HOST_REPLACE))


def next_value(machine: Machine, word: str) -> int:
    """Return one more than the larger one of the requested and the reached value."""
    desired = machine.spec.operations or OperationsStatus()
    return max(int(getattr(desired, FIELDS[word][1])), _reached(machine, word)) + 1


def _reached(machine: Machine, word: str) -> int:
    return int(getattr(machine.status.operations or OperationsStatus(), FIELDS[word][1]))
