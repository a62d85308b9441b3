"""machina's loop over Machines in virtual time: an API in memory, made-up hosts and installs, processes that end."""

from __future__ import annotations

import asyncio
import random
from base64 import b64encode
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from prometheus_client import CollectorRegistry

from tests.operations.faults import FAIR, Incarnation, Weather, WeatheredApi
from tests.support.installer import FakeInstaller, FakeInstalls
from tests.support.machina import FakeHost, FakeSsh
from tests.support.memory_api import MemoryApi
from tests.support.stories import told_in
from tests.support.virtual_time import virtual_now
from unbounded.api.conditions import ConditionType
from unbounded.api.core import CONFIG_MAPS, NODES, SECRETS, Node
from unbounded.api.machine import MACHINES, Machine
from unbounded.api.meta import Condition, Kind
from unbounded.api.names import LABEL_MACHINE, NAMESPACE
from unbounded.api.operation import MACHINE_OPERATIONS, MachineOperation
from unbounded.join.cluster_facts import ClusterFacts
from unbounded.kube.api import Api, ServerError
from unbounded.kube.cache import Cache
from unbounded.machina.configuration_versions import INDEX_CONFIGURATION, VERSIONS, by_configuration
from unbounded.machina.machines.controller import MachineController, Ports
from unbounded.machina.machines.eligibility import INDEX_HOST, by_host
from unbounded.machina.machines.host_runs import MachineMetrics
from unbounded.machina.machines.observe import MachineCaches
from unbounded.machina.provisioning.model import Install, ObservedRun
from unbounded.machina.settings import ProvisioningSettings
from unbounded.machina.ssh.model import Shell
from unbounded.operations.caches import INDEX_MACHINE, by_machine, node_by_machine

T = TypeVar("T")

KEY: Final = "-----BEGIN OPENSSH PRIVATE KEY-----\nmade up\n-----END OPENSSH PRIVATE KEY-----\n"
TOKEN: Final = {
    "token-id": "abc123",
    "token-secret": "0123456789abcdef",
    "usage-bootstrap-authentication": "true",
    "auth-extra-groups": "system:bootstrappers:unbounded-agent-daemons",
}
HOST: Final = "10.0.0.1:22"
BASTION: Final = "192.0.2.1:22"
SINCE: Final = "2030-01-01T00:00:00Z"
SETTINGS: Final = ProvisioningSettings(agent_url="https://releases.example.com/agent.tar.gz")
FACTS: Final = ClusterFacts("https://10.9.9.9:6443", "-----BEGIN CERTIFICATE-----\n", "v1.34.0", "10.96.0.10")


@dataclass
class KnownFacts:
    """The known facts of the cluster."""

    facts: ClusterFacts | None = FACTS
    missing: str | None = None


def defaults(kind: Kind[Any], new: dict[str, Any]) -> None:
    if kind.kind == "MachineOperation":
        for name, value in (("startDeadlineSeconds", 3600), ("maxConcurrent", 10), ("maxFailures", 1)):
            new.setdefault("spec", {}).setdefault(name, value)


class CountingApi(MemoryApi):
    """Counts how often Secrets are read, which fails while it is broken."""

    secret_reads = 0
    broken = False

    async def get(self, kind: Kind[T], name: str, *, namespace: str = "") -> T:
        self.secret_reads += kind.kind == "Secret"
        if self.broken and kind.kind == "Secret":
            raise ServerError("etcd is away")
        return await super().get(kind, name, namespace=namespace)


