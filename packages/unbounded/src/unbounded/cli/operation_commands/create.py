"""`machine operation create`: its flags, and the operation that they describe."""

from __future__ import annotations

import difflib
from argparse import Namespace
from pathlib import Path
from typing import Any

import msgspec
import yaml

from unbounded.api.fields import api_name
from unbounded.api.machine import MACHINES
from unbounded.api.operation import MachineOperation, OperationKind, OperationStrategy
from unbounded.cli.operation_commands import lookup
from unbounded.cli.plugin.command import USAGE, CliError, CommandSession
from unbounded.cli.plugin.intents import CLIENT, NO_DRY_RUN, execute_intent
from unbounded.intents.operations import (
    check_machine,
    check_parameters,
    decoded,
    destroyed_machines,
    losses,
    manifest,
)
from unbounded.kube.api import NotFound
from unbounded.kube.selectors import SelectorError, selector_of
from unbounded.operations.batch_plan import BatchRejection, snapshot
from unbounded.plan.intent import Intent, Raw


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
    desired = await manifest(session.api, lookup.checked_name(args.name, "NAME"), spec_of(args))
    operation = decoded(desired)
    check_parameters(operation)
    if args.dry_run == CLIENT:
        return Intent((desired,), dry_run=CLIENT)
    if not args.machine:
        machines = await selected(session, operation)
        destroys, loses = destroyed_machines(operation, machines), losses(operation)
        return Intent((desired,), destroys=destroys, loses=loses, dry_run=args.dry_run)
    destroys = destroyed_machines(operation, (args.machine,))
    try:
        machine = await session.api.get(MACHINES, args.machine)
    except NotFound:
        loses = losses(operation)
        note = f"note: Machine {args.machine} does not exist; the operation waits for it for a minute"
        return Intent((desired,), destroys=destroys, loses=loses, dry_run=args.dry_run, notes=(note,))
    check_machine(operation, machine)
    loses = losses(operation, machine)
    return Intent((desired,), destroys=destroys, loses=loses, dry_run=args.dry_run)


def _check_limits(args: Namespace) -> None:
    """Raise CliError for limits of many Machines where --machine names one."""
    for flag, value in (
        ("--max-concurrent", args.max_concurrent),
        ("--max-failures", args.max_failures),
        ("--strategy", args.strategy or None),
    ):
        if args.machine and value is not None:
            raise CliError(f"{flag}: valid only with --selector; --machine names one Machine", status=USAGE)


def _strategy(path: str) -> Raw:
    """Return the spec.strategy in a file."""
    try:
        found = yaml.load(Path(path).read_bytes(), Loader=yaml.CSafeLoader)  # the safe loader, in C
        msgspec.convert(found, OperationStrategy)
    except OSError as error:
        raise CliError(f"--strategy: cannot read {path}: {error.strerror}", status=USAGE) from None
    except (yaml.YAMLError, msgspec.ValidationError) as error:
        raise CliError(f"--strategy: {path} is not a strategy: {error}", status=USAGE) from error
    unknown = sorted(set(found) - {api_name(field) for field in OperationStrategy.__struct_fields__})
    if unknown:
        known = ", ".join(api_name(field) for field in OperationStrategy.__struct_fields__)
        raise CliError(f"--strategy: {path}: unknown field {unknown[0]}: a strategy has {known}", status=USAGE)
    strategy: Raw = found
    return strategy


def spec_of(args: Namespace) -> Raw:
    """Return the `spec` that the flags give; the server sets defaults for the rest."""
    spec: dict[str, Any] = {"operationKind": kind_of(args.kind).value}
    if args.machine:
        spec["machineRef"] = lookup.checked_name(args.machine, "--machine")
    else:
        spec["machineSelector"] = _selector(args.selector)
    if args.param:
        spec["parameters"] = dict(args.param)
    if args.strategy:
        spec["strategy"] = _strategy(args.strategy)
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
    hint = f"did you mean {kinds[near[0]]}? " if near else ""
    raise CliError(f"--kind: unknown kind {text!r}: {hint}the kinds are {', '.join(OperationKind)}", status=USAGE)


def _selector(text: str) -> Raw:
    try:
        selector = selector_of(text)
    except SelectorError as error:
        raise CliError(f"--selector: {error}", status=USAGE) from error
    body: Raw = msgspec.to_builtins(selector)
    return body


async def selected(session: CommandSession, operation: MachineOperation) -> tuple[str, ...]:
    """Return the names of the Machines that a selector operation would act on now.

    Raises:
        CliError: it would be rejected.
    """
    machines = (await session.api.list(MACHINES)).items
    found = snapshot(operation, machines)
    if isinstance(found, BatchRejection):
        raise CliError(found.text, next_step="`kubectl get mach --show-labels` shows the labels")
    return tuple(target.machine_ref for target in found)
