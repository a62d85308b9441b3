"""Reading of a server's objects, and writing and deletion of copies."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

from unbounded.api.configuration import MACHINE_CONFIGURATION_VERSIONS, MACHINE_CONFIGURATIONS
from unbounded.api.core import NAMESPACES
from unbounded.api.failures import Rejected
from unbounded.cli.manifests import CRDS
from unbounded.cli.migrate.copied_objects import COPIED, Raw, RawKind, is_foreign, of_definition
from unbounded.cli.migrate.copy_plan import CreateCopy, ServerObject, ServerObjects, Write, next_writes
from unbounded.kube.api import AlreadyExists, Api, Conflict, NotFound
from unbounded.kube.tasks import gather

AT_ONCE: Final = 16
_VAIN_ROUNDS: Final = 60  # of next_writes; a new kind is served within seconds
_PAUSE_S: Final = 0.5
_SECOND_S: Final = 1.05  # creation timestamps have no fractions
_HELD_IN_USE: Final = (MACHINE_CONFIGURATIONS.raw(), MACHINE_CONFIGURATION_VERSIONS.raw())

Report = Callable[[str], None]


async def read_objects(api: Api) -> ServerObjects:
    """Read all objects of the kinds that are copied. A kind that is not served has none."""
    found: list[ServerObject] = []

    async def read(kind: RawKind) -> None:
        try:
            found.extend(ServerObject(kind, body) for body in (await api.list(kind)).items)
        except NotFound:
            return

    await gather(read(kind) for kind in COPIED)
    defined = [of_definition(one.body) for one in found if one.kind == CRDS and is_foreign(one.body)]
    await gather(read(kind) for kind in defined)
    return ServerObjects.of(found)


async def copy(source: ServerObjects, target: Api, migration: str, report: Report) -> None:
    """Write copies until the copy is complete.

    Raises:
        Rejected: the target rejects one, or keeps changing it.
    """
    wrote = vain = 0
    while vain < _VAIN_ROUNDS:
        writes = next_writes(source, await read_objects(target), migration)
        if not writes:
            return
        done = await _perform(target, writes)
        wrote += done
        vain = 0 if done else vain + 1
        report(f"{wrote} writes")
        if not done:
            await asyncio.sleep(_PAUSE_S)
        elif any(isinstance(one, CreateCopy) and one.queued for one in writes):
            await asyncio.sleep(_SECOND_S)
    raise Rejected("the copy is incomplete, as the target changes it: " + "; ".join(_shown(one) for one in writes[:3]))


async def _perform(api: Api, writes: Iterable[Write]) -> int:
    """Perform writes concurrently; returns the number done. The next plan repeats those that met a later state."""
    free, done = asyncio.Semaphore(AT_ONCE), 0

    async def one(write: Write) -> None:
        nonlocal done
        async with free:
            try:
                await _write(api, write)
            except (AlreadyExists, Conflict):
                return
            except NotFound as error:  # of the kind: it is served a moment after its definition was created
                if not isinstance(write, CreateCopy) or (error.status.get("details") or {}).get("name"):
                    raise
                return
            done += 1

    await gather(one(write) for write in writes)
    return done


async def _write(api: Api, write: Write) -> None:
    if isinstance(write, CreateCopy):
        await api.create(write.kind, write.body, namespace=str(write.body["metadata"].get("namespace", "")))
        return
    await api.patch(write.kind, write.name, write.body, namespace=write.namespace, subresource=write.subresource)


def _shown(write: Write) -> str:
    if isinstance(write, CreateCopy):
        return f"{write.kind.kind} {write.body['metadata']['name']}"
    return f"{write.kind.kind} {write.name}"


async def delete_copies(api: Api, migration: str, report: Report) -> None:
    """Delete the copies of a migration, except namespaces and definitions, which others may use by now."""
    made = [one for one in (await read_objects(api)).objects.values() if one.origin[0] == migration]
    gone = [one for one in made if one.kind.kind not in {NAMESPACES.kind, CRDS.kind}]
    free = asyncio.Semaphore(AT_ONCE)

    async def one(existing: ServerObject) -> None:
        async with free:
            await _delete(api, existing)

    order = {kind: place for place, kind in enumerate(COPIED)}
    for place in sorted({order.get(one.kind, len(order)) for one in gone}, reverse=True):  # owned objects first
        await gather(one(existing) for existing in gone if order.get(existing.kind, len(order)) == place)
    report(f"{len(gone)} copies deleted")


async def _delete(api: Api, existing: ServerObject) -> None:
    """Delete one copy. No controller there acts on its finalizers, and a policy protects configurations in use."""
    try:
        if existing.body["metadata"].get("finalizers"):
            await _patch(api, existing, {"metadata": {"uid": existing.uid, "finalizers": None}})
        if existing.kind in _HELD_IN_USE and (existing.body.get("status") or {}).get("conditions"):
            await _patch(api, existing, {"metadata": {"uid": existing.uid}, "status": {"conditions": None}}, "status")
        await api.delete(existing.kind, existing.name, namespace=existing.namespace, uid=existing.uid)
    except NotFound:
        return


async def _patch(api: Api, existing: ServerObject, body: Raw, subresource: str = "") -> None:
    await api.patch(existing.kind, existing.name, body, namespace=existing.namespace, subresource=subresource)
