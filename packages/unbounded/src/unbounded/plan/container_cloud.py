"""Plans of a file with objects of Container Cloud: claims, installs, drains, deletions and updates, in their order.

The decisions are those of the controllers' own plans, made on the objects as the file would leave them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import msgspec
from msgspec.structs import replace

from unbounded.api.configuration import MACHINE_CONFIGURATIONS, MachineConfiguration
from unbounded.api.container_cloud.cluster import (
    CLUSTER_RELEASES,
    CLUSTERS,
    MACHINE_POOLS,
    Cluster,
    ClusterRelease,
    MachinePool,
)
from unbounded.api.container_cloud.host import (
    BARE_METAL_HOST_CREDENTIALS,
    BARE_METAL_HOST_PROFILES,
    BARE_METAL_HOSTS,
    BareMetalHost,
    BareMetalHostCredential,
    BareMetalHostProfile,
)
from unbounded.api.container_cloud.machine import CONTAINER_CLOUD_MACHINES, ContainerCloudMachine, DeletionPolicy
from unbounded.api.container_cloud.names import LABEL_CLUSTER, scoped_name
from unbounded.api.container_cloud.network import IPAM_HOSTS, L2_TEMPLATES, SUBNETS, IpamHost, L2Template, Subnet
from unbounded.api.core import NODES
from unbounded.api.machine import MACHINES, Machine
from unbounded.api.meta import Kind
from unbounded.containercloud.claims import DEFAULT_SHARED, Claim, ClaimStep, ClaimView, plan_claim
from unbounded.containercloud.cluster_plan import (
    ClusterView,
    DeleteMachine,
    as_json,
    configuration_spec,
    merge_patch,
    plan_cluster,
    without_none,
)
from unbounded.containercloud.hosts.model import consumer_of, is_free, machine_of_host
from unbounded.containercloud.machines.deletion import guard_of, policy_of
from unbounded.containercloud.machines.model import DELETION_STAGES, MachineView
from unbounded.containercloud.network.rendering import TemplateNetworkFault
from unbounded.containercloud.network.selection import choose_template, layout_subnets
from unbounded.containercloud.pools import CreateMember, PoolView, plan_pool
from unbounded.containercloud.profiles.plan import choose_profile, full_name
from unbounded.containercloud.releases import image_reference, release_fault
from unbounded.explain.links import UnreadFact
from unbounded.kube.api import Api, Forbidden, KindNotServed, NotFound, ObjectKey, is_kind_missing, key_of
from unbounded.kube.clock import rfc3339, utc_now
from unbounded.plan.container_cloud_hosts import credential_lines, forecast_host, read_host
from unbounded.plan.container_cloud_objects import (
    ipam_host_lines,
    profile_lines,
    release_lines,
    subnet_lines,
    template_lines,
)
from unbounded.plan.effects import merged
from unbounded.plan.intent import Intent, IntentPatch, Raw
from unbounded.plan.model import PlannedChange, UpdateForecast

PLANNED: Final[Mapping[tuple[str, str], Kind[Any]]] = {
    (kind.api_version, kind.kind): kind
    for kind in (
        *(CONTAINER_CLOUD_MACHINES, CLUSTERS, MACHINE_POOLS, CLUSTER_RELEASES),
        *(BARE_METAL_HOSTS, BARE_METAL_HOST_CREDENTIALS, BARE_METAL_HOST_PROFILES),
        *(L2_TEMPLATES, SUBNETS, IPAM_HOSTS),
    )
}
DELETABLE: Final = frozenset({CONTAINER_CLOUD_MACHINES, CLUSTERS, MACHINE_POOLS, BARE_METAL_HOSTS})
"""Kinds whose deletion is planned: a controller carries it out."""
NO_UID: Final = "planned"
STEPS: Final[Mapping[DeletionPolicy, tuple[str, ...]]] = {
    DeletionPolicy.GRACEFUL: (
        "drains Node {node}",
        "resets the host by AgentReset, from where on the deletion cannot be aborted",
        "switches the host off",
        "deletes Node {node}",
        "gives BareMetalHost {host} back to stock",
    ),
    DeletionPolicy.UNSAFE: (
        "switches the host off, without a drain, and waits for no disruption budget",
        "deletes Node {node}",
        "gives BareMetalHost {host} back to stock",
    ),
    DeletionPolicy.FORCED: (
        "tries once to switch the host off, without a drain, and waits for no disruption budget",
        "deletes Node {node}",
        "gives BareMetalHost {host} back, as Dirty until it was seen Off",
    ),
}

STEPS_AS_IS: Final[Mapping[DeletionPolicy, tuple[str, ...]]] = {
    policy: (
        *(("drains Node {node}",) if policy is DeletionPolicy.GRACEFUL else ()),
        "gives BareMetalHost {host} back as it was before its claim: the host and its Node stay in service",
    )
    for policy in DeletionPolicy
}
"""The steps for a host that others have installed."""

T = TypeVar("T")
EffectsOf = Callable[[IntentPatch], Awaitable[tuple[str, ...]]]
OperationOf = Callable[[PlannedChange, Raw], Awaitable[PlannedChange]]
UpdateOf = Callable[[MachineConfiguration, Mapping[str, str]], Awaitable[UpdateForecast]]


# The file


async def intend_file(api: Api, manifests: list[Raw]) -> Intent:
    """Return the writes that make objects as a file has them: merge patches of those that exist."""
    creates, patches = [], []
    for manifest in manifests:
        kind, meta = kind_of(manifest), manifest["metadata"]
        body = {key: value for key, value in manifest.items() if key != "status"}
        namespace = namespace_of(manifest)
        if await stored(api, kind, meta["name"], namespace) is None:
            creates.append(body)
        else:
            change = {key: value for key, value in body.items() if key not in ("apiVersion", "kind")}
            patches.append(IntentPatch(kind, meta["name"], change, namespace=namespace, verb="applied"))
    return Intent(creates=tuple(creates), patches=tuple(patches))


async def stored(api: Api, kind: Kind[Any], name: str, namespace: str) -> Raw | None:
    """Return an object as JSON; None if it does not exist.

    Raises:
        KindNotServed: nor does its kind.
    """
    try:
        found: Raw = await api.get(kind.raw(), name, namespace=namespace)
    except NotFound as error:
        if is_kind_missing(error):
            raise KindNotServed(kind) from error
        return None
    return found


def kind_of(manifest: Mapping[str, Any]) -> Kind[Any]:
    return PLANNED[manifest["apiVersion"], manifest["kind"]]


def namespace_of(manifest: Mapping[str, Any]) -> str:
    """Return the namespace of an object; empty for one of a kind without namespaces."""
    return manifest["metadata"].get("namespace", "") if kind_of(manifest).namespaced else ""


# The plans


@dataclass
class ContainerCloudPlanner:
    """Plans of several objects, in their order: a host that one of them claims is not free for the next.

    Args:
        effects_of: effects of a patch of a Machine of unbounded-cloud.io, such as its maintenance.
        operation_of: the change with the forecast of an operation that it leads to.
        reads_secrets: read the logins of BMCs.
        update_of: forecast of the rolling update of a configuration, with the new images of hosts by their Machine.
    """

    api: Api
    effects_of: EffectsOf
    update_of: UpdateOf
    operation_of: OperationOf
    reads_secrets: bool = True
    taken: set[ObjectKey] = field(default_factory=set)

    async def plan(self, change: PlannedChange, kind: Kind[Any], before: Raw | None, after: Raw) -> PlannedChange:
        """Return a change of an object with its effects.

        Args:
            before: None for a new object.
        """
        meta = {"uid": NO_UID, **after["metadata"]}
        item = msgspec.convert({**after, "metadata": meta}, kind.type)
        match item:
            case ContainerCloudMachine():
                was = None if before is None else msgspec.convert(before, ContainerCloudMachine)
                return replace(change, effects=tuple(await self._machine(was, item)))
            case MachinePool():
                return replace(change, effects=tuple(await self._pool(item)))
            case Cluster():
                return await self._cluster(change, item)
            case BareMetalHost():
                was_host = None if before is None else msgspec.convert(before, BareMetalHost)
                return await self._bare_metal_host(change, was_host, item)
            case BareMetalHostCredential():
                lines = await credential_lines(self.api, item, reads_secrets=self.reads_secrets)
                return replace(change, effects=lines)
            case ClusterRelease():
                return replace(change, effects=await release_lines(self.api, item))
            case BareMetalHostProfile():
                return replace(change, effects=await profile_lines(self.api, item))
            case L2Template():
                return replace(change, effects=await template_lines(self.api, item))
            case Subnet():
                return replace(change, effects=await subnet_lines(self.api, item))
            case IpamHost():
                return replace(change, effects=await ipam_host_lines(self.api, item))
        raise TypeError(kind.kind)

    async def plan_deletion(self, change: PlannedChange, kind: Kind[Any], before: Raw) -> PlannedChange:
        """Return the deletion of an object with its effects."""
        meta = {**before["metadata"], "deletionTimestamp": rfc3339(utc_now())}
        item = msgspec.convert({**before, "metadata": meta}, kind.type)
        match item:
            case ContainerCloudMachine():
                return replace(change, effects=tuple(await self._machine_deletion(item)))
            case MachinePool():
                return replace(change, effects=(plan_pool(PoolView(pool=item)).status.message,))
            case Cluster():
                return replace(change, effects=tuple(await self._cluster_deletion(item)))
            case BareMetalHost():
                return await self._bare_metal_host(change, item, item)
        raise TypeError(kind.kind)

    async def _machine_deletion(self, machine: ContainerCloudMachine) -> list[str]:
        execution = machine.status.execution
        if execution is None or execution.host is None:
            return ["it is deleted at once, as it has no host"]
        if execution.stage in DELETION_STAGES:
            return [f"its deletion, in stage {execution.stage}, goes on, and cannot be aborted any more"]
        cluster = await self._got(CLUSTERS, machine.cluster, machine.metadata.namespace or "")
        return await self._deletion(machine, await self._claim(machine, cluster), cluster)

    async def _cluster_deletion(self, cluster: Cluster) -> list[str]:
        view = ClusterView(cluster=cluster, machines=await self._machines_of(cluster))
        deleted = [one.machine.name for one in plan_cluster(view) if isinstance(one, DeleteMachine)]
        name = scoped_name(cluster.metadata.namespace or "", cluster.name)
        lines = [f"deletes Machine {one}, which gives its host back" for one in sorted(deleted)]
        return [*lines, f"deletes MachineConfiguration {name} and its budgets, once no Machine is left"]

    # ---- hosts

    async def _bare_metal_host(
        self, change: PlannedChange, before: BareMetalHost | None, host: BareMetalHost
    ) -> PlannedChange:
        try:
            facts = await read_host(self.api, host, before, reads_secrets=self.reads_secrets)
        except Forbidden as error:  # a user of one project
            unread = UnreadFact("machines.unbounded-cloud.io", "the Machine of the host", "Forbidden", str(error))
            return replace(change, effects=(f"not checked: {error}",), unread=(unread,))
        found = forecast_host(facts)
        change = replace(change, effects=found.lines, unread=facts.unread)
        return change if found.operation is None else await self.operation_of(change, found.operation)

    # ---- Machines

    async def _machine(self, before: ContainerCloudMachine | None, machine: ContainerCloudMachine) -> list[str]:
        cluster = await self._got(CLUSTERS, machine.cluster, machine.metadata.namespace or "")
        release = await self._release(cluster)
        claim = await self._claim(machine, cluster)
        execution = machine.status.execution
        if execution is None or execution.host is None:
            if machine.value.delete:
                return ["it is deleted at once, as it has no host"]
            return [*_claim_lines(claim), *await self._install(machine, claim, release)]
        if machine.value.delete and execution.stage not in DELETION_STAGES:
            return await self._deletion(machine, claim, cluster)
        target = execution.machine or ""
        lines: list[str] = []
        if before is not None and before.value.maintenance != machine.value.maintenance:
            maintenance = {"spec": {"maintenance": {"enabled": machine.value.maintenance, "reason": "planned"}}}
            lines += await self.effects_of(IntentPatch(MACHINES, target, maintenance))
        if not (claim.host is not None and claim.host.spec.externally_provisioned):
            lines += await self._image(target, machine, release)
        return lines or ["no host changes"]

    async def _claim(self, machine: ContainerCloudMachine, cluster: Cluster | None) -> Claim:
        namespace, pin = machine.metadata.namespace or "", machine.pinned_host
        hosts = (await self.api.list(BARE_METAL_HOSTS, namespace=namespace)).items
        execution = machine.status.execution
        claimed = None if execution is None else execution.host
        return plan_claim(
            ClaimView(
                machine=machine,
                cluster=cluster,
                own=[one for one in hosts if consumer_of(one) == key_of(machine)],
                claimed=None if claimed is None else await self._host(claimed.namespace, claimed.name),
                pinned=None if pin is None else await self._host(*pin),
                free=[one for one in hosts if is_free(one) and key_of(one) not in self.taken],
                shared=DEFAULT_SHARED | ({pin[0]} if pin is not None else set()),
            )
        )

    async def _host(self, namespace: str, name: str) -> BareMetalHost | None:
        return await self._got(BARE_METAL_HOSTS, name, namespace)

    async def _install(self, machine: ContainerCloudMachine, claim: Claim, release: ClusterRelease | None) -> list[str]:
        """Return the lines of the install of a host that is claimed now."""
        host = claim.host
        if host is None or claim.step is ClaimStep.HELD:
            return []
        self.taken.add(key_of(host))
        lines = []
        if (pin := machine.pinned_host) is not None and pin[0] not in {machine.metadata.namespace, *DEFAULT_SHARED}:
            lines.append(f"it needs container-cloud with --shared-host-namespaces that has {pin[0]}")
        role = "manager" if machine.is_manager else "worker"
        lines.append(f"it becomes a {role} of Cluster {machine.cluster}, as Node {machine_of_host(host)}")
        if host.spec.externally_provisioned:
            return [*lines, "its disks are not written, and its Node is not updated: the host is externallyProvisioned"]
        system = None if release is None else release.distribution(machine.value.distribution or "")
        profile = choose_profile(machine, (await self.api.list(BARE_METAL_HOST_PROFILES)).items)
        if profile.fault is not None:
            lines.append(f"the install would wait ({profile.fault.reason}): {profile.fault.message}")
        layout = "as one whole disk" if profile.profile is None else f"with the layout {full_name(profile.profile)}"
        if system is not None:
            image = image_reference(system)
            lines.append(f"HostReplace writes {image} ({system.id}) to its disks, {layout}")
        return [*lines, *await self._network(machine)]

    async def _network(self, machine: ContainerCloudMachine) -> list[str]:
        """Return the template of the network, or what an install would wait for."""
        namespace, value = machine.metadata.namespace or "", machine.value
        selector = value.l2_template_selector
        spec = {} if selector is None else {"l2TemplateSelector": msgspec.to_builtins(selector)}
        body = {"metadata": {"name": machine.name, "namespace": namespace}, "spec": spec}
        try:
            template = choose_template(
                msgspec.convert(body, IpamHost), machine, (await self.api.list(L2_TEMPLATES, namespace=namespace)).items
            )
            subnets = layout_subnets(template, machine.cluster, (await self.api.list(SUBNETS)).items)
        except TemplateNetworkFault as fault:
            return [f"the install would wait ({fault.reason}): {fault}"]
        full = sorted(one.name for one in subnets.values() if one.status.capacity and not one.status.allocatable)
        if full:
            return [f"the install would wait (SubnetFull): Subnet {namespace}/{full[0]} has no free address"]
        return [f"its network follows L2Template {template.name}, with addresses of {', '.join(sorted(subnets))}"]

    async def _deletion(self, machine: ContainerCloudMachine, claim: Claim, cluster: Cluster | None) -> list[str]:
        execution = machine.status.execution
        target = await self._got(MACHINES, (execution.machine if execution is not None else None) or "")
        node = await self._got(NODES, "" if target is None else target.name)
        managers = [one for one in await self._members(machine) if one.is_manager and one.name != machine.name]
        view = MachineView(machine=machine, now=utc_now(), claim=claim, cluster=cluster, managers=tuple(managers))
        policy = policy_of(view)
        guard = None if policy is DeletionPolicy.FORCED else guard_of(view)
        lines = [] if guard is None else [f"the deletion would wait ({guard.reason}): {guard.message}"]
        if claim.host is None:
            return [*lines, f"it is released: {claim.message}"]
        names = {"node": "" if node is None else node.name, "host": str(key_of(claim.host))}
        table = STEPS_AS_IS if claim.host.spec.externally_provisioned else STEPS
        steps = [step for step in table[policy] if node is not None or "{node}" not in step]
        lines += [f"{number}. {step.format(**names)}" for number, step in enumerate(steps, 1)]
        if policy is DeletionPolicy.GRACEFUL and target is not None:
            body = {"spec": {"maintenance": {"enabled": True, "reason": "planned"}}}
            found = await self.effects_of(IntentPatch(MACHINES, target.name, body))
            lines += [line.replace("the maintenance", "the drain") for line in found if "would wait" in line]
        return lines

    async def _members(self, machine: ContainerCloudMachine) -> tuple[ContainerCloudMachine, ...]:
        labels = f"{LABEL_CLUSTER}={machine.cluster}"
        listed = await self.api.list(
            CONTAINER_CLOUD_MACHINES, namespace=machine.metadata.namespace or "", labels=labels
        )
        return tuple(listed.items)

    async def _image(self, target: str, machine: ContainerCloudMachine, release: ClusterRelease | None) -> list[str]:
        """Return the line of another image: that of another distribution."""
        system = None if release is None else release.distribution(machine.value.distribution or "")
        found: Machine | None = await self._got(MACHINES, target)
        written = None if found is None else found.status.image
        if system is None or written is None or written.is_of(image_reference(system)):
            return []
        image = image_reference(system)
        return [f"in the turn of its Cluster's update, HostReplace drains its Node and writes {image} ({system.id})"]

    # ---- pools

    async def _pool(self, pool: MachinePool) -> list[str]:
        namespace = pool.metadata.namespace or ""
        cluster = await self._got(CLUSTERS, pool.cluster, namespace)
        release = await self._release(cluster)
        machines = (await self.api.list(CONTAINER_CLOUD_MACHINES, namespace=namespace)).items
        members = sorted((one for one in machines if one.pool == pool.name), key=lambda one: one.name)
        taken = frozenset(one.name for one in machines if one.name.startswith(f"{pool.name}-"))
        planned = plan_pool(PoolView(pool=pool, cluster=cluster, members=members, taken=taken))
        lines = []
        for action in planned.members:
            if isinstance(action, CreateMember):
                body = action.body
                made = msgspec.convert({**body, "metadata": body["metadata"] | {"uid": NO_UID}}, ContainerCloudMachine)
                claim = await self._claim(made, cluster)
                found = [*_claim_lines(claim), *await self._install(made, claim, release)]
                lines += [f"creates Machine {made.name}", *(f"  {line}" for line in found)]
            else:
                fields = ", ".join(sorted(action.spec.get("providerSpec", {}).get("value", action.spec)))
                lines.append(f"changes Machine {action.member.name}: {fields}")
        if not planned.members:
            lines.append(planned.status.message)
        return lines

    # ---- Clusters

    async def _cluster(self, change: PlannedChange, cluster: Cluster) -> PlannedChange:
        release: ClusterRelease | None = await self._got(CLUSTER_RELEASES, cluster.value.release)
        namespace = cluster.metadata.namespace or ""
        if release is None or (fault := release_fault(release)) is not None:
            why = "does not exist" if release is None else f"cannot be used: {fault}"
            text = f"its Machines would wait: ClusterRelease {cluster.value.release} {why}"
            return replace(change, effects=(text,))
        name = scoped_name(namespace, cluster.name)
        machines = await self._machines_of(cluster)
        configuration: MachineConfiguration | None = await self._got(MACHINE_CONFIGURATIONS, name)
        view = ClusterView(cluster=cluster, release=release, machines=machines, configuration=configuration)
        spec = configuration_spec(view, release)
        if configuration is None:
            version = release.spec.kubernetes.version
            text = f"creates MachineConfiguration {name} with Kubernetes {version}, and two budgets"
            return replace(change, effects=(text,))
        patch = merge_patch(as_json(configuration.spec), spec)
        images = dict(_images(machines, release))
        lines = [f"changes MachineConfiguration {name}"] if patch else []
        body = as_json(configuration.spec)
        after = msgspec.structs.replace(
            configuration, spec=msgspec.convert(without_none(merged(body, patch)), type(configuration.spec))
        )
        return replace(change, effects=tuple(lines), update=await self.update_of(after, images))

    async def _machines_of(self, cluster: Cluster) -> tuple[ContainerCloudMachine, ...]:
        labels, namespace = f"{LABEL_CLUSTER}={cluster.name}", cluster.metadata.namespace or ""
        return tuple((await self.api.list(CONTAINER_CLOUD_MACHINES, namespace=namespace, labels=labels)).items)

    # ---- the API

    async def _release(self, cluster: Cluster | None) -> ClusterRelease | None:
        name = "" if cluster is None else cluster.value.release
        return await self._got(CLUSTER_RELEASES, name)

    async def _got(self, kind: Kind[T], name: str, namespace: str = "") -> T | None:
        if not name:
            return None
        try:
            return await self.api.get(kind, name, namespace=namespace)
        except NotFound:
            return None


def _claim_lines(claim: Claim) -> Iterator[str]:
    if claim.step is ClaimStep.HELD:
        yield f"it would wait ({claim.reason}): {claim.message}"
    elif claim.host is not None:
        yield f"claims BareMetalHost {key_of(claim.host)}"


def _images(machines: tuple[ContainerCloudMachine, ...], release: ClusterRelease) -> Iterator[tuple[str, str]]:
    """Yield the image of each claimed host by a release, with the name of the host's Machine."""
    for machine in machines:
        execution = machine.status.execution
        system = release.distribution(machine.value.distribution or "")
        if execution is not None and execution.machine is not None and system is not None:
            yield execution.machine, image_reference(system)
