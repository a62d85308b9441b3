"""Controllers of metalman: an engine for each site, the counters, the pins of new BMCs, and their inventory."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from unbounded.api.core import CONFIG_MAPS, NODES, Node
from unbounded.api.failures import Rejected
from unbounded.api.machine import MACHINES, Machine
from unbounded.api.names import CONFIGMAP_OPERATIONS, NAMESPACE
from unbounded.api.operation import MACHINE_OPERATIONS, MachineOperation
from unbounded.kube.api import Api
from unbounded.kube.cache import Cache
from unbounded.kube.events import event_sink
from unbounded.kube.process import Runtime, running_caches
from unbounded.kube.process_epoch import ProcessEpoch
from unbounded.metalman.bmc_access import BmcAccess, PinController
from unbounded.metalman.bmc_events import EventWatcher, PowerEvents
from unbounded.metalman.console_recording import ConsoleRecorder
from unbounded.metalman.counter_controller import CounterController
from unbounded.metalman.executor import RedfishExecutor
from unbounded.metalman.inventory_controller import InventoryController
from unbounded.metalman.media.tickets import MediaUrls
from unbounded.metalman.power_reader import PowerReader, PowerReadings
from unbounded.metalman.redfish.bmc_interface import BmcLimits
from unbounded.metalman.redfish.pool import BmcPool
from unbounded.metalman.settings import MetalmanSettings
from unbounded.metalman.shared_bmcs import SharedBmcController, SharedBmcs
from unbounded.metalman.shared_consoles import SharedConsoles
from unbounded.metalman.virtual_media_boot import BootMedia, MediaCleaner
from unbounded.operations.caches import INDEX_BMC, INDEX_MACHINE, Caches, by_bmc, by_machine
from unbounded.operations.executor_engine import Engine
from unbounded.operations.executor_selection import ExecutorKind
from unbounded.operations.telemetry import OperationMetrics


@contextlib.contextmanager
def release_sessions(pool: BmcPool, operations: Cache[MachineOperation], machines: Cache[Machine]) -> Iterator[None]:
    """Release the BMC sessions of operations that end while inside of the context.

    BMCs have few sessions, and deleting one over the connection that is still open saves another TLS handshake.
    """

    def changed(old: MachineOperation | None, new: MachineOperation | None) -> None:
        running = old is not None and old.claimed and not old.terminal
        if old is None or not running or not (new is None or new.terminal):
            return
        machine = machines.get(old.spec.machine_ref or "")
        if machine is not None and machine.spec.pxe is not None and machine.spec.pxe.redfish is not None:
            with contextlib.suppress(Rejected):  # invalid address, so there is no session
                pool.release_soon(machine.spec.pxe.redfish.url)

    unsubscribe = operations.subscribe(changed)
    try:
        yield
    finally:
        unsubscribe()


CLOSE_S = 1.0  # limit on the deletion of BMC sessions when the process stops


def caches_of(api: Api) -> Caches:
    """Return the caches of metalman, for a process that shares none.

    They contain Machines of other sites. The site label of a Machine can change while an operation runs on it, and the
    executor of that operation still has to read the Machine. The executor selects its claims.
    """
    return Caches(
        operations=Cache(api, MACHINE_OPERATIONS, indexes={INDEX_MACHINE: by_machine}),
        machines=Cache(api, MACHINES, indexes={INDEX_BMC: by_bmc}),
        pause=Cache(api, CONFIG_MAPS, namespace=NAMESPACE, fields=f"metadata.name={CONFIGMAP_OPERATIONS}"),
    )


@dataclass(frozen=True)
class SharedCaches:
    """Caches and metrics that all components of a process share. The process runs the caches."""

    caches: Caches
    nodes: Cache[Node]
    metrics: OperationMetrics


async def run(runtime: Runtime, settings: MetalmanSettings, *, shared: SharedCaches | None = None) -> None:
    """Serve one site, or all sites, until cancelled.

    Args:
        shared: None for caches and metrics of its own.
    """
    if shared is not None:
        await _work(runtime, settings, shared)
        return
    own = SharedCaches(caches_of(runtime.api), Cache(runtime.api, NODES), OperationMetrics(runtime.metrics.registry))
    async with running_caches(runtime, *own.caches.followed, own.nodes):
        await _work(runtime, settings, own)


async def _work(runtime: Runtime, settings: MetalmanSettings, shared: SharedCaches) -> None:
    caches = shared.caches
    term = LeaderTerm(runtime, settings, caches, shared.nodes, shared.metrics)
    async with asyncio.TaskGroup() as tasks:
        if settings.netboot is not None:
            from unbounded.metalman.netboot.process import NetbootProcess  # noqa: PLC0415  # it is much, and many have no use for it

            booting = NetbootProcess(runtime, settings, settings.netboot, caches)
            tasks.create_task(booting.run(), name="netboot")
            term = replace(term, beside=booting.lead, media_urls=booting.media_urls)
        tasks.create_task(runtime.lead(settings.lease, term.run, settings.election), name="controllers")


@dataclass(frozen=True)
class LeaderTerm:
    """Work of this process while it leads. Every term starts with fresh state.

    Args:
        beside: additional work of the leader, until cancelled.
        media_urls: URLs of boot images; None if this process serves none.
    """

    runtime: Runtime
    settings: MetalmanSettings
    caches: Caches
    nodes: Cache[Node]
    metrics: OperationMetrics
    beside: Callable[[], Coroutine[Any, Any, None]] | None = None
    media_urls: MediaUrls | None = None

    async def run(self, epoch: ProcessEpoch) -> None:
        """Work until cancelled; then delete all BMC sessions."""
        async with BmcPool(BmcLimits(close_s=CLOSE_S)) as pool:
            with release_sessions(pool, self.caches.operations, self.caches.machines):
                await self._work(pool, epoch)

    async def _work(self, pool: BmcPool, epoch: ProcessEpoch) -> None:
        access = BmcAccess(self.runtime.api, pool)
        site, machines, operations = self.settings.site, self.caches.machines, self.caches.operations
        counters = CounterController(self.runtime, machines, operations, site=site)
        pins = PinController(self.runtime, machines, access, site=site)
        inventory = InventoryController(self.runtime, machines, access, pool, site=site)
        sharing = SharedBmcs(self.runtime.api, machines)
        readings, events = PowerReadings(), PowerEvents()
        reads_per_s = self.settings.power_reads_per_s
        shared = SharedBmcController(self.runtime, machines, site=site, now=self.runtime.now)
        media = BootMedia(self.runtime.api, machines, self.media_urls)
        cleaner = MediaCleaner(self.runtime, machines, media, access, pool, site=site)
        consoles = SharedConsoles(self.runtime.api, access, pool)
        recorder = ConsoleRecorder(self.runtime, machines, operations, access, pool, consoles)
        engine_of = partial(self._engine, pool, access, media, sharing, readings, events, recorder, epoch)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(counters.run(), name="counters")
            tasks.create_task(pins.run(), name="pins")
            tasks.create_task(shared.run(), name="shared BMCs")
            tasks.create_task(inventory.run(), name="inventory")
            tasks.create_task(cleaner.run(), name="boot media")
            if reads_per_s > 0:
                power = PowerReader(
                    self.runtime, machines, access, pool, readings, events, site=site, reads_per_s=reads_per_s
                )
                tasks.create_task(power.run(), name="power")
            if self.settings.events:
                watcher = EventWatcher(machines, access, pool, events, site=site)
                tasks.create_task(watcher.run(), name="events of BMCs")
            if self.settings.serial_consoles is not None:
                from unbounded.metalman.serial_server import SerialServer  # noqa: PLC0415  # some have no use for it

                server = SerialServer(
                    self.runtime, machines, consoles, site=site, address=self.settings.serial_consoles
                )
                tasks.create_task(server.run(), name="serial consoles")
            if self.settings.keeps_console_output:
                tasks.create_task(recorder.run(), name="recordings of boots")
            if self.beside is not None:
                tasks.create_task(self.beside(), name="netboot of the leader")
            if site is not None:
                tasks.create_task(engine_of(site).run(), name=f"site {site}")
            else:
                tasks.create_task(self._all_sites(engine_of), name="sites")

    def _engine(
        self,
        pool: BmcPool,
        access: BmcAccess,
        media: BootMedia,
        sharing: SharedBmcs,
        readings: PowerReadings,
        events: PowerEvents,
        recorder: ConsoleRecorder,
        epoch: ProcessEpoch,
        site: str,
    ) -> Engine:
        settings = self.settings
        executor = RedfishExecutor(
            self.runtime.api,
            pool,
            access,
            media,
            nodes=self.nodes,
            site=site,
            netboot=settings.netboots,
            attempts=settings.attempts,
            poll_s=settings.poll_s,
            now=self.runtime.now,
            sharing=sharing,
            readings=readings,
            events=events,
            recorder=recorder,
        )
        engine = Engine(
            self.runtime.api,
            executor,
            replace(self.caches, nodes=self.nodes),
            epoch=epoch,
            concurrent=settings.concurrent,
            now=self.runtime.now,
            emit_event=event_sink(self.runtime.events),
            metrics=self.metrics,
            loop_metrics=self.runtime.metrics,
            tracer=self.runtime.tracer,
        )
        events.subscribe(engine.wake_machine)
        return engine

    async def _all_sites(self, engine_of: Callable[[str], Engine]) -> None:
        """Run an engine for each site, from its first Machine or running operation on."""
        sites: set[str] = set()

        def run_site(site: str | None) -> None:
            if site is not None and site not in sites:
                sites.add(site)
                engines.create_task(engine_of(site).run(), name=f"site {site}")

        async with asyncio.TaskGroup() as engines:
            with (
                self.caches.machines.subscribed(lambda _old, new: run_site(_site_of_machine(new))),
                self.caches.operations.subscribed(lambda _old, new: run_site(_site_of_operation(new))),
            ):
                await asyncio.Event().wait()


def _site_of_machine(machine: Machine | None) -> str | None:
    """Return the site of a Machine with a BMC."""
    if machine is None or machine.spec.pxe is None or machine.spec.pxe.redfish is None:
        return None
    return machine.site


def _site_of_operation(operation: MachineOperation | None) -> str | None:
    """Return the site whose metalman has claimed an operation; its Machine may be deleted or moved since."""
    if operation is None or operation.terminal or operation.status.execution is None:
        return None
    component, _slash, site = operation.status.execution.executor.partition("/")
    return site if component == ExecutorKind.METALMAN else None
