"""The controller of Machines of cluster.k8s.io: it observes one and its host, and executes the decisions of the plans.

The status is written before the actions: a successor finds the operation that was to be created, and creates no other.
Only a forced deletion whose status the server refuses goes on without it: a successor begins that deletion anew.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final, assert_never

import msgspec

from unbounded.api.container_cloud.cluster import Cluster, ClusterRelease
from unbounded.api.container_cloud.host import BARE_METAL_HOSTS, BareMetalHost, BareMetalHostProfile
from unbounded.api.container_cloud.machine import (
    CONTAINER_CLOUD_MACHINES,
    ContainerCloudMachine,
    DeletionPolicy,
    MachineStage,
)
from unbounded.api.container_cloud.names import ANNOTATION_FOR_UID, FINALIZER_MACHINE
from unbounded.api.container_cloud.network import IPAM_HOSTS, IpamHost
from unbounded.api.core import NODES, Node
from unbounded.api.failures import Stale
from unbounded.api.machine import MACHINES, Machine
from unbounded.api.meta import Kind
from unbounded.api.operation import MACHINE_OPERATIONS, MachineOperation
from unbounded.containercloud.caches import (
    INDEX_CLUSTER,
    INDEX_HOST_MACHINE,
    INDEX_PIN,
    INDEX_RELEASE,
    ControllerContext,
    confirm,
)
from unbounded.containercloud.claims import DEFAULT_SHARED, ClaimStep, claim_view, plan_claim, release_host
from unbounded.containercloud.cluster_plan import upgrade_index, upgrade_indexes
from unbounded.containercloud.hosts.adoption import leaves_as_is
from unbounded.containercloud.hosts.model import consumer_of, host_of_machine, machine_of_host
from unbounded.containercloud.machines.deletion import is_deleting, plan_deletion, plan_refused, policy_of, write_text
from unbounded.containercloud.machines.life import plan_life
from unbounded.containercloud.machines.model import (
    CancelOperation,
    ChangeTarget,
    DeleteMachineObject,
    DeleteNode,
    MachineAction,
    MachineReason,
    MachineStep,
    MachineView,
    ReleaseHost,
    RequestOperation,
    SetMachineFinalizer,
    SetProviderID,
)
from unbounded.containercloud.machines.report import can_wait_s, desired_status, status_change
from unbounded.containercloud.network.controller import network_view
from unbounded.containercloud.network.plan import owns, plan_network
from unbounded.containercloud.network.waits import addresses_wait
from unbounded.containercloud.profiles.plan import profile_obstacle
from unbounded.containercloud.refused import RefusalEvents, WriteAttempt
from unbounded.containercloud.releases import release_fault
from unbounded.containercloud.waits import MachineWait
from unbounded.kube.api import AlreadyExists, ApiError, NotFound, ObjectKey, is_refusal, key_of, refused_by
from unbounded.kube.controller import Controller
from unbounded.kube.logs import Log
from unbounded.kube.status_writer import StatusDebounce, StatusWriter
from unbounded.operations.caches import node_of

Raw = dict[str, Any]
GUARDING: Final = MachineStage.GUARDING
WRITER: Final = "machines"  # of the register of refused writes
WRITE_STATUS: Final = "write the status of this Machine"
FIELDS: Final = ("nodeRef", "addresses", "errorReason", "errorMessage", "lastUpdated", "providerStatus", "execution")

log = Log("machines")


class ContainerCloudMachineController:
    """Controller of all Machines of cluster.k8s.io.

    Args:
        shared: namespaces whose hosts Machines of other namespaces may pin.
        policy: deletionPolicy of Machines that name none.
        min_other_managers: managers that must be ready before another one is deleted.
        strict_distribution: whether a Machine has to name its distribution.
    """

    def __init__(
        self,
        context: ControllerContext,
        *,
        shared: frozenset[str] = DEFAULT_SHARED,
        policy: DeletionPolicy = DeletionPolicy.UNSAFE,
        min_other_managers: int = 2,
        strict_distribution: bool = False,
    ) -> None:
        self._api, self._epoch = context.api, context.epoch
        self._caches = caches = context.caches
        self._shared = shared
        self._policy = policy
        self._min_other_managers = min_other_managers
        self._strict_distribution = strict_distribution
        self._emit, self._now, self._refusals = context.emit_event, context.now, context.refused
        self._unwritten = RefusalEvents(context.emit_event)  # about the status itself
        self._progress: dict[ObjectKey, ContainerCloudMachine] = {}  # of forced deletions whose status is refused
        self._debounce = StatusDebounce()
        self._turn = asyncio.Lock()  # held by a Machine whose step depends on what those before it have written
        self._status = StatusWriter(context.api, CONTAINER_CLOUD_MACHINES, fields=FIELDS, cache=caches.machines)
        self._controller: Controller[ObjectKey] = Controller("machines", self._reconcile, metrics=context.metrics)
        context.refused.subscribe(self._controller.enqueue)
        follow = self._controller.follow
        follow(caches.machines, self._machine_and_managers)
        follow(caches.clusters, self._of_cluster)
        follow(caches.releases, self._of_release)
        follow(caches.hosts, self._of_host)
        follow(caches.host_machines, self._of_target)
        follow(caches.operations, self._of_operation)
        follow(caches.nodes, self._of_node)
        follow(caches.ipam_hosts, self._of_ipam)
        follow(caches.profiles, self._of_profile)

    async def run(self) -> None:
        """Run until cancelled."""
        await self._controller.run()

    # ---- events

    def _machine_and_managers(self, machine: ContainerCloudMachine) -> Iterator[ObjectKey]:
        """Yield a Machine, and the managers whose deletion waits for this one."""
        yield key_of(machine)
        if machine.is_manager:
            others = self._caches.machines.by(INDEX_CLUSTER, f"{machine.metadata.namespace}/{machine.cluster}")
            yield from (key_of(one) for one in others if one.is_manager and one.value.delete)

    def _of_cluster(self, cluster: Cluster) -> Iterable[ObjectKey]:
        return map(key_of, self._caches.machines.by(INDEX_CLUSTER, str(key_of(cluster))))

    def _of_release(self, release: ClusterRelease) -> Iterator[ObjectKey]:
        for cluster in self._caches.clusters.by(INDEX_RELEASE, release.name):
            yield from self._of_cluster(cluster)

    def _of_host(self, host: BareMetalHost) -> Iterator[ObjectKey]:
        """Yield the Machine that has a host, and those that wait for it, whose status says what keeps it."""
        yield from map(key_of, self._caches.machines.by(INDEX_PIN, str(key_of(host))))
        if (consumer := consumer_of(host)) is not None:
            yield consumer

    def _of_target(self, target: Machine) -> Iterator[ObjectKey]:
        yield from map(key_of, self._caches.machines.by(INDEX_HOST_MACHINE, target.name))
        key = host_of_machine(target)
        host = None if key is None else self._caches.hosts.get(key.name, key.namespace)
        if host is not None:
            yield from self._of_host(host)

    def _of_operation(self, operation: MachineOperation) -> Iterable[ObjectKey]:
        return map(key_of, self._caches.machines.by(INDEX_HOST_MACHINE, operation.spec.machine_ref or ""))

    def _of_node(self, node: Node) -> Iterable[ObjectKey]:
        return map(key_of, self._caches.machines.by(INDEX_HOST_MACHINE, node.name))

    def _of_ipam(self, ipam: IpamHost) -> Iterator[ObjectKey]:
        yield key_of(ipam)

    def _of_profile(self, _profile: BareMetalHostProfile) -> Iterator[ObjectKey]:
        for machine in self._caches.machines.all():
            if machine.status.execution is None or machine.status.execution.operation is None:
                yield key_of(machine)

    # ---- observation

    async def _reconcile(self, key: ObjectKey) -> float | None:
        machine = self._caches.machines.get(key.name, key.namespace)
        if machine is not None and _rests_on_others(machine):
            async with self._turn:
                return await self._step(key)
        return await self._step(key)

    async def _step(self, key: ObjectKey) -> float | None:
        machine = self._caches.machines.get(key.name, key.namespace)
        if machine is None:
            self._refusals.forget(key)
            self._unwritten.forget(key)
            self._progress.pop(key, None)
            return None
        view = self.view(self._with_progress(machine))
        if not is_deleting(view):
            return await self._perform(view, plan_life(view))
        await self._confirm_host(view)
        return await self._perform(view, plan_deletion(view))

    def _with_progress(self, machine: ContainerCloudMachine) -> ContainerCloudMachine:
        """Return a Machine with the status of its forced deletion, which the server has refused to store."""
        known = self._progress.get(key_of(machine))
        if known is None or known.metadata.uid != machine.metadata.uid:
            return machine
        return msgspec.structs.replace(machine, status=known.status)

    def _status_change(self, view: MachineView, plan: MachineStep) -> Raw:
        """Return the patch of the stored status."""
        key = key_of(view.machine)
        stored = self._caches.machines.get(key.name, key.namespace) if key in self._progress else None
        if stored is None:
            return status_change(view, plan)
        machine = msgspec.structs.replace(view.machine, status=stored.status)
        return status_change(replace(view, machine=machine), plan)

    async def _confirm_host(self, view: MachineView) -> None:
        """Read the host of a deletion live where it seems to be another's, as the Machine would leave it behind.

        Raises:
            Stale: the host has changed.
        """
        claimed = view.execution.host
        if claimed is None or view.claim.step is ClaimStep.CLAIMED:
            return
        known = self._caches.hosts.get(claimed.name, claimed.namespace)
        try:
            live = await self._api.get(BARE_METAL_HOSTS, claimed.name, namespace=claimed.namespace)
        except NotFound:
            return
        if known is None or known.metadata.resource_version != live.metadata.resource_version:
            self._caches.hosts.observe(live)
            raise Stale(f"BareMetalHost {claimed} changed")

    def view(self, machine: ContainerCloudMachine) -> MachineView:
        """Return all that decides on a Machine, from the caches."""
        caches, namespace = self._caches, machine.metadata.namespace or ""
        cluster = caches.clusters.get(machine.cluster, namespace)
        strict = self._strict_distribution
        claim = plan_claim(claim_view(caches, machine, self._shared, strict_distribution=strict))
        execution = machine.status.execution
        of_claim = machine_of_host(claim.host) if claim.host is not None and claim.step is ClaimStep.CLAIMED else None
        name = (execution.machine if execution is not None else None) or of_claim
        target = None if name is None else caches.host_machines.get(name)
        named = execution.operation if execution is not None else None
        operation = None if named is None else caches.operations.get(named)
        is_ours = (
            operation is not None and operation.metadata.annotations.get(ANNOTATION_FOR_UID) == machine.metadata.uid
        )
        adopted = leaves_as_is(claim.host, target)
        of_cluster = () if cluster is None else caches.machines.by(INDEX_CLUSTER, str(key_of(cluster)))
        found = caches.ipam_hosts.get(machine.name, namespace)
        ipam = found if found is not None and owns(machine, found) else None
        return MachineView(
            machine=machine,
            now=self._now(),
            claim=claim,
            cluster=cluster,
            release=self._release(cluster),
            host=claim.host,
            target=target,
            node=None if target is None else node_of(caches.nodes, target.name),
            operation=operation if is_ours else None,
            name_taken=operation is not None and not is_ours and operation.spec.machine_ref != name,
            ipam=ipam,
            profile=None if adopted else self._profile(machine, target),
            network=None if adopted else addresses_wait(machine, ipam, found),
            refused=self._refusals.of(key_of(machine)),
            handover=self._handover(machine) if ipam is not None else {},
            upgrade_index=upgrade_index(machine) or upgrade_indexes(of_cluster).get(machine.name),
            managers=tuple(one for one in of_cluster if one.is_manager and one.name != machine.name),
            default_policy=self._policy,
            min_other_managers=self._min_other_managers,
            strict_distribution=strict,
        )

    def _release(self, cluster: Cluster | None) -> ClusterRelease | None:
        release = None if cluster is None else self._caches.releases.get(cluster.value.release)
        return None if release is None or release_fault(release) is not None else release

    def _profile(self, machine: ContainerCloudMachine, target: Machine | None) -> MachineWait | None:
        if target is None:
            until = "a host is claimed, and its Machine exists"
            return MachineWait(MachineReason.HOST_NOT_PREPARED, "no host is claimed", "condition HostClaimed", until)
        return profile_obstacle(machine, target, self._caches.profiles.all())

    def _handover(self, machine: ContainerCloudMachine) -> Mapping[str, Any]:
        execution = machine.status.execution
        if execution is None or execution.stage != MachineStage.PLANNING:
            return {}
        return plan_network(network_view(self._caches, machine.metadata.namespace or "", machine.name)).handover

    # ---- execution

    async def _perform(self, view: MachineView, plan: MachineStep) -> float | None:
        key = key_of(view.machine)
        if is_deleting(view):  # whose status has its refusals itself
            self._refusals.forget(key, WRITER)
            return await self._write_and_execute(view, plan, WriteAttempt())
        with self._refusals.recorded(key, WRITER) as attempt:
            return await self._write_and_execute(view, plan, attempt)

    async def _write_and_execute(self, view: MachineView, plan: MachineStep, attempt: WriteAttempt) -> float | None:
        self._epoch.check_leads()
        change = self._status_change(view, plan)
        waits_s = can_wait_s(view, plan, change) if change else 0.0
        left_s = self._debounce.left_s(key_of(view.machine), view.now, waits_s=waits_s)
        attempt.what = WRITE_STATUS
        machine = await self._write(view, plan, {} if left_s else change)
        for action in plan.actions:
            self._epoch.check_leads()
            attempt.what = write_text(view, action)
            try:
                await self._execute(view, machine, action)
            except ApiError as error:
                if not is_deleting(view) or not is_refusal(error):
                    raise
                return await self._refused(replace(view, machine=machine), plan, action, error)
        if machine.status.execution != view.machine.status.execution and key_of(machine) in self._progress:
            return 0.0  # no event tells of a status that is not stored
        return plan.requeue_s if not left_s or (plan.requeue_s or math.inf) < left_s else left_s

    async def _refused(
        self, view: MachineView, plan: MachineStep, action: MachineAction, error: ApiError
    ) -> float | None:
        """Record that the server has refused an action of a deletion; return the seconds until the next pass."""
        log.warning("write refused", error=error, machine=view.full_name, action=type(action).__name__)
        after = plan_refused(view, plan, action, str(error), refused_by(error))
        await self._write(view, after, self._status_change(view, after))
        return after.requeue_s

    async def _write(self, view: MachineView, plan: MachineStep, change: Raw) -> ContainerCloudMachine:
        """Write the status if it differs; return the Machine as it is then."""
        try:
            written = await self._status.write(view.machine, change)
        except ApiError as error:
            if not is_refusal(error):
                raise
            self._unwritten.record(view.machine, WRITE_STATUS, error)
            if not is_deleting(view) or policy_of(view) is not DeletionPolicy.FORCED:
                raise
            written = msgspec.structs.replace(view.machine, status=desired_status(view, plan))
            self._progress[key_of(written)] = written
        else:
            if written is None:
                return view.machine
            self._unwritten.forget(key_of(written))
            self._progress.pop(key_of(written), None)
        before, after = view.execution, plan.execution
        if before.stage != after.stage:
            log.info("stage", machine=view.full_name, stage=after.stage, host=str(after.host or ""))
        for step in after.unproven[len(before.unproven) :]:
            self._emit(written, "Warning", "Unproven", f"forced deletion: {step}")
        if plan.obstacle is not None and plan.obstacle.error is not None:
            known = before.waiting.reason if before.waiting is not None else ""
            if known != plan.obstacle.reason or key_of(written) in self._progress:  # an Event is all that is left then
                self._emit(written, "Warning", str(plan.obstacle.reason), plan.obstacle.message)
        return written

    async def _execute(self, view: MachineView, machine: ContainerCloudMachine, action: MachineAction) -> None:
        match action:
            case SetMachineFinalizer(present=present):
                await self._set_finalizer(machine, present=present)
            case ChangeTarget():
                await self._patch_target(view, action)
            case RequestOperation():
                await self._request(view, action)
            case CancelOperation(operation=operation):
                await self._cancel(operation)
            case SetProviderID(node=node, provider_id=provider_id):
                patch: Raw = {"metadata": {"uid": node.metadata.uid}, "spec": {"providerID": provider_id}}
                self._caches.nodes.observe(await self._api.patch(NODES, node.name, patch))
            case DeleteNode(node=node):
                await self._delete(NODES, node.name, node.metadata.uid)
            case ReleaseHost(host=host):
                await release_host(self._api, self._caches.hosts, host, key_of(machine))
            case DeleteMachineObject():
                key = key_of(machine)
                await self._delete(CONTAINER_CLOUD_MACHINES, key.name, machine.metadata.uid, key.namespace)
            case _:
                assert_never(action)

    async def _set_finalizer(self, machine: ContainerCloudMachine, *, present: bool) -> None:
        finalizers = machine.metadata.finalizers
        if present is (FINALIZER_MACHINE in finalizers):
            return
        others = [one for one in finalizers if one != FINALIZER_MACHINE]
        body = [*others, *([FINALIZER_MACHINE] if present else [])]
        patch = {"metadata": {"resourceVersion": machine.metadata.resource_version, "finalizers": body}}
        key = key_of(machine)
        try:
            written = await self._api.patch(CONTAINER_CLOUD_MACHINES, key.name, patch, namespace=key.namespace)
        except NotFound:
            return
        if present:
            self._caches.machines.observe(written)

    async def _patch_target(self, view: MachineView, change: ChangeTarget) -> None:
        if view.target is None:
            return
        if view.handover:
            await confirm(self._api, IPAM_HOSTS, view.ipam, self._caches.ipam_hosts)
            await confirm(self._api, BARE_METAL_HOSTS, view.host, self._caches.hosts)
        version = {"resourceVersion": view.target.metadata.resource_version}
        marks = {"labels": dict(change.labels), "annotations": dict(change.annotations)}
        patch = {"metadata": version | {key: value for key, value in marks.items() if value}, "spec": change.spec}
        self._caches.host_machines.observe(await self._api.patch(MACHINES, view.target.name, patch))

    async def _request(self, view: MachineView, action: RequestOperation) -> None:
        """Create an operation once: one of this name that exists is that of an earlier pass.

        Raises:
            Stale: it is of another Machine.
        """
        annotations = {ANNOTATION_FOR_UID: view.machine.metadata.uid}
        body = {"metadata": {"name": action.name, "annotations": annotations}, "spec": action.spec}
        try:
            self._caches.operations.observe(await self._api.create(MACHINE_OPERATIONS, body))
        except AlreadyExists:
            found = await self._api.get(MACHINE_OPERATIONS, action.name)
            self._caches.operations.observe(found)
            if found.spec.machine_ref != action.spec["machineRef"]:
                raise Stale(f"MachineOperation {action.name} is of another Machine") from None
            return
        log.info("operation requested", machine=view.full_name, operation=action.name, kind=action.kind)

    async def _cancel(self, operation: MachineOperation) -> None:
        patch = {"metadata": {"uid": operation.metadata.uid}, "spec": {"cancel": True}}
        try:
            self._caches.operations.observe(await self._api.patch(MACHINE_OPERATIONS, operation.name, patch))
        except NotFound:
            return

    async def _delete(self, kind: Kind[Any], name: str, uid: str, namespace: str = "") -> None:
        try:
            await self._api.delete(kind, name, uid=uid, namespace=namespace)
        except NotFound:
            return


def _rests_on_others(machine: ContainerCloudMachine) -> bool:
    """Return whether the next step of a Machine depends on the last writes of others.

    A manager that is to go counts the other managers, and a Machine without a number gets one that no other one has.
    """
    execution = machine.status.execution
    is_guarded = machine.is_manager and execution is not None and execution.stage == GUARDING
    return is_guarded or upgrade_index(machine) is None
