"""`machine operation create`."""

from __future__ import annotations

import difflib
from argparse import Namespace
from typing import Any

import msgspec

from unbounded.api.machine import MACHINES
from unbounded.api.operation import OperationKind
from unbounded.cli.operate import lookup, manifests
from unbounded.cli.plugin.command import USAGE, CliError, CommandSession, Intent, Raw
from unbounded.cli.plugin.intents import CLIENT, NO_DRY_RUN, execute_intent
from unbounded.kube.errors import NotFound
from unbounded.kube.selectors import SelectorError, selector_of


async def run(session: CommandSession) -> int:
    args = session.invocation.args
    if args.wait and args.dry_run != NO_DRY_RUN:
        raise CliError("--wait: a --dry-run creates no operation to wait for", status=USAGE)
    if args.wait and session.printer.whole:
        raise CliError(f"--wait: -o {args.output} prints what was created, and does not wait", status=USAGE)
    return await execute_intent(session, await intend(session), wait=args.wait, timeout_s=args.timeout)


async def intend(session: CommandSession) -> Intent:
    """Return the operation to create, checked as far as possible before it exists.

    Raises:
        CliError: it would be rejected, or end without being started.
    """
    args = session.invocation.args
    _check_limits(args)
    desired = await manifests.manifest(session, lookup.checked_name(args.name, "NAME"), spec_of(args))
    operation = manifests.decoded(desired)
    manifests.check_parameters(operation)
    if args.dry_run == CLIENT:
        return Intent((desired,), dry_run=CLIENT)
    if not args.machine:
        machines = await manifests.selected(session, operation)
        destroys, loses = manifests.destroyed_machines(operation, machines), manifests.losses(operation)
        return Intent((desired,), destroys=destroys, loses=loses, dry_run=args.dry_run)
    destroys = manifests.destroyed_machines(operation, (args.machine,))
    try:
        machine = await session.api.get(MACHINES, args.machine)
    except NotFound:
        loses = manifests.losses(operation)
        note = f"note: Machine {args.machine} does not exist; the operation waits for it for a minute"
        return Intent((desired,), destroys=destroys, loses=loses, dry_run=args.dry_run, notes=(note,))
    manifests.check_machine(operation, machine)
    loses = manifests.losses(operation, machine)
    return Intent((desired,), destroys=destroys, loses=loses, dry_run=args.dry_run)


def _check_limits(args: Namespace) -> None:
    """Raise CliError for limits of many Machines where --machine names one."""
    for flag, value in (("--max-concurrent", args.max_concurrent), ("--max-failures", args.max_failures)):
        if args.machine and value is not None:
            raise CliError(f"{flag}: valid only with --selector; --machine names one Machine", status=USAGE)


def spec_of(args: Namespace) -> Raw:
    """Return the `spec` that the flags give; the server sets defaults for the rest."""
    spec: dict[str, Any] = {"operationKind": kind_of(args.kind).value}
    if args.machine:
        spec["machineRef"] = lookup.checked_name(args.machine, "--machine")
    else:
        spec["machineSelector"] = _selector(args.selector)
    if args.param:
        spec["parameters"] = dict(args.param)
    given = {
        "ttlSecondsAfterFinished": args.ttl,
        "maxConcurrent": args.max_concurrent,
        "maxFailures": args.max_failures,
        "deadlineSeconds": args.deadline,
        "startDeadlineSeconds": args.start_deadline,
    }
    return spec | {name: value for name, value in given.items() if value is not None}


def kind_of(text: str) -> OperationKind:
    """Return a kind by its name. Raise CliError, naming all kinds, for another text."""
    kinds = {kind.value.lower(): kind for kind in OperationKind}
    if text in kinds.values():
        return OperationKind(text)
    near = difflib.get_close_matches(text.lower().replace("-", ""), kinds, n=1)
    meant = f"did you mean {kinds[near[0]]}? " if near else ""
    raise CliError(f"--kind: unknown kind {text!r}: {meant}the kinds are {', '.join(OperationKind)}", status=USAGE)


def _selector(text: str) -> Raw:
    try:
        selector = selector_of(text)
    except SelectorError as error:
        raise CliError(f"--selector: {error}", status=USAGE) from error
    body: Raw = msgspec.to_builtins(selector)
    return body
