"""A host from stock to claim and back, on the embedded server: BMCs over HTTPS, and components by their own rights."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any, Final

import pytest
import yaml

from tests.api.test_container_cloud_rules import SEED
from tests.containercloud import objects
from tests.support.waiting import eventually
from unbounded.api.container_cloud.host import BARE_METAL_HOST_CREDENTIALS, BARE_METAL_HOSTS, BareMetalHost
from unbounded.api.container_cloud.machine import CONTAINER_CLOUD_MACHINES, ContainerCloudMachine
from unbounded.api.container_cloud.names import ANNOTATION_CREDENTIAL
from unbounded.api.core import SECRETS
from unbounded.api.machine import MACHINES
from unbounded.api.meta import Kind
from unbounded.api.operation import MACHINE_OPERATIONS, MachineOperation
from unbounded.cli.servers import component_runtime
from unbounded.containercloud import controller as container_cloud
from unbounded.containercloud.settings import ContainerCloudSettings
from unbounded.kube.api import NotFound
from unbounded.kube.client import HttpApi
from unbounded.kube.metrics import ControllerMetrics
from unbounded.machina import controller as machina
from unbounded.metalman import controller as metalman
from unbounded.metalman.settings import MetalmanSettings
from unbounded_lab.bmc.local import LabBmc
from unbounded_lab.bmc.power import HostPower

pytestmark = pytest.mark.slow

NAME: Final = "example-control-plane"
WITHIN_S: Final = 120.0


@asynccontextmanager
async def components(admin: HttpApi) -> AsyncIterator[None]:
    """Run container-cloud, metalman and machina, each as its service account."""
    async with AsyncExitStack() as stack:
        group = await stack.enter_async_context(asyncio.TaskGroup())
        runtimes = {
            name: await stack.enter_async_context(component_runtime(name, admin, metrics=ControllerMetrics()))
            for name in ("container-cloud", "metalman", "machina")
        }
        works = [
            container_cloud.run(runtimes["container-cloud"], ContainerCloudSettings(site="lab", min_other_managers=0)),
            metalman.run(runtimes["metalman"], MetalmanSettings(site=None, serial_consoles=None)),
            machina.run(runtimes["machina"]),
            *(runtime.events.run() for runtime in runtimes.values() if runtime.events is not None),
        ]
        tasks = [group.create_task(work) for work in works]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()


@asynccontextmanager
async def seed_host(admin: HttpApi, bmc: LabBmc) -> AsyncIterator[str]:
    """Create all that stands around the seed's Machine, and remove its host at the end: the name of the project."""
    project = await objects.project(admin)
    await objects.cluster(admin, project, release=await objects.release(admin))
    password = {"value": bmc.password}
    credential = {"metadata": {"name": "master-0"}, "spec": {"username": bmc.username, "password": password}}
    address = f"{bmc.url.replace('https', 'redfish')}/redfish/v1/Systems/{bmc.device_ids[0]}"
    host = {
        "metadata": {
            "name": "master-0",
            "labels": {"kaas.mirantis.com/baremetalhost-id": "hw-master-0"},
            "annotations": {ANNOTATION_CREDENTIAL: "master-0"},
        },
        "spec": {"bmc": {"address": address}, "bootMACAddress": bmc.identity.mac(0)},
    }
    try:
        await admin.create(BARE_METAL_HOST_CREDENTIALS, credential, namespace="default")
        await admin.create(BARE_METAL_HOSTS, host, namespace="default")
        yield project
    finally:
        await removed(admin, CONTAINER_CLOUD_MACHINES, NAME, project)
        await removed(admin, BARE_METAL_HOSTS, "master-0", "default")
        await removed(admin, BARE_METAL_HOST_CREDENTIALS, "master-0", "default")
        for one in await operations(admin):
            await removed(admin, MACHINE_OPERATIONS, one.name)


async def operations(admin: HttpApi) -> list[MachineOperation]:
    """Return the operations on the host's Machine."""
    return [one for one in (await admin.list(MACHINE_OPERATIONS)).items if one.spec.machine_ref == "master-0.default"]


