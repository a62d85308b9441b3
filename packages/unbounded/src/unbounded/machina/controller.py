"""Controllers of machina, behind one Lease: Machines over SSH, the supervisor, certificates, configurations.

machina publishes the public key of the agent's releases, for hosts that join and for hosts that have joined before.
Without a key in its settings it publishes nothing and leaves the published key: only an administrator removes it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from unbounded.api import names
from unbounded.api.core import CERTIFICATE_REQUESTS, CONFIG_MAPS, NODES, CertificateRequest, ConfigMap, Node
from unbounded.api.disruption import MACHINE_DISRUPTION_BUDGETS, MachineDisruptionBudget
from unbounded.api.failures import Failure
from unbounded.api.machine import MACHINES, Machine
from unbounded.api.operation import MACHINE_OPERATIONS, MachineOperation
from unbounded.join.cluster_facts import FactsFollower
from unbounded.join.release_key import PUBLISHED, fingerprint, pem_of, published_key
from unbounded.kube.api import AlreadyExists, Api, NotFound
from unbounded.kube.cache import Cache
from unbounded.kube.events import event_sink
from unbounded.kube.logs import Log
from unbounded.kube.process import Runtime, running_caches
from unbounded.kube.process_epoch import ProcessEpoch
from unbounded.machina import configuration_versions
from unbounded.machina.configuration_binding import BindingController
from unbounded.machina.configuration_plan import configurations_of
from unbounded.machina.csr_approval.controller import Approver
from unbounded.machina.fleet_metrics import FleetMetrics
from unbounded.machina.machines.controller import MachineController, Ports
from unbounded.machina.machines.eligibility import INDEX_HOST, by_host
from unbounded.machina.machines.host_runs import MachineMetrics
from unbounded.machina.machines.observe import MachineCaches
from unbounded.machina.provisioning.remote import HostInstaller
from unbounded.machina.rolling_updates import INDEX_UPDATE, RollingUpdateController, updated_by
from unbounded.machina.settings import ProvisioningSettings
from unbounded.machina.ssh.model import FirstUse, Shell, Ssh, SshRoute
from unbounded.operations import caches as operation_caches
from unbounded.operations.disruption.controller import DrainController, first_disruption
from unbounded.operations.executor_selection import ExecutorHealth
from unbounded.operations.supervisor import Supervisor
from unbounded.operations.telemetry import OperationMetrics

Raw = dict[str, Any]
EVERY_S: Final = 300.0
RETRY_S: Final = 30.0

log = Log("machina")


@dataclass(frozen=True)
class MachinaCaches:
    """Caches of machina. Executors in the same process can share them."""

    operations: Cache[MachineOperation]
    machines: Cache[Machine]
    nodes: Cache[Node]
    pause: Cache[ConfigMap]
    requests: Cache[CertificateRequest]
    configurations: Cache[Raw]
    versions: Cache[Raw]
    budgets: Cache[MachineDisruptionBudget]  # a watch that is silent without budgets; the first one starts their Lease

    @property
    def supervisor(self) -> operation_caches.SupervisorCaches:
        return operation_caches.SupervisorCaches(self.operations, self.machines, self.nodes, self.pause)

    def each(self) -> tuple[Cache[Any], ...]:
        """Return all caches, for the process to run."""
        return (
            self.operations,
            self.machines,
            self.nodes,
            self.pause,
            self.requests,
            self.configurations,
            self.versions,
            self.budgets,
        )


def create_machina_caches(api: Api) -> MachinaCaches:
    """Create caches that are not running yet."""
    indexes = {
        operation_caches.INDEX_MACHINE: operation_caches.by_machine,
        operation_caches.INDEX_PARENT: operation_caches.by_parent,
        operation_caches.INDEX_EXECUTOR: operation_caches.by_executor,
    }
    of_machines = {
        configuration_versions.INDEX_CONFIGURATION: configurations_of,
        operation_caches.INDEX_BMC: operation_caches.by_bmc,
        INDEX_HOST: by_host,
        INDEX_UPDATE: updated_by,
    }
    return MachinaCaches(
        operations=Cache(api, MACHINE_OPERATIONS, indexes=indexes),
        machines=Cache(api, MACHINES, indexes=of_machines),
        nodes=Cache(api, NODES, indexes={operation_caches.INDEX_MACHINE: operation_caches.node_by_machine}),
        pause=Cache(api, CONFIG_MAPS, namespace=names.NAMESPACE, fields=f"metadata.name={names.CONFIGMAP_OPERATIONS}"),
        requests=Cache(api, CERTIFICATE_REQUESTS),
        configurations=Cache(api, configuration_versions.CONFIGURATIONS),
        versions=Cache(
            api,
            configuration_versions.VERSIONS,
            indexes={configuration_versions.INDEX_CONFIGURATION: configuration_versions.by_configuration},
        ),
        budgets=Cache(api, MACHINE_DISRUPTION_BUDGETS),
    )


async def run(
    runtime: Runtime,
    *,
    caches: MachinaCaches | None = None,
    metrics: OperationMetrics | None = None,
    settings: ProvisioningSettings | None = None,
    absences: ExecutorHealth | None = None,
) -> None:
    """Run the controllers until cancelled, whenever this process leads.

    Args:
        absences: of executors that this process starts.
        caches, metrics: those of the process, which runs the caches; None to create own ones.
    """
    metrics = metrics or OperationMetrics(runtime.metrics.registry)
    machine_metrics = MachineMetrics(runtime.metrics.registry)
    fleet = FleetMetrics(runtime.metrics.registry, metrics, now=runtime.now)
    settings = settings or ProvisioningSettings()

    async def lead(caches: MachinaCaches) -> None:
        term = MachinaTerm(runtime, caches, metrics, machine_metrics, fleet, settings, absences)
        async with asyncio.TaskGroup() as group:
            group.create_task(runtime.lead(names.LEASE_SUPERVISOR, term.run), name="machina")
            group.create_task(_lead_disruptions(runtime, caches, metrics), name="disruptions")

    if caches is not None:
        await lead(caches)
        return
    caches = create_machina_caches(runtime.api)
    async with running_caches(runtime, *caches.each()):
        await lead(caches)


async def _lead_disruptions(runtime: Runtime, caches: MachinaCaches, metrics: OperationMetrics) -> None:
    """Run the controller of disruptions whenever this process leads, from the first request of a disruption on."""

    async def run(epoch: ProcessEpoch) -> None:
        controller = DrainController(
            runtime.api,
            caches.supervisor,
            caches.budgets,
            epoch=epoch,
            emit_event=event_sink(runtime.events),
            now=runtime.now,
            metrics=metrics,
            loop_metrics=runtime.metrics,
        )
        await controller.run()

    await first_disruption(caches.supervisor, caches.budgets)
    await runtime.lead(names.LEASE_DISRUPTION, run)


class MachinaTerm:
    """Controllers of one leadership term. Each starts with empty state: ages count from its own first observation."""

    def __init__(
        self,
        runtime: Runtime,
        caches: MachinaCaches,
        metrics: OperationMetrics,
        machine_metrics: MachineMetrics,
        fleet: FleetMetrics,
        settings: ProvisioningSettings,
        absences: ExecutorHealth | None,
    ) -> None:
        self._runtime = runtime
        self._caches = caches
        self._metrics = metrics
        self._machine_metrics = machine_metrics
        self._fleet = fleet
        self._settings = settings
        self._absences = absences

    async def run(self, epoch: ProcessEpoch) -> None:
        facts = self._facts()
        async with _open(LazySshClient()) as ssh, asyncio.TaskGroup() as group:
            group.create_task(self._count(), name="fleet metrics")
            group.create_task(facts.run(), name="cluster facts")
            group.create_task(self._machines(ssh, facts).run(), name="machines")
            group.create_task(self._supervisor().run(), name="supervisor")
            group.create_task(self._approver(facts).run(), name="approver")
            group.create_task(self._versions().run(), name="configuration versions")
            group.create_task(self._binder().run(), name="configuration binding")
            group.create_task(self._updates(epoch).run(), name="rolling updates")
            if key := self._settings.agent_public_key:
                group.create_task(publish_release_key(self._runtime.api, key), name="public key of releases")

    async def _count(self) -> None:
        """Count the fleet until cancelled."""
        caches = self._caches
        with self._fleet.following(caches.machines, caches.operations, caches.budgets, caches.configurations):
            await self._fleet.follow_tokens(self._runtime.api)

    def _supervisor(self) -> Supervisor:
        runtime = self._runtime
        return Supervisor(
            runtime.api,
            self._caches.supervisor,
            emit_event=event_sink(runtime.events),
            absences=self._absences,
            now=runtime.now,
            metrics=self._metrics,
            loop_metrics=runtime.metrics,
            tracer=runtime.tracer,
        )

    def _approver(self, facts: FactsFollower) -> Approver:
        runtime, caches = self._runtime, self._caches
        announce = event_sink(runtime.events)
        return Approver(
            runtime.api,
            caches.requests,
            caches.machines,
            caches.nodes,
            facts,
            announce=announce,
            loop_metrics=runtime.metrics,
        )

    def _versions(self) -> configuration_versions.VersionController:
        runtime, caches = self._runtime, self._caches
        return configuration_versions.VersionController(
            runtime.api, caches.configurations, caches.versions, caches.machines, loop_metrics=runtime.metrics
        )

    def _binder(self) -> BindingController:
        runtime, caches = self._runtime, self._caches
        return BindingController(
            runtime.api, caches.configurations, caches.versions, caches.machines, loop_metrics=runtime.metrics
        )

    def _updates(self, epoch: ProcessEpoch) -> RollingUpdateController:
        runtime, caches = self._runtime, self._caches
        return RollingUpdateController(
            runtime.api,
            caches.configurations,
            caches.versions,
            caches.machines,
            caches.nodes,
            caches.operations,
            epoch=epoch,
            emit_event=event_sink(runtime.events),
            now=runtime.now,
            loop_metrics=runtime.metrics,
        )

    def _facts(self) -> FactsFollower:
        runtime, settings = self._runtime, self._settings
        return FactsFollower(
            runtime.api,
            runtime.api.version,
            apiserver_url=settings.apiserver_endpoint,
            cluster_dns=settings.cluster_dns,
            release_key=settings.agent_public_key,
            root_ca_namespace=names.NAMESPACE,
        )

    def _machines(self, ssh: Ssh, facts: FactsFollower) -> MachineController:
        runtime, caches = self._runtime, self._caches
        installer = HostInstaller(limit_s=self._settings.provisioning_timeout_s)
        ports = Ports(runtime.api, ssh, installer, facts, event_sink(runtime.events))
        return MachineController(
            ports,
            MachineCaches(caches.machines, caches.nodes, caches.operations, caches.pause, caches.versions),
            self._settings,
            metrics=self._machine_metrics,
            loop_metrics=runtime.metrics,
            tracer=runtime.tracer,
        )


@asynccontextmanager
async def _open(ssh: Ssh) -> AsyncIterator[Ssh]:
    """Close the client's connections at the end."""
    try:
        yield ssh
    finally:
        await ssh.close()


