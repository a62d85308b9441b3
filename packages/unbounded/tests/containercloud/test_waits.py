"""Each wait of a Machine of cluster.k8s.io: its holder and its end, in the status, in a condition and in `why`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final

import msgspec
import pytest

from tests.api.test_container_cloud_rules import SEED
from tests.containercloud.machines import views
from tests.containercloud.refusals import WEBHOOK
from tests.containercloud.site import KINDS, Site, site
from tests.containercloud.test_bad_input import CASES, TEMPLATE, Documents, applied, documents, machine_value
from tests.containercloud.test_site import HOST, LONE, MANAGER, NAME, begun, is_draining
from tests.explain.staging import ALIVE, why
from tests.support.memory_api import MemoryApi
from tests.support.virtual_time import run_virtual, virtual_now
from tests.support.waiting import eventually
from unbounded.api.container_cloud.cluster import CLUSTERS
from unbounded.api.container_cloud.host import BARE_METAL_HOSTS, BareMetalHostProfile
from unbounded.api.container_cloud.machine import CONTAINER_CLOUD_MACHINES, ContainerCloudMachine, MachineWaiting
from unbounded.api.container_cloud.names import LABEL_DEFAULT_PROFILE
from unbounded.api.container_cloud.network import IPAM_HOSTS, SUBNETS
from unbounded.api.core import NODES
from unbounded.api.machine import MACHINES, NODE_RECREATION
from unbounded.api.meta import Kind
from unbounded.api.operation import MACHINE_OPERATIONS
from unbounded.api.profile import MACHINE_PROFILES
from unbounded.cli.explain import links_text
from unbounded.containercloud.claims import LOST_ENDS, ClaimReason
from unbounded.containercloud.machines.life import JOIN_LIMIT_S, plan_life
from unbounded.containercloud.machines.model import MachineReason
from unbounded.containercloud.machines.report import status_change
from unbounded.containercloud.network.rendering import NetworkReason
from unbounded.containercloud.network.waits import NETWORK_ENDS
from unbounded.containercloud.profiles.plan import PROFILE_ENDS, ProfileReason, layout_name
from unbounded.containercloud.settings import ContainerCloudSettings
from unbounded.containercloud.waits import MachineWait
from unbounded.explain.links import Topic
from unbounded.kube.cache import Cache

Drive = Callable[[Site], Awaitable[Any]]

TARGET: Final = "master-0.default"
ITSELF: Final = f"Machine example-ns/{NAME}"
HOST_0: Final = "BareMetalHost default/master-0"
CLUSTER: Final = "Cluster example-ns/example-cluster"
IPAM: Final = f"IpamHost example-ns/{NAME}"
GUARDED: Final = ContainerCloudSettings(site="lab")
LATE: Final = "errorReason is JoinClusterTimeoutError, and the wait goes on"
C, M, P, N = ClaimReason, MachineReason, ProfileReason, NetworkReason


@dataclass(frozen=True)
class WaitRow:
    """A wait, and the way into it.

    Attributes:
        drive: leads a Machine into the wait.
        held_by: begin of the holder.
        until: begin of the event that ends the wait.
        then: what happens at the limit; empty for a wait without one.
        condition: the condition that alone has the wait; empty for a wait of `status.execution`.
    """

    drive: Drive
    held_by: str
    until: str
    then: str = ""
    name: str = NAME
    settings: ContainerCloudSettings = LONE
    condition: str = ""

    def is_of(self, waiting: MachineWaiting, reason: str) -> bool:
        return waiting.reason == reason and (waiting.then or "") == self.then and self._fits(waiting)

    def _fits(self, waiting: MachineWaiting) -> bool:
        holder, until = waiting.held_by or "", waiting.until_event or ""
        return holder.startswith(self.held_by) and until.startswith(self.until)


# ---- the ways into the waits


def spoilt(spoil: Callable[[Documents], Any]) -> Drive:
    async def drive(world: Site) -> None:
        found = documents()
        spoil(found)
        await applied(world, found)

    return drive


def bad(case: str) -> Drive:
    return spoilt(CASES[case].spoil)


def writes(kind: Kind[Any], *path: str) -> Callable[[Kind[Any], Any], bool]:
    """Return whether a write is of a kind, and has a field."""

    def test(of: Kind[Any], body: Any) -> bool:
        for key in path:
            body = body[key] if isinstance(body, dict) and key in body else ...
        return of is kind and body is not ...

    return test


def refused(kind: Kind[Any], *path: str) -> Drive:
    """Return a way in which the server refuses the writes of a kind that have a field."""

    async def drive(world: Site) -> None:
        world.api.refuses = writes(kind, *path)  # type: ignore[attr-defined]
        await begun(world)

    return drive


def until_waits(world: Site, reason: str, name: str = NAME) -> Awaitable[ContainerCloudMachine]:
    def holds(machine: ContainerCloudMachine) -> bool:
        execution = machine.status.execution
        return execution is not None and execution.waiting is not None and execution.waiting.reason == reason

    return world.until_machine(holds, name)


def ready(*, failing: bool = False, **value: Any) -> Drive:
    """Return a way through Ready to a change of the Machine."""

    async def drive(world: Site) -> None:
        await begun(world)
        await world.until_word("Ready")
        if failing:
            world.failing.add(TARGET)
        await world.change(**value)

    return drive


def marked(field: str) -> Drive:
    """Return a way with the host in a set of the world's misbehaviours."""

    async def drive(world: Site) -> None:
        getattr(world, field).add(TARGET)
        await begun(world)

    return drive


