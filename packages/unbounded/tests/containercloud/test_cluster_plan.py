"""Clusters: releases, the order of Machines, the objects of an update, and the status. Without a server."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from tests.containercloud.objects import DISTRIBUTIONS, NODE_LABELS, machine_body
from tests.machina.test_rolling_update_plan import NEW, OLD, RUNNING, Plan, written
from unbounded.api.configuration import MachineConfiguration
from unbounded.api.container_cloud.cluster import Cluster, ClusterRelease
from unbounded.api.container_cloud.machine import ContainerCloudMachine
from unbounded.api.container_cloud.names import scoped_name
from unbounded.api.core import Node
from unbounded.api.disruption import MachineDisruptionBudget
from unbounded.api.machine import Machine
from unbounded.containercloud.cluster_plan import (
    ClusterView,
    CreateBudget,
    CreateConfiguration,
    DeleteBudget,
    DeleteConfiguration,
    DeleteMachine,
    PatchBudget,
    PatchConfiguration,
    SetClusterFinalizer,
    UnlabelHost,
    WriteClusterStatus,
    configuration_spec,
    merge_patch,
    plan_cluster,
    upgrade_indexes,
    without_none,
)
from unbounded.containercloud.releases import image_reference, release_fault
from unbounded.machina.node_update_plan import replace_manifest

Raw = dict[str, Any]
NAME = "c.p"
DIGEST = "sha256:" + "a" * 64


def a_release(name: str = "r1", **spec: Any) -> ClusterRelease:
    body: Raw = {
        "version": "17.3.0",
        "kubernetes": {"version": "v1.34.0"},
        "agent": {"image": "registry.example.com/node:1"},
        "allowedDistributions": list(DISTRIBUTIONS),
        "allowedNodeLabels": list(NODE_LABELS),
    }
    return msgspec.convert({"metadata": {"name": name}, "spec": body | spec}, ClusterRelease)


def a_cluster(status: Raw | None = None, *, finalizers: list[str] | None = None, **value: Any) -> Cluster:
    full = {"apiVersion": "baremetal.k8s.io/v1alpha1", "kind": "BaremetalClusterProviderSpec", "release": "r1"}
    meta: Raw = {"name": "c", "namespace": "p", "uid": "cluster-uid", "finalizers": ["cluster.cluster.k8s.io"]}
    deleted = value.pop("deleted", False)
    if finalizers is not None:
        meta["finalizers"] = finalizers
    if deleted:
        meta["deletionTimestamp"] = "2026-11-29T12:00:00Z"
    body: Raw = {"metadata": meta, "spec": {"providerSpec": {"value": full | value}}}
    if status is not None:
        body["status"] = {"providerStatus": status}
    return msgspec.convert(body, Cluster)


def a_machine(name: str, *, manager: bool = False, created: str = "", status: Raw | None = None, **value: Any) -> Any:
    body = machine_body(name, "c", manager=manager, **value)
    body["metadata"] |= {"namespace": "p", "uid": name, "creationTimestamp": created or "2026-11-29T10:00:00Z"}
    if status is not None:
        body["status"] = status
    return msgspec.convert(body, ContainerCloudMachine)


def claimed(name: str, host: str, *, stage: str = "Ready", manager: bool = False, index: int = 1, **value: Any) -> Any:
    execution = {"stage": stage, "machine": host, "host": {"namespace": "p", "name": host, "uid": "1"}}
    status = {"execution": execution, "providerStatus": {"upgradeIndex": index, "ready": stage == "Ready"}}
    return a_machine(name, manager=manager, status=status, **value)


def a_host(name: str, *, labels: Raw | None = None, node: str = "1", image: str = "") -> Machine:
    status: Raw = {"agent": {"image": f"registry.example.com/node:{node}"}}
    if image:
        status["image"] = {"image": image, "digest": "sha256:1", "boot": "b", "at": "2026-11-29T10:00:00Z"}
    return msgspec.convert({"metadata": {"name": name, "labels": labels or {}}, "status": status}, Machine)


def a_node(name: str, version: str = "v1.34.0") -> Node:
    return msgspec.convert({"metadata": {"name": name}, "status": {"nodeInfo": {"kubeletVersion": version}}}, Node)


LABELS = {
    "unbounded-cloud.io/cluster": NAME,
    "unbounded-cloud.io/role": "worker",
    "unbounded-cloud.io/upgrade-index": "1",
}


def settled(view: ClusterView) -> ClusterView:
    """The view after its configuration and its budgets were created as planned."""
    found = plan_cluster(view)
    (configuration,) = (one.body for one in found if isinstance(one, CreateConfiguration))
    budgets = (one.body for one in found if isinstance(one, CreateBudget))
    return ClusterView(
        cluster=view.cluster,
        release=view.release,
        machines=view.machines,
        hosts=view.hosts,
        nodes=view.nodes,
        configuration=msgspec.convert(configuration, MachineConfiguration),
        budgets={one["metadata"]["name"]: msgspec.convert(one, MachineDisruptionBudget) for one in budgets},
    )


def status_of(view: ClusterView) -> Raw:
    (write,) = (one for one in plan_cluster(view) if isinstance(one, WriteClusterStatus))
    return write.provider_status


def condition(view: ClusterView, kind: str) -> Raw:
    found: Raw = next(one for one in status_of(view)["conditions"] if one["type"] == kind)
    return found


# Releases


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("registry.example.com/jammy:1", None),
        ("oci://registry.example.com/jammy@sha256:" + "a" * 64, None),
        ("https://example.com/jammy.qcow2", "ubuntu/jammy: https://example.com/jammy.qcow2: only OCI images"),
        ("oci://UPPER CASE", "is not a r"),
    ],
)
def test_an_image_that_cannot_be_written_is_named(url: str, words: str | None) -> None:
    fault = release_fault(
        a_release(allowedDistributions=[{"id": "ubuntu/jammy", "default": True, "image": {"url": url}}])
    )
    assert (fault is None) == (words is None), fault
    assert (words or "") in (fault or "")


@pytest.mark.parametrize(
    ("url", "checksum", "result"),
    [
        ("oci://registry.example.com/jammy:1", DIGEST, f"registry.example.com/jammy:1@{DIGEST}"),
        (f"registry.example.com/jammy@{DIGEST}", DIGEST, f"registry.example.com/jammy@{DIGEST}"),
        (
            f"registry.example.com/jammy@{DIGEST}",
            "sha256:" + "b" * 64,
            "is not the digest in registry.example.com/",
        ),
        (
            "registry.example.com/jammy:1",
            "d41d8cd98f00b204e9800998ecf8427e",
            "image.checksum d41d8cd98f00b204e9800998ec",
        ),
    ],
)
def test_the_checksum_of_an_image_is_its_digest(url: str, checksum: str, result: str) -> None:
    image = {"url": url, "checksum": checksum}
    release = a_release(allowedDistributions=[{"id": "ubuntu/jammy", "default": True, "image": image}])
    fault = release_fault(release)
    assert result in (fault or image_reference(release.spec.allowed_distributions[0]))
    assert (fault is None) == result.startswith("registry")


# Order


def test_indexes_are_given_to_managers_first_then_by_age_and_stay() -> None:
    machines = [
        a_machine("w-old", created="2026-11-29T08:00:00Z"),
        a_machine("m-b", manager=True),
        a_machine("m-a", manager=True),
        a_machine("given", upgradeIndex=2),
        a_machine("kept", status={"providerStatus": {"upgradeIndex": 4}}),
    ]
    first = upgrade_indexes(machines)
    assert first == {"given": 2, "kept": 4, "m-a": 1, "m-b": 3, "w-old": 5}
    later = [
        a_machine(one.name, manager=one.is_manager, status={"providerStatus": {"upgradeIndex": first[one.name]}})
        for one in machines
        if one.name != "m-a"
    ]
    found = upgrade_indexes([*later, a_machine("new")])
    assert found == {"given": 2, "kept": 4, "m-b": 3, "w-old": 5, "new": 1}


def test_the_index_of_the_spec_goes_before_the_recorded_one() -> None:
    machine = a_machine("m", upgradeIndex=7, status={"providerStatus": {"upgradeIndex": 1}})
    assert upgrade_indexes([machine]) == {"m": 7}


# Update


def test_a_new_cluster_gets_its_finalizer_first() -> None:
    assert plan_cluster(ClusterView(cluster=a_cluster(finalizers=[]))) == (SetClusterFinalizer(True),)


def test_the_configuration_carries_the_release_and_the_order() -> None:
    view = settled(ClusterView(cluster=a_cluster(maxWorkerUpgradeCount=3), release=a_release()))
    assert view.configuration is not None
    spec = msgspec.to_builtins(view.configuration.spec)
    assert spec["template"] == {
        "kubernetes": {"version": "v1.34.0"}, "agent": {"image": "registry.example.com/node:1"},
    }  # fmt: skip
    assert spec["machineSelector"] == {
        "matchLabels": {"unbounded-cloud.io/cluster": NAME},
        "matchExpressions": ({"key": "unbounded-cloud.io/upgrade-index", "operator": "Exists"},),
    }
    rolling = spec["updateStrategy"]["rollingUpdate"]
    assert [(one["name"], one["maxConcurrent"]) for one in rolling["stages"]] == [("control-plane", 1), ("workers", 3)]
    assert rolling["stages"][1]["startAfter"] == {"stage": "control-plane", "targets": 1}
    assert (rolling["orderBy"], rolling["host"]) == ("unbounded-cloud.io/upgrade-index", True)
    assert (rolling["prepareAhead"], rolling["onFailure"]) == (50, "Halt")
    limits = {name: one.spec.max_unavailable for name, one in view.budgets.items()}
    assert limits == {"c.p.managers": 1, "c.p.workers": 3}


def test_workers_wait_for_all_managers_without_a_dedicated_control_plane() -> None:
    view = settled(ClusterView(cluster=a_cluster(dedicatedControlPlane=False), release=a_release()))
    assert view.configuration is not None
    rolling = view.configuration.spec.update_strategy.rolling_update
    assert rolling is not None
    start = rolling.stages[1].start_after
    assert start is not None
    assert (start.stage, start.targets) == ("control-plane", "All")


def test_a_cluster_as_planned_is_written_once() -> None:
    view = settled(ClusterView(cluster=a_cluster(), release=a_release()))
    written = a_cluster(status_of(view))
    assert plan_cluster(replace(view, cluster=written)) == ()


@pytest.mark.parametrize(
    ("value", "path", "found"),
    [
        ({"maxWorkerUpgradeCount": 4}, ("updateStrategy", "maxUnavailable"), 5),
        ({"maxWorkerPrepareCount": 7}, ("updateStrategy", "rollingUpdate", "prepareAhead"), 7),
        ({"maintenance": True}, ("updateStrategy", "rollingUpdate", "paused"), True),
    ],
)
def test_a_change_of_the_cluster_changes_its_configuration(value: Raw, path: tuple[str, ...], found: object) -> None:
    view = replace(settled(ClusterView(cluster=a_cluster(), release=a_release())), cluster=a_cluster(**value))
    (patch,) = (one.patch for one in plan_cluster(view) if isinstance(one, PatchConfiguration))
    part: Any = patch["spec"]
    for step in path:
        part = part[step]
    assert part == found


@pytest.mark.parametrize("reason", ["another release", "another distribution"])
def test_workers_download_ahead_whatever_the_managers_do(reason: str) -> None:
    update = ClusterUpdate(maxWorkerPrepareCount=2)
    if reason == "another release":
        update.want(OLD)
        update.numbers.append(2)
    for name in update.machines:
        update.machines[name]["status"]["conditions"] = []
    update.settle()
    assert update.status.updating == ("m1",)
    assert set(update.phases()) == {"m1", "m2", "m0", "m4", "m5"}
    assert set(update.phases().values()) == {"Preparing"}


def test_a_strict_setting_is_in_the_status_that_policies_read() -> None:
    view = settled(ClusterView(cluster=a_cluster(), release=a_release()))
    assert status_of(view).get("distributionRequired") is None
    strict = status_of(replace(view, strict_distribution=True))
    assert strict["distributionRequired"] is True
    written = a_cluster(strict)
    assert plan_cluster(replace(view, cluster=written, strict_distribution=True)) == ()
    assert status_of(replace(view, cluster=written))["distributionRequired"] is None


def test_the_end_of_maintenance_takes_the_pause_away() -> None:
    view = settled(ClusterView(cluster=a_cluster(maintenance=True), release=a_release()))
    (patch,) = (
        one.patch for one in plan_cluster(replace(view, cluster=a_cluster())) if isinstance(one, PatchConfiguration)
    )
    assert patch == {"spec": {"updateStrategy": {"rollingUpdate": {"paused": None}}}}


def test_settings_of_others_in_the_configuration_stay() -> None:
    view = settled(ClusterView(cluster=a_cluster(), release=a_release()))
    spec = msgspec.to_builtins(view.configuration)
    spec["spec"]["template"] |= {"kubelet": {"maxPods": 200}}
    own = replace(view, configuration=msgspec.convert(spec, MachineConfiguration))
    assert not [one for one in plan_cluster(own) if isinstance(one, PatchConfiguration)]


def test_a_release_without_an_image_takes_the_image_away() -> None:
    view = settled(ClusterView(cluster=a_cluster(), release=a_release()))
    other = a_release(agent={"version": "1.0.0"})
    (patch,) = (one.patch for one in plan_cluster(replace(view, release=other)) if isinstance(one, PatchConfiguration))
    assert patch == {"spec": {"template": {"agent": None}}}


def test_an_object_of_others_with_the_name_is_left_alone_and_named() -> None:
    view = settled(ClusterView(cluster=a_cluster(), release=a_release()))
    foreign = msgspec.convert({"metadata": {"name": NAME}, "spec": {"template": {}}}, MachineConfiguration)
    found = replace(view, configuration=foreign)
    assert not [one for one in plan_cluster(found) if isinstance(one, (PatchConfiguration, CreateConfiguration))]
    assert condition(found, "Release")["reason"] == "NameTaken"
    assert f"MachineConfiguration {NAME} was not created for this Cluster" in condition(found, "Release")["message"]
    budgets = {
        **view.budgets,
        f"{NAME}.managers": msgspec.convert(
            {"metadata": {"name": f"{NAME}.managers"}, "spec": {"machineSelector": {}, "maxUnavailable": 9}},
            MachineDisruptionBudget,
        ),
    }
    found = replace(view, budgets=budgets)
    assert not [one for one in plan_cluster(found) if isinstance(one, PatchBudget)]
    assert condition(found, "Release")["reason"] == "NameTaken"


def test_released_hosts_lose_the_labels_of_the_cluster() -> None:
    machines = [claimed("w", "h1", index=3), claimed("gone", "h2", stage="Releasing"), a_machine("new")]
    hosts = {name: a_host(name, labels=LABELS | {"rack": "7"}) for name in ("h1", "h2", "h3")}
    view = ClusterView(cluster=a_cluster(), release=a_release(), machines=machines, hosts=hosts)
    found = {one.host.name: dict(one.labels) for one in plan_cluster(view) if isinstance(one, UnlabelHost)}
    assert found == {"h3": dict.fromkeys(LABELS)}


class ClusterUpdate(Plan):
    """The rolling update of a Cluster's configuration: three managers and three workers, by index, on other images."""

    def __init__(self, **value: Any) -> None:
        super().__init__(6)
        view = ClusterView(cluster=a_cluster(**value), release=a_release())
        self.strategy = without_none(configuration_spec(view, a_release()))["updateStrategy"]
        roles = {"m0": ("control-plane", 3), "m1": ("control-plane", 1), "m2": ("control-plane", 2)}
        roles |= {"m3": ("worker", 9), "m4": ("worker", 4), "m5": ("worker", 5)}
        for name, (role, index) in roles.items():
            labels = LABELS | {"unbounded-cloud.io/role": role, "unbounded-cloud.io/upgrade-index": str(index)}
            meta = {"name": name, "uid": f"uid-{name}", "generation": 2, "labels": labels}
            self.machines[name]["metadata"] = meta
        self.want(NEW)

    def replaced(self, *, fails: bool = False) -> list[list[str]]:
        """Let the replacements of each turn end together until none starts; return the Machines of each turn."""
        turns: list[list[str]] = []
        for _turn in range(10):
            plan = self.settle()
            if not plan.create:
                return turns
            turns.append(sorted(plan.create))
            for name in plan.create:
                update = self.update(name)
                assert update is not None
                machine = next(one for one in self.view().machines if one.name == name)
                self.operation(dict(replace_manifest(machine, update)), RUNNING)
                if not fails:
                    self.machines[name]["status"]["image"] = written(NEW)
            self.settle()
            for name in plan.create:
                update = self.update(name)
                assert update is not None
                self.ends(str(update.operation), "Failed" if fails else "Complete")
            self.now += timedelta(seconds=60)
        raise AssertionError(turns)


