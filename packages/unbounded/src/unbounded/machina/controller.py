"""Controllers of machina, behind one Lease: Machines over SSH, the supervisor, approval of certificates,
configurations.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from unbounded.api.core import CERTIFICATE_REQUESTS, CONFIG_MAPS, NODES, CertificateRequest, ConfigMap, Node
from unbounded.api.machine import MACHINES, Machine
from unbounded.api.names import CONFIGMAP_OPERATIONS, LEASE_SUPERVISOR, NAMESPACE
from unbounded.api.operation import MACHINE_OPERATIONS, MachineOperation
from unbounded.join.facts import FactsFollower
from unbounded.kube.cache import Cache
from unbounded.kube.epoch import ProcessEpoch
from unbounded.kube.events import event_sink
from unbounded.kube.port import Api
from unbounded.kube.process import Runtime, running_caches
from unbounded.machina.configurations.binder import BindingController
from unbounded.machina.configurations.usage import configurations_of
from unbounded.machina.configurations.versions import (
    CONFIGURATIONS,
    INDEX_CONFIGURATION,
    VERSIONS,
    VersionController,
    by_configuration,
)
from unbounded.machina.csr_approval.controller import Approver
from unbounded.machina.machines.controller import MachineController, Ports
from unbounded.machina.machines.eligibility import INDEX_HOST, by_host
from unbounded.machina.machines.observe import MachineCaches
from unbounded.machina.machines.runs import MachineMetrics
from unbounded.machina.provisioning.remote import HostInstaller
from unbounded.machina.release_key import publish_release_key
from unbounded.machina.settings import ProvisioningSettings
from unbounded.machina.ssh.lazy_client import LazySshClient
from unbounded.machina.ssh.model import Ssh
from unbounded.operations.caches import (
    INDEX_BMC,
    INDEX_EXECUTOR,
    INDEX_MACHINE,
    INDEX_PARENT,
    SupervisorCaches,
    by_bmc,
    by_executor,
    by_machine,
    by_parent,
    node_by_machine,
)
from unbounded.operations.executor_health import ExecutorHealth
from unbounded.operations.metrics import OperationMetrics
from unbounded.operations.supervisor import Supervisor

Raw = dict[str, Any]


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

    @property
    def steward(self) -> SupervisorCaches:
        return SupervisorCaches(self.operations, self.machines, self.nodes, self.pause)

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
        )


def create_machina_caches(api: Api) -> MachinaCaches:
    """Create caches that are not running yet."""
    indexes = {INDEX_MACHINE: by_machine, INDEX_PARENT: by_parent, INDEX_EXECUTOR: by_executor}
    of_machines = {INDEX_CONFIGURATION: configurations_of, INDEX_BMC: by_bmc, INDEX_HOST: by_host}
    return MachinaCaches(
        operations=Cache(api, MACHINE_OPERATIONS, indexes=indexes),
        machines=Cache(api, MACHINES, indexes=of_machines),
        nodes=Cache(api, NODES, indexes={INDEX_MACHINE: node_by_machine}),
        pause=Cache(api, CONFIG_MAPS, namespace=NAMESPACE, fields=f"metadata.name={CONFIGMAP_OPERATIONS}"),
        requests=Cache(api, CERTIFICATE_REQUESTS),
        configurations=Cache(api, CONFIGURATIONS),
        versions=Cache(api, VERSIONS, indexes={INDEX_CONFIGURATION: by_configuration}),
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
    settings = settings or ProvisioningSettings()

    async def lead(caches: MachinaCaches) -> None:
        await runtime.lead(
            LEASE_SUPERVISOR, MachinaTerm(runtime, caches, metrics, machine_metrics, settings, absences).run
        )

    if caches is not None:
        await lead(caches)
        return
    caches = create_machina_caches(runtime.api)
    async with running_caches(runtime, *caches.each()):
        await lead(caches)


class MachinaTerm:
    """Controllers of one leadership term. Each starts with empty state: ages count from its own first observation."""

    def __init__(
        self,
        runtime: Runtime,
        caches: MachinaCaches,
        metrics: OperationMetrics,
        machine_metrics: MachineMetrics,
        settings: ProvisioningSettings,
        absences: ExecutorHealth | None,
    ) -> None:
        self._runtime = runtime
        self._caches = caches
        self._metrics = metrics
        self._machine_metrics = machine_metrics
        self._settings = settings
        self._absences = absences

    async def run(self, _epoch: ProcessEpoch) -> None:
        facts = self._facts()
        async with _open(LazySshClient()) as ssh, asyncio.TaskGroup() as group:
            group.create_task(facts.run(), name="cluster facts")
            group.create_task(self._machines(ssh, facts).run(), name="machines")
            group.create_task(self._steward().run(), name="supervisor")
            group.create_task(self._approver(facts).run(), name="approver")
            group.create_task(self._versions().run(), name="configuration versions")
            group.create_task(self._binder().run(), name="configuration binding")
            if key := self._settings.agent_public_key:
                group.create_task(publish_release_key(self._runtime.api, key), name="public key of releases")

    def _steward(self) -> Supervisor:
        runtime = self._runtime
        return Supervisor(
            runtime.api,
            self._caches.steward,
            emit_event=event_sink(runtime.events),
            absences=self._absences,
            now=runtime.now,
            metrics=self._metrics,
            loop_metrics=runtime.metrics,
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

    def _versions(self) -> VersionController:
        runtime, caches = self._runtime, self._caches
        return VersionController(
            runtime.api, caches.configurations, caches.versions, caches.machines, loop_metrics=runtime.metrics
        )

    def _binder(self) -> BindingController:
        runtime, caches = self._runtime, self._caches
        return BindingController(
            runtime.api, caches.configurations, caches.versions, caches.machines, loop_metrics=runtime.metrics
        )

    def _facts(self) -> FactsFollower:
        runtime, settings = self._runtime, self._settings
        return FactsFollower(
            runtime.api,
            runtime.api.version,
            apiserver_url=settings.apiserver_endpoint,
            cluster_dns=settings.cluster_dns,
            release_key=settings.agent_public_key,
            root_ca_namespace=NAMESPACE,
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
        )


@asynccontextmanager
async def _open(ssh: Ssh) -> AsyncIterator[Ssh]:
    """Close the client's connections at the end."""
    try:
        yield ssh
    finally:
        await ssh.close()
