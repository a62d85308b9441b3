"""Spec of a node, from its Machine, the bound version, and defaults."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from unbounded.agent.model import ConfigurationId, NodeGoal
from unbounded.agent.node_spec.from_config import HostFacts, goal_from_config
from unbounded.agent.node_spec.from_machine import desired_node, same_node
from unbounded.api.configuration import MachineConfigurationVersion
from unbounded.api.machine import Machine
from unbounded.join.agent_config import AgentConfig, ArtifactSource, Downloads
from unbounded.join.node_marks import newest

OURS = {"unbounded-cloud.io/machine": "m1", "unbounded-cloud.io/site": "lab"}
BASE = NodeGoal(
    machine="m1",
    kubernetes_version="1.33.1",
    api_server="https://api:6443",
    ca_pem="CA",
    cluster_dns="10.0.0.10",
    image="registry/node:v1",
    labels=OURS,
    containerd_version="2.1.8",
    runc_version="1.5.0",
    cni_version="1.5.1",
    downloads=Downloads(runc=ArtifactSource(base_url="https://mirror/runc")),
)


def machine_of(**spec: Any) -> Machine:
    meta = {"name": "m1", "uid": "u", "labels": {"unbounded-cloud.io/site": "lab"}}
    return msgspec.convert({"metadata": meta, "spec": spec}, Machine)


def version_of(number: int = 2, name: str = "workers", **template: Any) -> MachineConfigurationVersion:
    meta = {"name": f"{name}-v{number}", "labels": {"unbounded-cloud.io/machine-configuration": name}}
    spec = {"version": number, "template": template}
    return msgspec.convert({"metadata": meta, "spec": spec}, MachineConfigurationVersion)


def test_what_nobody_sets_stays_as_the_node_has_it() -> None:
    wanted = desired_node(machine_of(kubernetes={}), None, BASE)
    assert wanted.goal == BASE
    assert wanted.same
    assert wanted.conflicts == ()


def test_a_machine_that_says_what_the_node_is_has_no_drift() -> None:
    spec = {"kubernetes": {"version": "v1.33.1"}, "agent": {"image": "registry/node:v1"}}
    assert desired_node(machine_of(**spec), None, BASE).same


@pytest.mark.parametrize(
    ("spec", "drift"),
    [
        ({"kubernetes": {"version": "v1.34.0"}}, "kubernetes.version 1.33.1 → 1.34.0"),
        ({"kubernetes": {"version": "1.34"}}, "kubernetes.version 1.33.1 → 1.34.0"),
        ({"agent": {"image": "registry/node:v2"}}, "agent.image registry/node:v1 → registry/node:v2"),
        ({"kubernetes": {"nodeLabels": {"rack": "r1"}}}, "kubernetes.nodeLabels (rack)"),
        ({"kubernetes": {"registerWithTaints": ["a=b:NoSchedule"]}}, "kubernetes.registerWithTaints"),
        ({"agent": {"downloads": {"containerd": {"version": "v2.2.0"}}}}, "agent.downloads"),
        ({"agent": {"downloads": {"cni": {"url": "https://x/cni.tgz"}}}}, "agent.downloads"),
        ({"kubernetes": {}, "agent": {"downloads": {"kubernetes": {"version": "1.35.1"}}}}, "1.33.1 → 1.35.1"),
    ],
    ids=["version", "short version", "image", "labels", "taints", "containerd", "cni", "kubelet's own version"],
)
def test_what_the_machine_sets_is_wanted_and_named_as_drift(spec: dict[str, Any], drift: str) -> None:
    wanted = desired_node(machine_of(**spec), None, BASE)
    assert len(wanted.drift) == 1
    assert drift in wanted.drift[0]


def test_versions_mean_the_same_here_as_they_do_at_the_start() -> None:
    downloads = {
        "kubernetes": {"version": "v1.33"},
        "containerd": {"version": "2.1"},
        "runc": {"version": "v1.5", "baseURL": "https://mirror/runc"},
        "crictl": {"version": "v1.33"},
    }
    config = AgentConfig(
        machine_name="m1",
        downloads=Downloads(
            kubernetes=ArtifactSource(version="v1.33"),
            containerd=ArtifactSource(version="2.1"),
            runc=ArtifactSource(version="1.5", base_url="https://mirror/runc"),
            crictl=ArtifactSource(version="1.33"),
        ),
    )
    started = msgspec.structs.replace(goal_from_config(config, HostFacts()), labels=OURS)
    for with_kubernetes in (True, False):
        spec: dict[str, Any] = {"kubernetes": {}} if with_kubernetes else {}
        assert desired_node(machine_of(**spec, agent={"downloads": downloads}), None, started).drift == ()


def test_version_without_source_uses_the_present_mirror_without_its_digest() -> None:
    mirror = ArtifactSource(base_url="https://mirror", sha256="d" * 64)
    base = msgspec.structs.replace(BASE, downloads=Downloads(runc=mirror, cni=mirror, containerd=mirror))
    downloads = {"runc": {"version": "v1.5.0"}, "cni": {"version": "1.6.0"}, "containerd": {"baseURL": "https://mine"}}
    found = desired_node(machine_of(agent={"downloads": downloads}), None, base).goal.downloads
    assert (found.runc, found.cni) == (mirror, ArtifactSource(base_url="https://mirror"))
    assert found.containerd == ArtifactSource(base_url="https://mine")


def test_the_configuration_is_wanted_with_its_name_and_number() -> None:
    version = version_of(
        kubernetes={
            "version": "v1.34.2",
            "nodeLabels": {"pool": "a"},
            "registerWithTaints": [
                {"key": "gpu", "value": "yes", "effect": "NoSchedule"},
                {"key": "slow", "effect": "NoExecute"},
            ],
        },
        agent={"image": "registry/node:v9"},
    )
    goal = desired_node(machine_of(), version, BASE).goal
    assert goal.configuration == ConfigurationId(name="workers", version=2, version_name="workers-v2")
    assert (goal.kubernetes_version, goal.image) == ("1.34.2", "registry/node:v9")
    assert goal.labels == {**OURS, "pool": "a"}
    assert goal.taints == ("gpu=yes:NoSchedule", "slow=:NoExecute")
    assert (goal.api_server, goal.containerd_version, goal.downloads) == (
        BASE.api_server,
        BASE.containerd_version,
        BASE.downloads,
    )


def test_configuration_overrides_machine_fields_and_names_them() -> None:
    spec = {
        "kubernetes": {
            "version": "v1.33.1",
            "nodeLabels": {"pool": "b", "mine": "1", "both": "x"},
            "registerWithTaints": ["gpu=no:NoSchedule", "mine=1:NoSchedule"],
        },
        "agent": {"image": "registry/node:v1"},
    }
    version = version_of(
        kubernetes={
            "version": "v1.34.0",
            "nodeLabels": {"pool": "a", "both": "x"},
            "registerWithTaints": [{"key": "gpu", "value": "yes", "effect": "NoSchedule"}],
        },
        agent={"image": "registry/node:v2"},
    )
    wanted = desired_node(machine_of(**spec), version, BASE)
    assert (wanted.goal.kubernetes_version, wanted.goal.image) == ("1.34.0", "registry/node:v2")
    assert wanted.goal.labels == {**OURS, "pool": "a", "mine": "1", "both": "x"}
    assert wanted.goal.taints == ("gpu=yes:NoSchedule", "mine=1:NoSchedule")
    assert wanted.conflicts == (
        "kubernetes.version",
        "agent.image",
        "kubernetes.nodeLabels[pool]",
        "kubernetes.registerWithTaints[gpu]",
    )


def test_fields_that_both_set_alike_are_no_conflict() -> None:
    version = version_of(kubernetes={"version": "1.34.0"})
    assert desired_node(machine_of(kubernetes={"version": "v1.34.0"}), version, BASE).conflicts == ()


def test_another_version_with_the_same_content_is_no_drift() -> None:
    before = desired_node(machine_of(kubernetes={}), version_of(1, kubernetes={"version": "1.34.0"}), BASE).goal
    after = desired_node(machine_of(kubernetes={}), version_of(2, kubernetes={"version": "1.34.0"}), before)
    assert after.same
    assert after.goal.configuration is not None
    assert after.goal.configuration.version == 2


LABELLED = msgspec.structs.replace(BASE, labels={**OURS, "old": "1"}, taints=("gpu=yes:NoSchedule",))
NONE: dict[str, Any] = {"nodeLabels": {}, "registerWithTaints": []}


@pytest.mark.parametrize(
    ("machine", "version"),
    [(machine_of(kubernetes=NONE), None), (machine_of(), version_of(kubernetes=NONE))],
    ids=["machine", "configuration"],
)
def test_labels_and_taints_that_were_taken_away_are_taken_away(
    machine: Machine, version: MachineConfigurationVersion | None
) -> None:
    wanted = desired_node(machine, version, LABELLED)
    assert (wanted.goal.labels, wanted.goal.taints) == (OURS, ())
    assert wanted.drift == ("kubernetes.nodeLabels (old)", "kubernetes.registerWithTaints")


@pytest.mark.parametrize(
    ("machine", "version"),
    [
        (machine_of(kubernetes={"version": "v1.33.1"}), None),
        (machine_of(kubernetes={}), version_of(kubernetes={"version": "v1.33.1"})),
    ],
    ids=["machine", "configuration"],
)
def test_labels_and_taints_that_nobody_speaks_of_stay(
    machine: Machine, version: MachineConfigurationVersion | None
) -> None:
    assert desired_node(machine, version, LABELLED).same


def test_what_a_node_that_serves_follows_makes_no_other_node() -> None:
    assert same_node(BASE, LABELLED)
    assert same_node(BASE, desired_node(machine_of(), version_of(kubernetes={}), BASE).goal)
    assert not same_node(BASE, msgspec.structs.replace(LABELLED, image="registry/node:v2"))


def test_nobody_can_label_the_node_as_that_of_another_machine() -> None:
    spec = {"kubernetes": {"nodeLabels": {"unbounded-cloud.io/machine": "m2"}}}
    assert desired_node(machine_of(**spec), None, BASE).goal.labels == OURS


def test_the_newest_version_is_the_highest_number_of_that_configuration() -> None:
    versions = (version_of(2), version_of(10), version_of(99, "others"), version_of(9))
    found = newest(versions, "workers")
    assert found is not None
    assert found.metadata.name == "workers-v10"
    assert newest(versions, "none") is None
