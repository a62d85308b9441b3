"""`machine drain`, `return` and `maintenance`: spec.maintenance of a Machine, and the wait for its effect."""

from __future__ import annotations

import asyncio

from unbounded.api.disruption import MAINTENANCE, DisruptionStage
from unbounded.api.machine import MACHINES, Machine
from unbounded.cli.operation_commands import lookup
from unbounded.cli.plugin.command import DONE, CliError, CommandSession
from unbounded.cli.plugin.intents import execute_intent
from unbounded.cli.plugin.wait import limited, next_change, watched_object
from unbounded.intents.machines import intend_maintenance
from unbounded.operations.claim_gates import in_maintenance
from unbounded.plan.intent import Intent


async def run(session: CommandSession) -> int:
    args = session.invocation.args
    status = await execute_intent(session, await intend(session), wait=False, timeout_s=None)
    return await _wait(session, args.machine) if status == DONE and args.wait else status


async def intend(session: CommandSession) -> Intent:
    args, enabled = session.invocation.args, _enables(session)
    machine = await lookup.machine(session, args.machine)
    return intend_maintenance(machine, enabled=enabled, reason=getattr(args, "reason", ""))


def _enables(session: CommandSession) -> bool:
    args = session.invocation.args
    return args.path[-1] == "drain" or getattr(args, "state", "") == "on"


async def _wait(session: CommandSession, name: str) -> int:
    """Wait until the Node is drained, or usable again, and print each message of the disruption."""
    enabled, said = _enables(session), ""
    why = f"`{session.invocation.program} why machine/{name}` explains what it waits for"
    late = "is not drained" if enabled else "is not usable again"
    changed = asyncio.Event()
    async with (
        limited(session, f"Machine {name}", why, session.invocation.args.timeout, late=late),
        watched_object(session.api, MACHINES, name, changed) as machines,
    ):
        while True:
            machine = machines.now
            if machines.synced and machine is None:
                raise CliError(f"Machine {name} was deleted")
            if machine is not None and in_maintenance(machine) != enabled:
                state = "ended" if enabled else "requested again"
                raise CliError(f"the maintenance of Machine {name} was {state} meanwhile")
            if machine is not None and (text := _message(machine)) not in ("", said):
                said = text
                session.printer.warn(f"{name}: {text}")
            if machine is not None and _is_done(machine, enabled=enabled):
                return DONE
            await next_change(changed)


def _message(machine: Machine) -> str:
    record = machine.status.disruption
    return "" if record is None else f"{record.stage}: {record.message or record.holder}"


def _is_done(machine: Machine, *, enabled: bool) -> bool:
    record = machine.status.disruption
    if not enabled:
        return record is None or record.holder.kind != MAINTENANCE
    return record is not None and record.holder.kind == MAINTENANCE and record.stage == DisruptionStage.DRAINED