@pytest.mark.parametrize(
    ("value", "turns"),
    [
        ({}, [["m1"], ["m2", "m4"], ["m0", "m5"], ["m3"]]),
        ({"maxWorkerUpgradeCount": 2}, [["m1"], ["m2", "m4", "m5"], ["m0", "m3"]]),
        ({"dedicatedControlPlane": False}, [["m1"], ["m2"], ["m0"], ["m4"], ["m5"], ["m3"]]),
        (
            {"dedicatedControlPlane": False, "maxWorkerUpgradeCount": 3},
            [["m1"], ["m2"], ["m0"], ["m3", "m4", "m5"]],
        ),
    ],
)
def test_an_update_takes_managers_one_by_one_and_workers_after_the_first_or_all(
    value: Raw, turns: list[list[str]]
) -> None:
    assert ClusterUpdate(**value).replaced() == turns


def test_an_update_halts_at_the_first_failure() -> None:
    update = ClusterUpdate(maxWorkerUpgradeCount=3)
    assert update.replaced(fails=True) == [["m1"]]
    assert update.status.phase == "Halted"


def test_no_update_starts_during_the_maintenance_of_the_cluster() -> None:
    update = ClusterUpdate(maintenance=True)
    assert update.replaced() == []
    assert update.status.phase == "Paused"


