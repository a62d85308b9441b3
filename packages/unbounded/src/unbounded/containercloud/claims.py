"""Claims: which BareMetalHost a Machine of cluster.k8s.io gets, and the writes that take and release it.

A claim is one write of `spec.consumerRef` on the version of the host that was read: of two claims of a host, the server
refuses one. The annotation of the Machine follows, and decides where a Machine has claimed two. Nothing is polled.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final

from unbounded.api.container_cloud.cluster import Cluster, ReleaseReference
from unbounded.api.container_cloud.host import BARE_METAL_HOSTS, BareMetalHost, ProvisioningState
from unbounded.api.container_cloud.machine import (
    CONTAINER_CLOUD_MACHINES,
    ContainerCloudMachine,
    ErrorReason,
    HostSelector,
    HostSelectorRequirement,
)
from unbounded.api.container_cloud.names import (
    ANNOTATION_CONSUMER_UID,
    ANNOTATION_HOST,
    BAREMETAL,
    FINALIZER_MACHINE,
    LABEL_CLUSTER,
    LABEL_PROVIDER,
)
from unbounded.api.machine import Machine
from unbounded.containercloud.caches import (
    INDEX_CLUSTER,
    INDEX_CONSUMER,
    INDEX_FREE,
    INDEX_PIN,
    ContainerCloudCaches,
    ControllerContext,
    confirm,
)
from unbounded.containercloud.hosts.machine_fields import claim_fields
from unbounded.containercloud.hosts.model import (
    CONDITION_AVAILABLE,
    consumer_of,
    consumer_uid,
    host_key,
    host_of_machine,
    is_free,
    is_left_behind,
    is_usable,
    machine_of_host,
    release_text,
)
from unbounded.containercloud.refused import WriteAttempt
from unbounded.containercloud.waits import CONTAINER_CLOUD, CORRECTED, MachineWait
from unbounded.kube.api import Api, NotFound, ObjectKey, key_of
from unbounded.kube.cache import Cache
from unbounded.kube.controller import Controller
from unbounded.kube.logs import Log

LabelTest = Callable[[Mapping[str, str]], bool]

DEFAULT_SHARED: Final = frozenset({"default"})

log = Log("claims")


class ClaimStep(StrEnum):
    """The next step of a claim."""

    HELD = "Held"
    TAKE = "Take"  # write consumerRef
    ANNOTATE = "Annotate"  # write the annotation of the Machine
    CLAIMED = "Claimed"


class ClaimReason(StrEnum):
    """The reasons why a Machine has no host yet."""

    CLAIMED = "Claimed"
    DELETING = "Deleting"
    CLUSTER_MISSING = "ClusterMissing"
    RELEASE_MISSING = "ReleaseMissing"
    INVALID_CONFIGURATION = "InvalidConfiguration"
    HOST_MISSING = "HostMissing"
    HOST_CHANGED = "HostChanged"
    HOST_TAKEN = "HostTaken"
    HOST_NOT_AVAILABLE = "HostNotAvailable"
    HOST_NOT_SHARED = "HostNotShared"
    INSUFFICIENT_RESOURCES = "InsufficientResources"


@dataclass(frozen=True, kw_only=True)
class ClaimView:
    """A Machine, and all that decides which host it gets.

    Args:
        own: hosts whose consumerRef is the Machine.
        claimed: the host that its status names.
        pinned: the host that its annotation names.
        free: hosts of its namespace that may be claimed.
        shared: namespaces whose hosts Machines of other namespaces may pin.
        strict_distribution: whether a Machine has to name its distribution.
    """

    machine: ContainerCloudMachine
    cluster: Cluster | None = None
    own: Sequence[BareMetalHost] = ()
    claimed: BareMetalHost | None = None
    pinned: BareMetalHost | None = None
    free: Iterable[BareMetalHost] = ()
    shared: frozenset[str] = DEFAULT_SHARED
    strict_distribution: bool = False


@dataclass(frozen=True)
class Claim:
    """The decision on a Machine's host.

    Args:
        extra: other hosts whose consumerRef names the Machine, to be released.
    """

    step: ClaimStep
    reason: ClaimReason
    message: str
    host: BareMetalHost | None = None
    extra: tuple[BareMetalHost, ...] = ()


# ---- the decision


def plan_claim(view: ClaimView) -> Claim:
    """Return the host of a Machine, and the next step of its claim; or what holds it."""
    machine = view.machine
    execution = machine.status.execution
    if execution is not None and execution.host is not None:
        return _claimed(view, str(execution.host), execution.host.uid)
    if machine.metadata.deletion_timestamp is not None or machine.value.delete or machine.provider_status.delete:
        begun = (one for one in view.own if is_claimed_by(one, machine))
        host = min(begun, key=host_key, default=None)  # to be released
        return _held(ClaimReason.DELETING, "a Machine that is being deleted claims no host", host)
    if view.own:
        return _own(view)
    if (fault := _machine_fault(view)) is not None:
        return fault
    if machine.pinned_host is not None:
        return _pinned(view, *machine.pinned_host)
    accepts = host_test(machine.value.host_selector)
    found = min((one for one in view.free if accepts(one.metadata.labels)), key=lambda one: one.name, default=None)
    if found is None:
        text = f"no host in namespace {machine.metadata.namespace} is available and has the labels of hostSelector"
        return _held(ClaimReason.INSUFFICIENT_RESOURCES, text)
    return _take(found)


def _held(reason: ClaimReason, message: str, host: BareMetalHost | None = None) -> Claim:
    return Claim(ClaimStep.HELD, reason, message, host)


def _take(host: BareMetalHost) -> Claim:
    return Claim(ClaimStep.TAKE, ClaimReason.CLAIMED, f"claims BareMetalHost {host_key(host)}", host)


def _claimed(view: ClaimView, name: str, uid: str) -> Claim:
    """Return the claim that the Machine's status has: no other host takes the place of one that is lost."""
    host = view.claimed
    if host is None:
        return _held(ClaimReason.HOST_MISSING, f"BareMetalHost {name} was deleted")
    if host.metadata.uid != uid:
        return _held(ClaimReason.HOST_CHANGED, f"BareMetalHost {name} was deleted and created again", host)
    if not is_claimed_by(host, view.machine):
        return _held(ClaimReason.HOST_TAKEN, f"BareMetalHost {name} is used by {_user(host)}", host)
    extra = tuple(one for one in view.own if one.metadata.uid != uid)
    return Claim(ClaimStep.CLAIMED, ClaimReason.CLAIMED, f"BareMetalHost {name} is claimed", host, extra)


