"""Networks and profiles of hosts on a real API server, with the rights of container-cloud and all of deploy/."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest
import yaml

from tests.api.test_profile_rules import MIRROR
from tests.containercloud.network.support import EXAMPLE, LCM, LCM_SPEC, MACS
from tests.containercloud.network.world import NICS, netplan_of
from tests.containercloud.objects import machine, project
from tests.support.waiting import eventually
from unbounded.api.container_cloud.host import BARE_METAL_HOST_PROFILES, BARE_METAL_HOSTS
from unbounded.api.container_cloud.machine import CONTAINER_CLOUD_MACHINES
from unbounded.api.container_cloud.network import IPAM_HOSTS, L2_TEMPLATES, SUBNETS
from unbounded.api.core import CONFIG_MAPS
from unbounded.api.machine import MACHINES
from unbounded.api.machine_spec import PXESpec
from unbounded.api.profile import MACHINE_PROFILES
from unbounded.cli.servers import component_runtime
from unbounded.containercloud.caches import ControllerContext, container_cloud_caches
from unbounded.containercloud.network.controller import NetworkController
from unbounded.containercloud.network.plan import config_name
from unbounded.containercloud.profiles.controller import ProfileController
from unbounded.kube.api import InvalidObject, NotFound
from unbounded.kube.client import HttpApi
from unbounded.kube.metrics import ControllerMetrics
from unbounded.kube.process import running_caches

pytestmark = pytest.mark.slow

WITHOUT_CARDS = 'version: 2\nbridges: {k8s-lcm: {addresses: [{{ip "k8s-lcm:lcm"}}]}}\n'


@pytest.fixture
async def served(admin: HttpApi) -> AsyncIterator[HttpApi]:
    """The administrator, while container-cloud's controllers of networks and profiles work."""
    async with AsyncExitStack() as stack:
        runtime = await stack.enter_async_context(
            component_runtime("container-cloud", admin, metrics=ControllerMetrics())
        )
        caches = container_cloud_caches(runtime.api)
        await stack.enter_async_context(running_caches(runtime, *caches.followed))
        group = await stack.enter_async_context(asyncio.TaskGroup())
        context = ControllerContext(api=runtime.api, caches=caches, epoch=runtime.epoch)
        parts = (NetworkController(context), ProfileController(context))
        tasks = [group.create_task(part.run()) for part in parts]
        try:
            yield admin
        finally:
            for task in tasks:
                task.cancel()


async def until(look: Callable[[], Any], holds: Callable[[Any], Any]) -> Any:
    async def observed() -> Any:
        try:
            found = await look()
        except NotFound:
            return None
        return found if holds(found) else None

    return await eventually(observed)


async def claimed(admin: HttpApi, namespace: str) -> str:
    """Create a Machine with a profile and the host that it has claimed; return the name of the host's Machine."""
    target = f"master-0.{namespace}"
    api_version = CONTAINER_CLOUD_MACHINES.api_version
    consumer = {"apiVersion": api_version, "kind": "Machine", "namespace": namespace, "name": "m"}
    host = {"metadata": {"name": "master-0"}, "spec": {"bootMACAddress": MACS[0], "consumerRef": consumer}}
    made = await admin.create(BARE_METAL_HOSTS, host, namespace=namespace)
    await admin.create(MACHINES, {"metadata": {"name": target}, "spec": {"pxe": {"image": "registry.example/host:v1"}}})
    references: Any = {"l2TemplateSelector": {"name": "one-nic"}, "bareMetalHostProfile": {"name": "default"}}
    await machine(admin, namespace, "m", **references)
    execution = {
        "stage": "Provisioning",
        "machine": target,
        "host": {"namespace": namespace, "name": "master-0", "uid": made.metadata.uid},
    }
    await stage(admin, namespace, **execution)
    return target


async def pxe_of(admin: HttpApi, target: str) -> PXESpec:
    pxe = (await admin.get(MACHINES, target)).spec.pxe
    assert pxe is not None
    return pxe


async def stage(admin: HttpApi, namespace: str, **execution: Any) -> None:
    patch = {"status": {"execution": execution}}
    await admin.patch(CONTAINER_CLOUD_MACHINES, "m", patch, namespace=namespace, subresource="status")