async def deleted_without_a_host(world: Site) -> None:
    await bad("missing host")(world)
    await until_waits(world, C.HOST_MISSING)
    await world.change(delete=True)


async def host_deleted(world: Site) -> None:
    await begun(world)
    await world.until_word("Ready")
    without = {"metadata": {"finalizers": None}}
    # at once: no controller adds its finalizer in between
    await MemoryApi.patch(world.api, BARE_METAL_HOSTS, "master-0", without, namespace="default")
    await world.api.delete(BARE_METAL_HOSTS, "master-0", namespace="default")


async def host_made_anew(world: Site) -> None:
    await host_deleted(world)
    await until_waits(world, C.HOST_MISSING)
    await world.api.create(BARE_METAL_HOSTS, documents()["BareMetalHost"], namespace="default")


async def host_taken(world: Site) -> None:
    await begun(world)
    await world.until_word("Ready")
    other = {"apiVersion": "v1", "kind": "Other", "namespace": "n", "name": "x"}
    await world.api.patch(BARE_METAL_HOSTS, "master-0", {"spec": {"consumerRef": other}}, namespace="default")


def example_layout() -> str:
    return layout_name(msgspec.convert(documents()["BareMetalHostProfile"], BareMetalHostProfile))


async def layout_taken(world: Site) -> None:
    body = {"metadata": {"name": example_layout()}, "spec": documents()["BareMetalHostProfile"]["spec"]}
    await world.api.create(MACHINE_PROFILES, body)
    await begun(world)


async def two_default_profiles(world: Site) -> None:
    profile = documents()["BareMetalHostProfile"]
    for name in ("one", "two"):
        metadata = {"name": name, "labels": {LABEL_DEFAULT_PROFILE: "true"}}
        kind = KINDS["BareMetalHostProfile"]
        await world.api.create(kind, profile | {"metadata": metadata}, namespace="example-ns")
    await spoilt(lambda found: machine_value(found).pop("bareMetalHostProfile"))(world)


async def two_templates(world: Site) -> None:
    template = documents()["L2Template"]
    other = template | {"metadata": template["metadata"] | {"name": "other"}}
    await world.api.create(KINDS["L2Template"], other, namespace="example-ns")
    await begun(world)


async def full_subnet(world: Site) -> None:
    await begun(world)
    await world.until_word("Ready")
    await world.api.patch(SUBNETS, "lcm", {"spec": {"includeRanges": ["10.0.0.10"]}}, namespace="example-ns")
    await second_manager(world)


async def second_manager(world: Site, **value: Any) -> None:
    await world.apply(HOST.replace("NUMBER", "1"))
    await world.apply(MANAGER.replace("NAME", "second"))
    await world.change("second", **value)


def without_gateway(found: Documents) -> None:
    found["Subnet"]["spec"].pop("gateway")
    lines = [line for line in TEMPLATE.splitlines() if "gateway_from_subnet" not in line]
    found["L2Template"]["spec"].update(npTemplate="\n".join(lines))


