"""Claims of hosts: each check of the decision, and many Machines that race for the same hosts."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from tests.containercloud.stock import Stock, story
from tests.support.waiting import eventually
from unbounded.api.container_cloud.cluster import CLUSTERS, Cluster
from unbounded.api.container_cloud.host import BARE_METAL_HOSTS, BareMetalHost
from unbounded.api.container_cloud.machine import CONTAINER_CLOUD_MACHINES, ContainerCloudMachine, HostSelector
from unbounded.api.container_cloud.names import FINALIZER_MACHINE
from unbounded.containercloud.claims import (
    Claim,
    ClaimReason,
    ClaimStep,
    ClaimView,
    host_test,
    plan_claim,
    release_host,
)
from unbounded.kube.api import ObjectKey

OTHER = {"apiVersion": "cluster.k8s.io/v1alpha1", "kind": "Machine", "namespace": "example-ns", "name": "other"}
OURS = OTHER | {"name": "m1"}


def host(name: str = "a", namespace: str = "example-ns", **changed: Any) -> BareMetalHost:
    """Return a host that is available."""
    body: dict[str, Any] = {
        "metadata": {"name": name, "namespace": namespace, "uid": f"uid-{name}"} | changed.pop("metadata", {}),
        "spec": changed.pop("spec", {}),
        "status": {"provisioning": {"state": "available"}, "operationalStatus": "OK"} | changed.pop("status", {}),
    }
    return msgspec.convert(body, BareMetalHost)


def machine(*, pin: str = "", claimed: str = "", finalizer: bool = True, **value: Any) -> ContainerCloudMachine:
    kind = {"apiVersion": "baremetal.k8s.io/v1alpha1", "kind": "BareMetalMachineProviderSpec"}
    labels = {"kaas.mirantis.com/provider": "baremetal", "cluster.sigs.k8s.io/cluster-name": "c1"}
    body: dict[str, Any] = {
        "metadata": {
            "name": "m1",
            "namespace": "example-ns",
            "uid": "uid-m1",
            "labels": labels | value.pop("labels", {}),
            "annotations": {"metal3.io/BareMetalHost": pin} if pin else {},
            "finalizers": [FINALIZER_MACHINE] if finalizer else [],
        },
        "spec": {"providerSpec": {"value": kind | value}},
    }
    if claimed:
        named = {"namespace": "example-ns", "name": "a", "uid": claimed}
        body["status"] = {"execution": {"stage": "Planning", "host": named}}
    return msgspec.convert(body, ContainerCloudMachine)


ANY = ({"key": "any"}, {"key": "empty", "value": ""})


def cluster(*, release: bool = True, **metadata: Any) -> Cluster:
    value = {"apiVersion": "baremetal.k8s.io/v1alpha1", "kind": "BaremetalClusterProviderSpec", "release": "r1"}
    allowed = {
        "name": "r1",
        "allowedNodeLabels": [{"key": "stacklight", "value": "enabled"}, {"key": "stacklight", "value": "beta"}, *ANY],
        "allowedDistributions": [{"id": "ubuntu/jammy", "default": True}],
    }
    status = {"providerStatus": {"releaseRefs": {"current": allowed}}} if release else {}
    body = {"metadata": {"name": "c1", "namespace": "example-ns"} | metadata, "status": status}
    return msgspec.convert(body | {"spec": {"providerSpec": {"value": value}}}, Cluster)


def plan(of: ContainerCloudMachine | None = None, **view: Any) -> Claim:
    return plan_claim(ClaimView(machine=of or machine(), cluster=view.pop("cluster", cluster()), **view))


def test_the_first_free_host_by_name_is_taken() -> None:
    claim = plan(free=(host("b"), host("a"), host("c")))
    assert (claim.step, claim.host and claim.host.name) == (ClaimStep.TAKE, "a")


def test_no_free_host_is_a_lack_of_resources() -> None:
    claim = plan(machine(hostSelector={"matchLabels": {"size": "big"}}), free=(host("a"),))
    assert (claim.step, claim.reason) == (ClaimStep.HELD, ClaimReason.INSUFFICIENT_RESOURCES)
    assert "example-ns" in claim.message


@pytest.mark.parametrize(
    ("held", "view", "reason", "text"),
    [
        ({}, {"cluster": None}, "ClusterMissing", "Cluster example-ns/c1 does not exist"),
        ({}, {"cluster": cluster(deletionTimestamp="2026-01-01T00:00:00Z")}, "ClusterMissing", "is being deleted"),
        ({}, {"cluster": cluster(release=False)}, "ReleaseMissing", "r1 is not usable"),
        (
            {},
            {"cluster": cluster(labels={"kaas.mirantis.com/provider": "aws"})},
            "InvalidConfiguration",
            "of Cluster c1 is not baremetal",
        ),
        ({"labels": {"kaas.mirantis.com/provider": "aws"}}, {}, "InvalidConfiguration", "must be baremetal, not aws"),
        ({"labels": {"cluster.sigs.k8s.io/cluster-name": ""}}, {}, "InvalidConfiguration", "must name the Cluster"),
        ({"nodeLabels": [{"key": "ceph"}]}, {}, "InvalidConfiguration", "ceph is not among allowedNodeLabels"),
        (
            {"nodeLabels": [{"key": "stacklight", "value": "off"}]},
            {},
            "InvalidConfiguration",
            "stacklight=off is not among allowedNodeLabels of ClusterRelease r1: stacklight=enabled",
        ),
        ({"distribution": "ubuntu/xenial"}, {}, "InvalidConfiguration", "xenial is not among allowedDistributions"),
        ({"delete": True}, {}, "Deleting", "claims no host"),
    ],
)
def test_a_machine_is_checked_before_it_gets_a_host(
    held: dict[str, Any], view: dict[str, Any], reason: str, text: str
) -> None:
    claim = plan(machine(**held), free=(host("a"),), **view)
    assert (claim.step, claim.reason) == (ClaimStep.HELD, reason)
    assert text in claim.message


@pytest.mark.parametrize("value", ["enabled", "beta"])
def test_allowed_labels_and_distributions_pass_in_any_case(value: str) -> None:
    labels = [{"key": "stacklight", "value": value}, *({"key": key, "value": "thing"} for key in ("any", "empty"))]
    claim = plan(machine(nodeLabels=labels, distribution="Ubuntu/JAMMY"), free=(host("a"),))
    assert claim.step is ClaimStep.TAKE


def test_a_machine_without_a_distribution_gets_no_host_where_it_has_to_name_one() -> None:
    claim = plan(free=(host("a"),), strict_distribution=True)
    assert (claim.step, claim.reason) == (ClaimStep.HELD, ClaimReason.INVALID_CONFIGURATION)
    assert claim.message.startswith("distribution must be one of ubuntu/jammy")


@pytest.mark.parametrize(
    ("pin", "pinned", "step", "reason"),
    [
        ("default/a", host("a", "default"), "Take", "Claimed"),
        ("default/a", host("a", "default", metadata={"labels": {"no": "match"}}), "Take", "Claimed"),
        ("default/a", None, "Held", "HostMissing"),
        ("other-ns/a", host("a", "other-ns"), "Held", "HostNotShared"),
        ("a", None, "Held", "InvalidConfiguration"),
        ("default/a", host("a", "default", spec={"consumerRef": OTHER}), "Held", "HostTaken"),
        (
            "default/a",
            host("a", "default", status={"provisioning": {"state": "inspecting"}}),
            "Held",
            "HostNotAvailable",
        ),
        ("default/a", host("a", "default", status={"operationalStatus": "error"}), "Held", "HostNotAvailable"),
        (
            "default/a",
            host("a", "default", metadata={"annotations": {"baremetalhost.metal3.io/paused": ""}}),
            "Held",
            "HostNotAvailable",
        ),
        (
            "default/a",
            host("a", "default", metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"}),
            "Held",
            "HostNotAvailable",
        ),
        (
            "default/a",
            host(
                "a",
                "default",
                spec={"externallyProvisioned": True},
                status={"provisioning": {"state": "externally provisioned"}},
            ),
            "Take",
            "Claimed",
        ),
    ],
)
def test_a_pinned_machine_gets_that_host_or_none(
    pin: str, pinned: BareMetalHost | None, step: str, reason: str
) -> None:
    of = machine(pin=pin, hostSelector={"matchLabels": {"size": "big"}})
    claim = plan(of, pinned=pinned, free=(host("z", metadata={"labels": {"size": "big"}}),))
    assert (claim.step, claim.reason) == (step, reason)
    assert claim.host is None or claim.host.name == "a"


def claimed(name: str = "a", uid: str = "uid-m1") -> BareMetalHost:
    metadata = {"annotations": {"unbounded-cloud.io/consumer-uid": uid} if uid else {}}
    return host(name, metadata=metadata, spec={"consumerRef": OURS}, status={"provisioning": {"state": "provisioning"}})


@pytest.mark.parametrize(
    ("pin", "own", "step", "chosen", "extra"),
    [
        ("", [claimed("a")], "Annotate", "a", []),
        ("example-ns/a", [claimed("a")], "Claimed", "a", []),
        ("", [claimed("a", "uid-of-a-former-one")], "Take", "a", []),
        ("", [claimed("b"), claimed("a")], "Annotate", "a", []),  # another process may have chosen b
        ("example-ns/b", [claimed("a"), claimed("b")], "Claimed", "b", ["a"]),
    ],
)
def test_a_claim_that_was_cut_off_is_resumed(
    pin: str, own: list[BareMetalHost], step: str, chosen: str, extra: list[str]
) -> None:
    claim = plan(machine(pin=pin), own=own, free=(host("0"),), cluster=None)
    assert (claim.step, claim.host and claim.host.name) == (step, chosen)
    assert [one.name for one in claim.extra] == extra


def test_a_claim_of_a_pinned_host_is_recorded_by_the_finalizer() -> None:
    """A status without it would be lost with a Machine that is deleted, together with its operations."""
    begun = machine(pin="example-ns/a", finalizer=False)
    assert plan(begun, own=[claimed("a")]).step == "Annotate"


def test_a_claim_gives_way_to_the_one_that_another_process_has_recorded() -> None:
    recorded = machine(pin="example-ns/b")
    claim = plan(recorded, own=[claimed("a")], pinned=host("b"))  # the consumerRef of b is not known here yet
    assert (claim.step, claim.host and claim.host.name) == ("Take", "b")
    assert [one.name for one in claim.extra] == ["a"]
    former = plan(recorded, own=[claimed("a", "uid-of-a-former-one")], pinned=host("b"))
    assert former.extra == ()


def test_a_second_claim_of_a_machine_is_released() -> None:
    claim = plan(machine(claimed="uid-a"), own=[claimed("a"), claimed("b")], claimed=claimed("a"))
    assert (claim.step, [one.name for one in claim.extra]) == ("Claimed", ["b"])


def test_a_deletion_releases_a_claim_that_was_not_recorded() -> None:
    claim = plan(machine(delete=True), own=[claimed("a")])
    assert (claim.step, claim.reason, claim.host and claim.host.name) == ("Held", "Deleting", "a")


@pytest.mark.parametrize(
    ("uid", "now", "step", "reason"),
    [
        ("uid-a", claimed("a"), "Claimed", "Claimed"),
        ("uid-a", None, "Held", "HostMissing"),
        ("uid-before", claimed("a"), "Held", "HostChanged"),
        ("uid-a", host("a", spec={"consumerRef": OTHER}), "Held", "HostTaken"),
        ("uid-a", host("a"), "Held", "HostTaken"),
    ],
)
def test_no_other_host_replaces_one_that_was_lost(uid: str, now: BareMetalHost | None, step: str, reason: str) -> None:
    claim = plan(machine(claimed=uid), claimed=now, free=(host("z"),))
    assert (claim.step, claim.reason) == (step, reason)


@pytest.mark.parametrize(
    ("operator", "values", "accepts"),
    [
        ("In", ["big", "huge"], ["big"]),
        ("in", ["big"], ["big"]),
        ("NotIn", ["big"], ["small", "", "7"]),
        ("notin", ["big"], ["small", "", "7"]),
        ("Exists", [], ["big", "small", "7"]),
        ("EXISTS", [], ["big", "small", "7"]),
        ("DoesNotExist", [], [""]),
        ("!", [], [""]),
        ("=", ["big"], ["big"]),
        ("==", ["big"], ["big"]),
        ("!=", ["big"], ["small", "", "7"]),
        ("Gt", ["6"], ["7"]),
        ("gt", ["7"], []),
        ("Lt", ["8"], ["7"]),
    ],
)
def test_operators_of_the_selector(operator: str, values: list[str], accepts: list[str]) -> None:
    requirement = {"key": "size", "operator": operator, "values": values}
    test = host_test(msgspec.convert({"matchExpressions": [requirement]}, HostSelector))
    assert [one for one in ("big", "small", "", "7") if test({"size": one} if one else {})] == accepts


# ---- stories


async def hosts_of(stock: Stock, count: int, namespace: str = "example-ns") -> None:
    await stock.secret(namespace=namespace)
    for number in range(count):
        await stock.host(f"h{number:02}", namespace)
    for number in range(count):
        await stock.state("available", f"h{number:02}", namespace)


@story
async def test_a_claim_writes_host_then_machine(stock: Stock) -> None:
    await hosts_of(stock, 1)
    await stock.cluster()
    of = await stock.claimant("m1")
    host = await stock.state("provisioning", "h00", "example-ns")
    reference = host.spec.consumer_ref
    assert reference is not None
    assert (reference.api_version, reference.kind, reference.namespace, reference.name) == (
        "cluster.k8s.io/v1alpha1",
        "Machine",
        "example-ns",
        "m1",
    )
    assert host.metadata.annotations["unbounded-cloud.io/consumer-uid"] == of.metadata.uid
    assert host.metadata.labels["cluster.sigs.k8s.io/cluster-name"] == "c1"
    annotation = (await stock.claimed_by("m1")).metadata.annotations["metal3.io/BareMetalHost"]
    assert annotation == "example-ns/h00"


@story
async def test_a_waiting_machine_is_woken_by_a_label(stock: Stock) -> None:
    await hosts_of(stock, 1)
    await stock.cluster()
    await stock.claimant("m1", hostSelector={"matchLabels": {"size": "big"}})
    await stock.settle()
    assert (await stock.read("h00", "example-ns")).spec.consumer_ref is None
    patch = {"metadata": {"labels": {"size": "big"}}}
    await stock.api.patch(BARE_METAL_HOSTS, "h00", patch, namespace="example-ns")
    await stock.state("provisioning", "h00", "example-ns")


@story
async def test_a_waiting_machine_is_woken_by_a_release(stock: Stock) -> None:
    await hosts_of(stock, 1)
    await stock.cluster()
    await stock.claimant("m1")
    await stock.state("provisioning", "h00", "example-ns")
    await stock.claimant("m2")
    await stock.settle()
    host = await stock.read("h00", "example-ns")
    await stock.api.delete(CONTAINER_CLOUD_MACHINES, "m1", namespace="example-ns")
    await release_host(stock.api, stock.caches.hosts, host, ObjectKey("example-ns", "m1"))

    async def check() -> bool:
        reference = (await stock.read("h00", "example-ns")).spec.consumer_ref
        return reference is not None and reference.name == "m2"

    await eventually(check, within_s=600, every_s=1)


@story
async def test_a_waiting_machine_is_woken_by_its_cluster(stock: Stock) -> None:
    await hosts_of(stock, 1)
    await stock.claimant("m1")
    await stock.settle()
    await stock.cluster(release=False)
    await stock.settle()
    assert (await stock.read("h00", "example-ns")).spec.consumer_ref is None
    await stock.release()
    await stock.state("provisioning", "h00", "example-ns")


@story
async def test_waiting_machines_write_nothing(stock: Stock) -> None:
    await stock.cluster()
    for number in range(10):
        await stock.claimant(f"m{number}")
    await stock.settle()
    before = stock.api.writes
    await asyncio.sleep(3600)
    assert stock.api.writes == before


@story
async def test_a_foreign_claim_is_not_released(stock: Stock) -> None:
    await hosts_of(stock, 1)
    await stock.cluster()
    await stock.claimant("m1")
    host = await stock.state("provisioning", "h00", "example-ns")
    await release_host(stock.api, stock.caches.hosts, host, ObjectKey("example-ns", "another"))
    assert (await stock.read("h00", "example-ns")).spec.consumer_ref is not None


@story
async def test_two_processes_never_give_one_host_to_two_machines(stock: Stock) -> None:
    """Two leaders race over 20 hosts for 25 Machines: each host has one consumer, which has it alone."""
    rival = stock.controllers()
    try:
        await hosts_of(stock, 20)
        for number in range(25):
            await stock.claimant(f"m{number:02}")
        await stock.settle()
        await stock.cluster()
        await stock.settle()
    finally:
        for task in rival:
            task.cancel()
        await asyncio.gather(*rival, return_exceptions=True)
    hosts = (await stock.api.list(BARE_METAL_HOSTS)).items
    users = {one.name: one.spec.consumer_ref.name for one in hosts if one.spec.consumer_ref is not None}
    assert len(users) == len(set(users.values())) == 20
    for name, user in users.items():
        annotation = (await stock.claimed_by(user or "")).metadata.annotations["metal3.io/BareMetalHost"]
        assert annotation == f"example-ns/{name}"


@story
async def test_a_deleted_cluster_claims_nothing(stock: Stock) -> None:
    await hosts_of(stock, 1)
    await stock.cluster()
    await stock.api.delete(CLUSTERS, "c1", namespace="example-ns")
    await stock.claimant("m1")
    await stock.settle()
    assert (await stock.read("h00", "example-ns")).spec.consumer_ref is None


@story
async def test_a_claim_for_a_machine_that_is_gone_is_released(stock: Stock) -> None:
    await stock.secret()
    await stock.host("a")
    await stock.state("available")
    late = {"metadata": {"annotations": {"unbounded-cloud.io/consumer-uid": "gone"}}, "spec": {"consumerRef": OURS}}
    await stock.api.patch(BARE_METAL_HOSTS, "a", late, namespace="default")
    await stock.until(lambda host: host.spec.consumer_ref is None and host.state == "available")
    await stock.edit(consumerRef=OURS)  # by a person
    await stock.state("provisioning")
    await stock.settle()
    assert (await stock.read("a")).spec.consumer_ref is not None