async def network(admin: HttpApi, namespace: str, text: str = EXAMPLE) -> None:
    """Create a Subnet and a template of it."""
    await admin.create(SUBNETS, {"metadata": {"name": "lcm", "labels": LCM}, "spec": LCM_SPEC}, namespace=namespace)
    layout = [{"subnetName": "lcm", "scope": "namespace"}]
    spec = {"ifMapping": ["eno1", "enp0s0"], "l3Layout": layout, "npTemplate": text}
    labels = {"cluster.sigs.k8s.io/cluster-name": "example-cluster"}
    body = {"metadata": {"name": "one-nic", "labels": labels}, "spec": spec}
    await admin.create(L2_TEMPLATES, body, namespace=namespace)


async def test_a_network_that_needs_no_card_is_written_once(served: HttpApi) -> None:
    namespace = await project(served)
    await network(served, namespace, WITHOUT_CARDS)
    before = await served.list(CONFIG_MAPS, namespace="unbounded-kube")
    await claimed(served, namespace)
    done = await until(lambda: served.get(IPAM_HOSTS, "m", namespace=namespace), lambda one: one.status.state == "OK")
    await served.create(CONFIG_MAPS, {"metadata": {"name": f"end-{namespace}"}}, namespace="unbounded-kube")
    writes = []
    async for event in served.watch(CONFIG_MAPS, resource_version=before.resource_version, namespace="unbounded-kube"):
        name = event.object.name if event.object is not None else ""
        if name == f"end-{namespace}":
            break
        writes += [event.type] if name == config_name(done) else []
    assert writes == ["ADDED"]


async def test_a_claimed_host_gets_network_and_profile_and_gives_them_back(served: HttpApi) -> None:
    namespace = await project(served)
    await network(served, namespace)
    profile = {"metadata": {"name": "default"}, "spec": yaml.safe_load(MIRROR)}
    await served.create(BARE_METAL_HOST_PROFILES, profile, namespace=namespace)
    target = await claimed(served, namespace)

    hardware = {"source": "Installer", "boot": "b1", "at": "2030-01-01T00:00:00Z", "digest": "a" * 64, "nics": NICS}
    await served.patch(MACHINES, target, {"status": {"hardware": hardware}}, subresource="status")

    async def ipam() -> Any:
        return await served.get(IPAM_HOSTS, "m", namespace=namespace)

    done = await until(ipam, lambda one: one.status.state == "OK")
    config = await served.get(CONFIG_MAPS, config_name(done), namespace="unbounded-kube")
    assert yaml.safe_load(config.data["network-config"]) == netplan_of(done)["network"]
    subnet = await served.get(SUBNETS, "lcm", namespace=namespace)
    assert subnet.status.allocated_ips == (f"10.0.0.100:{done.metadata.uid}/k8s-lcm",)
    pxe = await until(lambda: pxe_of(served, target), lambda one: one.profile_ref is not None)
    assert [one.ipv4 for one in pxe.dhcp_leases] == ["10.0.0.100"]
    assert pxe.cloud_init.network_config_config_map_ref.name == config.name
    made = await served.get(MACHINE_PROFILES, pxe.profile_ref.name)
    assert [one.size for one in made.spec.logical_volumes] == ["6Gi", 0]
    template = await until(
        lambda: served.get(L2_TEMPLATES, "one-nic", namespace=namespace), lambda one: one.status.state
    )
    assert template.status.state == "OK"

    await stage(served, namespace, stage="Releasing")
    await served.delete(IPAM_HOSTS, "m", namespace=namespace)

    async def is_gone() -> bool | None:
        try:
            await ipam()
        except NotFound:
            return True
        return None

    await eventually(is_gone)
    assert (await served.get(SUBNETS, "lcm", namespace=namespace)).status.allocated_ips == ()
    assert (await pxe_of(served, target)).dhcp_leases == ()
    with pytest.raises(NotFound):
        await served.get(CONFIG_MAPS, config.name, namespace="unbounded-kube")


async def test_a_template_with_two_mappings_or_none_is_rejected(admin: HttpApi) -> None:
    namespace = await project(admin)
    mappings: tuple[Any, ...] = ({}, {"ifMapping": ["eno1"], "autoIfMappingPrio": ["eno"]})
    for mapping in mappings:
        body: Any = {"metadata": {"name": "t"}, "spec": {**mapping, "npTemplate": EXAMPLE}}
        with pytest.raises(InvalidObject, match="ifMapping"):
            await admin.create(L2_TEMPLATES, body, namespace=namespace)
