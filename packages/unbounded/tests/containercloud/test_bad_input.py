"""Bad input around the Machine of the API reference: it is named, and what is right afterwards goes on by itself."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

import pytest
import yaml

from tests.api.test_container_cloud_rules import SEED
from tests.containercloud.site import KINDS, SURROUNDINGS, Site, site
from tests.containercloud.test_site import HOST, LONE, MANAGER, NAME, begun
from tests.support.virtual_time import run_virtual
from unbounded.api.container_cloud.cluster import CLUSTER_RELEASES, CLUSTERS
from unbounded.api.container_cloud.host import BARE_METAL_HOST_PROFILES, BARE_METAL_HOSTS
from unbounded.api.container_cloud.machine import CONTAINER_CLOUD_MACHINES, ContainerCloudMachine
from unbounded.api.container_cloud.network import L2_TEMPLATES, SUBNETS
from unbounded.api.core import SECRETS
from unbounded.api.meta import Kind
from unbounded.kube.api import NotFound

Documents = dict[str, dict[str, Any]]
Mend = Callable[[Site], Awaitable[Any]]


@dataclass(frozen=True)
class BadInput:
    """A fault in what stands around a Machine, or in itself.

    Attributes:
        spoil: changes the documents, by their kind, before they are created.
        reason: for which the Machine waits then.
        says: a part of its message.
        mend: corrects the fault on the server.
    """

    spoil: Callable[[Documents], Any]
    reason: str
    says: str
    mend: Mend


def create(kind: str) -> Mend:
    async def mend(world: Site) -> None:
        body = documents()[kind]
        await world.api.create(KINDS[kind], body, namespace=body["metadata"].get("namespace", ""))

    return mend


def change(kind: Kind[Any], name: str, patch: dict[str, Any], namespace: str = "example-ns") -> Mend:
    async def mend(world: Site) -> None:
        await world.api.patch(kind, name, patch, namespace=namespace)

    return mend


def value(**fields: Any) -> Mend:
    """Change fields of the Machine."""
    return change(CONTAINER_CLOUD_MACHINES, NAME, {"spec": {"providerSpec": {"value": fields}}})


def host(**spec: Any) -> Mend:
    return change(BARE_METAL_HOSTS, "master-0", {"spec": spec}, "default")


def annotated(kind: Kind[Any], name: str, namespace: str, annotations: dict[str, Any]) -> Mend:
    return change(kind, name, {"metadata": {"annotations": annotations}}, namespace)


async def other_release(world: Site) -> None:
    """Create a release that can be used, and let the Cluster have it: a release itself is immutable."""
    spec = documents()["ClusterRelease"]["spec"]
    await world.api.create(CLUSTER_RELEASES, {"metadata": {"name": "right"}, "spec": spec})
    await change(CLUSTERS, "example-cluster", {"spec": {"providerSpec": {"value": {"release": "right"}}}})(world)


async def store_secret(world: Site) -> None:
    await world.secret("bmc-1")


def documents() -> Documents:
    found = {one["kind"]: one for one in yaml.safe_load_all(f"{SURROUNDINGS}\n---\n{SEED}")}
    found["Secret"] = {"kind": "Secret"}
    return found


def machine_value(found: Documents) -> dict[str, Any]:
    fields: dict[str, Any] = found["Machine"]["spec"]["providerSpec"]["value"]
    return fields


TEMPLATE: Final[str] = documents()["L2Template"]["spec"]["npTemplate"]
HELD: Final = "HostNotAvailable"
PIN: Final = "metal3.io/BareMetalHost"
CASES: Final = {
    "missing Cluster": BadInput(
        lambda found: found.pop("Cluster"), "ClusterMissing", "Cluster example-ns/example-cluster", create("Cluster")
    ),
    "missing release": BadInput(
        lambda found: found.pop("ClusterRelease"), "ReleaseMissing", "mke-17-3-0", create("ClusterRelease")
    ),
    "release with an image that cannot be written": BadInput(
        lambda found: found["ClusterRelease"]["spec"]["allowedDistributions"][0].update(
            image={"url": "https://example.com/jammy.qcow2"}
        ),
        "ReleaseMissing",
        "mke-17-3-0",
        other_release,
    ),
    "label that the release does not allow": BadInput(
        lambda found: machine_value(found).update(nodeLabels=[{"key": "ceph", "value": "yes"}]),
        "InvalidConfiguration",
        "nodeLabels: ceph is not among",
        value(nodeLabels=[{"key": "stacklight", "value": "enabled"}]),
    ),
    "distribution that the release does not have": BadInput(
        lambda found: machine_value(found).update(distribution="ubuntu/xenial"),
        "InvalidConfiguration",
        "distribution: ubuntu/xenial is not among",
        value(distribution="ubuntu/jammy"),
    ),
    "missing profile": BadInput(
        lambda found: found.pop("BareMetalHostProfile"),
        "ProfileMissing",
        "there is no BareMetalHostProfile default/default",
        create("BareMetalHostProfile"),
    ),
    "profile with a file system on nothing": BadInput(
        lambda found: found["BareMetalHostProfile"]["spec"]["fileSystems"][1].update(partition="none"),
        "ProfileInvalid",
        "none",
        change(
            BARE_METAL_HOST_PROFILES,
            "default",
            {"spec": {"fileSystems": documents()["BareMetalHostProfile"]["spec"]["fileSystems"]}},
            "default",
        ),
    ),
    "missing template": BadInput(
        lambda found: found.pop("L2Template"), "NoTemplate", "l2-template1-label-1", create("L2Template")
    ),
    "template with an unknown macro": BadInput(
        lambda found: found["L2Template"]["spec"].update(npTemplate=TEMPLATE.replace("{{nic 0}}", "{{nick 0}}")),
        "TemplateInvalid",
        'npTemplate:3: function "nick" not defined',
        change(L2_TEMPLATES, "one-nic", {"spec": {"npTemplate": TEMPLATE}}),
    ),
    "missing Subnet": BadInput(lambda found: found.pop("Subnet"), "SubnetMissing", "lcm", create("Subnet")),
    "Subnet without a gateway for the installer": BadInput(
        lambda found: found["Subnet"]["spec"].pop("gateway"),
        "SubnetInvalid",
        "Subnet example-ns/lcm has no spec.gateway",
        change(SUBNETS, "lcm", {"spec": {"gateway": "10.0.0.1"}}),
    ),
    "missing Secret": BadInput(
        lambda found: found.pop("Secret"), HELD, "Secret default/bmc-1 does not exist", store_secret
    ),
    "address of a BMC that is not served": BadInput(
        lambda found: found["BareMetalHost"]["spec"]["bmc"].update(address="ipmi://192.0.2.1"),
        HELD,
        "bmc.address: ipmi:// is not served",
        host(bmc={"address": "redfish://192.0.2.1/redfish/v1/Systems/1"}),
    ),
    "missing host": BadInput(
        lambda found: found.pop("BareMetalHost"),
        "HostMissing",
        "no BareMetalHost default/master-0",
        create("BareMetalHost"),
    ),
    "host of a namespace that is not shared": BadInput(
        lambda found: found["Machine"]["metadata"]["annotations"].update({PIN: "other-ns/master-0"}),
        "HostNotShared",
        "may use hosts of: default",
        annotated(CONTAINER_CLOUD_MACHINES, NAME, "example-ns", {PIN: "default/master-0"}),
    ),
    "host that others use": BadInput(
        lambda found: found["BareMetalHost"]["spec"].update(
            consumerRef={"apiVersion": "v1", "kind": "Other", "namespace": "n", "name": "x"}
        ),
        "HostTaken",
        "is used by Other n/x",
        host(consumerRef=None),
    ),
    "host that is paused": BadInput(
        lambda found: found["BareMetalHost"]["metadata"].update(annotations={"baremetalhost.metal3.io/paused": ""}),
        HELD,
        "paused",
        annotated(BARE_METAL_HOSTS, "master-0", "default", {"baremetalhost.metal3.io/paused": None}),
    ),
    "no host with the labels": BadInput(
        lambda found: (
            found["Machine"]["metadata"].pop("annotations"),
            found["BareMetalHost"]["metadata"].update(namespace="example-ns", labels={}),
            found["BareMetalHost"]["spec"]["bmc"].update(credentialsName="bmc-2"),
        ),
        "InsufficientResources",
        "no host in namespace example-ns",
        change(
            BARE_METAL_HOSTS,
            "master-0",
            {"metadata": {"labels": {"kaas.mirantis.com/baremetalhost-id": "hw-master-0"}}},
        ),
    ),
}


async def applied(world: Site, found: Documents) -> None:
    if found.pop("Secret", None):
        await world.secret("bmc-1")
    await world.secret("bmc-2", "example-ns")
    for body in found.values():
        await world.api.create(KINDS[body["kind"]], body, namespace=body["metadata"].get("namespace", ""))


@pytest.mark.parametrize("name", CASES)
def test_bad_input_is_named_and_goes_on_once_it_is_right(name: str) -> None:
    case = CASES[name]

    def waits(machine: ContainerCloudMachine) -> bool:
        execution = machine.status.execution
        message = (execution.message if execution is not None else None) or ""
        return _waits_for(machine) == case.reason and case.says in message

    async def scene() -> None:
        async with site() as world:
            found = documents()
            case.spoil(found)
            await applied(world, found)
            await world.until_machine(waits)
            await world.settle()
            assert world.operated.count("HostReplace") == 0
            await case.mend(world)
            await world.until_word("Ready")
            assert world.operated.count("HostReplace") == 1

    run_virtual(scene())


def test_a_full_subnet_is_named_and_goes_on_once_it_is_wider() -> None:
    async def scene() -> None:
        async with site() as world:
            await begun(world)
            await world.until_word("Ready")
            await world.api.patch(SUBNETS, "lcm", {"spec": {"includeRanges": ["10.0.0.10"]}}, namespace="example-ns")
            await world.apply(HOST.replace("NUMBER", "1"))
            await world.apply(MANAGER.replace("NAME", "second"))
            waiting = await world.until_machine(lambda one: _waits_for(one) == "SubnetFull", "second")
            assert waiting.status.execution is not None
            assert "Subnet example-ns/lcm" in (waiting.status.execution.message or "")
            await change(SUBNETS, "lcm", {"spec": {"includeRanges": ["10.0.0.10-10.0.0.20"]}})(world)
            await world.until_word("Ready", "second")

    run_virtual(scene())


def test_deleted_hosts_wait_for_their_machine_and_missing_ones_block_no_deletion() -> None:
    async def scene() -> None:
        async with site(LONE) as world:
            await begun(world)
            await world.until_word("Ready")
            await world.api.delete(BARE_METAL_HOSTS, "master-0", namespace="default")
            await world.settle()
            assert (await world.cc_machine()).provider_status.status == "Ready"
            await world.api.patch(BARE_METAL_HOSTS, "master-0", {"metadata": {"finalizers": None}}, namespace="default")
            await world.until_machine(lambda one: _waits_for(one) == "HostMissing")
            await world.change(delete=True)
            await world.until_gone()
            with pytest.raises(NotFound):
                await world.api.get(BARE_METAL_HOSTS, "master-0", namespace="default")

    run_virtual(scene())


def _waits_for(machine: ContainerCloudMachine) -> str:
    execution = machine.status.execution
    return "" if execution is None or execution.waiting is None else execution.waiting.reason


def test_a_secret_that_is_deleted_is_named_and_comes_back() -> None:
    async def scene() -> None:
        async with site() as world:
            await begun(world)
            await world.until_word("Ready")
            await world.api.delete(SECRETS, "bmc-1", namespace="default")
            await world.until(lambda one: "Secret default/bmc-1" in (one.status.error_message or ""), "master-0")
            await world.secret("bmc-1")
            await world.until(lambda one: not one.status.error_message, "master-0")

    run_virtual(scene())