@dataclass
class Cluster:
    """A cluster and its hosts, and the reports about them."""

    chance: random.Random = field(default_factory=lambda: random.Random(0))
    weather: Weather = FAIR
    settings: ProvisioningSettings = SETTINGS
    hosts: dict[str, FakeHost] = field(default_factory=lambda: {HOST: FakeHost()})
    facts: KnownFacts = field(default_factory=KnownFacts)
    events: list[tuple[str, str, str]] = field(default_factory=list)  # Normal or Warning, reason, message
    lives: list[Incarnation] = field(default_factory=list)
    phases: list[str] = field(default_factory=list)  # of any Machine, as they were written

    def __post_init__(self) -> None:
        random.seed(self.chance.random())
        self.api = CountingApi(defaults=defaults, admit=self._saw, now=virtual_now)
        self.ssh = FakeSsh(self.hosts)
        self.registry = CollectorRegistry()
        self.metrics = MachineMetrics(self.registry)
        self.installer = FakeInstaller()

    def _saw(self, kind: Kind[Any], old: dict[str, Any] | None, new: dict[str, Any]) -> None:
        phase = (new.get("status") or {}).get("phase")
        if kind.kind == "Machine" and phase and (not self.phases or self.phases[-1] != phase):
            self.phases.append(phase)

    def announce(self, _about: Machine | MachineOperation, type_: str, reason: str, message: str) -> None:
        self.events.append((type_, reason, message))

    @property
    def told(self) -> list[str]:
        return [reason for _, reason, _ in self.events]

    @property
    def secret_reads(self) -> int:
        return self.api.secret_reads

    # ---- what people do

    async def machine(self, name: str = "m1", *, host: str = HOST, kubernetes: Any = (), **spec: Any) -> Machine:
        ssh = {"host": host, "username": "ubuntu", "privateKeyRef": {"name": "key", "namespace": NAMESPACE}}
        ssh |= spec.pop("ssh", {})
        more = {
            "kubernetes": {"bootstrapTokenRef": {"name": "bootstrap-token-abc123"}} if kubernetes == () else kubernetes
        }
        body = {"metadata": {"name": name}, "spec": {"ssh": ssh, **(more if kubernetes is not None else {}), **spec}}
        return await self.api.create(MACHINES, body)

    async def key(self, text: str = KEY, *, name: str = "key", **more: str) -> None:
        data = {key: _encoded(value) for key, value in {"ssh-privatekey": text, **more}.items()}
        await self._secret(NAMESPACE, name, {"data": data})

    async def token(self, **data: str) -> None:
        values = {key: _encoded(value) for key, value in {**TOKEN, **data}.items()}
        await self._secret(
            "kube-system", "bootstrap-token-abc123", {"type": "bootstrap.kubernetes.io/token", "data": values}
        )

    async def _secret(self, namespace: str, name: str, body: dict[str, Any]) -> None:
        there = await self.api.list(SECRETS, namespace=namespace)
        if any(secret.metadata.name == name for secret in there.items):
            await self.api.patch(SECRETS, name, body, namespace=namespace)
        else:
            await self.api.create(SECRETS, {"metadata": {"name": name}, **body}, namespace=namespace)

    async def secrets(self) -> None:
        await self.key()
        await self.token()

    async def registered(self) -> FakeInstalls:
        """A Machine with its Secrets; gives what is installed on its host."""
        await self.secrets()
        await self.machine()
        return await self.installs()

    async def edit(self, name: str = "m1", **spec: Any) -> Machine:
        """A merge patch of the spec, whose generation goes up as on a server."""
        return await self.api.patch(MACHINES, name, {"spec": spec})

    async def status(self, name: str = "m1", **status: Any) -> Machine:
        return await self.api.patch(MACHINES, name, {"status": status}, subresource="status")

    async def pause(self, value: str = "true") -> None:
        body = {"metadata": {"name": "unbounded-operations", "annotations": {"unbounded-cloud.io/paused": value}}}
        await self.api.create(CONFIG_MAPS, body, namespace=NAMESPACE)

    # ---- what hosts do

    async def node(self, name: str = "m1", *, ready: bool = True) -> Node:
        status = {"conditions": [{"type": "Ready", "status": "True" if ready else "False"}]}
        body = {"metadata": {"name": name, "labels": {LABEL_MACHINE: name}}, "status": status}
        made = await self.api.create(NODES, body)
        return await self.api.patch(NODES, made.metadata.name, {"status": status}, subresource="status")

    async def installs(self, name: str = "m1") -> FakeInstalls:
        return self.installer.of((await self.get(name)).metadata.uid)

    # ---- what is seen

    async def get(self, name: str = "m1") -> Machine:
        return await self.api.get(MACHINES, name)

    async def until(self, done: Callable[[Machine], bool], name: str = "m1", *, within_s: float = 600.0) -> Machine:
        """The Machine once it is so, looking every tenth of a virtual second."""
        machine = await self.get(name)
        try:
            async with asyncio.timeout(within_s):
                while not done(machine):
                    await asyncio.sleep(0.1)
                    machine = await self.get(name)
        except TimeoutError:
            raise AssertionError(f"not so within {within_s} s: {machine.status}") from None
        return machine

    async def version(self, name: str = "key") -> str:
        """Of a key's Secret, as refusals are remembered."""
        secret = await self.api.get(SECRETS, name, namespace=NAMESPACE)
        return f"{NAMESPACE}/{name}@{secret.metadata.resource_version}"

    async def phase(self, phase: str, name: str = "m1", *, within_s: float = 600.0) -> Machine:
        return await self.until(lambda machine: machine.status.phase == phase, name, within_s=within_s)

    # ---- processes

    def process(self, *, crash_at: int | None = None) -> Running:
        """machina, as it runs while it leads."""
        life = Incarnation(f"machina#{len(self.lives) + 1}", self.chance, self.weather, crash_at=crash_at)
        self.lives.append(life)
        api = WeatheredApi(self.api, life)
        task = asyncio.create_task(self._main(life, api), name=life.name)
        return Running(life, task)

    @asynccontextmanager
    async def machina(self) -> AsyncIterator[Running]:
        running = self.process()
        try:
            yield running
        finally:
            await running.stop()

    async def _main(self, life: Incarnation, api: Api) -> None:
        caches = caches_of(api)
        ports = Ports(api, self.ssh, LivingInstaller(self.installer, life), self.facts, self.announce, virtual_now)
        machines = MachineController(ports, caches, self.settings, metrics=self.metrics)
        async with asyncio.TaskGroup() as group:
            for cache in (caches.machines, caches.nodes, caches.operations, caches.pause, caches.versions):
                group.create_task(cache.run())
                await cache.synced.wait()
            group.create_task(machines.run())