async def machine_with_a_network(world: Site) -> None:
    await world.surroundings()
    await world.state("available", "master-0")
    network = {"ethernets": [{"name": "one", "mac": "02:00:00:00:00:01", "dhcp4": True}]}
    await world.api.patch(MACHINES, TARGET, {"spec": {"network": network}})
    await world.apply(SEED)


async def cluster_deleted(world: Site) -> None:
    await bad("missing profile")(world)
    await until_waits(world, P.MISSING)
    # at once, as for a host
    without = {"metadata": {"finalizers": None}}
    await MemoryApi.patch(world.api, CLUSTERS, "example-cluster", without, namespace="example-ns")
    await world.api.delete(CLUSTERS, "example-cluster", namespace="example-ns")


async def install_cancelled(world: Site) -> None:
    await begun(world)
    await until_waits(world, M.INSTALLING)

    async def running() -> Any:
        found = [one for one in (await world.api.list(MACHINE_OPERATIONS)).items if one.spec.machine_ref == TARGET]
        return next((one for one in found if one.status.phase == "InProgress"), None)

    operation = await eventually(running, lambda: world.words, within_s=600, every_s=1)
    await world._end(operation, "Failed", "Cancelled", "cancelled")


def updated(phase: str) -> Drive:
    async def drive(world: Site) -> None:
        await begun(world)
        await world.until_word("Ready")
        update = {"version": "v2", "uid": "u", "generation": 2, "phase": phase, "since": world._now(), "message": "m"}
        await world._status(await world.machine(TARGET), nodeUpdate=update)

    return drive


async def update_that_drains(world: Site) -> None:
    await begun(world)
    await world.until_word("Ready")
    now = world._now()
    update = {"version": "v2", "uid": "u", "generation": 2, "phase": "Draining", "since": now, "message": "m"}
    holder = {"kind": NODE_RECREATION, "name": "v2", "uid": "u"}
    drain = {"holder": holder, "stage": "Draining", "since": now, "heldBy": "PodDisruptionBudget default/web"}
    await world._status(await world.machine(TARGET), nodeUpdate=update, disruption=drain)


async def maintenance_that_does_not_end(world: Site) -> None:
    await ready(maintenance=True)(world)
    await world.until_word("Maintenance")
    world.stuck_returns.add(TARGET)
    await world.change(maintenance=False)


async def maintenance_of_others(world: Site) -> None:
    await begun(world)
    await world.until_word("Ready")
    maintenance = {"enabled": True, "reason": "new memory"}
    await world.api.patch(MACHINES, TARGET, {"spec": {"maintenance": maintenance}})
    await world.change(maintenance=True)
    await world.until_word("Maintenance")
    await world.change(maintenance=False)


async def two_deletions(world: Site) -> None:
    await begun(world)
    await second_manager(world, deletionPolicy="graceful")
    for name in (NAME, "second"):
        await world.until_word("Ready", name)
    world.stuck_pods.add("host-1.example-ns")
    await world.change("second", delete=True)
    await until_waits(world, M.DRAINING, "second")
    await world.change(delete=True)


async def cluster_maintained(world: Site) -> None:
    await begun(world)
    await world.until_word("Ready")
    value = {"spec": {"providerSpec": {"value": {"maintenance": True}}}}
    await world.api.patch(CLUSTERS, "example-cluster", value, namespace="example-ns")
    await world.settle()
    await world.change(delete=True)


async def deleted_in_its_install(world: Site) -> None:
    await begun(world)
    await until_waits(world, M.INSTALLING)
    await asyncio.sleep(5)
    await world.change(delete=True)


async def deletion_aborted(world: Site) -> None:
    await is_draining(world)
    world.stuck_returns.add(TARGET)
    await world.change(delete=False)


def node_kept(policy: str) -> Drive:
    async def drive(world: Site) -> None:
        await begun(world)
        await world.until_word("Ready")
        await world.api.patch(NODES, TARGET, {"metadata": {"finalizers": ["example.com/volumes"]}})
        await world.change(delete=True, deletionPolicy=policy)

    return drive


async def host_kept(world: Site) -> None:
    await begun(world)
    await world.until_word("Ready")
    world.api.refuses = writes(BARE_METAL_HOSTS, "spec", "consumerRef")  # type: ignore[attr-defined]
    await world.change(delete=True, deletionPolicy="unsafe")