def _own(view: ClaimView) -> Claim:
    """Return the claim that was begun: the annotation decides, else the names of the hosts.

    The annotation may name a host whose consumerRef is not known here yet, as another process has written both. A claim
    of a further host then gives way.
    """
    machine, pin = view.machine, view.machine.pinned_host
    hosts = sorted(view.own, key=lambda one: (host_key(one) != pin, host_key(one)))
    first = hosts[0]
    if pin is not None and host_key(first) != pin:
        begun = tuple(one for one in hosts if is_claimed_by(one, machine))
        return replace(_machine_fault(view) or _pinned(view, *pin), extra=begun)
    message = f"BareMetalHost {host_key(first)} is claimed"
    if consumer_uid(first) != machine.metadata.uid:  # a Machine of this name that is gone had claimed it
        return Claim(ClaimStep.TAKE, ClaimReason.CLAIMED, message, first)
    if pin is None or FINALIZER_MACHINE not in machine.metadata.finalizers:  # it comes before any status
        return Claim(ClaimStep.ANNOTATE, ClaimReason.CLAIMED, message, first)
    return Claim(ClaimStep.CLAIMED, ClaimReason.CLAIMED, message, first, tuple(hosts[1:]))


def _pinned(view: ClaimView, namespace: str, name: str) -> Claim:
    host, where = view.pinned, f"{namespace}/{name}"
    if not namespace or not name:
        text = f"annotation {ANNOTATION_HOST}: must be NAMESPACE/NAME, not {name or namespace}"
        return _held(ClaimReason.INVALID_CONFIGURATION, text)
    if namespace != view.machine.metadata.namespace and namespace not in view.shared:
        shared = ", ".join(sorted(view.shared)) or "none"
        text = f"annotation {ANNOTATION_HOST}: Machines of other namespaces may use hosts of: {shared}"
        return _held(ClaimReason.HOST_NOT_SHARED, text)
    if host is None:
        return _held(ClaimReason.HOST_MISSING, f"annotation {ANNOTATION_HOST}: no BareMetalHost {where}")
    if host.spec.consumer_ref is not None:
        return _held(ClaimReason.HOST_TAKEN, f"BareMetalHost {where} is used by {_user(host)}", host)
    if is_free(host) or (host.state == ProvisioningState.EXTERNALLY_PROVISIONED and is_usable(host)):
        return _take(host)
    return _held(
        ClaimReason.HOST_NOT_AVAILABLE, f"BareMetalHost {where} is not available: {why_unavailable(host)}", host
    )


