"""Goal of a node: from the agent's configuration, and from its Machine with the bound version."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.agent.goals import CA
from unbounded.agent.model import ConfigurationId, NodeGoal
from unbounded.agent.node_spec import (
    CNI,
    CONTAINERD,
    RUNC,
    HostFacts,
    desired_node,
    goal_from_config,
    host_facts,
    require_image,
    rootfs_image,
    same_node,
)
from unbounded.agent.paths import HostPaths
from unbounded.api.configuration import MachineConfigurationVersion
from unbounded.api.failures import Rejected
from unbounded.api.machine import Machine
from unbounded.join.agent_config import (
    AgentConfig,
    ArtifactSource,
    Cni,
    ComponentVersion,
    Cri,
    Downloads,
    JoinedCluster,
    Kubelet,
)
from unbounded.join.labels_and_taints import newest
from unbounded.metalman.flags import OPTIONS as METALMAN_OPTIONS

CONFIG = AgentConfig(
    machine_name="m1",
    cluster=JoinedCluster(
        ca_cert_base64=base64.b64encode(CA.encode()).decode(), cluster_dns="10.96.0.10", version="1.34.2"
    ),
    kubelet=Kubelet(
        api_server="https://10.0.0.1:6443",
        labels={"zone": "b", "app": "a"},
        register_with_taints=("gpu=yes:NoSchedule", "a:NoExecute"),
    ),
)


def made(**changed: object) -> NodeGoal:
    parts = {name: getattr(CONFIG, name) for name in CONFIG.__struct_fields__}
    return goal_from_config(AgentConfig(**{**parts, **changed}), HostFacts())


def test_a_goal_says_all_that_a_node_is_made_from() -> None:
    goal = made()
    assert goal.machine == "m1"
    assert goal.ca_pem == CA
    assert goal.labels == {"app": "a", "unbounded-cloud.io/machine": "m1", "zone": "b"}
    assert goal.taints == ("a:NoExecute", "gpu=yes:NoSchedule")
    assert (goal.containerd_version, goal.runc_version, goal.cni_version) == (CONTAINERD, RUNC, CNI)


def test_the_label_of_the_machine_cannot_be_given_another_value() -> None:
    kubelet = Kubelet(api_server="https://x", labels={"unbounded-cloud.io/machine": "m2"})
    assert made(kubelet=kubelet).labels == {"unbounded-cloud.io/machine": "m1"}


@pytest.mark.parametrize(
    ("text", "version"), [("1.34", "1.34.0"), ("1.34.2", "1.34.2"), ("1.34.0-rc.1", "1.34.0-rc.1")]
)
def test_a_version_of_two_numbers_means_the_first_release(text: str, version: str) -> None:
    cluster = JoinedCluster(ca_cert_base64=CONFIG.cluster.ca_cert_base64, version=text)
    assert made(cluster=cluster).kubernetes_version == version


def test_all_releases_have_three_numbers() -> None:
    goal = made(
        cri=Cri(containerd=ComponentVersion(version="v2.1"), runc=ComponentVersion(version="1.3")),
        cni=Cni(plugin_version="1.6"),
        downloads=Downloads(kubernetes=ArtifactSource(version="v1.34"), crictl=ArtifactSource(version="1.33")),
    )
    assert (goal.kubernetes_version, goal.downloads.crictl.version) == ("1.34.0", "1.33.0")
    assert (goal.containerd_version, goal.runc_version, goal.cni_version) == ("2.1.0", "1.3.0", "1.6.0")


def test_versions_of_downloads_count_before_those_beside_them_and_lose_their_v() -> None:
    goal = made(
        cri=Cri(containerd=ComponentVersion(version="2.0.0"), runc=ComponentVersion(version="v1.2.0")),
        cni=Cni(plugin_version="v1.6.0"),
        downloads=Downloads(
            containerd=ArtifactSource(version="v2.2.0", base_url="https://m/c"),
            kubernetes=ArtifactSource(version="v1.33.1"),
        ),
    )
    assert goal.containerd_version == "2.2.0"
    assert goal.runc_version == "1.2.0"
    assert goal.cni_version == "1.6.0"
    assert goal.kubernetes_version == "1.33.1"
    assert goal.downloads.containerd == ArtifactSource(base_url="https://m/c")  # the version is a field of its own


@pytest.mark.parametrize(
    ("configured", "facts", "image"),
    [
        pytest.param("mine:1", HostFacts(image="theirs:1", debootstrap=True, nvidia=True), "mine:1", id="config"),
        pytest.param("", HostFacts(image="theirs:1", debootstrap=True, nvidia=True), "", id="debootstrap"),
        pytest.param("", HostFacts(image=" theirs:1 ", nvidia=True), "theirs:1", id="environment"),
        pytest.param("", HostFacts(nvidia=True), "", id="none-nvidia"),
        pytest.param("", HostFacts(), "", id="none"),
    ],
)
def test_the_image_of_the_configuration_counts_first(configured: str, facts: HostFacts, image: str) -> None:
    assert rootfs_image(configured, facts) == image


def test_a_node_without_an_image_is_refused_unless_debootstrap_is_asked_for() -> None:
    with pytest.raises(Rejected, match="the image of the node's root file system is not configured: set ") as refused:
        require_image(made(), HostFacts())
    assert "for all hosts that do not boot from the network, --agent-image;" in str(refused.value)
    assert "agent-image" not in {one.name for one in METALMAN_OPTIONS}  # which has the configuration of the others
    assert require_image(made(), HostFacts(debootstrap=True)).image == ""
    assert require_image(made(oci_image="mine:1"), HostFacts()).image == "mine:1"


def test_facts_are_read_from_the_host_and_the_environment(tmp_path: Path) -> None:
    paths = HostPaths(tmp_path)
    assert host_facts(paths, {}).nvidia is False
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidiactl").touch()
    assert host_facts(paths, {}).nvidia is False
    (tmp_path / "dev/nvidia0").touch()
    facts = host_facts(paths, {"AGENT_OCI_IMAGE": "x:1", "AGENT_DISABLE_OCI_IMAGE": "True"})
    assert facts == HostFacts(arch=facts.arch, nvidia=True, image="x:1", debootstrap=True)


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


def test_unset_fields_stay_as_on_the_node() -> None:
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
def test_unspecified_labels_and_taints_stay(machine: Machine, version: MachineConfigurationVersion | None) -> None:
    assert desired_node(machine, version, LABELLED).same


def test_what_a_node_that_serves_follows_makes_no_other_node() -> None:
    assert same_node(BASE, LABELLED)
    assert same_node(BASE, desired_node(machine_of(), version_of(kubernetes={}), BASE).goal)
    assert not same_node(BASE, msgspec.structs.replace(LABELLED, image="registry/node:v2"))


def test_node_label_of_the_machine_cannot_be_overridden() -> None:
    spec = {"kubernetes": {"nodeLabels": {"unbounded-cloud.io/machine": "m2"}}}
    assert desired_node(machine_of(**spec), None, BASE).goal.labels == OURS


def test_the_newest_version_is_the_highest_number_of_that_configuration() -> None:
    versions = (version_of(2), version_of(10), version_of(99, "others"), version_of(9))
    found = newest(versions, "workers")
    assert found is not None
    assert found.metadata.name == "workers-v10"
    assert newest(versions, "none") is None