# Releases of a Cluster


def updating(status: Raw | None = None, **hosts: Any) -> ClusterView:
    """A Cluster with one worker, whose release is r1."""
    node = a_node("h1", hosts.pop("version", "v1.34.0"))
    host = a_host("h1", labels=LABELS, **hosts)
    return settled(
        ClusterView(
            cluster=a_cluster(status),
            release=a_release(),
            machines=[claimed("w", "h1")],
            hosts={"h1": host},
            nodes={"h1": node},
        )
    )


BEFORE: Raw = {"releaseRefs": {"current": {"name": "r0", "version": "17.2.0"}}}


def test_the_first_release_is_the_current_one_at_once() -> None:
    references = status_of(ClusterView(cluster=a_cluster(), release=a_release()))["releaseRefs"]
    assert references["current"] == {
        "name": "r1",
        "version": "17.3.0",
        "allowedNodeLabels": list(NODE_LABELS),
        "allowedDistributions": [{"id": "ubuntu/jammy", "default": True}, {"id": "ubuntu/focal"}],
    }
    assert (references["previous"], references["next"]) == (None, None)


@pytest.mark.parametrize(
    ("hosts", "why"),
    [
        ({"version": "v1.33.4"}, "kubelet"),
        ({"node": "0"}, "image of the node"),
        ({"image": "registry.example.com/focal:1"}, "image of the host"),
    ],
)
def test_a_release_becomes_the_current_one_when_no_machine_is_outdated(hosts: Raw, why: str) -> None:
    outdated = updating(BEFORE, **hosts)
    references = status_of(outdated)["releaseRefs"]
    assert references["current"]["name"] == "r0", why
    assert references["next"]["name"] == "r1"
    assert condition(outdated, "Update")["reason"] == "Updating"
    assert "1 Machine outdated: w" in condition(outdated, "Update")["message"]
    kept = replace(outdated, kept=frozenset({"w"}))
    assert status_of(kept)["releaseRefs"]["current"]["name"] == "r1"
    words = "all Nodes are of ClusterRelease r1, apart from hosts that others have installed: w"
    assert condition(kept, "Update")["message"] == words
    references = status_of(updating(BEFORE, image="registry.example.com/jammy:1"))["releaseRefs"]
    assert [references[name] and references[name]["name"] for name in ("current", "previous", "next")] == [
        "r1", "r0", None,
    ]  # fmt: skip


