"""`why` for what stands around Machines of Container Cloud, whose controllers run in virtual time."""

from __future__ import annotations

import pytest

from tests.containercloud.site import Site, site_story
from tests.containercloud.test_site import begun
from tests.support.memory_api import MemoryApi
from tests.support.virtual_time import run_virtual, virtual_now
from unbounded.api.container_cloud.cluster import CLUSTER_RELEASES
from unbounded.api.container_cloud.host import BARE_METAL_HOST_PROFILES
from unbounded.api.container_cloud.network import L2_TEMPLATES, SUBNETS
from unbounded.cli.explain import parsed
from unbounded.explain.chain import explain
from unbounded.explain.links import Topic


async def told(world: Site, subject: str, namespace: str = "example-ns") -> tuple[str, str, bool, list[str]]:
    topic, name = parsed(subject)
    found = await explain(world.api, topic, name, namespace=namespace)
    (link,) = found.links
    assert (link.topic, link.name) == (topic.value if topic is not None else "", name)
    return link.what, link.code, found.settled, [fix.command for fix in link.fixes]


@site_story
async def test_usable_objects_say_what_they_have(world: Site) -> None:
    await begun(world)
    await world.until_word("Ready")
    assert await told(world, "clusterrelease/mke-17-3-0") == ("all images can be used", "Ready", True, [])
    assert await told(world, "subnet/lcm") == ("10 of 11 addresses are free", "Ready", True, [])
    assert await told(world, "l2t/one-nic") == ("hosts can have its network", "Ready", True, [])
    profile = await told(world, "bmhp/default", "default")
    assert (profile[0].partition(" has ")[2], profile[2]) == ("the layout", True)
    assert (await told(world, "ipamhost/example-control-plane"))[2]


@site_story
async def test_unusable_objects_name_the_cause_and_a_command(world: Site) -> None:
    await world.surroundings()
    await world.settle()
    found = await world.api.get(CLUSTER_RELEASES.raw(), "mke-17-3-0")
    image = {"id": "ubuntu/jammy", "default": True, "image": {"url": "https://example.com/jammy.qcow2"}}
    spec = found["spec"] | {"allowedDistributions": [image]}
    await world.api.create(CLUSTER_RELEASES, {"metadata": {"name": "other"}, "spec": spec})
    await world.api.patch(SUBNETS, "lcm", {"spec": {"gateway": "192.0.2.1"}}, namespace="example-ns")
    await world.api.patch(
        L2_TEMPLATES, "one-nic", {"spec": {"l3Layout": [{"subnetName": "none"}]}}, namespace="example-ns"
    )
    wrong = {"spec": {"fileSystems": [{"fileSystem": "ext4", "partition": "x", "mountPoint": "/"}]}}
    await world.api.patch(BARE_METAL_HOST_PROFILES, "default", wrong, namespace="default")
    await world.settle()
    release = await told(world, "clusterreleases.kaas.mirantis.com/other")
    assert release[1:] == (
        "UnsupportedImage", False, ["kubectl get clusterreleases.kaas.mirantis.com other -o yaml"],
    )  # fmt: skip
    assert "only OCI images can be written" in release[0]
    subnet = await told(world, "subnet/lcm")
    assert subnet[:3] == ("ERR: spec.gateway: 192.0.2.1 is not in 10.0.0.0/24", "SubnetInvalid", False)
    assert subnet[3] == ["kubectl edit subnets.ipam.mirantis.com lcm -n example-ns"]
    template = await told(world, "l2template/one-nic")
    assert ("has no Subnet none" in template[0], template[1]) == (True, "TemplateInvalid")
    profile = await told(world, "bmhp/default", "default")
    assert (profile[1], profile[3]) == (
        "ProfileInvalid", ["kubectl edit baremetalhostprofiles.metal3.io default -n default"],
    )  # fmt: skip


def test_an_object_that_is_new_waits_for_container_cloud() -> None:
    async def scene() -> None:
        api = MemoryApi(now=virtual_now, namespaces=("example-ns",))
        await api.create(
            SUBNETS, {"metadata": {"name": "lcm"}, "spec": {"cidr": "10.0.0.0/24"}}, namespace="example-ns"
        )
        found = await explain(api, Topic.SUBNET, "lcm", namespace="example-ns")
        assert [(one.what, one.code, one.held_by) for one in found.links] == [
            ("has not been processed by container-cloud", "NotProcessed", "container-cloud")
        ]
        assert not found.settled

    run_virtual(scene())


@pytest.mark.parametrize(
    ("text", "topic"),
    [
        ("bmhc/c", Topic.CREDENTIAL),
        ("baremetalhostcredential.kaas.mirantis.com/c", Topic.CREDENTIAL),
        ("IpamHost/i", Topic.IPAM_HOST),
    ],
)
def test_a_kind_is_named_as_kubectl_takes_it(text: str, topic: Topic) -> None:
    assert parsed(text)[0] is topic
