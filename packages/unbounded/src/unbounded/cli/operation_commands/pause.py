"""`machine pause` and `machine resume`: the annotation that blocks operations, on a Machine or for all."""

from __future__ import annotations

import contextlib
from typing import Any

from unbounded.api.core import CONFIG_MAPS
from unbounded.api.machine import MACHINES
from unbounded.api.names import ANNOTATION_PAUSED, CONFIGMAP_OPERATIONS, NAMESPACE
from unbounded.cli.operation_commands import lookup
from unbounded.cli.plugin.command import USAGE, CliError, CommandSession
from unbounded.cli.plugin.intents import execute_intent
from unbounded.kube.api import NotFound
from unbounded.operations.claim_gates import is_paused
from unbounded.plan.intent import Intent, IntentPatch


async def run(session: CommandSession) -> int:
    args, desired = session.invocation.args, await intend(session)
    status = await execute_intent(session, desired, wait=False, timeout_s=None)
    if session.printer.whole and not (desired.patches or desired.creates):
        await _show(session, args.machine)
    return status


async def _show(session: CommandSession, machine: str) -> None:
    """Print the object that needs no change; nothing where all operations were never paused."""
    kind = MACHINES.raw() if machine else CONFIG_MAPS.raw()
    with contextlib.suppress(NotFound):
        namespace = "" if machine else NAMESPACE
        found = await session.api.get(kind, machine or CONFIGMAP_OPERATIONS, namespace=namespace)
        session.printer.objects(kind, [found], alone=True)


async def intend(session: CommandSession) -> Intent:
    args = session.invocation.args
    value = (args.reason or "true") if args.path[-1] == "pause" else None
    if value is not None and not is_paused({ANNOTATION_PAUSED: value}):
        raise CliError(f"--reason: the annotation with the value {value!r} would not pause", status=USAGE)
    return await _all(session, value) if args.all else await _one(session, args.machine, value)


async def _one(session: CommandSession, name: str, value: str | None) -> Intent:
    machine = await lookup.machine(session, name)
    before = machine.metadata.annotations.get(ANNOTATION_PAUSED)
    if before == value:
        return Intent(notes=(f"Machine {name} is {_state(value)} already",))
    return Intent(patches=(IntentPatch(MACHINES, name, _annotated(value), verb=_state(value)),))


async def _all(session: CommandSession, value: str | None) -> Intent:
    existing = await lookup.pause_of_all(session)
    before = None if existing is None else existing.metadata.annotations.get(ANNOTATION_PAUSED)
    if before == value:
        return Intent(notes=(f"all operations are {_state(value)} already",))
    if existing is None:
        metadata = {"name": CONFIGMAP_OPERATIONS, "namespace": NAMESPACE, **_annotated(value)["metadata"]}
        return Intent(({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata},), made=_state(value))
    patch = IntentPatch(CONFIG_MAPS, CONFIGMAP_OPERATIONS, _annotated(value), namespace=NAMESPACE, verb=_state(value))
    return Intent(patches=(patch,))


def _annotated(value: str | None) -> dict[str, Any]:
    return {"metadata": {"annotations": {ANNOTATION_PAUSED: value}}}


def _state(value: str | None) -> str:
    return "resumed" if value is None else "paused"