@told_in
@asynccontextmanager
async def story() -> AsyncIterator[Cluster]:
    """A test from an `async def test(cluster, …)`."""
    yield Cluster()


@dataclass
class Running:
    life: Incarnation
    task: asyncio.Task[None]

    async def stop(self) -> None:
        self.life.crash()
        self.task.cancel()
        await asyncio.wait({self.task})
        if not self.task.cancelled():
            self.task.result()


class LivingInstaller:
    """The installs as one process meets them: at each call it may be cut off, before and after its effect."""

    def __init__(self, installer: FakeInstaller, life: Incarnation) -> None:
        self._installer = installer
        self._life = life

    async def observe(self, shell: Shell, uid: str) -> ObservedRun:
        return await self._life.through("look", lambda: self._installer.observe(shell, uid))

    async def begin(self, shell: Shell, install: Install) -> ObservedRun:
        return await self._life.through("begin", lambda: self._installer.begin(shell, install))

    async def follow(self, shell: Shell, install: Install, report: Callable[[str], None]) -> ObservedRun:
        return await self._life.through("follow", lambda: self._installer.follow(shell, install, report))

    async def clear(self, shell: Shell, uid: str) -> None:
        await self._life.through("clear", lambda: self._installer.clear(shell, uid))

    async def reset(
        self, shell: Shell, machine: str, uid: str, *, limit_s: float, report: Callable[[str], None]
    ) -> Any:
        reset = self._installer.reset
        return await self._life.through("reset", lambda: reset(shell, machine, uid, limit_s=limit_s, report=report))


def caches_of(api: Api) -> MachineCaches:
    return MachineCaches(
        machines=Cache(api, MACHINES, indexes={INDEX_HOST: by_host}),
        nodes=Cache(api, NODES, indexes={INDEX_MACHINE: node_by_machine}),
        operations=Cache(api, MACHINE_OPERATIONS, indexes={INDEX_MACHINE: by_machine}),
        pause=Cache(api, CONFIG_MAPS, namespace=NAMESPACE),
        versions=Cache(api, VERSIONS, indexes={INDEX_CONFIGURATION: by_configuration}),
    )


def said(machine: Machine, kind: ConditionType) -> Condition:
    return next(one for one in machine.status.conditions if one.type == kind)


def shown(machine: Machine) -> dict[str, str]:
    """Conditions as Status/Reason."""
    return {one.type: f"{one.status}/{one.reason}" for one in machine.status.conditions}


def _encoded(text: str) -> str:
    return b64encode(text.encode()).decode()


async def first_of(*works: Coroutine[Any, Any, object]) -> None:
    """Until one of them has come to its end; the others are cancelled."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