def test_a_version_without_its_last_number_is_any_of_its_releases() -> None:
    view = replace(updating(BEFORE, version="v1.34.7"), release=a_release(kubernetes={"version": "1.34"}))
    assert status_of(view)["releaseRefs"]["current"]["name"] == "r1"


def test_the_release_that_others_write_under_another_name_is_read() -> None:
    view = updating({"releaseRef": BEFORE["releaseRefs"]}, version="v1.33.0")
    assert status_of(view)["releaseRefs"]["current"]["name"] == "r0"


@pytest.mark.parametrize(
    ("release", "reason", "words"),
    [
        (None, "ReleaseMissing", "spec.providerSpec.value.release: ClusterRelease r1 does not exist"),
        (
            a_release(allowedDistributions=[{"id": "u", "default": True, "image": {"url": "http://x/y.qcow2"}}]),
            "ReleaseUnusable",
            "ClusterRelease r1 cannot be used: allowedDistributions u: http://x/y.qcow2",
        ),
    ],
)
def test_a_release_that_cannot_be_used_changes_nothing(release: Any, reason: str, words: str) -> None:
    view = ClusterView(cluster=a_cluster(BEFORE), release=release)
    assert not [one for one in plan_cluster(view) if isinstance(one, CreateConfiguration)]
    assert condition(view, "Release")["reason"] == reason
    assert words in condition(view, "Release")["message"]
    assert "releaseRefs" not in status_of(view)


