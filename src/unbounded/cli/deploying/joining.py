"""`kubectl unbounded machine allow-join`: a machine may ask for its certificates once more."""

from __future__ import annotations

from typing import Final

from unbounded.api.machine import MACHINES, JoinPurpose, Machine
from unbounded.cli.plugin.command import Intent, Patch, Session
from unbounded.cli.plugin.operations import carry_out
from unbounded.machina.approval.causes import last_allowed

OPEN: Final = "its agent and its kubelet may each get one certificate already"
ALLOWED: Final = "its agent and its kubelet may each get one certificate more"


def counter_after(machine: Machine) -> int | None:
    """The joinCounter that lets it join once more; None where the one that it has does so for both certificates.

    One with which setting up its host has failed has led to nothing: the next one has that tried at once.
    """
    used = [last_allowed(machine, purpose) for purpose in JoinPurpose]
    before = machine.status.provisioning
    if before is not None and before.failure is not None:
        used.append(before.join_counter)
    if machine.spec.join_counter > max(used):
        return None
    return max(used) + 1


async def intend(session: Session) -> Intent:
    machine = await session.api.get(MACHINES, session.told.args.name)
    counter = counter_after(machine)
    if counter is None:
        return Intent(notes=(OPEN,))
    patch = {
        "metadata": {"resourceVersion": machine.metadata.resource_version},
        "spec": {"joinCounter": counter},
    }
    return Intent(patches=(Patch(MACHINES, machine.name, patch),), notes=(ALLOWED,))


async def run(session: Session) -> int:
    intent = await intend(session)
    status = await carry_out(session, intent, wait=False, timeout_s=None)
    if not intent.patches and session.printer.whole:
        kind = MACHINES.raw()
        session.printer.objects(kind, [await session.api.get(kind, session.told.args.name)], alone=True)
    elif not intent.patches:
        session.printer.name(MACHINES, session.told.args.name, "unchanged")
    return status
