"""`why` for Machines, hosts and Clusters of Container Cloud, whose controllers run in virtual time."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import pytest

from tests.api.test_container_cloud_rules import SEED
from tests.cli.running import KUBECTL, up
from tests.containercloud.site import Site, site, site_story
from tests.containercloud.test_site import LONE, NAME, begun
from tests.explain.staging import ALIVE, abouts, can_be_typed, commands, why
from tests.support.memory_api import MemoryApi
from tests.support.paths import ROOT
from tests.support.virtual_time import run_virtual
from unbounded.api.container_cloud.cluster import CLUSTER_RELEASES, CLUSTERS, MACHINE_POOLS
from unbounded.api.container_cloud.host import BARE_METAL_HOSTS
from unbounded.api.core import SECRETS
from unbounded.cli.explain import parsed
from unbounded.containercloud.claims import ClaimReason
from unbounded.containercloud.cluster_plan import ClusterReason
from unbounded.containercloud.hosts.model import HostReason
from unbounded.containercloud.machines.model import MachineReason
from unbounded.containercloud.network.rendering import NetworkReason
from unbounded.containercloud.pools import PoolReason
from unbounded.containercloud.profiles.plan import ProfileReason
from unbounded.explain import container_cloud_fixes as fixes
from unbounded.explain.chain import SubjectNotFound, explain
from unbounded.explain.container_cloud_fixes import ReasonRow
from unbounded.explain.links import ExplainLink, Topic

PROCESSES: Final = (*ALIVE, "unbounded-container-cloud")
MACHINE_LINK: Final = f"machine.cluster.k8s.io/{NAME} -n example-ns"
HOST_LINK: Final = "bmh/master-0 -n default"
CLUSTER_LINK: Final = "cluster.cluster.k8s.io/example-cluster -n example-ns"
FIELDS: Final = (
    "name",
    "namespace",
    "cluster",
    "host_name",
    "host_namespace",
    "target",
    "holder",
    "profile",
    "profile_namespace",
    "machine",
    "secret",
    "credential",
    "consumer_name",
    "consumer_namespace",
    "release",
    "configuration",
    "now",
)
KNOWN: Final = {field: field.replace("_", "-") for field in FIELDS}
TABLES: Final[Mapping[str, Mapping[str, ReasonRow]]] = {
    "machine": fixes.MACHINE,
    "lost host": fixes.LOST_HOST,
    "deletion": fixes.DELETION,
    "host": fixes.HOST,
    "cluster": fixes.CLUSTER,
    "pool": fixes.POOL,
}
ROWS: Final = [
    pytest.param(row, id=f"{table}-{reason}") for table, rows in TABLES.items() for reason, row in rows.items()
]


async def of_machine(world: Site, *, alive: Sequence[str] = PROCESSES) -> tuple[ExplainLink, ...]:
    return await why(world.api, NAME, topic=Topic.CLAIM, namespace="example-ns", alive=alive)


def waits(reason: str) -> object:
    def holds(machine: object) -> bool:
        execution = machine.status.execution  # type: ignore[attr-defined]
        return execution is not None and execution.waiting is not None and execution.waiting.reason == reason

    return holds


# The tables


def test_each_reason_of_a_machine_has_a_row() -> None:
    reasons = {*MachineReason, *ClaimReason, *ProfileReason, *NetworkReason}
    assert {*fixes.MACHINE, *fixes.LOST_HOST} == reasons - {ClaimReason.CLAIMED, ProfileReason.USABLE}
    assert set(fixes.LOST_HOST) - set(fixes.MACHINE) == {ClaimReason.HOST_CHANGED}  # which only a claim finds


def test_each_reason_of_a_host_and_of_a_cluster_has_a_row() -> None:
    assert set(fixes.HOST) == set(HostReason) - {HostReason.AVAILABLE}
    assert set(fixes.CLUSTER) == set(ClusterReason) - {
        ClusterReason.USABLE,
        ClusterReason.NODES_READY,
        ClusterReason.UPDATED,
    }
    assert set(fixes.POOL) == set(PoolReason) - {PoolReason.COMPLETE}


@pytest.mark.parametrize("row", ROWS)
def test_each_row_has_commands_that_can_be_typed(row: ReasonRow) -> None:
    assert row.next_step
    found = row.fixes(KNOWN)
    assert found
    assert len({fix.command for fix in found}) == len(found)
    for fix in found:
        assert fix.does
        assert not _unknown(fix.command), fix.command
        can_be_typed(fix.command)
        words = shlex.split(fix.command)
        if "-p" in words:
            assert json.loads(words[words.index("-p") + 1])


def _unknown(command: str) -> list[str]:
    """Return the fields of a command that no object has, which are shown as capital words by mistake."""
    return [field.upper() for field in FIELDS if "_" in field and field.upper() in command]


def test_fields_that_are_not_known_become_capital_words() -> None:
    (first, *_others) = fixes.HOST[HostReason.CREDENTIALS_REFUSED].fixes({"name": "h", "namespace": "n"})
    assert first.command.startswith("kubectl patch bmhc CREDENTIAL -n n ")


PLACEHOLDER: Final = re.compile(r"(?<![A-Za-z-])[A-Z]{3,}(?![A-Za-z-])")
EXAMPLE: Final = {
    **dict.fromkeys(("name", "holder", "consumer_name"), "example-control-plane"),
    **dict.fromkeys(("namespace", "consumer_namespace"), "example-ns"),
    **dict.fromkeys(("host_name", "secret", "credential"), "master-0"),
    **dict.fromkeys(("host_namespace", "profile", "profile_namespace"), "default"),
    **dict.fromkeys(("target", "machine"), "master-0.default"),
    "cluster": "example-cluster",
    "release": "example-17-3-0",
    "configuration": "example-cluster.example-ns",
    "now": "2030-01-01T00:00:00Z",
}
OF_TABLE: Final[Mapping[str, Mapping[str, str]]] = {
    "host": EXAMPLE | {"name": "master-0", "namespace": "default"},
    "cluster": EXAMPLE | {"name": "example-cluster"},
    "pool": EXAMPLE | {"name": "example-pool"},
}
EXAMPLE_POOL: Final = {
    "apiVersion": "kaas.mirantis.com/v1alpha1",
    "kind": "MachinePool",
    "metadata": {
        "name": "example-pool",
        "namespace": "example-ns",
        "labels": {
            "kaas.mirantis.com/provider": "baremetal",
            "cluster.sigs.k8s.io/cluster-name": "example-cluster",
        },
    },
    "spec": {
        "replicas": 0,
        "machineSpec": {
            "providerSpec": {
                "value": {"apiVersion": "baremetal.k8s.io/v1alpha1", "kind": "BareMetalMachineProviderSpec"}
            }
        },
    },
}


@pytest.mark.slow
@pytest.mark.skipif(KUBECTL is None, reason="kubectl is not installed")
async def test_a_server_accepts_the_commands_that_need_no_more_words(tmp_path: Path) -> None:
    """Writes are tried with --dry-run=server on the example; editors show what they would open."""
    async with up(tmp_path, "--container-cloud", "--port", "0") as plane:
        await plane.says(r"Ctrl-C stops")
        await plane.kubectl("apply", "-f", str(ROOT / "examples" / "container-cloud" / "machine.yaml"))
        await plane.apply(EXAMPLE_POOL)
        await plane.kubectl("wait", "-n", "default", "bmh/master-0", "--for=condition=Available=False")
        await plane.kubectl("wait", "mc/example-cluster.example-ns", "--for=create", "--timeout=60s")
        await plane.kubectl("wait", "-n", "example-ns", "ipamhost/example-control-plane", "--for=create")
        given = {
            fix.command
            for table, rows in TABLES.items()
            for row in rows.values()
            for fix in row.fixes(OF_TABLE.get(table, EXAMPLE))
        }
        tried = [words for command in sorted(given) if (words := _tried(command)) is not None]
        for words in tried:
            await plane.kubectl(*words)
        assert len(tried) > 25
        await plane.stops()


def _tried(command: str) -> list[str] | None:
    """Return the words behind kubectl; None for a command with placeholders, of a Machine or a Node that a host
    without a BMC does not have, or of another program.
    """
    words = shlex.split(command)
    if words[0] != "kubectl" or words[1] == "unbounded" or "|" in words or PLACEHOLDER.search(command):
        return None
    if "master-0.default" in words or words[2] == "node":
        return None
    if words[1] in {"patch", "annotate", "label", "delete"}:
        words.append("--dry-run=server")
    return ["get" if word == "edit" else word for word in words[1:]]


# Stories


@site_story
async def test_a_pinned_host_without_its_secret_is_the_first_cause(world: Site) -> None:
    await begun(world)
    await world.api.delete(SECRETS, "bmc-1", namespace="default")
    await world.until_machine(waits(ClaimReason.HOST_NOT_AVAILABLE))  # type: ignore[arg-type]
    links = await of_machine(world)
    assert abouts(links) == [MACHINE_LINK, HOST_LINK]
    assert links[0].held_by == "BareMetalHost default/master-0"
    assert links[0].since
    assert "Secret" in links[1].what
    assert commands(links)[0].startswith("kubectl create secret generic bmc-1 -n default ")


@site_story
async def test_the_chain_of_an_install_ends_at_its_operation(world: Site) -> None:
    await begun(world)
    await world.until_machine(waits(MachineReason.INSTALLING))  # type: ignore[arg-type]
    operation = await world.until_machine(lambda one: _operation(one) is not None)
    links = await of_machine(world)
    name = operation.status.execution.operation if operation.status.execution is not None else None
    assert abouts(links)[:4] == [MACHINE_LINK, HOST_LINK, "machine/master-0.default", f"operation/{name}"]
    assert links[0].what.startswith("Provision (Provisioning): HostReplace ")
    assert links[1].what == "provisioning: used by Machine example-ns/example-control-plane"
    assert not links[1].held_by


def _operation(machine: object) -> str | None:
    execution = machine.status.execution  # type: ignore[attr-defined]
    return None if execution is None else execution.operation


@site_story
async def test_a_failed_install_leads_to_its_operation(world: Site) -> None:
    await begun(world)
    world.failing.add("master-0.default")
    await world.until_machine(waits(MachineReason.INSTALL_FAILED))  # type: ignore[arg-type]
    links = await of_machine(world)
    assert links[0].until
    assert links[1].about.startswith("operation/cc-")
    assert "no disk of this size" in links[1].what
    retry = next(one for one in commands(links) if one.startswith("kubectl annotate ma "))
    assert retry.startswith(f"kubectl annotate ma {NAME} -n example-ns --overwrite unbounded-cloud.io/retry=20")


@site_story
async def test_nothing_blocks_a_ready_machine_its_host_and_its_cluster(world: Site) -> None:
    await begun(world)
    await world.until_machine(lambda one: one.provider_status.ready)
    links = await of_machine(world)
    assert [link.what for link in links] == ["Ready: nothing blocks it"]
    found = await explain(world.api, Topic.CLAIM, NAME, namespace="example-ns")
    settled, unread = found.settled, found.unread
    assert (settled, unread) == (True, ())
    links = await why(world.api, "master-0", topic=Topic.HOST, namespace="default", alive=PROCESSES)
    assert (links[0].what, links[0].held_by) == (f"provisioned: used by Machine example-ns/{NAME}",) * 1 + (
        f"Machine example-ns/{NAME}",
    )
    assert commands(links) == [f"kubectl unbounded why ma/{NAME} -n example-ns"]


@site_story
async def test_no_host_is_explained_by_each_host_of_the_namespace(world: Site) -> None:
    await begun(world)
    text = SEED.replace("  annotations:\n    metal3.io/BareMetalHost: default/master-0\n", "")
    await world.apply(text.replace("name: example-control-plane", "name: second"))
    await world.until_machine(waits(ClaimReason.INSUFFICIENT_RESOURCES), "second")  # type: ignore[arg-type]
    (link,) = await why(world.api, "second", topic=Topic.CLAIM, namespace="example-ns", alive=PROCESSES)
    assert link.what.endswith("has the labels of hostSelector; there is none")
    host = {"bmc": {"address": "redfish://192.0.2.9/redfish/v1/Systems/1", "credentialsName": "none"}}
    labels = {"kaas.mirantis.com/baremetalhost-id": "hw-master-0"}
    for name, given in (("fits", labels), ("other", {})):
        body = {"metadata": {"name": name, "labels": given}, "spec": {**host, "bootMACAddress": MACS[name]}}
        await world.api.create(BARE_METAL_HOSTS, body, namespace="example-ns")
    await world.settle()
    (link,) = await why(world.api, "second", topic=Topic.CLAIM, namespace="example-ns", alive=PROCESSES)
    assert "fits: " in link.what
    assert "other: " not in link.what
    assert link.fixes[0].command == "kubectl unbounded host list -n example-ns"


MACS: Final = {"fits": "02:00:00:00:00:21", "other": "02:00:00:00:00:22"}


@site_story
async def test_a_lone_manager_can_be_kept_or_forced_by_the_commands(world: Site) -> None:
    await begun(world)
    await world.until_word("Ready")
    await world.change(delete=True)
    await world.until_machine(waits(MachineReason.MANAGERS_MISSING))  # type: ignore[arg-type]
    (link,) = await of_machine(world)
    assert "(--min-other-managers)" in link.what
    given = [json.loads(shlex.split(one)[-1]) for one in commands((link,)) if one.startswith("kubectl patch ma ")]
    assert [one["spec"]["providerSpec"]["value"] for one in given] == [{"delete": False}, {"deletionPolicy": "forced"}]


def test_a_drain_that_does_not_end_leads_to_the_machine_of_the_host() -> None:
    async def scene() -> None:
        async with site(LONE) as world:
            await begun(world)
            await world.until_word("Ready")
            world.stuck_pods.add("master-0.default")
            await world.change(delete=True)
            await world.until_machine(waits(MachineReason.DRAINING))  # type: ignore[arg-type]
            links = await of_machine(world)
            assert abouts(links) == [MACHINE_LINK, "machine/master-0.default"]
            assert "started" not in links[0].held_by
            assert "kubectl unbounded why machine/master-0.default" in commands(links)

    run_virtual(scene())


@site_story
async def test_a_drain_for_maintenance_is_not_ended_by_a_policy_of_deletions(world: Site) -> None:
    await begun(world)
    await world.until_word("Ready")
    world.stuck_pods.add("master-0.default")
    await world.change(maintenance=True)
    await world.until_machine(waits(MachineReason.ENTERING_MAINTENANCE))  # type: ignore[arg-type]
    links = await of_machine(world)
    assert abouts(links) == [MACHINE_LINK, "machine/master-0.default"]
    given = " ".join(commands(links[:1]))
    assert '{"maintenance": false}' in given
    assert "deletionPolicy" not in given


@site_story
async def test_a_cluster_without_its_release_is_the_first_cause(world: Site) -> None:
    await world.surroundings()
    await world.api.delete(CLUSTER_RELEASES, "mke-17-3-0")
    await world.settle()
    await world.api.patch(
        CLUSTERS,
        "example-cluster",
        {"spec": {"providerSpec": {"value": {"release": "gone"}}}},
        namespace="example-ns",
    )
    await world.settle()
    links = await why(world.api, "example-cluster", topic=Topic.CLUSTER, namespace="example-ns", alive=PROCESSES)
    assert abouts(links) == [CLUSTER_LINK]
    assert "ClusterRelease gone does not exist" in links[0].what
    assert commands(links)[0] == "kubectl get clusterreleases"


@site_story
async def test_a_cluster_leads_to_its_first_machine_that_is_not_ready(world: Site) -> None:
    await begun(world)
    await world.until_machine(waits(MachineReason.INSTALLING))  # type: ignore[arg-type]
    links = await why(world.api, "example-cluster", topic=Topic.CLUSTER, namespace="example-ns", alive=PROCESSES)
    assert abouts(links)[:4] == [CLUSTER_LINK, MACHINE_LINK, HOST_LINK, "machine/master-0.default"]
    assert links[0].what == f"Nodes: ready Machines: 0 of 1: {NAME} Provision (Provisioning)"


@site_story
async def test_a_silent_container_cloud_is_the_first_cause(world: Site) -> None:
    await begun(world)
    await world.until_machine(waits(MachineReason.INSTALLING))  # type: ignore[arg-type]
    links = await of_machine(world, alive=ALIVE)
    assert abouts(links) == [MACHINE_LINK, "container-cloud"]
    assert "Lease unbounded-kube/unbounded-container-cloud does not exist" in links[-1].what


@site_story
async def test_a_silent_metalman_is_why_a_host_is_not_registered(world: Site) -> None:
    world.silent.add("master-0.default")
    await world.surroundings()
    await world.state("registering", "master-0")
    await world.settle()
    alive = ("unbounded-operations", "unbounded-container-cloud")
    links = await why(world.api, "master-0", topic=Topic.HOST, namespace="default", alive=alive)
    assert abouts(links) == [HOST_LINK, "metalman/lab"]


@site_story
async def test_a_host_that_is_gone_is_not_replaced(world: Site) -> None:
    await begun(world)
    await world.until_machine(waits(MachineReason.INSTALLING))  # type: ignore[arg-type]
    without = {"metadata": {"finalizers": None}}
    # at once: no controller adds its finalizer in between
    await MemoryApi.patch(world.api, BARE_METAL_HOSTS, "master-0", without, namespace="default")
    await world.api.delete(BARE_METAL_HOSTS, "master-0", namespace="default")
    await world.until_machine(waits(ClaimReason.HOST_MISSING))  # type: ignore[arg-type]
    (link,) = await of_machine(world)
    assert link.next_step == "nothing: the Machine gets no other host"
    assert commands((link,))[0] == f"kubectl delete ma {NAME} -n example-ns --wait=false"


@site_story
async def test_a_pool_leads_to_its_first_machine_that_is_not_ready(world: Site) -> None:
    async def links() -> tuple[ExplainLink, ...]:
        return await why(world.api, "workers", topic=Topic.POOL, namespace="example-ns", alive=PROCESSES)

    value = {"apiVersion": "baremetal.k8s.io/v1alpha1", "kind": "BareMetalMachineProviderSpec"}
    spec = {"replicas": 2, "machineSpec": {"providerSpec": {"value": value}}}
    labels = {"kaas.mirantis.com/provider": "baremetal", "cluster.sigs.k8s.io/cluster-name": "example-cluster"}
    await world.api.create(
        MACHINE_POOLS, {"metadata": {"name": "workers", "labels": labels}, "spec": spec}, namespace="example-ns"
    )
    await world.settle()
    (missing,) = await links()
    assert missing.about == "mp/workers -n example-ns"
    assert missing.what == "label cluster.sigs.k8s.io/cluster-name: Cluster example-cluster does not exist"
    assert missing.fixes[0].command == "kubectl get clusters.cluster.k8s.io -n example-ns"
    await world.surroundings()
    await world.until_machine(waits(ClaimReason.INSUFFICIENT_RESOURCES), "workers-0")  # type: ignore[arg-type]
    await world.settle()
    chained = await links()
    assert abouts(chained) == ["mp/workers -n example-ns", "machine.cluster.k8s.io/workers-0 -n example-ns"]
    assert (
        chained[0].what
        == "2 Machines, 0 ready; not ready: workers-0 Provision (Claiming), workers-1 Provision (Claiming)"
    )
    assert "no host in namespace example-ns is available" in chained[1].what
    await world.api.patch(MACHINE_POOLS, "workers", {"spec": {"replicas": 1}}, namespace="example-ns")
    await world.settle()
    first = (await links())[0]
    assert (first.held_by, first.next_step) == ("condition Complete (MoreThanReplicas)", "a pool deletes no Machine")
    found = await explain(world.api, Topic.POOL, "workers", namespace="example-ns")
    settled = found.settled
    assert not settled


# The subject


@pytest.mark.parametrize(
    ("text", "topic"),
    [
        ("machine.cluster.k8s.io/m", Topic.CLAIM),
        ("ma/m", Topic.CLAIM),
        ("bmh/m", Topic.HOST),
        ("baremetalhost.metal3.io/m", Topic.HOST),
        ("cluster.cluster.k8s.io/m", Topic.CLUSTER),
        ("mp/m", Topic.POOL),
        ("machine/m", Topic.MACHINE),
        ("machine.unbounded-cloud.io/m", Topic.MACHINE),
    ],
)
def test_the_kind_of_the_subject_decides(text: str, topic: Topic) -> None:
    assert parsed(text) == (topic, "m")


@site_story
async def test_an_object_that_does_not_exist_names_its_namespace(world: Site) -> None:
    with pytest.raises(SubjectNotFound, match=r"BareMetalHost h of metal3\.io does not exist in namespace n"):
        await explain(world.api, Topic.HOST, "h", namespace="n")