@pytest.mark.parametrize(
    ("phase", "maintenance", "reason"),
    [("InProgress", False, "Updating"), ("Halted", False, "Halted"), ("Paused", True, "Paused")],
)
def test_an_update_shows_the_state_of_its_rollout(phase: str, maintenance: bool, reason: str) -> None:
    view = updating(BEFORE, version="v1.33.0")
    body = msgspec.to_builtins(view.configuration)
    body["status"] = {"rollout": {"version": 2, "phase": phase, "message": "0 of 1 Node has version 2"}}
    changed = replace(
        view,
        configuration=msgspec.convert(body, MachineConfiguration),
        cluster=a_cluster(BEFORE, maintenance=maintenance),
    )
    found = condition(changed, "Update")
    assert (found["ready"], found["reason"]) == (False, reason)
    assert found["message"].endswith(f"MachineConfiguration {NAME}: 0 of 1 Node has version 2")


def test_a_cluster_counts_its_machines() -> None:
    view = updating()
    more = replace(view, machines=[*view.machines, claimed("x", "h2", stage="Deploying", index=2)])
    assert status_of(more)["nodes"] == {"requested": 2, "ready": 1}
    assert status_of(more)["ready"] is False
    assert status_of(view)["ready"] is True


# Deletion


def test_a_deleted_cluster_deletes_machines_then_objects_then_itself() -> None:
    full = updating()
    gone = replace(full, cluster=a_cluster(deleted=True))
    deletes = [one.machine.name for one in plan_cluster(gone) if isinstance(one, DeleteMachine)]
    assert deletes == ["w"]
    assert condition(gone, "Nodes")["reason"] == "Deleting"
    without = replace(gone, machines=[])
    assert plan_cluster(without) == (UnlabelHost(full.hosts["h1"], dict.fromkeys(LABELS)),)
    released = replace(without, hosts={})
    assert plan_cluster(released) == (DeleteConfiguration(full.configuration),)  # type: ignore[arg-type]
    bare = replace(released, configuration=None)
    assert plan_cluster(bare) == tuple(
        DeleteBudget(full.budgets[name]) for name in (f"{NAME}.managers", f"{NAME}.workers")
    )
    assert plan_cluster(replace(bare, budgets={})) == (SetClusterFinalizer(False),)
    last = replace(bare, budgets={}, cluster=a_cluster(deleted=True, finalizers=[]))
    assert plan_cluster(last) == ()


def test_a_merge_patch_leads_to_the_desired_fields_and_leaves_others() -> None:
    there = {"a": {"b": 1, "c": 2}, "d": [1], "e": 5}
    desired = {"a": {"b": 1, "c": None, "f": {"g": 1, "h": None}}, "d": [2]}
    assert merge_patch(there, desired) == {"a": {"c": None, "f": {"g": 1}}, "d": [2]}
    assert merge_patch(there, {"a": {"b": 1}, "x": None}) == {}
    assert without_none(desired) == {"a": {"b": 1, "f": {"g": 1}}, "d": [2]}


def test_scoped_names_are_labels_and_differ() -> None:
    assert scoped_name("p", "c") == "c.p"
    names = {scoped_name("p" * 63, "c" * length) for length in range(1, 100)}
    assert len(names) == 99
    assert all(len(name) <= 63 for name in names)