async def object_kept(world: Site) -> None:
    await begun(world)
    machine = await world.until_word("Ready")
    finalizers = [*machine.metadata.finalizers, "example.com/hold"]
    patch = {"metadata": {"finalizers": finalizers}}
    await world.api.patch(CONTAINER_CLOUD_MACHINES, NAME, patch, namespace="example-ns")
    await world.change(deletionPolicy="unsafe")
    await world.api.delete(CONTAINER_CLOUD_MACHINES, NAME, namespace="example-ns")


async def write_refused(world: Site) -> None:
    await ready()(world)
    world.refusals.begin("node", "denied")
    await world.change(delete=True, deletionPolicy="unsafe")


async def claim_refused(world: Site) -> None:
    world.refusals.begin("claim", "denied")
    await begun(world)


NEW_HOST: Final = "that host exists, or the annotation"
NEW_INPUTS: Final = "annotation unbounded-cloud.io/retry, "
ROWS: Final[dict[tuple[str, str], WaitRow]] = {
    # the claim
    (C.CLAIMED, ""): WaitRow(refused(BARE_METAL_HOSTS, "spec", "consumerRef"), "container-cloud", "the claim is"),
    (C.DELETING, ""): WaitRow(
        deleted_without_a_host, ITSELF, "the deletion ends", settings=GUARDED, condition="HostClaimed"
    ),
    (C.CLUSTER_MISSING, ""): WaitRow(bad("missing Cluster"), CLUSTER, "the Cluster exists"),
    (C.RELEASE_MISSING, ""): WaitRow(bad("missing release"), CLUSTER, "the Cluster has a usable ClusterRelease"),
    (C.INVALID_CONFIGURATION, ""): WaitRow(
        bad("label that the release does not allow"), ITSELF, "a person corrects the field"
    ),
    (C.HOST_MISSING, ""): WaitRow(bad("missing host"), HOST_0, NEW_HOST),
    (C.HOST_TAKEN, ""): WaitRow(bad("host that others use"), HOST_0, "the host is free"),
    (C.HOST_NOT_AVAILABLE, ""): WaitRow(bad("missing Secret"), HOST_0, "the host is available"),
    (C.HOST_NOT_SHARED, ""): WaitRow(
        bad("host of a namespace that is not shared"), ITSELF, "a person pins a host of the Machine's namespace"
    ),
    (C.INSUFFICIENT_RESOURCES, ""): WaitRow(
        bad("no host with the labels"), "BareMetalHosts of namespace example-ns", "a host of the namespace"
    ),
    (C.HOST_MISSING, "lost"): WaitRow(host_deleted, HOST_0, LOST_ENDS[C.HOST_MISSING]),
    (C.HOST_CHANGED, "lost"): WaitRow(host_made_anew, HOST_0, LOST_ENDS[C.HOST_CHANGED]),
    (C.HOST_TAKEN, "lost"): WaitRow(host_taken, HOST_0, LOST_ENDS[C.HOST_TAKEN]),
    # the profile
    (P.MISSING, ""): WaitRow(bad("missing profile"), "BareMetalHostProfile default/default", PROFILE_ENDS[P.MISSING]),
    (P.INVALID, ""): WaitRow(
        bad("profile with a file system on nothing"),
        "BareMetalHostProfile default/default",
        PROFILE_ENDS[P.INVALID],
    ),
    (P.NAME_TAKEN, ""): WaitRow(layout_taken, f"MachineProfile {example_layout()}", PROFILE_ENDS[P.NAME_TAKEN]),
    (P.AMBIGUOUS, ""): WaitRow(
        two_default_profiles, "BareMetalHostProfiles of namespace example-ns", PROFILE_ENDS[P.AMBIGUOUS]
    ),
    (P.PENDING, ""): WaitRow(refused(MACHINE_PROFILES), "container-cloud", PROFILE_ENDS[P.PENDING]),
    # the network
    (M.NETWORK_PENDING, ""): WaitRow(refused(IPAM_HOSTS), IPAM, "it has its addresses"),
    (N.NO_TEMPLATE, ""): WaitRow(bad("missing template"), IPAM, NETWORK_ENDS[N.NO_TEMPLATE]),
    (N.TEMPLATE_AMBIGUOUS, ""): WaitRow(two_templates, IPAM, NETWORK_ENDS[N.TEMPLATE_AMBIGUOUS]),
    (N.TEMPLATE_INVALID, ""): WaitRow(bad("template with an unknown macro"), IPAM, NETWORK_ENDS[N.TEMPLATE_INVALID]),
    (N.SUBNET_MISSING, ""): WaitRow(bad("missing Subnet"), IPAM, NETWORK_ENDS[N.SUBNET_MISSING]),
    (N.SUBNET_INVALID, ""): WaitRow(
        bad("Subnet without a gateway for the installer"), IPAM, NETWORK_ENDS[N.SUBNET_INVALID]
    ),
    (N.SUBNET_FULL, ""): WaitRow(full_subnet, "IpamHost example-ns/second", NETWORK_ENDS[N.SUBNET_FULL], name="second"),
    (N.CARD_MISSING, ""): WaitRow(
        spoilt(lambda found: found["L2Template"]["spec"].update(npTemplate=TEMPLATE.replace("{{nic 0}}", "{{nic 5}}"))),
        IPAM,
        NETWORK_ENDS[N.CARD_MISSING],
    ),
    (N.NO_LEASE, ""): WaitRow(spoilt(without_gateway), IPAM, NETWORK_ENDS[N.NO_LEASE]),
    (N.MACHINE_HAS_NETWORK, ""): WaitRow(machine_with_a_network, IPAM, NETWORK_ENDS[N.MACHINE_HAS_NETWORK]),
    (N.NOT_CLAIMED, ""): WaitRow(bad("missing Cluster"), IPAM, NETWORK_ENDS[N.NOT_CLAIMED], condition="Network"),
    # the install
    (M.CLUSTER_MISSING, "claimed"): WaitRow(cluster_deleted, CLUSTER, "the Cluster exists"),
    (M.HOST_NOT_PREPARED, ""): WaitRow(
        refused(MACHINES, "spec", "pxe", "image"), "container-cloud", f"Machine {TARGET} has the image"
    ),
    (M.HOST_NOT_PREPARED, "unclaimed"): WaitRow(
        bad("missing Cluster"), "condition HostClaimed", "a host is claimed", condition="Profile"
    ),
    (M.INSTALLING, ""): WaitRow(begun, "HostReplace cc-", "it has written the image"),
    (M.INSTALL_FAILED, ""): WaitRow(marked("failing"), "container-cloud", "the pause ends", "attempt 2 of 5 begins"),
    (M.ATTEMPTS_EXHAUSTED, ""): WaitRow(marked("failing"), ITSELF, NEW_INPUTS),
    (M.CANCELLED, ""): WaitRow(install_cancelled, ITSELF, NEW_INPUTS),
    (M.AWAITING_REPORT, ""): WaitRow(begun, HOST_0, "the installed system reports", LATE),
    (M.CONFIGURATION_MISSING, ""): WaitRow(marked("unbound"), "Cluster example-cluster", "machina has bound", LATE),
    (M.AWAITING_AGENT, ""): WaitRow(begun, HOST_0, "the agent reports", LATE),
    (M.PREPARING_NODE, ""): WaitRow(begun, f"unbounded-agent/{TARGET}", "the agent starts the node", LATE),
    (M.AWAITING_NODE, ""): WaitRow(
        marked("silent_agents"), f"unbounded-agent/{TARGET}", f"Node {TARGET} is registered", LATE
    ),
    (M.AWAITING_NODE, "late"): WaitRow(
        marked("silent_agents"), f"unbounded-agent/{TARGET}", f"Node {TARGET} is registered"
    ),
    (M.NODE_NOT_READY, ""): WaitRow(begun, f"Node {TARGET}", f"Node {TARGET} is Ready", LATE),
    (M.MARKING_NODE, ""): WaitRow(marked("unmarked"), "machina", f"Node {TARGET} has label "),
    # the Node
    (M.UPDATING, ""): WaitRow(updated("Recreating"), "MachineConfigurationVersion v2", "the Node has that version"),
    (M.UPDATING, "drain"): WaitRow(update_that_drains, "PodDisruptionBudget default/web", "the Node is drained"),
    (M.UPDATE_FAILED, ""): WaitRow(updated("Failed"), "MachineConfigurationVersion v2", "the Cluster has another"),
    (M.ENTERING_MAINTENANCE, ""): WaitRow(
        lambda world: stuck(world, ready(maintenance=True)), "machina", "the Node is drained"
    ),
    (M.RETURNING_NODE, ""): WaitRow(maintenance_that_does_not_end, "machina", "the Node is uncordoned"),
    (M.RETURNING_NODE, "others"): WaitRow(maintenance_of_others, f"Machine {TARGET}", "that maintenance ends"),
    # the deletion
    (M.MANAGERS_MISSING, ""): WaitRow(
        ready(delete=True), "Cluster example-cluster", "2 other managers are ready", settings=GUARDED
    ),
    (M.MANAGER_DELETION, ""): WaitRow(two_deletions, "Machine second", "that Machine is gone"),
    (M.CLUSTER_MAINTENANCE, ""): WaitRow(
        cluster_maintained, "Cluster example-cluster", "the maintenance of the Cluster ends"
    ),
    (M.DRAINING, ""): WaitRow(
        is_draining, "machina", "the Node is drained, or", "the reason is DrainTimedOut, and the wait goes on"
    ),
    (M.DRAIN_TIMED_OUT, ""): WaitRow(is_draining, "machina", "the Node is drained, or"),
    (M.OPERATION_RUNNING, ""): WaitRow(deleted_in_its_install, "MachineOperation cc-", "it has ended"),
    (M.RESET_FAILED, ""): WaitRow(
        ready(failing=True, delete=True), "container-cloud", "the pause ends", "AgentReset is requested again"
    ),
    (M.POWER_OFF_FAILED, ""): WaitRow(
        ready(failing=True, delete=True, deletionPolicy="unsafe"),
        "container-cloud",
        "the pause ends",
        "HostPowerOff is requested again",
    ),
    (M.ABORTING, ""): WaitRow(
        deletion_aborted, "machina", "the Node is uncordoned", "errorReason is DeleteError, and the wait goes on"
    ),
    (M.REMOVING_NODE, ""): WaitRow(node_kept("unsafe"), f"Node {TARGET}", f"Node {TARGET} is gone"),
    (M.REMOVING_NODE, "forced"): WaitRow(
        node_kept("forced"), f"Node {TARGET}", f"Node {TARGET} is gone", "the deletion goes on without it"
    ),
    (M.FINALIZERS_REMAINING, ""): WaitRow(object_kept, "finalizers example.com/hold", "their owners remove them"),
    (M.RELEASING_HOST, ""): WaitRow(host_kept, "container-cloud", "the host names the Machine no more"),
    (M.WRITE_REFUSED, ""): WaitRow(
        write_refused, f"admission webhook {WEBHOOK}", "the write is accepted", "the write is tried again"
    ),
    (M.WRITE_REFUSED, "life"): WaitRow(claim_refused, f"admission webhook {WEBHOOK}", "the write is accepted"),
}
NO_WAITS: Final = {
    ProfileReason.USABLE,  # the profile can be used
    NetworkReason.HOST_DIRTY,  # of an IpamHost that is being deleted; a new Machine waits with NetworkPending for it
}


