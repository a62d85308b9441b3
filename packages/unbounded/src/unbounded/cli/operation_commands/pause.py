"""`machine pause` and `machine resume`: the annotation that blocks operations, on a Machine or for all."""

from __future__ import annotations

import contextlib

from unbounded.api.core import CONFIG_MAPS
from unbounded.api.machine import MACHINES
from unbounded.api.names import ANNOTATION_PAUSED, CONFIGMAP_OPERATIONS, NAMESPACE
from unbounded.cli.operation_commands import lookup
from unbounded.cli.plugin.command import CommandSession
from unbounded.cli.plugin.intents import execute_intent
from unbounded.intents.machines import intend_pause, pause_annotation, pause_state, pause_value
from unbounded.kube.api import NotFound
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
    value = pause_value(args.reason) if args.path[-1] == "pause" else None
    if args.all:
        return await _all(session, value)
    return intend_pause(await lookup.machine(session, args.machine), value)


async def _all(session: CommandSession, value: str | None) -> Intent:
    existing = await lookup.pause_of_all(session)
    before = None if existing is None else existing.metadata.annotations.get(ANNOTATION_PAUSED)
    if before == value:
        return Intent(notes=(f"all operations are {pause_state(value)} already",))
    if existing is None:
        metadata = {"name": CONFIGMAP_OPERATIONS, "namespace": NAMESPACE, **pause_annotation(value)["metadata"]}
        return Intent(({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata},), made=pause_state(value))
    patch = IntentPatch(
        CONFIG_MAPS, CONFIGMAP_OPERATIONS, pause_annotation(value), namespace=NAMESPACE, verb=pause_state(value)
    )
    return Intent(patches=(patch,))
