"""The command `ssh`: a login to the host of a Machine with the user's `ssh` program."""

from __future__ import annotations

import asyncio

from unbounded.api.machine import Machine
from unbounded.cli import child
from unbounded.cli.host_ssh import ended_by_signals, ssh_command
from unbounded.cli.operation_commands import lookup
from unbounded.cli.plugin.command import CommandSession, refuse_output


async def run(session: CommandSession) -> int:
    """Run ssh to its end; returns its exit status."""
    refuse_output(session.invocation, "name", "wide", "json", "yaml", what="the output is that of the host")
    machine = await lookup.machine(session, session.invocation.args.name)
    with ended_by_signals():
        return await _run(session, machine)


async def _run(session: CommandSession, machine: Machine) -> int:
    async with ssh_command(session, machine) as command:
        process = await asyncio.create_subprocess_exec(*command, *session.invocation.args.arguments)
        try:
            status = await process.wait()
        finally:
            await child.end(process)
    return status if status >= 0 else 128 - status