async def publish_release_key(api: Api, key: str) -> NoReturn:
    """Keep the key published in the ConfigMap until cancelled; replaces another key."""
    while True:
        wait_s = EVERY_S
        try:
            await publish_once(api, key)
        except Failure as error:
            log.warning("the public key of releases is not published", error=error)
            wait_s = RETRY_S
        await asyncio.sleep(wait_s)


async def publish_once(api: Api, key: str) -> None:
    """Publish the key if the ConfigMap has another one or none."""
    change = {"data": {PUBLISHED: pem_of(key)}}
    try:
        there = await api.get(CONFIG_MAPS, names.CONFIGMAP_RELEASES, namespace=names.NAMESPACE)
        with suppress(ValueError):
            if published_key(there) == key:
                return
        await api.patch(CONFIG_MAPS, names.CONFIGMAP_RELEASES, change, namespace=names.NAMESPACE)
    except NotFound:
        body = {"metadata": {"name": names.CONFIGMAP_RELEASES, "namespace": names.NAMESPACE}, **change}
        with suppress(AlreadyExists):  # the next round reads it
            await api.create(CONFIG_MAPS, body, namespace=names.NAMESPACE)
    log.info("public key of releases published", key=fingerprint(key))


class LazySshClient:
    """An `Ssh` that imports asyncssh on the first login. The import takes as long as all others of machina."""

    def __init__(self) -> None:
        self._client: Ssh | None = None
        self._one_at_a_time = asyncio.Lock()

    @property
    def connections(self) -> int:
        return 0 if self._client is None else self._client.connections

    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()

    async def probe(self, route: SshRoute, *, on_first_use: FirstUse) -> None:
        client = await self._ready()
        await client.probe(route, on_first_use=on_first_use)

    @asynccontextmanager
    async def login(self, route: SshRoute, *, on_first_use: FirstUse) -> AsyncIterator[Shell]:
        client = await self._ready()
        async with client.login(route, on_first_use=on_first_use) as shell:
            yield shell

    async def _ready(self) -> Ssh:
        async with self._one_at_a_time:
            if self._client is None:
                self._client = (await asyncio.to_thread(_imported))()
        return self._client


def _imported() -> type[Ssh]:
    from unbounded.machina.ssh.client import SshClient  # noqa: PLC0415

    return SshClient