def _user(host: BareMetalHost) -> str:
    reference = host.spec.consumer_ref
    return "nothing" if reference is None else f"{reference.kind} {reference.namespace}/{reference.name}"


def why_unavailable(host: BareMetalHost) -> str:
    """Return why a host is not available, from its condition."""
    found = (one.message for one in host.status.conditions if one.type == CONDITION_AVAILABLE)
    return next(found, "") or host.state or "it is not registered"


# ---- the wait for a host

_R = ClaimReason
_ENDS: Final[Mapping[ClaimReason, str]] = {
    _R.CLAIMED: "the claim is written",
    _R.DELETING: "the deletion ends, or delete: false aborts it",
    _R.CLUSTER_MISSING: "the Cluster exists",
    _R.RELEASE_MISSING: "the Cluster has a usable ClusterRelease",
    _R.INVALID_CONFIGURATION: CORRECTED,
    _R.HOST_MISSING: "that host exists, or the annotation names another one",
    _R.HOST_TAKEN: "the host is free, or the annotation names another one",
    _R.HOST_NOT_AVAILABLE: "the host is available, or the annotation names another one",
    _R.HOST_NOT_SHARED: "a person pins a host of the Machine's namespace, or of a shared one",
    _R.INSUFFICIENT_RESOURCES: "a host of the namespace is available and has the labels",
}
LOST_ENDS: Final[Mapping[ClaimReason, str]] = {
    _R.HOST_MISSING: "a person deletes the Machine: it gets no other host",
    _R.HOST_CHANGED: "a person deletes the Machine: it gets no other host",
    _R.HOST_TAKEN: "the host's consumerRef names the Machine again, or a person deletes the Machine",
}
"""Ends of the waits of a Machine whose claimed host is gone."""
_ERRORS: Final[Mapping[ClaimReason, ErrorReason]] = {
    _R.INSUFFICIENT_RESOURCES: ErrorReason.INSUFFICIENT_RESOURCES,
    _R.INVALID_CONFIGURATION: ErrorReason.INVALID_CONFIGURATION,
    _R.HOST_MISSING: ErrorReason.INVALID_CONFIGURATION,
    _R.HOST_NOT_SHARED: ErrorReason.INVALID_CONFIGURATION,
    _R.HOST_CHANGED: ErrorReason.UPDATE_ERROR,
}


def claim_wait(machine: ContainerCloudMachine, claim: Claim) -> MachineWait | None:
    """Return the wait of a Machine for a host, or for the one that it has lost; None once it has claimed one."""
    if claim.step is ClaimStep.CLAIMED:
        return None
    execution = machine.status.execution
    is_lost = execution is not None and execution.host is not None
    until = (LOST_ENDS if is_lost else _ENDS)[claim.reason]
    error = _ERRORS.get(claim.reason, ErrorReason.UPDATE_ERROR if is_lost else None)
    return MachineWait(claim.reason, claim.message, _holder(machine, claim), until, error=error)


def _holder(machine: ContainerCloudMachine, claim: Claim) -> str:
    namespace, execution = machine.metadata.namespace, machine.status.execution
    match claim.reason:
        case _R.CLAIMED:
            return CONTAINER_CLOUD
        case _R.CLUSTER_MISSING | _R.RELEASE_MISSING:
            return f"Cluster {namespace}/{machine.cluster}"
        case _R.INSUFFICIENT_RESOURCES:
            return f"BareMetalHosts of namespace {namespace}"
        case _R.HOST_MISSING | _R.HOST_CHANGED | _R.HOST_TAKEN | _R.HOST_NOT_AVAILABLE:
            lost = None if execution is None or execution.host is None else str(execution.host)
            return f"BareMetalHost {lost or '/'.join(machine.pinned_host or ())}"
        case _:
            return f"Machine {namespace}/{machine.name}"


# ---- checks, also for Machines that were created before their Cluster


