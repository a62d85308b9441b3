from __future__ import annotations

import base64
from pathlib import Path

import pytest

from tests.agent.goals import CA
from unbounded.agent.host.facts import host_facts
from unbounded.agent.layout import Layout
from unbounded.agent.model import NodeGoal
from unbounded.agent.node_spec.from_config import (
    CNI,
    CONTAINERD,
    RUNC,
    HostFacts,
    goal_from_config,
    require_image,
    rootfs_image,
)
from unbounded.api.failures import Rejected
from unbounded.join.agent_config import (
    AgentConfig,
    ArtifactSource,
    Cluster,
    Cni,
    ComponentVersion,
    Cri,
    Downloads,
    Kubelet,
)

CONFIG = AgentConfig(
    machine_name="m1",
    cluster=Cluster(ca_cert_base64=base64.b64encode(CA.encode()).decode(), cluster_dns="10.96.0.10", version="1.34.2"),
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
    cluster = Cluster(ca_cert_base64=CONFIG.cluster.ca_cert_base64, version=text)
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
    with pytest.raises(Rejected, match="the image of the node's root file system is not configured: set "):
        require_image(made(), HostFacts())
    assert require_image(made(), HostFacts(debootstrap=True)).image == ""
    assert require_image(made(oci_image="mine:1"), HostFacts()).image == "mine:1"


def test_facts_are_read_from_the_host_and_the_environment(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    assert host_facts(layout, {}).nvidia is False
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidiactl").touch()
    assert host_facts(layout, {}).nvidia is False
    (tmp_path / "dev/nvidia0").touch()
    facts = host_facts(layout, {"AGENT_OCI_IMAGE": "x:1", "AGENT_DISABLE_OCI_IMAGE": "True"})
    assert facts == HostFacts(arch=facts.arch, nvidia=True, image="x:1", debootstrap=True)
