"""Plans of files with objects of Container Cloud, whose controllers run in virtual time."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, cast

import pytest
import yaml

from tests.api.test_container_cloud_rules import SEED
from tests.containercloud.site import SURROUNDINGS, Site, site_story
from tests.containercloud.test_site import begun
from tests.plan.staging import plan_data
from unbounded.api.container_cloud.cluster import CLUSTER_RELEASES, CLUSTERS, MACHINE_POOLS
from unbounded.api.container_cloud.network import IPAM_HOSTS
from unbounded.api.meta import Kind
from unbounded.cli.plan import plan_lines, read_manifests
from unbounded.cli.plugin.command import CliError
from unbounded.plan.changes import changes_of_file, plan_deletions
from unbounded.plan.model import PlannedChange

MACHINE: Final[dict[str, Any]] = next(one for one in yaml.safe_load_all(SEED) if one["kind"] == "Machine")
PROVIDER: Final = {"kaas.mirantis.com/provider": "baremetal"}
CLUSTER: Final = {"cluster.sigs.k8s.io/cluster-name": "example-cluster"}


class DryRuns:
    """An API that takes writes in dry runs only."""

    def __init__(self, api: Any) -> None:
        self._api = api

    async def get(self, *given: Any, **more: Any) -> Any:
        return await self._api.get(*given, **more)

    async def list(self, *given: Any, **more: Any) -> Any:
        return await self._api.list(*given, **more)

    async def create(self, _kind: Kind[Any], body: Mapping[str, Any], *, dry_run: bool, **_more: Any) -> Any:
        assert dry_run
        return body

    async def patch(self, _kind: Kind[Any], _name: str, body: Mapping[str, Any], *, dry_run: bool, **_more: Any) -> Any:
        assert dry_run
        return body


async def planned(world: Site, *bodies: dict[str, Any]) -> list[PlannedChange]:
    changes = await changes_of_file(cast("Any", DryRuns(world.api)), list(bodies))
    assert plan_data(changes)["changes"]
    return changes


def machine(name: str = "example-control-plane", *, pin: bool = True, **value: Any) -> dict[str, Any]:
    """The Machine of the API reference, with other fields."""
    meta = {**MACHINE["metadata"], "name": name}
    if not pin:
        meta.pop("annotations")
    spec = {**MACHINE["spec"]["providerSpec"]["value"], **value}
    return {**MACHINE, "metadata": meta, "spec": {"providerSpec": {"value": spec}}}


async def spare_host(world: Site) -> None:
    await world.secret("bmc", "example-ns")
    await world.host("h1", "example-ns", bootMACAddress="02:00:00:00:00:21")
    await world.state("available", "h1", "example-ns")


def cluster(**value: Any) -> dict[str, Any]:
    full = {"apiVersion": "baremetal.k8s.io/v1alpha1", "kind": "BaremetalClusterProviderSpec"}
    meta = {"name": "example-cluster", "namespace": "example-ns", "labels": PROVIDER}
    head = {"apiVersion": CLUSTERS.api_version, "kind": "Cluster"}
    return {**head, "metadata": meta, "spec": {"providerSpec": {"value": full | value}}}


@site_story
async def test_a_new_machine_names_its_host_its_image_and_its_network(world: Site) -> None:
    await world.surroundings()
    await world.state("available", "master-0")
    (change,) = await planned(world, machine())
    assert change.what == "create machine.cluster.k8s.io/example-control-plane"
    assert change.effects == (
        "claims BareMetalHost default/master-0",
        "it becomes a manager of Cluster example-cluster, as Node master-0.default",
        "HostReplace writes registry.example.com/jammy:1 (ubuntu/jammy) to its disks, with the layout default/default",
        "its network follows L2Template one-nic, with addresses of lcm",
    )


@site_story
async def test_what_a_new_machine_would_wait_for_is_named(world: Site) -> None:
    (missing,) = await planned(world, machine())
    assert missing.effects == ("it would wait (ClusterMissing): Cluster example-ns/example-cluster does not exist",)
    await world.surroundings()
    await world.state("available", "master-0")
    (label,) = await planned(world, machine(nodeLabels=[{"key": "ceph", "value": "yes"}]))
    assert "it would wait (InvalidConfiguration): nodeLabels: ceph is not among" in label.effects[0]
    (other,) = await planned(world, machine(l2TemplateSelector={"name": "none"}, bareMetalHostProfile={"name": "p"}))
    assert "the install would wait (ProfileMissing):" in other.effects[2]
    assert "the install would wait (NoTemplate):" in other.effects[-1]


@site_story
async def test_machines_of_one_file_claim_different_hosts_in_their_order(world: Site) -> None:
    await world.surroundings()
    await spare_host(world)
    changes = await planned(world, *(machine(name, pin=False, hostSelector=None) for name in ("a", "b")))
    assert [change.effects[0] for change in changes] == [
        "claims BareMetalHost example-ns/h1",
        "it would wait (InsufficientResources): no host in namespace example-ns is available and has the labels of "
        "hostSelector",
    ]


@site_story
async def test_an_adopted_host_is_neither_installed_nor_switched_off(world: Site) -> None:
    await world.surroundings()
    await world.joined("rack1-02")
    await world.adopted("master-1", "rack1-02", "default")
    await world.state("externally provisioned", "master-1")
    body = machine("m1", hostSelector=None)
    body["metadata"] = {**body["metadata"], "annotations": {"metal3.io/BareMetalHost": "default/master-1"}}
    (change,) = await planned(world, body)
    assert change.effects == (
        "claims BareMetalHost default/master-1",
        "it becomes a manager of Cluster example-cluster, as Node rack1-02",
        "its disks are not written, and its Node is not updated: the host is externallyProvisioned",
    )
    await world.apply(yaml.safe_dump(body))
    await world.until_word("Ready", "m1")
    gives_back = (
        "gives BareMetalHost default/master-1 back as it was before its claim: the host and its Node stay in service"
    )
    for policy, steps in {
        "graceful": ("1. drains Node rack1-02", f"2. {gives_back}"),
        "unsafe": (f"1. {gives_back}",),
        "forced": (f"1. {gives_back}",),
    }.items():
        value = {**body["spec"]["providerSpec"]["value"], "delete": True, "deletionPolicy": policy}
        (deletion,) = await planned(world, {**body, "spec": {"providerSpec": {"value": value}}})
        assert tuple(one for one in deletion.effects if "would wait" not in one) == steps


@site_story
async def test_a_deletion_names_its_steps_and_its_guard(world: Site) -> None:
    await begun(world)
    await world.until_word("Ready")
    (change,) = await planned(world, machine(delete=True, deletionPolicy="graceful"))
    assert change.effects == (
        "the deletion would wait (ManagersMissing): 0 other managers of Cluster example-cluster are ready, and 2 have "
        "to be (--min-other-managers)",
        "1. drains Node master-0.default",
        "2. resets the host by AgentReset, from where on the deletion cannot be aborted",
        "3. switches the host off",
        "4. deletes Node master-0.default",
        "5. gives BareMetalHost default/master-0 back to stock",
    )
    (forced,) = await planned(world, machine(delete=True, deletionPolicy="forced"))
    assert forced.effects[0] == (
        "1. tries once to switch the host off, without a drain, and waits for no disruption budget"
    )
    (kept,) = await planned(world, machine(maintenance=True))
    assert kept.effects == ("its Node master-0.default is drained, and stays cordoned until the maintenance ends",)
    (same,) = await planned(world, machine())
    assert same.effects == ("no host changes",)


@site_story
async def test_another_release_of_a_cluster_is_a_rolling_update_in_its_order(world: Site) -> None:
    await begun(world)
    await world.until_word("Ready")
    (absent,) = await planned(world, cluster(release="r2"))
    assert absent.effects == ("its Machines would wait: ClusterRelease r2 does not exist",)
    found = await world.api.get(CLUSTER_RELEASES.raw(), "mke-17-3-0")
    spec = found["spec"] | {"kubernetes": {"version": "v1.35.0"}}
    await world.api.create(CLUSTER_RELEASES, {"metadata": {"name": "r2"}, "spec": spec})
    (change,) = await planned(world, cluster(release="r2"))
    assert change.effects == ("changes MachineConfiguration example-cluster.example-ns",)
    assert change.update is not None
    assert [(one.machine, one.stage, one.executor) for one in change.update.targets] == [
        ("master-0.default", "control-plane", "unbounded-agent/master-0.default")
    ]
    spec["allowedDistributions"] = [
        {"id": "ubuntu/jammy", "default": True, "image": {"url": "oci://r.example/jammy:2"}}
    ]
    await world.api.create(CLUSTER_RELEASES, {"metadata": {"name": "r3"}, "spec": spec})
    text = "\n".join(plan_lines(await planned(world, cluster(release="r3"))))
    assert "its host is replaced with image r.example/jammy:2" in text
    assert "nothing was changed" in text


@site_story
async def test_a_pool_names_its_new_machines_and_their_hosts(world: Site) -> None:
    await world.surroundings()
    await spare_host(world)
    value = {"apiVersion": "baremetal.k8s.io/v1alpha1", "kind": "BareMetalMachineProviderSpec"}
    body = {
        "apiVersion": "kaas.mirantis.com/v1alpha1",
        "kind": "MachinePool",
        "metadata": {"name": "workers", "namespace": "example-ns", "labels": PROVIDER | CLUSTER},
        "spec": {"replicas": 2, "machineSpec": {"providerSpec": {"value": value}}},
    }
    (change,) = await planned(world, body)
    assert change.effects[:3] == (
        "creates Machine workers-0",
        "  claims BareMetalHost example-ns/h1",
        "  it becomes a worker of Cluster example-cluster, as Node h1.example-ns",
    )
    assert change.effects[-2] == "creates Machine workers-1"
    assert change.effects[-1].startswith("  it would wait (InsufficientResources):")


@site_story
async def test_a_deleted_machine_a_cluster_and_a_pool_name_what_goes_with_them(world: Site) -> None:
    async def effects(*bodies: dict[str, Any]) -> list[tuple[str, ...]]:
        plan = await plan_deletions(cast("Any", DryRuns(world.api)), list(bodies))
        assert all(change.what.startswith("delete ") for change in plan.changes)
        return [change.effects for change in plan.changes]

    await begun(world)
    await world.until_word("Ready")
    (steps,) = await effects(machine())
    assert steps[0].startswith("the deletion would wait (ManagersMissing): 0 other managers of Cluster example-cluster")
    assert [step[:3] for step in steps[1:]] == ["1. ", "2. ", "3. ", "4. ", "5. "]
    assert steps[-1] == "5. gives BareMetalHost default/master-0 back to stock"
    (whole,) = await effects(cluster(release="mke-17-3-0"))
    assert whole == (
        "deletes Machine example-control-plane, which gives its host back",
        "deletes MachineConfiguration example-cluster.example-ns and its budgets, once no Machine is left",
    )
    pool = {"metadata": {"name": "workers", "labels": PROVIDER | CLUSTER}, "spec": POOL_SPEC}
    await world.api.create(MACHINE_POOLS, pool, namespace="example-ns")
    head = {"apiVersion": MACHINE_POOLS.api_version, "kind": "MachinePool"}
    (kept,) = await effects({**head, "metadata": {"name": "workers", "namespace": "example-ns"}})
    assert kept == ("the pool is being deleted; its Machines stay",)


POOL_SPEC: Final = {
    "replicas": 0,
    "machineSpec": {
        "providerSpec": {"value": {"apiVersion": "baremetal.k8s.io/v1alpha1", "kind": "BareMetalMachineProviderSpec"}}
    },
}


@site_story
async def test_objects_around_a_machine_say_who_would_use_them(world: Site) -> None:
    await begun(world)
    objects = {one["kind"]: one for one in yaml.safe_load_all(SURROUNDINGS)}
    found = await planned(world, *(objects[kind] for kind in ("ClusterRelease", "Subnet", "L2Template")))
    assert [change.effects for change in found] == [
        ("has Kubernetes v1.34.0 on ubuntu/jammy (default)", "Clusters that name it: example-ns/example-cluster"),
        ("has 11 addresses for hosts, 11 of them free",),
        (
            "gives hosts a network with addresses of lcm",
            "counts at the next install of example-ns/example-control-plane",
        ),
    ]
    profile = {**objects["BareMetalHostProfile"]}
    (layout,) = await planned(world, profile)
    assert layout.effects[0].startswith("MachineProfile default.default-")
    assert layout.effects[1] == "counts at the next install of example-ns/example-control-plane"
    profile["spec"] = {**profile["spec"], "fileSystems": [{"fileSystem": "ext4", "partition": "x", "mountPoint": "/"}]}
    (wrong,) = await planned(world, profile)
    assert wrong.effects[0].startswith("installs would wait (ProfileInvalid): ")
    release, subnet, template = (objects[kind] for kind in ("ClusterRelease", "Subnet", "L2Template"))
    image = {"id": "ubuntu/jammy", "default": True, "image": {"url": "https://example.com/jammy.qcow2"}}
    release["spec"]["allowedDistributions"] = [image]
    release["metadata"]["name"] = "other"
    subnet["spec"]["gateway"] = "192.0.2.1"
    template["spec"]["l3Layout"] = [{"subnetName": "none"}]
    ipam = {
        "apiVersion": IPAM_HOSTS.api_version,
        "kind": "IpamHost",
        "metadata": {"name": "example-control-plane", "namespace": "example-ns"},
        "spec": {"l2TemplateSelector": {"name": "none"}},
    }
    faults = [change.effects for change in await planned(world, release, subnet, template, ipam)]
    assert faults[0][0].startswith("Clusters would wait (ReleaseUnusable): allowedDistributions ubuntu/jammy: https")
    assert faults[0][1] == "no Cluster names it"
    assert faults[1] == ("hosts would wait (SubnetInvalid): ERR: spec.gateway: 192.0.2.1 is not in 10.0.0.0/24",)
    assert faults[2][0].startswith("hosts would wait: L2Template example-ns/one-nic: spec.l3Layout[0]")
    assert faults[3][0].startswith("the install would wait (NoTemplate): spec.l2TemplateSelector.name")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("kind: [", "not YAML"),
        ("- a\n", "x.yaml: object 1: expected a mapping, with apiVersion, kind and metadata"),
        ("apiVersion: v1\nkind: ConfigMap\n", "object 1: metadata: expected a mapping"),
        ("apiVersion: v1\nkind: ConfigMap\nmetadata: [a]\n", "object 1: metadata: expected a mapping"),
        ("apiVersion: v1\nkind: {a: b}\nmetadata: {name: c}\n", "object 1: kind: expected a text"),
        ("apiVersion: [v1]\nkind: A\nmetadata: {name: c}\n", "object 1: apiVersion: expected a text"),
        (
            f"{SEED}\n---\napiVersion: v1\nkind: A\nmetadata: {{name: 1}}\n",
            "object 2: metadata.name: expected a text; a",
        ),
        (
            "apiVersion: v1\nkind: A\nmetadata: {name: c, namespace: 5}\n",
            "object 1: metadata.namespace: expected a text",
        ),
        ("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\n", "has no object that can be planned: Machine"),
    ],
)
def test_a_file_that_cannot_be_planned_is_refused(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(content)
    with pytest.raises(CliError, match=message):
        read_manifests(str(path), "default")
    with pytest.raises(CliError, match="No such file"):
        read_manifests(str(tmp_path / "none"), "default")


def test_objects_get_the_namespace_of_the_flag_and_others_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(f"{SEED}\n---\napiVersion: v1\nkind: ConfigMap\nmetadata: {{name: c}}\n")
    planned, others = read_manifests(str(path), "shop")
    assert [one["metadata"]["namespace"] for one in planned] == ["example-ns"]
    assert others == ["ConfigMap c"]
    with path.open() as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        assert read_manifests("-", "shop") == (planned, others)


def test_a_list_stands_for_its_objects(tmp_path: Path) -> None:
    """As `kubectl get -o yaml` prints it."""
    plain, listed = tmp_path / "plain.yaml", tmp_path / "listed.json"
    release = {"apiVersion": "kaas.mirantis.com/v1alpha1", "kind": "ClusterRelease", "metadata": {"name": "r"}}
    plain.write_text(f"{SEED}\n---\n{json.dumps(release)}\n")
    found = [one for one in yaml.safe_load_all(plain.read_text()) if one is not None]
    listed.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": found}))
    assert read_manifests(str(listed), "shop") == read_manifests(str(plain), "shop")


def test_only_kinds_that_a_controller_ends_have_a_planned_deletion(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    release = "apiVersion: kaas.mirantis.com/v1alpha1\nkind: ClusterRelease\nmetadata: {name: r}\n"
    path.write_text(f"{SEED}\n---\n{release}")
    planned, others = read_manifests(str(path), "shop", deleted=True)
    assert ([one["kind"] for one in planned], others) == (["Machine"], ["ClusterRelease r"])
    planned, others = read_manifests(str(path), "shop")
    assert [one["metadata"].get("namespace") for one in planned] == ["example-ns", None]
    path.write_text(release)
    with pytest.raises(CliError, match="has no object that can be planned"):
        read_manifests(str(path), "shop", deleted=True)
