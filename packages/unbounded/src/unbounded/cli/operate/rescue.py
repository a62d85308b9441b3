"""`machine rescue`: creates a HostRescue, and waits until its SSH server runs."""

from __future__ import annotations

import asyncio

from unbounded.api.machine import MACHINES, Machine
from unbounded.api.operation import MACHINE_OPERATIONS, MachineOperation
from unbounded.api.rescue import RescueSystem, fingerprint
from unbounded.cli.operate import verbs
from unbounded.cli.plugin import progress
from unbounded.cli.plugin.command import DONE, CommandSession
from unbounded.cli.plugin.intents import execute_intent
from unbounded.cli.plugin.progress import view_for
from unbounded.cli.plugin.wait import limited, next_change, report_result, wait_result, watched_object


async def run(session: CommandSession) -> int:
    args = session.invocation.args
    intent = await verbs.intend(session)
    status = await execute_intent(session, intent, wait=False, timeout_s=None)
    if status != DONE or not args.wait:
        return status
    operation = await session.api.get(MACHINE_OPERATIONS, intent.creates[0]["metadata"]["name"])
    system = await _wait_system(session, operation, timeout_s=args.timeout)
    if system is None:
        return await report_result(
            session, operation.name, await wait_result(session, operation, timeout_s=args.timeout)
        )
    _show(session, operation, system)
    return DONE


async def _wait_system(
    session: CommandSession, operation: MachineOperation, *, timeout_s: float | None
) -> RescueSystem | None:
    """Wait until the rescue system of an operation runs; None if the operation ends before."""
    name, changed = operation.name, asyncio.Event()
    hint = f"`{session.invocation.program} machine operation cancel {name}` ends it"
    async with (
        limited(session, f"operation {name}", hint, timeout_s, late="has not started the rescue system"),
        watched_object(session.api, MACHINE_OPERATIONS, name, changed) as operations,
        watched_object(session.api, MACHINES, operation.spec.machine_ref or "", changed) as machines,
    ):
        with view_for(session) as view:
            while True:
                now, machine = operations.now, machines.now
                view.show(progress.of_operation(now or operation), operations.trouble or machines.trouble)
                if machine is not None and (system := _system_of(machine, operation)) is not None:
                    return system
                if operations.synced and (now is None or now.terminal):
                    return None
                await next_change(changed)


def _system_of(machine: Machine, operation: MachineOperation) -> RescueSystem | None:
    seen = machine.status.netboot
    return seen.rescue if seen is not None and seen.boot == operation.metadata.uid else None


def _show(session: CommandSession, operation: MachineOperation, system: RescueSystem) -> None:
    """Print the host key, and a command that connects and trusts only this key."""
    cancel = f"{session.invocation.program} machine operation cancel {operation.name}"
    session.printer.info(
        f"the rescue system of Machine {operation.spec.machine_ref} runs at {system.address}\n"
        f"host key: {fingerprint(system.host_key)} (ED25519)\n"
        f"  {connect_command(system)}\n"
        f"it ends after its minutes, by `end-rescue` in it, or by `{cancel}`"
    )


def connect_command(system: RescueSystem) -> str:
    """Return the command that connects to a rescue system and trusts only its own host key (OpenSSH 8.5)."""
    known = f"KnownHostsCommand=/bin/echo {system.address} {system.host_key}"
    return f"ssh -o '{known}' -o UserKnownHostsFile=none -o StrictHostKeyChecking=yes root@{system.address}"
