"""The assembled daemon: an identity, three watches, and the controllers of operations and node that use them.

`DaemonParts` holds all that it needs of its host. Its view of the cluster comes through three caches, each of one
object or of the operations on one Machine. It reads everything else on demand.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from unbounded.agent.build import this_build
from unbounded.agent.cluster_access import access_of_config
from unbounded.agent.daemon.cluster_sync import AccessNodes, AccessSync, ReleaseKeySync, follow_logins
from unbounded.agent.daemon.identity import USER_AGENT, client_config, connected, identity_when_joined, kubelet_access
from unbounded.agent.daemon.reporting import (
    AgentStatusReporter,
    DeletedMachineReport,
    HostObserver,
    SystemdNotifier,
    host_conditions,
)
from unbounded.agent.daemon.server_migration import ServerMigration, finish_migration
from unbounded.agent.durations import Durations, process_age_s
from unbounded.agent.durations import TimedWork as Kind
from unbounded.agent.executor import AgentExecutor
from unbounded.agent.host import HostCommands, Systemctl
from unbounded.agent.interfaces import Commands, Nodes, OnProgress, OperationWork, Units
from unbounded.agent.lock import host_lock
from unbounded.agent.model import KubeletAccess, NodeGoal, Slot
from unbounded.agent.node.devices import DeviceWatch
from unbounded.agent.node.nodes import HostNodes
from unbounded.agent.node.pull_secrets import PullSecrets
from unbounded.agent.operations.agent_reset import AgentReset, stop_after_reset
from unbounded.agent.operations.agent_upgrade import AgentUpgrade
from unbounded.agent.operations.host_reboot import HostReboot, host_boot_id
from unbounded.agent.operations.node_reboot import NodeReboot
from unbounded.agent.paths import HostPaths
from unbounded.agent.recreation.controller import RecreationCaches, RecreationController
from unbounded.agent.recreation.perform import reuse_or
from unbounded.agent.recreation.plan import RecreationLimits
from unbounded.agent.recreation.status import RecreationStatusWriter, holder_message
from unbounded.agent.reset_parts import ResetContext
from unbounded.agent.settings import require_stored_config
from unbounded.agent.steps.step import StepHost
from unbounded.agent.upgrade.health import ReleaseHealth, UpgradeContext
from unbounded.agent.upgrade.staging import fetch_release
from unbounded.agent.upgrade.switching import restart_daemon
from unbounded.api.conditions import ConditionType
from unbounded.api.core import NODES, Node
from unbounded.api.failures import Failure, Rejected
from unbounded.api.machine import MACHINES, Machine
from unbounded.api.names import ANNOTATION_SUCCESSOR
from unbounded.api.operation import MACHINE_OPERATIONS, MachineOperation, OperationKind
from unbounded.join.agent_config import AgentConfig
from unbounded.kube.api import Api
from unbounded.kube.cache import Cache
from unbounded.kube.client import HttpApi
from unbounded.kube.clock import WallClock, utc_now
from unbounded.kube.events import EventRecorder, event_sink
from unbounded.kube.logs import Log
from unbounded.kube.process import Runtime, running_caches, until_signal
from unbounded.kube.process_epoch import ProcessEpoch
from unbounded.operations.caches import INDEX_MACHINE, Caches, by_machine
from unbounded.operations.executor_engine import Engine

log = Log("agent")

MOVE_AGAIN_S: Final = 15.0


@dataclass(frozen=True)
class DaemonParts:
    """Host-side dependencies of a daemon.

    Args:
        running: the executable of this process.
        version: of the running agent.
        devices: keeps the machine's /dev up to date; None where there is no machine.
        access: slots whose kubelets follow the cluster's address and CA, and move to another cluster; None to follow
            nothing.
        started_s: duration of this process's start, which is recorded; 0 where unknown.
    """

    paths: HostPaths
    commands: Commands
    units: Units
    nodes: Nodes
    running: Path
    version: str
    notifier: SystemdNotifier = field(default_factory=SystemdNotifier)
    limits: RecreationLimits = field(default_factory=RecreationLimits)
    devices: DeviceWatch | None = None
    access: AccessNodes | None = None
    started_s: float = 0.0


def parts_of_this_host(environ: Mapping[str, str]) -> DaemonParts:
    """Return the parts of this host."""
    paths, commands = HostPaths(), HostCommands()
    units = Systemctl(commands)
    nodes = HostNodes(paths, commands, units)
    return DaemonParts(
        paths=paths,
        commands=commands,
        units=units,
        nodes=nodes,
        running=Path(sys.executable),
        version=this_build().version,
        notifier=SystemdNotifier.from_environment(environ),
        devices=DeviceWatch(nodes.show_devices),
        access=nodes,
        started_s=process_age_s(),
    )


@dataclass(frozen=True)
class AgentCaches:
    """The three watches of an agent: its Machine, its Node, and the operations on its Machine."""

    machines: Cache[Machine]
    nodes: Cache[Node]
    operations: Cache[MachineOperation]

    @classmethod
    def of(cls, api: Api, machine: str) -> AgentCaches:
        own = f"metadata.name={machine}"
        return cls(
            machines=Cache(api, MACHINES, fields=own),
            nodes=Cache(api, NODES, fields=own),
            operations=Cache(
                api, MACHINE_OPERATIONS, fields=f"spec.machineRef={machine}", indexes={INDEX_MACHINE: by_machine}
            ),
        )

    @property
    def followed(self) -> tuple[Cache[Machine], Cache[Node], Cache[MachineOperation]]:
        return self.machines, self.nodes, self.operations


async def run(parts: DaemonParts) -> None:
    """Reconcile this host's node and execute its operations, until cancelled.

    Raises:
        Rejected: no `start` has stored a configuration.
    """
    config = require_stored_config(parts.paths)
    if parts.started_s:
        Durations(parts.paths).completed(Kind.DAEMON, parts.started_s)
    health = ReleaseHealth(UpgradeContext.of(parts.paths, parts.units, parts.running), config.machine_name)
    await health.note_start()
    async with asyncio.TaskGroup() as tasks:
        background = [tasks.create_task(parts.notifier.keep_alive(), name="watchdog")]
        if parts.devices is not None:
            background.append(tasks.create_task(parts.devices.run(), name="devices"))
        try:
            await _moved(parts, config)
            await _joined(parts, config, health)
        finally:
            for task in background:
                task.cancel()


async def _moved(parts: DaemonParts, config: AgentConfig) -> None:
    """Complete a move to another API server, with retries without end: nothing else runs before."""
    while parts.access is not None:
        try:
            await finish_migration(parts.paths, config, parts.access, partial(host_lock, parts.paths))
        except (Failure, OSError) as error:
            log.warning("the move to another API server is not complete yet", error=error)
            await asyncio.sleep(MOVE_AGAIN_S)
        else:
            return


async def _joined(parts: DaemonParts, config: AgentConfig, health: ReleaseHealth) -> None:
    identity = await identity_when_joined(parts.paths, config.machine_name)
    log.info("daemon started", machine=config.machine_name, version=parts.version)
    async with HttpApi(client_config(config, identity), user_agent=USER_AGENT) as api, asyncio.TaskGroup() as tasks:
        tasks.create_task(identity.keep_renewed(api), name="identity")
        tasks.create_task(health.run(api), name="health")
        await AgentDaemon(parts, config, api, now=api.now).run()


class AgentDaemon:
    """Controllers of an agent that can reach its API server.

    Args:
        caches: None for caches of its own; caches of a caller are not run here.
        now: the API server's time, as the host's clock may be wrong.
    """

    def __init__(
        self,
        parts: DaemonParts,
        config: AgentConfig,
        api: Api,
        *,
        caches: AgentCaches | None = None,
        now: WallClock = utc_now,
    ) -> None:
        self._now = now
        self._parts = parts
        self._config = config
        self._machine = config.machine_name
        self._api = api
        self._caches = caches or AgentCaches.of(api, self._machine)
        self._logins = PullSecrets(api, parts.paths)
        self._key = ReleaseKeySync(
            api,
            parts.paths,
            RecreationStatusWriter(api, self._machine, now=utc_now),
            lock=partial(host_lock, parts.paths),
            is_reported=self._reports_release_key,
        )
        self._events = EventRecorder(api, "unbounded-agent")

    async def run(self) -> None:
        """Run until cancelled."""
        paths = self._parts.paths
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._events.run(), name="events")
            async with running_caches(Runtime(self._api), *self._caches.followed):
                tasks.create_task(self._reporter().run(), name="report")
                if self._parts.access is not None:
                    tasks.create_task(self._access_follower(self._parts.access).run(), name="cluster access")
                    tasks.create_task(self._succession().run(), name="succession")
                tasks.create_task(self._key.run(), name="public key of releases")
                missing = DeletedMachineReport(self._caches.machines, self._machine, paths)
                tasks.create_task(missing.run(), name="missing")
                recreation = self._recreation()
                await recreation.resume()  # before anything is claimed
                tasks.create_task(recreation.run(), name="recreation")
                following = follow_logins(self._parts.nodes, self._logins, partial(host_lock, paths))
                tasks.create_task(following, name="logins")
                resetting = ResetContext(StepHost(paths, self._parts.commands, self._parts.units), self._parts.nodes)
                reset = AgentReset(resetting, RecreationStatusWriter(self._api, self._machine, now=utc_now))
                tasks.create_task(stop_after_reset(reset, self._settled, self._parts.commands), name="farewell")
                await self._engine(self._works(reset, tasks)).run()

    def _reporter(self) -> AgentStatusReporter:
        paths, access = self._parts.paths, access_of_config(self._config)
        return AgentStatusReporter(
            self._api,
            self._caches.machines,
            self._machine,
            version=self._parts.version,
            host_boot_id=host_boot_id(paths),
            observe=HostObserver(paths, self._parts.commands, access.server).observe,
            access=access,
        )

    def _access_follower(self, nodes: AccessNodes) -> AccessSync:
        paths = self._parts.paths

        async def probe(config: AgentConfig) -> None:
            known = self._caches.machines.get(self._machine)
            async with connected(paths, config) as api:
                found = await api.get(MACHINES, self._machine)
            if known is not None and found.metadata.uid != known.metadata.uid:
                raise Rejected(
                    f"{config.kubelet.api_server} has another Machine {self._machine}, so it is another cluster"
                )

        return AccessSync(
            self._api,
            paths,
            self._config,
            nodes,
            RecreationStatusWriter(self._api, self._machine, now=self._now),
            lock=partial(host_lock, paths),
            probe=probe,
            held_back=self._blocked_by,
            restart=partial(restart_daemon, UpgradeContext.of(paths, self._parts.units, self._parts.running)),
            moving=self._is_moving,
        )

    def _is_moving(self) -> bool:
        machine = self._caches.machines.get(self._machine)
        return machine is not None and ANNOTATION_SUCCESSOR in machine.metadata.annotations

    def _succession(self) -> ServerMigration:
        paths = self._parts.paths
        return ServerMigration(
            self._api,
            paths,
            self._config,
            self._caches.machines,
            RecreationStatusWriter(self._api, self._machine, now=utc_now),
            lock=partial(host_lock, paths),
            held_back=self._blocked_by,
            restart=partial(restart_daemon, UpgradeContext.of(paths, self._parts.units, self._parts.running)),
        )

    def _blocked_by(self) -> str:
        machine = self._caches.machines.get(self._machine)
        active = None if machine is None else machine.status.active_operation
        return "" if active is None or active.lost else holder_message(active)

    def _reports_release_key(self) -> bool:
        machine = self._caches.machines.get(self._machine)
        found = () if machine is None else machine.status.conditions
        return any(one.type == ConditionType.RELEASE_KEY_CURRENT for one in found)

    def _recreation(self) -> RecreationController:
        paths, nodes = self._parts.paths, self._parts.nodes

        async def fresh(report: OnProgress) -> KubeletAccess:
            return await kubelet_access(self._api, paths, self._config, report=report)

        return RecreationController(
            self._api,
            self._machine,
            nodes,
            paths,
            RecreationCaches(self._caches.machines, self._caches.nodes),
            reuse_or(nodes, fresh),
            limits=self._parts.limits.configured(self._config.recreation),
            durations=Durations(paths),
            logins=self._logins.bring,
            more=partial(host_conditions, paths),
        )

    def _works(self, reset: AgentReset, tasks: asyncio.TaskGroup) -> Mapping[OperationKind, OperationWork]:
        parts, paths = self._parts, self._parts.paths
        ground = UpgradeContext.of(paths, parts.units, parts.running)
        lock, node = partial(host_lock, paths), partial(self._caches.nodes.get, self._machine)
        return {
            OperationKind.NODE_REBOOT: NodeReboot(
                self._api,
                self._machine,
                parts.nodes,
                lock,
                node=node,
                durations=Durations(paths),
                logins=self._logins.bring,
            ),
            OperationKind.HOST_REBOOT: HostReboot(parts.commands, partial(host_boot_id, paths)),
            OperationKind.AGENT_UPGRADE: AgentUpgrade(
                ground,
                parts.commands,
                self._api,
                self._config.upgrade,
                tasks=tasks,
                key=self._key.current,
                fetch=partial(fetch_release, spec=self._goal),
            ),
            OperationKind.AGENT_RESET: reset,
        }

    def _goal(self) -> NodeGoal | None:
        """Return the node's goal; None where no slot is complete. An upgrade is downloaded with its settings."""
        try:
            built = [one for slot in Slot if (one := self._parts.nodes.applied(slot)) is not None]
        except Rejected as error:
            log.warning("fetching the release without the node's proxies", error=error)
            return None
        return built[0].goal if built else None

    def _engine(self, works: Mapping[OperationKind, OperationWork]) -> Engine:
        paths = self._parts.paths
        executor = AgentExecutor(
            self._machine,
            works,
            host_id=paths.at("/etc/machine-id").read_text().strip(),
            resetting=paths.reset_state.exists,
        )
        return Engine(
            self._api,
            executor,
            Caches(operations=self._caches.operations, machines=self._caches.machines),
            epoch=ProcessEpoch(),
            alone=True,
            now=self._now,
            emit_event=event_sink(self._events),
        )

    def _settled(self) -> bool:
        """Return whether the API server has the end of a reset, and no operation or claim depends on this agent any
        more.
        """
        open_ones = (one for one in self._caches.operations.all() if not one.terminal and one.claimed)
        if any(one.spec.operation_kind == OperationKind.AGENT_RESET for one in open_ones):
            return False
        machine = self._caches.machines.get(self._machine)
        return machine is None or machine.status.active_operation is None


def run_daemon(environ: Mapping[str, str]) -> int:
    """Run the command `daemon` until SIGTERM or SIGINT; return its exit status."""
    try:
        return asyncio.run(until_signal(run(parts_of_this_host(environ))))
    except Rejected as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