async def stuck(world: Site, drive: Drive) -> None:
    world.stuck_pods.add(TARGET)
    await drive(world)


# ---- the proof


@asynccontextmanager
async def versions(world: Site) -> AsyncIterator[list[ContainerCloudMachine]]:
    """Record the versions of all Machines as a watch shows them."""
    cache, found = Cache(world.api, CONTAINER_CLOUD_MACHINES), list[ContainerCloudMachine]()
    cache.subscribe(lambda _old, new: None if new is None else found.append(new))
    task = asyncio.create_task(cache.run())
    await cache.synced.wait()
    try:
        yield found
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def test_each_reason_has_a_row() -> None:
    reasons = {*MachineReason, *ClaimReason, *ProfileReason, *NetworkReason}
    assert {reason for reason, _ in ROWS} == set(map(str, reasons)) - set(map(str, NO_WAITS))
    assert {reason for reason, variant in ROWS if variant == "lost"} == set(LOST_ENDS)
    assert set(NETWORK_ENDS) == set(NetworkReason)
    assert set(PROFILE_ENDS) == set(ProfileReason) - NO_WAITS


@pytest.mark.slow
@pytest.mark.parametrize("key", ROWS, ids=lambda key: "-".join(filter(None, key)))
def test_each_wait_names_its_holder_and_its_end(key: tuple[str, str]) -> None:
    row, reason = ROWS[key], str(key[0])

    async def scene() -> None:
        async with site(row.settings) as world, versions(world) as found:
            await row.drive(world)

            async def waits() -> ContainerCloudMachine | None:
                return next((one for one in found if one.name == row.name and is_in(one, row, reason)), None)

            machine = await eventually(waits, lambda: list(shown(found)), within_s=20_000, every_s=1)
            if row.condition:
                return
            waiting = waiting_of(machine)
            assert waiting is not None
            texts = [one.message or "" for one in machine.provider_status.conditions if one.reason == reason]
            assert texts
            assert all(text.endswith(in_words(waiting)) for text in texts), texts
            await check_explanation(machine, waiting)

    run_virtual(scene())


