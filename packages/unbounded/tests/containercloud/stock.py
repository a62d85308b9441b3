"""Hosts in stock in virtual time: the controllers of hosts and claims on an API in memory, and a made-up metalman."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from tests.containercloud.unread import watched_caches
from tests.support.memory_api import MemoryApi
from tests.support.stories import told_in
from tests.support.virtual_time import virtual_now
from tests.support.waiting import eventually
from unbounded.api.container_cloud.cluster import CLUSTERS
from unbounded.api.container_cloud.host import BARE_METAL_HOST_CREDENTIALS, BARE_METAL_HOSTS, BareMetalHost
from unbounded.api.container_cloud.machine import CONTAINER_CLOUD_MACHINES, ContainerCloudMachine
from unbounded.api.container_cloud.names import BAREMETAL, LABEL_CLUSTER, LABEL_PROVIDER, PROVIDER_API_VERSION
from unbounded.api.core import EVENTS, SECRETS, Event, Secret
from unbounded.api.machine import MACHINES, Machine, MachinePower
from unbounded.api.operation import MACHINE_OPERATIONS, MachineOperation
from unbounded.containercloud.caches import ContainerCloudCaches, ControllerContext
from unbounded.containercloud.claims import ClaimController
from unbounded.containercloud.hosts.controller import HostController
from unbounded.containercloud.hosts.credentials import CredentialController
from unbounded.kube.api import Conflict, NotFound
from unbounded.kube.clock import rfc3339
from unbounded.kube.events import EventRecorder, event_sink
from unbounded.kube.process_epoch import ProcessEpoch
from unbounded.metalman.power_reader import power_change

PASSWORD: Final = "0penSesame"
HARDWARE: Final[Mapping[str, Any]] = {
    "source": "Redfish",
    "digest": "0" * 64,
    "system": {"manufacturer": "Acme", "product": "R1", "serialNumber": "S1"},
    "cpus": 11,
    "processor": {"architecture": "x86_64", "model": "Acme One"},
    "memoryBytes": 16 << 30,
    "nics": [{"name": "eno1", "mac": "02:00:00:00:00:01", "speedMbps": 10000}],
    "disks": [{"name": "sda", "sizeBytes": 61_000_000_000, "rotational": False, "byID": ["wwn-0x5000"]}],
}


def secret_data(password: str = PASSWORD, user: str = "admin") -> dict[str, str]:
    return {key: base64.b64encode(text.encode()).decode() for key, text in (("username", user), ("password", password))}


@dataclass
class Stock:
    """The objects of a site, and a metalman that reads each BMC at once and executes power operations."""

    api: MemoryApi
    caches: ContainerCloudCaches
    power: dict[str, str] = field(default_factory=dict)  # of each Machine's host
    silent: set[str] = field(default_factory=set)  # Machines whose BMC does not answer
    unread: set[str] = field(default_factory=set)  # the same for so short that the last reading stands
    failing: set[str] = field(default_factory=set)  # Machines whose power operations fail
    operated: list[str] = field(default_factory=list)
    tasks: list[asyncio.Task[None]] = field(default_factory=list)

    # ---- objects

    async def secret(self, name: str = "bmc", namespace: str = "default", **data: str) -> Secret:
        body = {"metadata": {"name": name}, "data": data or secret_data()}
        return await self.api.create(SECRETS, body, namespace=namespace)

    async def host(
        self, name: str, namespace: str = "default", *, labels: Mapping[str, str] = {}, **spec: Any
    ) -> BareMetalHost:
        address = f"redfish://192.0.2.1/redfish/v1/Systems/{name}"
        annotations = spec.pop("annotations", {})
        body = {
            "metadata": {"name": name, "labels": dict(labels), "annotations": annotations},
            "spec": {"bmc": {"address": address, "credentialsName": "bmc"}} | spec,
        }
        return await self.api.create(BARE_METAL_HOSTS, body, namespace=namespace)

    async def cluster(self, name: str = "c1", namespace: str = "example-ns", *, release: bool = True) -> None:
        value = {"apiVersion": PROVIDER_API_VERSION, "kind": "BaremetalClusterProviderSpec", "release": "r1"}
        body = {"metadata": {"name": name, "labels": {LABEL_PROVIDER: BAREMETAL}}}
        await self.api.create(CLUSTERS, body | {"spec": {"providerSpec": {"value": value}}}, namespace=namespace)
        if release:
            await self.release(name, namespace)

    async def release(self, name: str = "c1", namespace: str = "example-ns") -> None:
        allowed = {
            "name": "r1",
            "allowedNodeLabels": [{"key": "stacklight", "value": "enabled"}, {"key": "any"}],
            "allowedDistributions": [{"id": "ubuntu/jammy", "default": True}],
        }
        status = {"providerStatus": {"releaseRefs": {"current": allowed}}}
        await self.api.patch(CLUSTERS, name, {"status": status}, namespace=namespace, subresource="status")

    async def claimant(
        self, name: str, namespace: str = "example-ns", *, pin: str = "", labels: Mapping[str, str] = {}, **value: Any
    ) -> ContainerCloudMachine:
        labels = {LABEL_PROVIDER: BAREMETAL, LABEL_CLUSTER: "c1"} | dict(labels)
        kind = {"apiVersion": PROVIDER_API_VERSION, "kind": "BareMetalMachineProviderSpec"}
        body = {
            "metadata": {
                "name": name,
                "labels": labels,
                "annotations": {"metal3.io/BareMetalHost": pin} if pin else {},
            },
            "spec": {"providerSpec": {"value": kind | value}},
        }
        return await self.api.create(CONTAINER_CLOUD_MACHINES, body, namespace=namespace)

    # ---- observations

    async def read(self, name: str, namespace: str = "default") -> BareMetalHost:
        return await self.api.get(BARE_METAL_HOSTS, name, namespace=namespace)

    async def machine(self, name: str) -> Machine:
        return await self.api.get(MACHINES, name)

    async def claimed_by(self, name: str, namespace: str = "example-ns") -> ContainerCloudMachine:
        return await self.api.get(CONTAINER_CLOUD_MACHINES, name, namespace=namespace)

    async def operations(self) -> tuple[MachineOperation, ...]:
        return (await self.api.list(MACHINE_OPERATIONS)).items

    async def events(self) -> tuple[Event, ...]:
        return (await self.api.list(EVENTS)).items

    async def until(
        self, holds: Callable[[BareMetalHost], bool], name: str = "a", namespace: str = "default"
    ) -> BareMetalHost:
        """Wait until a host is as the predicate says; return it."""

        async def check() -> BareMetalHost | None:
            host = await self.read(name, namespace)
            return host if holds(host) else None

        return await eventually(check, lambda: self.caches.hosts.get(name, namespace), within_s=7200, every_s=1)

    async def state(self, state: str, name: str = "a", namespace: str = "default") -> BareMetalHost:
        return await self.until(lambda host: host.state == state, name, namespace)

    async def reason(self, reason: str, name: str = "a", namespace: str = "default") -> str:
        """Wait until the host is not available for this reason; return the message."""

        def holds(host: BareMetalHost) -> bool:
            return any(one.type == "Available" and one.reason == reason for one in host.status.conditions)

        host = await self.until(holds, name, namespace)
        return next(one.message for one in host.status.conditions if one.type == "Available")

    async def settle(self) -> None:
        """Let everything happen that has to within a minute."""
        await asyncio.sleep(60)

    async def credential(self) -> dict[str, Any]:
        return await self.api.get(BARE_METAL_HOST_CREDENTIALS.raw(), "cred", namespace="default")

    # ---- edits

    async def edit(self, name: str = "a", namespace: str = "default", **spec: Any) -> None:
        await self.api.patch(BARE_METAL_HOSTS, name, {"spec": spec}, namespace=namespace)

    async def annotate(self, name: str = "a", namespace: str = "default", **annotations: str | None) -> None:
        patch = {"metadata": {"annotations": annotations}}
        await self.api.patch(BARE_METAL_HOSTS, name, patch, namespace=namespace)

    async def installed(self, machine: str, boot: str = "b1") -> None:
        """Write what a HostReplace leaves in the status of a Machine: an image; the host runs."""
        at = rfc3339(virtual_now())
        image = {"image": "registry.example/jammy:1", "digest": f"sha256:{'0' * 64}", "boot": boot, "at": at}
        self.power[machine] = "On"
        status = {"image": image, "power": {"state": "On", "at": at}}
        await self.api.patch(MACHINES, machine, {"status": status}, subresource="status")

    # ---- metalman

    async def metalman(self) -> None:
        while True:
            for machine in (await self.api.list(MACHINES)).items:
                await self._observe(machine)
            for operation in await self.operations():
                if not operation.terminal:
                    await self._operate(operation)
            await asyncio.sleep(1)

    async def _observe(self, machine: Machine) -> None:
        """Read the BMC of an idle Machine, as metalman does, and write what it writes."""
        pxe, name, at = machine.spec.pxe, machine.name, rfc3339(virtual_now())
        if pxe is None or pxe.redfish is None or machine.status.active_operation is not None or name in self.unread:
            return
        power = MachinePower.UNKNOWN if name in self.silent else MachinePower(self.power.setdefault(name, "Off"))
        conditions = [msgspec.to_builtins(one) for one in machine.status.conditions]
        status = power_change(machine.status.power, conditions, power, at) or {}
        if machine.status.hardware is None and name not in self.silent:
            status["hardware"] = {**HARDWARE, "at": at}
        if status:
            patch = {"metadata": {"resourceVersion": machine.metadata.resource_version}, "status": status}
            with suppress(Conflict):  # in the next pass
                await self.api.patch(MACHINES, name, patch, subresource="status")

    async def _operate(self, operation: MachineOperation) -> None:
        name = operation.spec.machine_ref or ""
        fails = name in self.failing
        self.operated.append(operation.spec.operation_kind)
        if not fails:
            self.power[name] = "On" if operation.spec.operation_kind == "HostPowerOn" else "Off"
        end = {"phase": "Failed", "reason": "BMCRefused", "message": "no"} if fails else {"phase": "Complete"}
        status = end | {"completedAt": rfc3339(virtual_now())}
        await self.api.patch(MACHINE_OPERATIONS, operation.name, {"status": status}, subresource="status")

    def controllers(self) -> list[asyncio.Task[None]]:
        """Start the controllers of one process."""
        events = EventRecorder(self.api, "container-cloud", now=virtual_now)
        context = ControllerContext(
            api=self.api, caches=self.caches, epoch=ProcessEpoch(), now=virtual_now, emit_event=event_sink(events)
        )
        runs = (HostController(context, site="lab"), CredentialController(context), ClaimController(context), events)
        return [asyncio.create_task(one.run()) for one in runs]


@asynccontextmanager
async def stock() -> AsyncIterator[Stock]:
    """A site with a metalman and one container-cloud, in virtual time."""
    api = MemoryApi(now=virtual_now, namespaces=("default", "example-ns", "other-ns", "unbounded-kube", "kube-system"))
    world = Stock(api, watched_caches(api))
    tasks = [asyncio.create_task(cache.run()) for cache in world.caches.followed]
    for cache in world.caches.followed:
        await cache.synced.wait()
    tasks += [*world.controllers(), asyncio.create_task(world.metalman())]
    try:
        yield world
        for task in tasks:
            assert not task.done(), task
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


story = told_in(stock)


async def exists(read: Any) -> bool:
    """Return whether a read finds its object."""
    try:
        await read
    except NotFound:
        return False
    return True