def _machine_fault(view: ClaimView) -> Claim | None:
    """Return what the Machine lacks for a claim: its Cluster, a release, or values that the release allows."""
    machine, cluster = view.machine, view.cluster
    provider = machine.metadata.labels.get(LABEL_PROVIDER)
    if provider != BAREMETAL:
        return _invalid(f"label {LABEL_PROVIDER} must be {BAREMETAL}, not {provider or 'absent'}")
    if not machine.cluster:
        return _invalid(f"label {LABEL_CLUSTER} must name the Cluster of the Machine")
    if cluster is None or cluster.metadata.deletion_timestamp is not None:
        state = "does not exist" if cluster is None else "is being deleted"
        text = f"Cluster {machine.metadata.namespace}/{machine.cluster} {state}"
        return _held(ClaimReason.CLUSTER_MISSING, text)
    if cluster.metadata.labels.get(LABEL_PROVIDER, BAREMETAL) != provider:
        return _invalid(f"label {LABEL_PROVIDER} of Cluster {machine.cluster} is not {provider}")
    release = cluster.provider_status.releases.current
    if release is None:
        text = f"Cluster {machine.cluster} has no ClusterRelease yet: {cluster.value.release} is not usable"
        return _held(ClaimReason.RELEASE_MISSING, text)
    fault = disallowed(machine, release, strict=view.strict_distribution)
    return None if fault is None else _invalid(fault)


def _invalid(message: str) -> Claim:
    return _held(ClaimReason.INVALID_CONFIGURATION, message)


def disallowed(machine: ContainerCloudMachine, release: ReleaseReference, *, strict: bool = False) -> str | None:
    """Return the first value of a Machine that its release does not allow; None for no such value.

    Policies reject such a Machine, unless it is older than its Cluster.

    Args:
        strict: whether the Machine has to name its distribution.
    """
    of, allowed = f"of ClusterRelease {release.name}", release.allowed_node_labels
    for label in machine.value.node_labels:
        values = [one.value or "" for one in allowed if one.key == label.key]
        if "" not in values and label.value not in values:
            named = f"{label.key}={label.value}" if values else label.key
            listed = ", ".join(f"{one.key}={one.value}" if one.value else one.key for one in allowed) or "none"
            return f"nodeLabels: {named} is not among allowedNodeLabels {of}: {listed}"
    distribution = machine.value.distribution or ""
    ids = [one.id for one in release.allowed_distributions]
    if strict and not distribution:
        return f"distribution must be one of {', '.join(ids)}: container-cloud has the setting strict-distribution"
    if distribution and distribution.lower() not in map(str.lower, ids):
        return f"distribution: {distribution} is not among allowedDistributions {of}: {', '.join(ids) or 'none'}"
    return None


# ---- hosts


def is_claimed_by(host: BareMetalHost, machine: ContainerCloudMachine) -> bool:
    """Return whether the host's consumer is this Machine, and not one of its name that is gone."""
    return consumer_of(host) == key_of(machine) and consumer_uid(host) in ("", machine.metadata.uid)


def host_test(selector: HostSelector | None) -> LabelTest:
    """Return the predicate of a hostSelector; one that is absent accepts every host."""
    if selector is None:
        return lambda _labels: True
    wanted = [_requirement(one) for one in selector.match_expressions]
    exact = selector.match_labels.items()
    return lambda labels: all(labels.get(key) == value for key, value in exact) and all(one(labels) for one in wanted)


def _requirement(requirement: HostSelectorRequirement) -> LabelTest:
    key, values = requirement.key, requirement.values
    match requirement.operator.lower():
        case "in" | "=" | "==":
            return lambda labels: labels.get(key) in values
        case "notin" | "!=":
            return lambda labels: labels.get(key) not in values
        case "exists":
            return lambda labels: key in labels
        case "doesnotexist" | "!":
            return lambda labels: key not in labels
        case "gt":
            return lambda labels: _compares(labels.get(key), values, 1)
        case "lt":
            return lambda labels: _compares(labels.get(key), values, -1)
        case _:
            return lambda _labels: False


def _compares(label: str | None, values: tuple[str, ...], sign: int) -> bool:
    try:
        return label is not None and len(values) == 1 and sign * (int(label) - int(values[0])) > 0
    except ValueError:
        return False


# ---- the writes


