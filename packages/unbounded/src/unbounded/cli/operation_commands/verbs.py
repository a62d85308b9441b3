"""The short verbs: `machine node-reboot`, `host-reboot`, `power-off`, `power-on`, `agent-upgrade`, `agent-reset`,
`replace`, `inspect`, `erase`, `rescue`, `bmc-reset`, `firmware-update`, `bmc-rotate-password`. Each makes one operation
on one Machine, which owns it, and waits for its end. The Machine does not own an `erase`, whose report stays.
"""

from __future__ import annotations

import asyncio
from argparse import Namespace
from datetime import datetime
from pathlib import Path
from typing import Final

from unbounded.api.machine import MACHINES, Machine
from unbounded.api.machine_status import RescueSystem, host_key_fingerprint
from unbounded.api.operation import MACHINE_OPERATIONS, MachineOperation, OperationKind
from unbounded.cli.operation_commands import lookup
from unbounded.cli.plugin import progress
from unbounded.cli.plugin.command import DONE, CliError, CommandSession
from unbounded.cli.plugin.intents import execute_intent
from unbounded.cli.plugin.progress import view_for
from unbounded.cli.plugin.wait import limited, next_change, report_result, wait_result, watched_object
from unbounded.intents import operations
from unbounded.intents.rejections import IntentRejected
from unbounded.kube.clock import utc_now
from unbounded.operations import parameters as operation_parameters
from unbounded.plan.intent import Intent

KINDS: Final = {
    "node-reboot": OperationKind.NODE_REBOOT,
    "host-reboot": OperationKind.HOST_REBOOT,
    "power-off": OperationKind.HOST_POWER_OFF,
    "power-on": OperationKind.HOST_POWER_ON,
    "agent-upgrade": OperationKind.AGENT_UPGRADE,
    "agent-reset": OperationKind.AGENT_RESET,
    "replace": OperationKind.HOST_REPLACE,
    "inspect": OperationKind.HOST_INSPECT,
    "erase": OperationKind.HOST_ERASE,
    "rescue": OperationKind.HOST_RESCUE,
    "bmc-reset": OperationKind.BMC_RESET,
    "firmware-update": OperationKind.FIRMWARE_UPDATE,
    "bmc-rotate-password": OperationKind.BMC_ROTATE_PASSWORD,
}


async def run(session: CommandSession) -> int:
    args = session.invocation.args
    return await execute_intent(session, await intend(session), wait=args.wait, timeout_s=args.timeout)


async def intend(session: CommandSession) -> Intent:
    """Return the operation that the verb creates.

    Raises:
        CliError: there is no such Machine.
        IntentRejected: no executor can execute the operation there.
    """
    args = session.invocation.args
    machine = await lookup.machine(session, args.machine)
    return await operations.intend_operation(
        session.api,
        KINDS[args.path[-1]],
        machine,
        operation_name(args, utc_now()),
        parameters=parameters_of(args),
        ttl_s=getattr(args, "ttl", None),
    )


def parameters_of(args: Namespace) -> dict[str, str]:
    """Return the `spec.parameters` that the verb's own flags give."""
    options = vars(args)
    given = {
        "force": "true" if options.get("now") else "",
        "graceSeconds": "" if options.get("grace") is None else str(options["grace"]),
        "downloadURL": options.get("download_url", ""),
        "sha256": options.get("sha256", ""),
        "retryFailedDigest": "true" if options.get("retry_failed_digest") else "",
        operation_parameters.ERASE_DISKS: ",".join(options.get("erase_disk", ())),
        operation_parameters.ACCEPT_PCRS: ",".join(options.get("accept_pcr", ())),
        operation_parameters.DISKS: operation_parameters.ALL_DISKS
        if options.get("all_disks")
        else ",".join(options.get("disk", ())),
        operation_parameters.AUTHORIZED_KEYS: "\n".join(map(_public_keys, options.get("key", ()))),
        operation_parameters.IMAGE_URI: options.get("image_uri", ""),
        operation_parameters.TARGETS: ",".join(options.get("target", ())),
        operation_parameters.MINUTES: str(options["minutes"]) if options.get("minutes") else "",
    }
    return {name: value for name, value in given.items() if value}


def _public_keys(path: str) -> str:
    """Return the public keys in a file, without comments and empty lines."""
    try:
        lines = Path(path).expanduser().read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise CliError(f"cannot read the public key {path}: {error}") from None
    return "\n".join(line.strip() for line in lines if line.strip() and not line.startswith("#"))


def operation_name(args: Namespace, now: datetime) -> str:
    """Return --operation-name, else a generated name."""
    if args.operation_name:
        return lookup.checked_name(args.operation_name, "--operation-name")
    try:
        return operations.operation_name(args.machine, args.path[-1], now)
    except IntentRejected as error:
        raise CliError(f"{error}: use --operation-name") from error


async def rescue(session: CommandSession) -> int:
    args = session.invocation.args
    intent = await intend(session)
    status = await execute_intent(session, intent, wait=False, timeout_s=None)
    if status != DONE or not args.wait:
        return status
    operation = await session.api.get(MACHINE_OPERATIONS, intent.creates[0]["metadata"]["name"])
    system = await _wait_system(session, operation, timeout_s=args.timeout)
    if system is None:
        return await report_result(
            session, operation.name, await wait_result(session, operation, timeout_s=args.timeout)
        )
    _show_rescue(session, operation, system)
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
    netboot = machine.status.netboot
    return netboot.rescue if netboot is not None and netboot.boot == operation.metadata.uid else None


def _show_rescue(session: CommandSession, operation: MachineOperation, system: RescueSystem) -> None:
    """Print the host key, and a command that connects and trusts only this key."""
    cancel = f"{session.invocation.program} machine operation cancel {operation.name}"
    session.printer.info(
        f"the rescue system of Machine {operation.spec.machine_ref} runs at {system.address}\n"
        f"host key: {host_key_fingerprint(system.host_key)} (ED25519)\n"
        f"  {connect_command(system)}\n"
        f"it ends after its minutes, by `end-rescue` in it, or by `{cancel}`"
    )


def connect_command(system: RescueSystem) -> str:
    """Return the command that connects to a rescue system and trusts only its own host key (OpenSSH 8.5)."""
    known = f"KnownHostsCommand=/bin/echo {system.address} {system.host_key}"
    return f"ssh -o '{known}' -o UserKnownHostsFile=none -o StrictHostKeyChecking=yes root@{system.address}"
