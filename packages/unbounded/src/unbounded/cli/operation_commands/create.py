"""`machine operation create`, and the manifest of each operation.

Its validation uses the functions that the executors use. Consent to a loss of data names the user who gives it, and
what is on the disks by the last inspection.
"""

from __future__ import annotations

import difflib
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import yaml

from unbounded.api.fields import api_name
from unbounded.api.hardware import DiskFacts, DiskState
from unbounded.api.machine import MACHINES, Machine
from unbounded.api.machine_status import pcr_text
from unbounded.api.meta import Kind
from unbounded.api.names import ANNOTATION_REQUESTED_BY, API_VERSION
from unbounded.api.operation import MachineOperation, OperationKind, OperationStrategy
from unbounded.cli.operation_commands import lookup
from unbounded.cli.plugin.command import USAGE, CliError, CommandSession
from unbounded.cli.plugin.intents import CLIENT, NO_DRY_RUN, execute_intent
from unbounded.kube.api import Api, NotFound
from unbounded.kube.selectors import SelectorError, selector_of
from unbounded.metalman.disks_to_erase import ErasurePlan, choose_erasures
from unbounded.operations import parameters as operation_parameters
from unbounded.operations.batch_plan import BatchRejection, snapshot
from unbounded.operations.executor_selection import executor_of, why_unsupported
from unbounded.plan.consequences import DESTROYS
from unbounded.plan.intent import Intent, Raw

KIND: Final = "MachineOperation"
REVIEWS: Final[Kind[dict[str, Any]]] = Kind(
    "authentication.k8s.io", "v1", "SelfSubjectReview", "selfsubjectreviews", dict
)
SHOWN: Final = 10


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
    desired = await manifest(session, lookup.checked_name(args.name, "NAME"), spec_of(args))
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


async def manifest(session: CommandSession, name: str, spec: Raw, *, owner: Machine | None = None) -> Raw:
    """Return the manifest of a MachineOperation; one that may erase disks names the present user.

    Args:
        owner: the Machine with which it is deleted.
    """
    metadata: dict[str, Any] = {"name": name}
    if owner is not None:
        reference = {"apiVersion": API_VERSION, "kind": "Machine", "name": owner.name, "uid": owner.metadata.uid}
        metadata["ownerReferences"] = [reference]
    if operation_parameters.consent_field(spec["operationKind"], spec.get("parameters", {})) is not None:
        metadata["annotations"] = {ANNOTATION_REQUESTED_BY: await user_name(session.api)}
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": spec}


def decoded(desired: Raw) -> MachineOperation:
    return msgspec.convert(desired, MachineOperation)


def check_parameters(operation: MachineOperation) -> None:
    """Raise CliError where a parameter is unknown, missing or invalid for every executor."""
    wrong = operation_parameters.invalid(operation)
    if wrong is not None:
        raise CliError(wrong, status=USAGE)


def check_machine(operation: MachineOperation, machine: Machine) -> None:
    """Raise CliError where no executor can execute this operation on this Machine."""
    kind = OperationKind(operation.spec.operation_kind)
    executor = executor_of(kind, machine)
    if executor is None:
        raise CliError(why_unsupported(kind, machine))
    wrong = operation_parameters.invalid(operation, executor)
    if wrong is not None:
        raise CliError(wrong, status=USAGE)


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


def destroyed_machines(operation: MachineOperation, machines: Sequence[str]) -> tuple[str, ...]:
    """Return those of the Machines that lose data by the operation."""
    return tuple(machines) if operation.spec.operation_kind in DESTROYS else ()


def loss_text(kind: OperationKind) -> str:
    """Describe the loss, for the user's confirmation."""
    return f"this loses {DESTROYS.get(kind, 'nothing')}"


def losses(operation: MachineOperation, machine: Machine | None = None) -> str:
    """Describe the loss with the disks that the operation may erase, and the PCRs that it accepts, for the user's
    confirmation.

    Args:
        machine: the target, with the last inspection of its disks.

    Raises:
        CliError: what a disk of parameters.eraseDisks or parameters.disks holds is not known.
    """
    text = loss_text(OperationKind(operation.spec.operation_kind))
    if accepted := operation_parameters.accepted_pcrs(operation):
        text += f". It accepts other values of {', '.join(map(pcr_text, sorted(accepted)))}"
    serials, to_erase = operation_parameters.erased_disks(operation), operation_parameters.disks_to_erase(operation)
    if not serials and not to_erase:
        return text
    if machine is None:
        raise CliError(f"Machine {operation.spec.machine_ref} does not exist, so nothing is known of its disks")
    if to_erase:
        return f"{text}. It erases {erased_data(machine, to_erase)}"
    return f"{text}. It may erase {lost_data(machine, serials)}"


async def user_name(api: Api) -> str:
    """Return the name of the present user, as the API server knows it."""
    review = await api.create(REVIEWS, {})
    return str(review["status"]["userInfo"]["username"])


def lost_data(machine: Machine, serials: Sequence[str]) -> str:
    """Describe what is on the disks with these serial numbers.

    Raises:
        CliError: a serial number does not identify a disk of the last inspection.
    """
    return "; ".join(_described(_disk(machine, serial)) for serial in serials)


def erased_data(machine: Machine, disks: Sequence[str]) -> str:
    """Describe what is on the disks that a HostErase erases, by the last inspection.

    Args:
        disks: serial numbers, or `ALL_DISKS` alone.

    Raises:
        CliError: no inspection is known, or it does not have these disks.
    """
    if tuple(disks) != (operation_parameters.ALL_DISKS,):
        return lost_data(machine, disks)
    hardware = machine.status.hardware
    if hardware is None:
        raise CliError(
            f"Machine {machine.name} has not reported its hardware, so nothing is known of its disks",
            next_step=f"`kubectl unbounded machine inspect {machine.name}` reports what is on its disks",
        )
    chosen = choose_erasures(hardware.disks, disks, (), final=True)
    if not isinstance(chosen, ErasurePlan):
        raise CliError(chosen.message)
    described = "; ".join(_described(disk) for disk in hardware.disks if disk.name in chosen.names)
    return f"all local disks: {described}" + (f". It leaves {chosen.left_out}" if chosen.left_out else "")


def _disk(machine: Machine, serial: str) -> DiskFacts:
    hardware = machine.status.hardware
    if hardware is None:
        raise CliError(
            f"Machine {machine.name} has not reported its hardware, so nothing is known of its disk {serial}",
            next_step=f"`kubectl unbounded machine inspect {machine.name}` reports what is on its disks",
        )
    found = [disk for disk in hardware.disks if disk.serial_number == serial]
    if len(found) == 1:
        return found[0]
    there = sorted({disk.serial_number for disk in hardware.disks if disk.serial_number})
    words = f"several disks of Machine {machine.name} have" if found else f"no disk of Machine {machine.name} has"
    shown = ", ".join(there[:SHOWN]) or "none"
    raise CliError(
        f"{words} serial number {serial} in the inspection of {hardware.at}; the serial numbers are: {shown}"
    )


def _described(disk: DiskFacts) -> str:
    model = f", {disk.model}" if disk.model else ""
    size = f"{(disk.size_bytes or 0) // 1_000_000} MB"
    return f"disk {disk.serial_number} ({disk.name}, {size}{model}): {_content(disk)}"


def _content(disk: DiskFacts) -> str:
    if disk.state == DiskState.FOREIGN:
        return disk.contents or "data of an unknown kind"
    if disk.state == DiskState.OWN:
        return "this Machine's earlier install"
    return "blank" if disk.state == DiskState.BLANK else "content unknown, as no installer has reported it"