def claim_view(
    caches: ContainerCloudCaches,
    machine: ContainerCloudMachine,
    shared: frozenset[str],
    *,
    strict_distribution: bool,
    taking: frozenset[ObjectKey] = frozenset(),
) -> ClaimView:
    """Return what decides on a Machine's host.

    Args:
        taking: hosts that other Machines are claiming at this moment.
    """
    hosts, key, pin = caches.hosts, key_of(machine), machine.pinned_host
    execution = machine.status.execution
    claimed = execution.host if execution is not None else None
    return ClaimView(
        machine=machine,
        cluster=caches.clusters.get(machine.cluster, key.namespace),
        own=[one for one in hosts.by(INDEX_CONSUMER, str(key)) if not is_left_behind(one, machine.metadata.uid)],
        claimed=None if claimed is None else hosts.get(claimed.name, claimed.namespace),
        pinned=None if pin is None else hosts.get(pin[1], pin[0]),
        free=(one for one in hosts.by(INDEX_FREE, key.namespace) if host_key(one) not in taking),
        shared=shared,
        strict_distribution=strict_distribution,
    )


async def release_host(api: Api, hosts: Cache[BareMetalHost], host: BareMetalHost, machine: ObjectKey) -> None:
    """Remove a Machine's claim from a host, which then returns to stock. Another's claim is left alone.

    Raises:
        Conflict: the host has changed since it was read.
    """
    if consumer_of(host) != machine:
        return
    key = host_key(host)
    patch: dict[str, Any] = {
        "metadata": {
            "resourceVersion": host.metadata.resource_version,
            "annotations": {ANNOTATION_CONSUMER_UID: None},
            "labels": {LABEL_CLUSTER: None},
        },
        "spec": {"consumerRef": None},
    }
    try:
        hosts.observe(await api.patch(BARE_METAL_HOSTS, key.name, patch, namespace=key.namespace))
    except NotFound:
        return
    log.info("host released", host=str(key), machine=str(machine))