async def removed(admin: HttpApi, kind: Kind[Any], name: str, namespace: str = "") -> None:
    """Delete an object, and wait until it is gone."""

    async def is_gone() -> bool:
        try:
            await admin.get(kind, name, namespace=namespace)
        except NotFound:
            return True
        return False

    with suppress(NotFound):
        await admin.delete(kind, name, namespace=namespace)
    await eventually(is_gone, within_s=WITHIN_S, every_s=0.2)


async def host_when(admin: HttpApi, holds: Callable[[BareMetalHost], bool]) -> BareMetalHost:
    """Wait until the host is as the predicate says; return it."""
    last: list[BareMetalHost] = []

    async def check() -> BareMetalHost | None:
        last[:] = [await admin.get(BARE_METAL_HOSTS, "master-0", namespace="default")]
        return last[0] if holds(last[0]) else None

    return await eventually(check, lambda: last, within_s=WITHIN_S, every_s=0.1)


async def test_the_seeds_machine_claims_its_host_from_stock_and_gives_it_back(admin: HttpApi) -> None:
    async with (
        LabBmc("master-0", power=HostPower.ON, boot_s=0.2, shutdown_s=0.2) as bmc,
        components(admin),
        seed_host(admin, bmc) as project,
    ):
        host = await host_when(admin, lambda one: one.state == "available")
        await proves_stock(admin, host, bmc)
        seed: Any = yaml.load(SEED, Loader=yaml.CSafeLoader)
        seed["metadata"]["namespace"] = project
        made = await admin.create(CONTAINER_CLOUD_MACHINES, seed, namespace=project)
        host = await host_when(admin, lambda one: one.state == "provisioning")
        await proves_claim(admin, host, made)
        await removed(admin, CONTAINER_CLOUD_MACHINES, NAME, project)
        host = await host_when(admin, lambda one: one.state == "available")
        await proves_return(admin, host, bmc)


async def proves_stock(admin: HttpApi, host: BareMetalHost, bmc: LabBmc) -> None:
    """Check a host that was registered and inspected over Redfish."""
    hardware = host.status.hardware
    assert hardware is not None
    assert hardware.cpu is not None
    assert (hardware.cpu.count, hardware.cpu.arch, hardware.ram_mebibytes) == (64, "x86_64", 4 * 32_768)
    assert hardware.nics[0].mac == bmc.identity.mac(0)
    assert [disk.size_bytes for disk in hardware.storage] == [960_197_124_096] * 2
    assert (host.status.operational_status, host.status.powered_on) == ("OK", True)
    assert host.status.good_credentials is not None
    machine = await admin.get(MACHINES, "master-0.default")
    assert (machine.site, machine.spec.pxe and machine.spec.pxe.image) == ("lab", None)
    raw = await admin.get(BARE_METAL_HOST_CREDENTIALS.raw(), "master-0", namespace="default")
    assert bmc.password not in str(raw)
    assert (await admin.get(SECRETS, "master-0", namespace="default")).value("password") == bmc.password.encode()


async def proves_claim(admin: HttpApi, host: BareMetalHost, made: ContainerCloudMachine) -> None:
    """Check both ends of a claim."""
    reference = host.spec.consumer_ref
    assert reference is not None
    assert (reference.kind, reference.namespace, reference.name) == ("Machine", made.metadata.namespace, made.name)
    assert host.metadata.annotations["unbounded-cloud.io/consumer-uid"] == made.metadata.uid


async def proves_return(admin: HttpApi, host: BareMetalHost, bmc: LabBmc) -> None:
    """Check a host that is back in stock: switched off by one operation, and seen Off."""
    assert host.status.powered_on is False
    assert bmc.power() is HostPower.OFF
    assert [(one.spec.operation_kind, one.status.phase) for one in await operations(admin)] == [
        ("HostPowerOff", "Complete")
    ]
    assert [one.type for one in host.status.conditions if one.status == "True"] == ["Available"]
