"""Steps of a migration, in order. Each can be interrupted anywhere; a new run of the command resumes.

Until the record on the target has the phase Resumed, the source is the control plane, and neither side acts. From then
on the target is the control plane, and the source serves agents that have not followed yet. A frozen source claims no
operation, and creates or changes no Machine and no operation.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from msgspec.structs import replace

from unbounded.api.core import CONFIG_MAPS
from unbounded.api.failures import Rejected
from unbounded.api.names import ANNOTATION_PAUSED, CONFIGMAP_MIGRATION, CONFIGMAP_OPERATIONS, GROUP, NAMESPACE
from unbounded.cli.manifests import KINDS as POLICIES
from unbounded.cli.migrate.copier import Report, copy, delete_copies, read_objects
from unbounded.cli.migrate.copy_plan import ServerObjects
from unbounded.cli.migrate.lease_hold import acquire_leases, lease_names, release_leases
from unbounded.cli.migrate.migration_record import (
    Marker,
    MarkerStage,
    MigrationPhase,
    MigrationRecord,
    advance_record,
    begin_record,
    read_record,
    remove_record,
)
from unbounded.cli.migrate.sides import MigrationSource, MigrationTarget, TargetObservation, observe, obstacles, running
from unbounded.kube.api import AlreadyExists, Api, NotFound


@dataclass(frozen=True)
class MigrationPlan:
    """A planned migration.

    Args:
        migration: its name; a new one unless it has begun.
        begun: whether its record exists on the target.
        obstacles: problems that the user has to solve first.
    """

    migration: str
    begun: bool
    source: ServerObjects
    target: TargetObservation
    obstacles: tuple[str, ...]


async def plan(source: MigrationSource, target: MigrationTarget) -> MigrationPlan:
    """Read both sides and plan.

    Raises:
        Rejected: the data is being migrated to another cluster.
    """
    marker = source.marker.read()
    if marker is not None:
        await check_cluster(marker, target)
    migration = marker.migration if marker is not None else str(uuid.uuid4())
    here, existing = await read_objects(source.api), await observe(target, migration)
    found = (
        existing.troubles
        if existing.record is not None and existing.record.phase is MigrationPhase.RESUMED
        else (
            *existing.troubles,
            *obstacles(here, existing.holdings, migration),
        )
    )
    return MigrationPlan(migration, existing.record is not None, here, existing, found)


async def migrate(source: MigrationSource, target: MigrationTarget, planned: MigrationPlan, report: Report) -> None:
    """Migrate the control plane to the target, up to and past the point of no return.

    Raises:
        Rejected: an operation runs on the source, or another process takes the migration back.
        Stale: another process finished it, or takes it back, at this moment.
    """
    marker = source.marker.read()
    if marker is not None and marker.stage is MarkerStage.MOVED:
        return
    if marker is None:
        paused = await pause_of(source.api)
        server, cluster = target.server, await target.cluster()
        marker = Marker(migration=planned.migration, server=server, cluster=cluster, paused=paused)
        source.marker.write(marker)
    record = await read_record(target.api, marker.migration)
    if record is None or record.phase is MigrationPhase.COPYING:
        record = await _copied(source, target, marker, record, report)
    await finish(target, record, report)
    source.marker.write(replace(marker, stage=MarkerStage.MOVED))


async def _copied(
    source: MigrationSource, target: MigrationTarget, marker: Marker, record: MigrationRecord | None, report: Report
) -> MigrationRecord:
    """Stop both sides, and copy."""
    await freeze(source.api, marker.server)
    here = await read_objects(source.api)
    if record is None and (found := running(here)):
        await roll_back_source(source, marker, report)
        raise Rejected("; ".join(found))
    report("the source is frozen: no operation is claimed there")
    await target.prepare_namespace()
    begun = await begin_record(
        target.api, MigrationRecord(marker.migration, source.name, MigrationPhase.COPYING, marker.paused)
    )
    await acquire_leases(target.api, lease_names(here.machines()), marker.migration)
    await pause_for(target, marker.migration)
    report("the target is frozen: its Leases are held")
    await target.prepare()
    await copy(here, target.api, marker.migration, report)
    return await advance_record(target.api, begun, MigrationPhase.COPIED)


async def finish(target: MigrationTarget, record: MigrationRecord, report: Report) -> None:
    """Let the target's control plane act. This needs no source.

    Raises:
        Rejected: the copy is incomplete, or is being taken back.
        Stale: as `migrate`.
    """
    if record.phase is MigrationPhase.COPYING:
        raise Rejected("only a part is copied: finish the migration from the source, or revert it")
    if record.phase is MigrationPhase.TAKING_BACK:
        raise Rejected("it is being reverted: run the command with --take-back to finish that")
    record = await advance_record(target.api, record, MigrationPhase.RESUMED)  # the point of no return
    await resume_after(target, record.migration, record.paused)
    await release_leases(target.api, record.migration)
    report("the target's control plane may act now")


async def roll_back_target(target: MigrationTarget, record: MigrationRecord, report: Report) -> None:
    """Delete the copies, and release the target.

    Raises:
        Rejected: the target has taken over.
        Stale: as `migrate`.
    """
    if record.phase is MigrationPhase.RESUMED:
        raise Rejected(f"{target.server} has the machines already, and that cannot be reverted")
    record = await advance_record(target.api, record, MigrationPhase.TAKING_BACK)
    await delete_copies(target.api, record.migration, report)
    await resume_after(target, record.migration, None)
    await release_leases(target.api, record.migration)
    await remove_record(target.api, record)


async def roll_back_source(source: MigrationSource, marker: Marker, report: Report) -> None:
    """Let the source act again, once the target never can.

    Raises:
        Rejected: the target has taken over.
    """
    if marker.stage is MarkerStage.MOVED:
        raise Rejected(f"{marker.server} has the machines already, and that cannot be reverted")
    await thaw(source.api, marker.paused)
    source.marker.remove()
    report("the source may act again: start `unbounded up`")


async def pause_for(target: MigrationTarget, migration: str) -> None:
    """Pause all operations on the target, unless an administrator has paused them."""
    if await pause_of(target.api) is None:
        await set_pause(target.api, _pause(migration))


async def resume_after(target: MigrationTarget, migration: str, paused: str | None) -> None:
    """Replace the migration's pause, but not an administrator's."""
    if await pause_of(target.api) == _pause(migration):
        await set_pause(target.api, paused)


def _pause(migration: str) -> str:
    return f"migration {migration}"


async def check_cluster(marker: Marker, target: MigrationTarget) -> None:
    """Raise Rejected if the data is being migrated to another cluster than this one."""
    if await target.cluster() != marker.cluster:
        raise Rejected(f"the data is being migrated to {marker.server}, but {target.server} is another cluster")


_POLICY: Final = POLICIES["ValidatingAdmissionPolicy"]
_BINDING: Final = POLICIES["ValidatingAdmissionPolicyBinding"]
# Agents act by writing to their Machine and its operations, so that one that cannot claim does not act. Two kinds of
# writes are allowed: an administrator's updates, which the hand-over itself makes, and conditions of Machines, which
# claim nothing.
_ALLOWED: Final = (
    "request.operation == 'UPDATE' && ('system:masters' in request.userInfo.groups ||"
    " (request.resource.resource == 'machines' && has(request.subResource) && request.subResource == 'status' &&"
    " (variables.status.map(k, k) + variables.before.map(k, k)).all(k, k == 'conditions' ||"
    " (k in variables.status && k in variables.before && variables.status[k] == variables.before[k]))))"
)


def policy(server: str) -> dict[str, Any]:
    """Return the admission policy.

    Args:
        server: URL of the target, for the policy's message.
    """
    return {
        "metadata": {"name": CONFIGMAP_MIGRATION},
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {
                "resourceRules": [
                    {"apiGroups": [GROUP], "apiVersions": ["*"], "operations": ["*"], "resources": ["*/*"]}
                ]
            },
            "variables": [
                {"name": name, "expression": f"request.operation == 'UPDATE' && has({of}.status) ? {of}.status : {{}}"}
                for name, of in (("status", "object"), ("before", "oldObject"))
            ],
            "validations": [
                {
                    "expression": _ALLOWED,
                    "message": f"this control plane was migrated to {server}: write there",
                    "reason": "Forbidden",
                }
            ],
        },
    }


BINDING: Final[Mapping[str, Any]] = {
    "metadata": {"name": CONFIGMAP_MIGRATION},
    "spec": {"policyName": CONFIGMAP_MIGRATION, "validationActions": ["Deny"]},
}


async def pause_of(api: Api) -> str | None:
    """Return the value of the pause annotation for all operations; None where they are not paused."""
    try:
        existing = await api.get(CONFIG_MAPS, CONFIGMAP_OPERATIONS, namespace=NAMESPACE)
    except NotFound:
        return None
    return existing.metadata.annotations.get(ANNOTATION_PAUSED)


async def set_pause(api: Api, value: str | None) -> None:
    """Pause all operations with this value of the annotation; None lets them run."""
    metadata = {"name": CONFIGMAP_OPERATIONS, "namespace": NAMESPACE}
    change = {"annotations": {ANNOTATION_PAUSED: value}}
    try:
        await api.patch(CONFIG_MAPS, CONFIGMAP_OPERATIONS, {"metadata": change}, namespace=NAMESPACE)
    except NotFound:
        if value is not None:
            await api.create(CONFIG_MAPS, {"metadata": metadata | change}, namespace=NAMESPACE)


async def freeze(api: Api, server: str) -> None:
    """Pause all operations, and reject writes of agents and others. A repetition does no harm."""
    await set_pause(api, f"migrated to {server}")
    for kind, body in ((_POLICY, policy(server)), (_BINDING, BINDING)):
        try:
            await api.create(kind, body)
        except AlreadyExists:
            await api.patch(kind, CONFIGMAP_MIGRATION, {"spec": body["spec"]})


async def thaw(api: Api, paused: str | None) -> None:
    """Undo `freeze`.

    Args:
        paused: the pause of all operations before; None for none.
    """
    for kind in (_BINDING, _POLICY):
        try:
            await api.delete(kind, CONFIGMAP_MIGRATION)
        except NotFound:
            continue
    await set_pause(api, paused)
