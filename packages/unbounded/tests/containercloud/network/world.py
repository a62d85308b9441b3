"""A project in virtual time: Machines, hosts and networks on the in-memory API, and the controller of networks."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import random
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar

import yaml

from tests.containercloud.network.support import CLUSTER, EXAMPLE, LCM, LCM_SPEC, MACS, NAMESPACE
from tests.containercloud.unread import watched_caches
from tests.operations.faults import FAIR, Incarnation, Weather, WeatheredApi
from tests.support.memory_api import MemoryApi
from tests.support.virtual_time import virtual_now
from unbounded.api.container_cloud.host import BARE_METAL_HOSTS
from unbounded.api.container_cloud.machine import CONTAINER_CLOUD_MACHINES
from unbounded.api.container_cloud.network import IPAM_HOSTS, L2_TEMPLATES, SUBNETS, IpamHost, Subnet
from unbounded.api.core import CONFIG_MAPS, ConfigMap
from unbounded.api.machine import MACHINES, Machine
from unbounded.containercloud.caches import ContainerCloudCaches, ControllerContext
from unbounded.containercloud.network.controller import NetworkController
from unbounded.containercloud.network.model import ADDRESSES, RENDERED
from unbounded.containercloud.network.plan import config_name
from unbounded.kube.api import NotFound

T = TypeVar("T")
NETWORK: Final = (ADDRESSES, RENDERED)
NICS: Final = [
    {"name": "eno1", "mac": MACS[0]},
    {"name": "eth1", "mac": MACS[1], "pciAddress": "0000:00:00.0"},
]


class NetworkWorld:
    """What people and other controllers do around networks, and what they see."""

    def __init__(self, seed: int = 1) -> None:
        self.api = MemoryApi(now=virtual_now, namespaces=("default", "kube-system", "unbounded-kube", NAMESPACE))
        self.chance = random.Random(seed)
        self._tasks: list[asyncio.Task[None]] = []
        self._lives = 0
        self.life: Incarnation  # the last one
        self.caches: ContainerCloudCaches  # of its life

    # ---- the controller

    def start(self, *, crash_at: int | None = None, weather: Weather = FAIR) -> Incarnation:
        self._lives += 1
        life = Incarnation(f"networks#{self._lives}", self.chance, weather, crash_at=crash_at)
        self._tasks.append(asyncio.create_task(self._run(life)))
        self.life = life
        return life

    async def _run(self, life: Incarnation) -> None:
        api = WeatheredApi(self.api, life)
        self.caches = caches = watched_caches(api)
        async with asyncio.TaskGroup() as group:
            for cache in caches.followed:
                group.create_task(cache.run())
            await asyncio.gather(*(cache.synced.wait() for cache in caches.followed))
            context = ControllerContext(api=api, caches=caches, epoch=life.epoch, now=virtual_now)
            group.create_task(NetworkController(context).run())

    async def stop(self) -> None:
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # ---- what people write

    async def subnet(self, name: str = "lcm", namespace: str = NAMESPACE, **spec: Any) -> None:
        labels = spec.pop("labels", LCM)
        body = {"metadata": {"name": name, "labels": labels}, "spec": {**LCM_SPEC, **spec}}
        await self.api.create(SUBNETS, body, namespace=namespace)

    async def template(self, text: str = EXAMPLE, name: str = "one-nic", **spec: Any) -> None:
        labels = {"cluster.sigs.k8s.io/cluster-name": CLUSTER, "l2-template1-label-1": "true"}
        known = {"ifMapping": ["eno1", "enp0s0"], "l3Layout": [{"subnetName": "lcm", "scope": "namespace"}]}
        body = {"metadata": {"name": name, "labels": labels}, "spec": {**known, "npTemplate": text, **spec}}
        await self.api.create(L2_TEMPLATES, body, namespace=NAMESPACE)

    async def machine(self, name: str = "m", **value: Any) -> None:
        provider = {
            "apiVersion": "baremetal.k8s.io/v1alpha1",
            "kind": "BareMetalMachineProviderSpec",
            "l2TemplateSelector": {"label": "l2-template1-label-1"},
            "l2TemplateIfMappingOverride": ["eno1", "enp0s0"],
            **value,
        }
        labels = {"kaas.mirantis.com/provider": "baremetal", "cluster.sigs.k8s.io/cluster-name": CLUSTER}
        body = {"metadata": {"name": name, "labels": labels}, "spec": {"providerSpec": {"value": provider}}}
        await self.api.create(CONTAINER_CLOUD_MACHINES, body, namespace=NAMESPACE)

    # ---- what other controllers write

    async def claim(self, name: str = "m", number: int = 0, **pxe: Any) -> None:
        """Claim a host for a Machine: as the controllers of hosts and Machines do."""
        host, mac = f"master-{number}", f"52:54:00:00:{number // 256:02x}:{number % 256 + 1:02x}"
        consumer = {
            "apiVersion": CONTAINER_CLOUD_MACHINES.api_version,
            "kind": "Machine",
            "namespace": NAMESPACE,
            "name": name,
        }
        spec = {"bootMACAddress": mac if number else MACS[0], "consumerRef": consumer}
        made = await self.api.create(BARE_METAL_HOSTS, {"metadata": {"name": host}, "spec": spec}, namespace="default")
        target = {
            "metadata": {"name": f"{host}.default"},
            "spec": {"pxe": {"image": "registry.example/host:v1", **pxe}},
        }
        await self.api.create(MACHINES, target)
        claimed = {"namespace": "default", "name": host, "uid": made.metadata.uid}
        execution = {"stage": "Provisioning", "machine": f"{host}.default", "host": claimed}
        await self.api.patch(
            CONTAINER_CLOUD_MACHINES,
            name,
            {"status": {"execution": execution}},
            namespace=NAMESPACE,
            subresource="status",
        )

    async def report(self, number: int = 0, nics: Any = None, boot: str = "b1") -> None:
        """Report hardware, as an installer does through metalman."""
        hardware = {"source": "Installer", "boot": boot, "at": "2030-01-01T00:00:00Z", "digest": "a" * 64}
        status = {"status": {"hardware": {**hardware, "nics": nics or NICS}}}
        await self.api.patch(MACHINES, f"master-{number}.default", status, subresource="status")

    async def installed(self, boot: str = "b1") -> None:
        """Write the image of a host, as metalman records it."""
        image = {"image": "registry.example/host:v1", "digest": "sha256:1", "boot": boot, "at": "2030-01-01T00:00:00Z"}
        await self.api.patch(MACHINES, "master-0.default", {"status": {"image": image}}, subresource="status")

    async def edit(self, kind: Any, name: str, namespace: str = NAMESPACE, **spec: Any) -> None:
        await self.api.patch(kind, name, {"spec": spec}, namespace=namespace)

    async def stage(self, stage: str, name: str = "m") -> None:
        await self.api.patch(
            CONTAINER_CLOUD_MACHINES,
            name,
            {"status": {"execution": {"stage": stage}}},
            namespace=NAMESPACE,
            subresource="status",
        )

    async def release(self, name: str = "m") -> None:
        """Release the network of a Machine: as the controller of Machines does."""
        await self.stage("Releasing", name)
        await self.api.delete(IPAM_HOSTS, name, namespace=NAMESPACE)

    # ---- what they see

    async def ipam(self, name: str = "m") -> IpamHost:
        return await self.api.get(IPAM_HOSTS, name, namespace=NAMESPACE)

    async def target(self, number: int = 0) -> Machine:
        return await self.api.get(MACHINES, f"master-{number}.default")

    async def subnet_now(self, name: str = "lcm", namespace: str = NAMESPACE) -> Subnet:
        return await self.api.get(SUBNETS, name, namespace=namespace)

    async def config(self, name: str = "m") -> ConfigMap | None:
        try:
            return await self.api.get(CONFIG_MAPS, config_name(await self.ipam(name)), namespace="unbounded-kube")
        except NotFound:
            return None

    async def configs(self) -> list[str]:
        return [one.name for one in (await self.api.list(CONFIG_MAPS, namespace="unbounded-kube")).items]

    async def until(self, look: Callable[[], Any], holds: Callable[[Any], Any], *, within_s: float = 600) -> Any:
        found: Any = None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while True:
                    try:
                        found = await look()
                    except NotFound:
                        found = None
                    if holds(found):
                        return found
                    await asyncio.sleep(0.2)
        ended = [task.exception() for task in self._tasks if task.done() and not task.cancelled()]
        raise AssertionError(f"not there after {within_s} s: {found}; ended tasks: {ended}")

    async def reason(self, reason: str, name: str = "m") -> IpamHost:
        """Wait until the network of a Machine is in this state."""

        def holds(ipam: IpamHost | None) -> bool:
            conditions = () if ipam is None else ipam.status.conditions
            return {one.reason for one in conditions if one.type in NETWORK} == {reason}

        found: IpamHost = await self.until(lambda: self.ipam(name), holds)
        return found

    async def gone(self, name: str = "m") -> None:
        await self.until(lambda: self.ipam(name), lambda found: found is None)


def status_of(ipam: IpamHost) -> Mapping[str, str]:
    return {one.type: one.status for one in ipam.status.conditions if one.type in NETWORK}


def netplan_of(ipam: IpamHost) -> Any:
    (file,) = ipam.status.netconfig_files
    return yaml.safe_load(base64.b64decode(file.content))


@asynccontextmanager
async def networks() -> AsyncIterator[NetworkWorld]:
    world = NetworkWorld()
    world.start()
    try:
        yield world
    finally:
        await world.stop()