def is_in(machine: ContainerCloudMachine, row: WaitRow, reason: str) -> bool:
    """Return whether a version of the Machine has the wait of a row."""
    waiting = waiting_of(machine)
    if not row.condition:
        return waiting is not None and row.is_of(waiting, reason)
    condition = next((one for one in machine.provider_status.conditions if one.type == row.condition), None)
    words = f" [held by {row.held_by}, until {row.until}"
    return condition is not None and condition.reason == reason and words in (condition.message or "")


def waiting_of(machine: ContainerCloudMachine) -> MachineWaiting | None:
    execution = machine.status.execution
    return None if execution is None else execution.waiting


def in_words(waiting: MachineWaiting) -> str:
    limit = f"; at {waiting.until}: {waiting.then}" if waiting.until else ""
    return f"[held by {waiting.held_by}, until {waiting.until_event}{limit}]"


def shown(found: list[ContainerCloudMachine]) -> Iterator[object]:
    for machine in found:
        yield machine.name, waiting_of(machine), machine.provider_status.conditions


async def check_explanation(machine: ContainerCloudMachine, waiting: MachineWaiting) -> None:
    """Assert that `why` has the wait, from a server with this version of the Machine alone."""
    api = MemoryApi(now=virtual_now, namespaces=("example-ns", "unbounded-kube"))
    raw = msgspec.to_builtins(machine)
    kept = {key: raw["metadata"].get(key) for key in ("name", "labels", "annotations")}
    await api.create(CONTAINER_CLOUD_MACHINES, {"metadata": kept, "spec": raw["spec"]}, namespace="example-ns")
    status = {"status": raw["status"]}
    await api.patch(CONTAINER_CLOUD_MACHINES, machine.name, status, namespace="example-ns", subresource="status")
    alive = (*ALIVE, "unbounded-container-cloud")
    link = (await why(api, machine.name, topic=Topic.CLAIM, namespace="example-ns", alive=alive))[0]
    assert (link.code, link.held_by, link.until_event) == (waiting.reason, waiting.held_by, waiting.until_event)
    assert (link.until, link.then) == (waiting.until or "", waiting.then or "")
    lines = [line.strip() for line in links_text((link,), virtual_now())]
    limit = f"; at {waiting.until}: {waiting.then}" if waiting.until else ""
    assert f"held by {waiting.held_by}" in lines
    assert f"until {waiting.until_event}{limit}" in lines


