"""Obstacles to a migration: pure, from the objects of both sides. Each text names the object and the remedy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from unbounded.api.core import SECRETS
from unbounded.api.machine import Machine
from unbounded.api.operation import MachineOperation
from unbounded.cli.migrate.copy_plan import ServerObject, ServerObjects, clashes

LARGEST: Final = 1_500_000  # bytes of a request, etcd's limit
OLDEST_MINOR: Final = 32
SHOWN: Final = 10  # of each kind of obstacle


def obstacles(source: ServerObjects, target: ServerObjects, migration: str) -> tuple[str, ...]:
    """Return the problems that the user has to solve first; nothing where the copy can be made."""
    return (
        *running(source),
        *_limited([_being_deleted(one) for one in source.copied if "deletionTimestamp" in one.body["metadata"]]),
        *_limited([_too_large(one) for one in source.copied if _size(one) > LARGEST]),
        *_limited([_clash(one) for one in clashes(source, target, migration)]),
    )


def running(source: ServerObjects) -> tuple[str, ...]:
    """Return operations that run on the source, and Machines that are occupied otherwise."""
    operations = source.operations()
    terminal = {one.metadata.uid for one in operations if one.terminal}
    return _limited(
        [
            *(_running(one) for one in operations if one.claimed and not one.terminal),
            *_locked_machines(source.machines(), terminal, {one.metadata.uid for one in operations}),
        ]
    )


def _locked_machines(machines: tuple[Machine, ...], terminal: set[str], known: set[str]) -> Iterator[str]:
    """Yield Machines that are locked without a MachineOperation, which is reported by itself."""
    for machine in machines:
        active = machine.status.active_operation
        if active is not None and not active.lost and active.uid not in terminal and active.uid not in known:
            yield f"Machine {machine.name}: {active.kind} {active.name} ({active.executor}) is in progress; {_WAIT}"


_WAIT: Final = "start `unbounded up` again and wait for its end"


def _running(operation: MachineOperation) -> str:
    stage = operation.status.targets[0].stage if operation.status.targets else None
    where = f" ({stage})" if stage else ""
    return (
        f"MachineOperation {operation.name}: {operation.spec.operation_kind} of "
        f"{operation.spec.machine_ref or 'several Machines'} is in progress{where}; {_WAIT}"
    )


def _being_deleted(one: ServerObject) -> str:
    return f"{one.shown} is being deleted, and a deletion cannot be copied; {_WAIT}"


def _size(one: ServerObject) -> int:
    return len(msgspec.json.encode(one.body))


def _too_large(one: ServerObject) -> str:
    return f"{one.shown} has {_size(one):,} bytes; the limit of a cluster is {LARGEST:,}: make it smaller"


def _clash(existing: ServerObject) -> str:
    remedy = "delete it there, or rename it" if existing.kind.kind != SECRETS.kind else "delete it there"
    return f"{existing.shown} exists on the target already, and differs: {remedy}"


def _limited(words: list[str]) -> tuple[str, ...]:
    more = len(words) - SHOWN
    return (*words[:SHOWN], *([f"… and {more} more of this kind"] if more > 0 else ()))


def too_old(version: str) -> str:
    """Return why a version of Kubernetes is unsuitable; empty where it is suitable."""
    try:
        major, minor = (int(part) for part in version.lstrip("v").split(".")[:2])
    except ValueError:
        return f"the target reports {version!r}, which is not a version of Kubernetes"
    if (major, minor) >= (1, OLDEST_MINOR):
        return ""
    return f"the target is Kubernetes {version}; the oldest supported version is 1.{OLDEST_MINOR}"