class ClaimController:
    """Controller of claims: it gives each Machine its host, and writes consumerRef and the annotation, no status."""

    def __init__(
        self,
        context: ControllerContext,
        *,
        shared: frozenset[str] = DEFAULT_SHARED,
        strict_distribution: bool = False,
    ) -> None:
        self._api, self._epoch = context.api, context.epoch
        self._caches = caches = context.caches
        self._shared, self._strict_distribution = shared, strict_distribution
        self._refused = context.refused
        self._taking: set[ObjectKey] = set()
        self._waiting: defaultdict[str, set[ObjectKey]] = defaultdict(set)  # for a host, by namespace
        self._controller: Controller[ObjectKey] = Controller("claims", self._reconcile, metrics=context.metrics)
        self._controller.follow(caches.machines, lambda machine: (key_of(machine),))
        self._controller.follow(caches.clusters, self._machines_of_cluster)
        self._controller.follow(caches.host_machines, self._orphan_of)

    async def run(self) -> None:
        """Run until cancelled."""
        with self._caches.hosts.subscribed(self._host_changed):
            await self._controller.run()

    def _machines_of_cluster(self, cluster: Cluster) -> Iterable[ObjectKey]:
        return map(key_of, self._caches.machines.by(INDEX_CLUSTER, str(key_of(cluster))))

    def _orphan_of(self, target: Machine) -> Iterator[ObjectKey]:
        """Yield the consumer of a Machine's host, if it is gone."""
        key = host_of_machine(target)
        host = None if key is None else self._caches.hosts.get(key.name, key.namespace)
        consumer = None if host is None else consumer_of(host)
        if consumer is not None and self._caches.machines.get(consumer.name, consumer.namespace) is None:
            yield consumer

    def _host_changed(self, old: BareMetalHost | None, new: BareMetalHost | None) -> None:
        """Wake the consumers of a host, the Machines that pin it, and those that wait for any host where it is free."""
        for host in (old, new):
            if host is None:
                continue
            if (consumer := consumer_of(host)) is not None:
                self._controller.enqueue(consumer)
            for machine in self._caches.machines.by(INDEX_PIN, str(host_key(host))):
                self._controller.enqueue(key_of(machine))
        if new is None or not is_free(new):
            return
        if old is None or not is_free(old) or old.metadata.labels != new.metadata.labels:
            for key in sorted(self._waiting.pop(new.metadata.namespace or "", ())):
                self._controller.enqueue(key)

    async def _reconcile(self, key: ObjectKey) -> float | None:
        machine = self._caches.machines.get(key.name, key.namespace)
        self._waiting[key.namespace].discard(key)
        if machine is None:
            await self._release_orphans(key)
            return None
        with self._refused.recorded(key, "claims") as attempt:
            await self._claim(machine, attempt)
            await self._release_left(machine, attempt)
        return None

    async def _release_left(self, machine: ContainerCloudMachine, attempt: WriteAttempt) -> None:
        """Release the hosts that an earlier Machine of this name has left behind."""
        key = key_of(machine)
        for host in self._caches.hosts.by(INDEX_CONSUMER, str(key)):
            if is_left_behind(host, machine.metadata.uid):
                self._epoch.check_leads()
                attempt.what = release_text(host_key(host))
                await release_host(self._api, self._caches.hosts, host, key)

    async def _claim(self, machine: ContainerCloudMachine, attempt: WriteAttempt) -> None:
        key = key_of(machine)
        taking, strict = frozenset(self._taking), self._strict_distribution
        claim = plan_claim(claim_view(self._caches, machine, self._shared, strict_distribution=strict, taking=taking))
        if claim.reason is ClaimReason.INSUFFICIENT_RESOURCES:
            self._waiting[key.namespace].add(key)
        if claim.extra:
            await confirm(self._api, CONTAINER_CLOUD_MACHINES, machine, self._caches.machines)
        for host in claim.extra:
            self._epoch.check_leads()
            attempt.what = release_text(host_key(host))
            await release_host(self._api, self._caches.hosts, host, key)
        if claim.host is None:
            return
        if claim.step is ClaimStep.TAKE:
            taken = host_key(claim.host)
            attempt.what = f"claim BareMetalHost {taken}"
            self._taking.add(taken)  # other Machines choose other hosts meanwhile
            try:
                await self._take(claim.host, machine)
            finally:
                self._taking.discard(taken)
        if claim.step in (ClaimStep.TAKE, ClaimStep.ANNOTATE):
            attempt.what = f"write annotation {ANNOTATION_HOST} and the finalizer of this Machine"
            await self._record(machine, claim.host)

    async def _release_orphans(self, key: ObjectKey) -> None:
        """Release the hosts whose Machine was deleted before it had recorded the claim, or by force.

        Another host that has an image or a network is left to a user, as one has removed the finalizer of its
        Machine, and so is a host with a consumerRef that a person has written.
        """
        for host in self._caches.hosts.by(INDEX_CONSUMER, str(key)):
            target = self._caches.host_machines.get(machine_of_host(host))
            if not consumer_uid(host) or (claim_fields(target, host) and not is_left_behind(host, "")):
                continue
            try:
                await self._api.get(CONTAINER_CLOUD_MACHINES, key.name, namespace=key.namespace)
            except NotFound:
                self._epoch.check_leads()
                await release_host(self._api, self._caches.hosts, host, key)

    async def _take(self, host: BareMetalHost, machine: ContainerCloudMachine) -> None:
        """Write consumerRef on the version of the host that the decision rests on."""
        self._epoch.check_leads()
        key, of = host_key(host), key_of(machine)
        reference = {
            "apiVersion": CONTAINER_CLOUD_MACHINES.api_version,
            "kind": CONTAINER_CLOUD_MACHINES.kind,
            "namespace": of.namespace,
            "name": of.name,
        }
        patch: dict[str, Any] = {
            "metadata": {
                "resourceVersion": host.metadata.resource_version,
                "annotations": {ANNOTATION_CONSUMER_UID: machine.metadata.uid},
                "labels": {LABEL_CLUSTER: machine.cluster},
            },
            "spec": {"consumerRef": reference, **({} if host.spec.externally_provisioned else {"online": True})},
        }
        self._caches.hosts.observe(await self._api.patch(BARE_METAL_HOSTS, key.name, patch, namespace=key.namespace))
        log.info("host claimed", host=str(key), machine=str(of))

    async def _record(self, machine: ContainerCloudMachine, host: BareMetalHost) -> None:
        """Write annotation and finalizer on the version of the Machine that was read: of two hosts, one gets it."""
        self._epoch.check_leads()
        key, meta, name = key_of(machine), machine.metadata, str(host_key(host))
        change: dict[str, Any] = {}
        if meta.annotations.get(ANNOTATION_HOST) != name:
            change["annotations"] = {ANNOTATION_HOST: name}
        if FINALIZER_MACHINE not in meta.finalizers and meta.deletion_timestamp is None:
            change["finalizers"] = [*meta.finalizers, FINALIZER_MACHINE]
        if not change:
            return
        patch = {"metadata": {"resourceVersion": meta.resource_version, **change}}
        written = await self._api.patch(CONTAINER_CLOUD_MACHINES, key.name, patch, namespace=key.namespace)
        self._caches.machines.observe(written)
