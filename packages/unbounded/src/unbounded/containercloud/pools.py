"""MachinePools: their members, which are created and follow the pool's template. `plan_pool` is pure.

A pool deletes no Machine. `maintenance`, `delete` and `deletionPolicy` stay the member's own: a pool that overwrote
them would end the maintenance or the deletion of a member.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import count
from typing import Any, Final, assert_never

import msgspec

from unbounded.api.conditions import counted, set_condition
from unbounded.api.container_cloud.cluster import MACHINE_POOLS, Cluster, MachinePool
from unbounded.api.container_cloud.machine import CONTAINER_CLOUD_MACHINES, ContainerCloudMachine
from unbounded.api.container_cloud.names import (
    BAREMETAL,
    LABEL_CLUSTER,
    LABEL_CONTROL_PLANE,
    LABEL_MACHINE_POOL,
    LABEL_PROVIDER,
)
from unbounded.containercloud.caches import INDEX_CLUSTER, INDEX_POOL, ControllerContext
from unbounded.containercloud.cluster_plan import as_json
from unbounded.containercloud.refused import RefusalEvents
from unbounded.kube.api import AlreadyExists, Forbidden, InvalidObject, NotFound, ObjectKey, key_of
from unbounded.kube.clock import rfc3339
from unbounded.kube.controller import Controller
from unbounded.kube.logs import Log
from unbounded.kube.status_writer import StatusWriter

Raw = dict[str, Any]
CONDITION_COMPLETE: Final = "Complete"
OWN: Final = frozenset({"maintenance", "delete", "deletionPolicy"})  # fields that stay the member's
_LABELS: Final = (LABEL_CLUSTER, LABEL_CONTROL_PLANE)  # of a pool, for its members
SETTLE_S: Final = 0.2  # before a pass, as changes of many members come together

log = Log("pools")


class PoolReason(StrEnum):
    """Reasons of condition Complete of a MachinePool."""

    COMPLETE = "Complete"
    CREATING = "Creating"
    CLUSTER_MISSING = "ClusterMissing"
    CLUSTER_DELETING = "ClusterDeleting"
    MORE_THAN_REPLICAS = "MoreThanReplicas"
    HOST_SELECTOR_FIXED = "HostSelectorFixed"
    MEMBER_REJECTED = "MemberRejected"
    DELETING = "Deleting"


@dataclass(frozen=True, kw_only=True)
class PoolView:
    """A MachinePool, and all that decides on it.

    Args:
        cluster: the one that its label names; None if there is none.
        members: Machines with the label of the pool.
        taken: names of all Machines of the namespace that begin with the pool's.
    """

    pool: MachinePool
    cluster: Cluster | None = None
    members: Sequence[ContainerCloudMachine] = ()
    taken: frozenset[str] = frozenset()


@dataclass(frozen=True)
class CreateMember:
    body: Raw


@dataclass(frozen=True)
class PatchMember:
    """Merge fields into `spec` of a member."""

    member: ContainerCloudMachine
    spec: Raw


@dataclass(frozen=True)
class PoolStatus:
    """The numbers of a pool, and its condition Complete."""

    replicas: int
    ready: int
    is_complete: bool
    reason: PoolReason
    message: str


@dataclass(frozen=True)
class PoolPlan:
    """The writes of a pool: those of its members, then its status."""

    members: tuple[CreateMember | PatchMember, ...]
    status: PoolStatus


def plan_pool(view: PoolView) -> PoolPlan:
    """Return the writes of a pool; its status may be there already."""
    pool = view.pool
    ready = sum(one.provider_status.ready for one in view.members)
    have, desired = len(view.members), pool.spec.replicas

    def status(reason: PoolReason, message: str) -> PoolStatus:
        return PoolStatus(have, ready, reason == PoolReason.COMPLETE, reason, message)

    if pool.metadata.deletion_timestamp is not None:
        return PoolPlan((), status(PoolReason.DELETING, "the pool is being deleted; its Machines stay"))
    if view.cluster is None:
        text = f"label {LABEL_CLUSTER}: Cluster {pool.cluster} does not exist"
        return PoolPlan((), status(PoolReason.CLUSTER_MISSING, text))
    if view.cluster.metadata.deletion_timestamp is not None:
        return PoolPlan((), status(PoolReason.CLUSTER_DELETING, f"Cluster {pool.cluster} is being deleted"))
    changes = {one.name: followed(pool, one) for one in view.members if one.metadata.deletion_timestamp is None}
    patches = [PatchMember(one, changes[one.name]) for one in view.members if changes.get(one.name)]
    made = [CreateMember(member_body(pool, name)) for name in _free_names(view, desired - have)]
    fixed = sorted(one.name for one in view.members if keeps_selector(pool, one))
    if made:
        last = status(PoolReason.CREATING, f"{counted(len(made), 'Machine')} to be created")
    elif have > desired:
        text = (
            f"{counted(have, 'Machine')} for {counted(desired, 'replica')}: a pool deletes none; delete them yourself"
        )
        last = status(PoolReason.MORE_THAN_REPLICAS, text)
    elif fixed:
        more = f" (and {len(fixed) - 1} more)" if len(fixed) > 1 else ""
        text = f"hostSelector of {fixed[0]}{more} stays as it was: it is immutable once a host is claimed"
        last = status(PoolReason.HOST_SELECTOR_FIXED, text)
    else:
        last = status(PoolReason.COMPLETE, f"{counted(have, 'Machine')}, {ready} ready")
    return PoolPlan((*patches, *made), last)


def _free_names(view: PoolView, number: int) -> Iterable[str]:
    """Yield names for new members: the lowest free numbers, so that a create that is repeated meets the first one."""
    names = (f"{view.pool.name}-{index}" for index in count())
    free = (name for name in names if name not in view.taken)
    for _ in range(number):
        yield next(free)


def member_body(pool: MachinePool, name: str) -> Raw:
    """Return a new member. It gets the deletionPolicy of the template, which it may change later."""
    labels = {key: value for key in _LABELS if (value := pool.metadata.labels.get(key)) is not None}
    spec: Raw = as_json(pool.spec.machine_spec)
    value = spec["providerSpec"]["value"]
    spec["providerSpec"]["value"] = {key: part for key, part in value.items() if key not in ("maintenance", "delete")}
    return {
        "metadata": {
            "name": name,
            "namespace": pool.metadata.namespace,
            "labels": labels | {LABEL_PROVIDER: BAREMETAL, LABEL_MACHINE_POOL: pool.name},
        },
        "spec": spec,
    }


def followed(pool: MachinePool, member: ContainerCloudMachine) -> Raw:
    """Return the merge patch by which the spec of a member follows the template; empty where it does."""
    template: Raw = as_json(pool.spec.machine_spec)
    there: Raw = as_json(member.spec)
    value = _replaced(_without(there["providerSpec"]["value"], OWN), _without(template["providerSpec"]["value"], OWN))
    if keeps_selector(pool, member):
        value.pop("hostSelector", None)
    outer = _replaced(_without(there, {"providerSpec"}), _without(template, {"providerSpec"}))
    return outer | ({"providerSpec": {"value": value}} if value else {})


def keeps_selector(pool: MachinePool, member: ContainerCloudMachine) -> bool:
    """Return whether a member has another hostSelector than the template, and can get no other one."""
    execution = member.status.execution
    is_claimed = execution is not None and execution.host is not None
    return is_claimed and member.value.host_selector != pool.spec.machine_spec.provider_spec.value.host_selector


def _without(fields: Mapping[str, Any], names: Iterable[str]) -> Raw:
    return {key: value for key, value in fields.items() if key not in set(names)}


def _replaced(there: Mapping[str, Any], desired: Mapping[str, Any]) -> Raw:
    """Return the merge patch that makes an object equal to another one, at every depth."""
    patch: Raw = {key: None for key in there if key not in desired}
    for key, value in desired.items():
        before = there.get(key)
        if isinstance(before, Mapping) and isinstance(value, Mapping):
            if inner := _replaced(before, value):
                patch[key] = inner
        elif before != value:
            patch[key] = value
    return patch


class PoolController:
    """Controller of MachinePools."""

    def __init__(self, context: ControllerContext) -> None:
        self._api, self._epoch, self._now = context.api, context.epoch, context.now
        self._caches = caches = context.caches
        self._status = StatusWriter(
            context.api,
            MACHINE_POOLS,
            fields=("replicas", "readyReplicas", "observedGeneration", "conditions"),
            cache=caches.pools,
        )
        self._unwritten = RefusalEvents(context.emit_event)  # about the status itself
        self._controller: Controller[ObjectKey] = Controller(
            "pools", self._reconcile, workers=4, metrics=context.metrics
        )
        follow = self._controller.follow
        follow(caches.pools, lambda pool: (key_of(pool),))
        follow(caches.clusters, self._pools_of, parts=lambda cluster: cluster.metadata.deletion_timestamp)
        follow(caches.machines, _pool_of, parts=_parts_of_member, delay_s=SETTLE_S)

    async def run(self) -> None:
        """Run until cancelled."""
        await self._controller.run()

    def _pools_of(self, cluster: Cluster) -> Iterable[ObjectKey]:
        return map(key_of, self._caches.pools.by(INDEX_CLUSTER, str(key_of(cluster))))

    async def _reconcile(self, key: ObjectKey) -> float | None:
        pool = self._caches.pools.get(key.name, key.namespace)
        if pool is None:
            self._unwritten.forget(key)
            return None
        plan = plan_pool(self._observe(pool))
        try:
            for action in plan.members:
                self._epoch.check_leads()
                await self._perform(pool, action)
        except NotFound:  # the watch delivers it
            return None
        except (Forbidden, InvalidObject) as error:  # retried after backoff
            rejected = replace(plan.status, is_complete=False, reason=PoolReason.MEMBER_REJECTED, message=str(error))
            await self._write_status(pool, rejected)
            raise
        await self._write_status(pool, plan.status)
        return None

    def _observe(self, pool: MachinePool) -> PoolView:
        caches, namespace = self._caches, pool.metadata.namespace or ""
        beside = (one.name for one in caches.machines.all() if one.metadata.namespace == namespace)
        return PoolView(
            pool=pool,
            cluster=caches.clusters.get(pool.cluster, namespace),
            members=sorted(caches.machines.by(INDEX_POOL, str(key_of(pool))), key=lambda one: one.name),
            taken=frozenset(name for name in beside if name.startswith(f"{pool.name}-")),
        )

    async def _perform(self, pool: MachinePool, action: CreateMember | PatchMember) -> None:
        namespace, machines = pool.metadata.namespace or "", self._caches.machines
        match action:
            case CreateMember(body=body):
                with suppress(AlreadyExists):  # the watch delivers it
                    made = await self._api.create(CONTAINER_CLOUD_MACHINES, body, namespace=namespace)
                    machines.observe(made)
                    log.info("member created", namespace=namespace, pool=pool.name, machine=made.name)
            case PatchMember(member=member, spec=spec):
                patch = {"metadata": {"resourceVersion": member.metadata.resource_version}, "spec": spec}
                machines.observe(
                    await self._api.patch(CONTAINER_CLOUD_MACHINES, member.name, patch, namespace=namespace)
                )
            case _:
                assert_never(action)

    async def _write_status(self, pool: MachinePool, desired: PoolStatus) -> None:
        status, generation = pool.status, pool.metadata.generation
        numbers = (status.replicas, status.ready_replicas, status.observed_generation)
        change: Raw = {}
        if numbers != (desired.replicas, desired.ready, generation):
            change = {"replicas": desired.replicas, "readyReplicas": desired.ready, "observedGeneration": generation}
        conditions = set_condition(
            [msgspec.to_builtins(one) for one in status.conditions],
            CONDITION_COMPLETE,
            "True" if desired.is_complete else "False",
            desired.reason,
            desired.message,
            rfc3339(self._now()),
        )
        if conditions is not None:
            change["conditions"] = conditions
        with self._unwritten.recorded(pool, "write the status of this MachinePool"):
            await self._status.write(pool, change)


def _pool_of(machine: ContainerCloudMachine) -> tuple[ObjectKey, ...]:
    return (ObjectKey(machine.metadata.namespace or "", machine.pool),) if machine.pool else ()


def _parts_of_member(machine: ContainerCloudMachine) -> object:
    """Return the parts of a Machine that the plan of its pool depends on."""
    execution, meta = machine.status.execution, machine.metadata
    is_claimed = execution is not None and execution.host is not None
    return machine.pool, machine.spec, machine.provider_status.ready, is_claimed, meta.deletion_timestamp is None