# ---- the type, and its limit


@pytest.mark.parametrize(
    ("reason", "held_by", "until"), [("", "machina", "it ends"), ("Waiting", "", "it ends"), ("Waiting", "machina", "")]
)
def test_a_wait_without_a_part_cannot_be_made(reason: str, held_by: str, until: str) -> None:
    with pytest.raises(ValueError, match="a reason, a holder and an end"):
        MachineWait(reason, "m", held_by, until)


def test_a_limit_is_written_once() -> None:
    """Each pass computes it from the time that is left, and rounds it otherwise."""
    seen = views.view(views.machine("Booting"), after_s=0.3)
    stored = views.told(seen, plan_life(seen))
    first = waiting_of(stored)
    assert first is not None
    assert first.until == views.at(JOIN_LIMIT_S)
    for after_s in (0.9, 7.4, 600.7, JOIN_LIMIT_S - 0.1):
        later = replace(seen, machine=stored, now=views.START + timedelta(seconds=after_s))
        assert status_change(later, plan_life(later)) == {}
    late = replace(seen, machine=stored, now=views.START + timedelta(seconds=JOIN_LIMIT_S))
    ended = views.told(late, plan_life(late))
    after = waiting_of(ended)
    assert after is not None
    assert (after.until, after.then, after.since) == (None, None, first.since)
    assert (after.held_by, after.until_event) == (first.held_by, first.until_event)
    assert ended.status.error_reason == "JoinClusterTimeoutError"
