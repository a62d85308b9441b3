"""`unbounded up`: an API server and its controllers in one process, provider processes, and optional simulated
machines.
"""

from __future__ import annotations

import asyncio
import shutil
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING

from unbounded.api.failures import Rejected
from unbounded.api.operation import MACHINE_OPERATIONS, MachineOperation, OperationKind, OperationPhase
from unbounded.cli import hints, pxe, servers
from unbounded.cli.backup_schedule import scheduled_backups
from unbounded.cli.console_process import running_console
from unbounded.cli.deploy import components
from unbounded.cli.manifests import (
    foreign_definitions,
    install_container_cloud,
    install_definitions,
    install_manifests,
)
from unbounded.cli.migrate.migration_record import migrated_reason
from unbounded.cli.provider_processes import ProviderProcesses
from unbounded.cli.screen import Screen, ScreenLogStream, screen_for
from unbounded.cli.settings import LAB_CLOUDS, UpSettings
from unbounded.cli.terminal_text import one_line
from unbounded.containercloud import controller as container_cloud
from unbounded.containercloud.settings import COMPONENT as CONTAINER_CLOUD
from unbounded.containercloud.settings import ContainerCloudSettings
from unbounded.kube.api import Api, Forbidden, InvalidObject
from unbounded.kube.client import HttpApi
from unbounded.kube.clock import utc_now
from unbounded.kube.config import from_kubeconfig
from unbounded.kube.logs import configure
from unbounded.kube.metrics import ControllerMetrics
from unbounded.kube.process import (
    HealthServers,
    Runtime,
    open_tracer,
    print_startup_error,
    running_caches,
    until_signal,
)
from unbounded.kube.tracing import NO_TRACER, Tracer
from unbounded.machina import controller as machina
from unbounded.machina.settings import ProvisioningSettings as MachineSettings
from unbounded.machina.settings import config_values
from unbounded.metalman import controller as metalman
from unbounded.metalman.dhcp.model import format_address
from unbounded.metalman.netboot.servers import KernelNetwork, Reachability, reach
from unbounded.metalman.settings import MetalmanSettings
from unbounded.operations.caches import Caches
from unbounded.operations.executor_selection import ExecutorHealth
from unbounded.operations.machine_lock import holds_lock
from unbounded.operations.telemetry import OperationMetrics
from unbounded_apiserver.server import ApiServer

if TYPE_CHECKING:
    from unbounded.cli.lab_cloud import SimulatedCloud


def run(settings: UpSettings, environ: Mapping[str, str]) -> int:
    """Run a control plane until SIGINT or SIGTERM; returns the exit status."""
    configure(json=settings.log_format == "json", level=settings.log_level, stream=ScreenLogStream())
    screen = screen_for(sys.stdout)
    if shutil.which("kubectl", path=environ.get("PATH")) is None:
        screen.print_message(hints.NO_KUBECTL)
    return print_startup_error(lambda: _run(settings, screen, environ))


def _run(settings: UpSettings, screen: Screen, environ: Mapping[str, str]) -> int:
    try:
        with open_tracer(environ, "unbounded") as tracer:
            status = asyncio.run(until_signal(up(settings, screen, tracer)))
    except servers.UpFailed as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    screen.print_message(f"Stopped. All data stays in {settings.data}.")
    return status


async def up(settings: UpSettings, screen: Screen, tracer: Tracer = NO_TRACER) -> int:
    """Run a control plane until cancelled; with `once`, until a first operation has ended.

    Raises:
        UpFailed, StartupError
    """
    _check_not_migrated(settings)
    if settings.lab and not settings.lab_cloud:  # the simulated cloud checks its own profiles
        from unbounded.cli import lab  # noqa: PLC0415  # an extra

        lab.check_profile(settings.lab_profile)
    reached = None if settings.netboot is None else reach(settings.netboot, KernelNetwork())
    if settings.netboot is not None and reached is not None:
        settings = replace(settings, netboot=pxe.on_address(settings.netboot, format_address(reached.server)))
    metrics = ControllerMetrics()
    async with (
        servers.serving_api(settings) as server,
        servers.health_endpoint(metrics, settings.health_port) as health,
        HttpApi(servers.local_config(server, settings.bind), user_agent="unbounded", metrics=metrics) as admin,
    ):
        with servers.storage_errors(settings):
            if settings.container_cloud is not None:
                await _refuse_foreign_definitions(admin)
            await _install(admin, screen, container_cloud=settings.container_cloud is not None)
            await _publish(admin, server, settings, screen)
        health.check("storage", lambda: server.core.store.storage_error)
        screen.print_message(_welcome(settings, server, health, reached))
        epochs = servers.EpochFile(settings.data)
        epoch = await asyncio.to_thread(epochs.next)
        async with (
            scheduled_backups(settings.backups, settings.data, admin, metrics.registry),
            servers.component_runtime(
                "machina", admin, metrics=metrics, health=health, epoch=epoch, tracer=tracer
            ) as as_machina,
            servers.component_runtime(
                "metalman", admin, metrics=metrics, health=health, epoch=epoch, tracer=tracer
            ) as as_metalman,
        ):
            absences = ExecutorHealth()
            providers = ProviderProcesses(
                admin,
                settings.data / "providers",
                screen,
                settings.machines,
                absences=absences,
                next_epoch=epochs.next,
                flags=("--log-format", settings.log_format, "--log-level", settings.log_level),
            )
            plane = ControlPlane(
                admin, as_machina, as_metalman, screen, providers, absences, settings.metalman, settings.machines
            )
            kubeconfig, allowed = server.kubeconfig_path, settings.allow_operations
            console = partial(running_console, kubeconfig, settings.console, screen, allow_operations=allowed)
            if settings.container_cloud is None:
                return await _run_plane(settings, plane, console)
            runtime = servers.component_runtime(
                CONTAINER_CLOUD, admin, metrics=metrics, health=health, epoch=epoch, tracer=tracer
            )
            async with runtime as own, running_container_cloud(own, settings.container_cloud):
                return await _run_plane(settings, plane, console)


@asynccontextmanager
async def running_container_cloud(runtime: Runtime, settings: ContainerCloudSettings) -> AsyncIterator[None]:
    """Run the controllers of Container Cloud while entered."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(container_cloud.run(runtime, settings), name=CONTAINER_CLOUD)]
        if runtime.events is not None:
            tasks.append(group.create_task(runtime.events.run(), name="events"))
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()


async def _refuse_foreign_definitions(admin: Api) -> None:
    """Raise UpFailed where a user's definitions serve groups of Container Cloud."""
    if found := await foreign_definitions(admin):
        raise servers.UpFailed(
            f"--container-cloud: this server has definitions of other controllers: {', '.join(found)}; delete them, or "
            "omit --container-cloud"
        )


async def _install(admin: Api, screen: Screen, *, container_cloud: bool) -> None:
    """Install definitions, rights and policies.

    If a policy of the user rejects them, continue with the installed ones: only a running server lets the user remove
    the policy.
    """
    for install in (install_definitions, install_manifests, *[install_container_cloud] * container_cloud):
        try:
            await install(admin)
        except (Forbidden, InvalidObject) as error:
            screen.print_message(f"warning: cannot write the objects of this version: {error}")


async def _publish(admin: Api, server: ApiServer, settings: UpSettings, screen: Screen) -> None:
    """Publish the address of the API server for new nodes, and the controllers and the settings of hosts for tools.

    A policy of the user may reject that, as above.
    """
    ca = from_kubeconfig(server.kubeconfig_path).ca
    netboot = None if settings.netboot is None else pxe.deploy_flags(settings.netboot)
    for publish in (
        partial(servers.publish_cluster_info, admin, server.url, ca or b""),
        partial(components.publish, admin, config_values(settings.machines), netboot),
    ):
        try:
            await publish()
        except (Forbidden, InvalidObject) as error:
            screen.print_message(f"warning: cannot write the objects for discovery: {error}")


async def _run_plane(
    settings: UpSettings, plane: ControlPlane, console: Callable[..., AbstractAsyncContextManager[None]]
) -> int:
    """Run the control plane, with simulated machines if the settings have any; returns the exit status."""
    guide: Callable[[], Awaitable[int]] = partial(plane.wait_for_users, settings)
    async with AsyncExitStack() as stack:
        if settings.lab:
            begin = _begin_cloud if settings.lab_cloud else _begin_lab
            with servers.storage_errors(settings):
                try:
                    names = await begin(stack, settings, plane)
                except (Forbidden, InvalidObject) as error:
                    raise servers.UpFailed(f"--lab: {error}") from error
            guide = partial(plane.show_lab, names, settings)
        await stack.enter_async_context(console(environment=plane.cloud_environment))
        return await plane.run(guide)


async def _begin_lab(stack: AsyncExitStack, settings: UpSettings, plane: ControlPlane) -> list[str]:
    """Simulate machines with BMCs until the stack closes; returns the names of their Machines."""
    from unbounded.cli import lab  # noqa: PLC0415  # an extra

    running = lab.running_lab(settings.data, settings.lab, settings.lab_profile)
    return await lab.apply(plane.admin, await stack.enter_async_context(running))


async def _begin_cloud(stack: AsyncExitStack, settings: UpSettings, plane: ControlPlane) -> list[str]:
    """Simulate machines in a cloud until the stack closes; returns the names of their Machines."""
    from unbounded.cli import lab_cloud  # noqa: PLC0415  # an extra

    running = lab_cloud.running_cloud(settings.data, settings.lab_cloud, settings.lab, settings.lab_profile)
    simulated = await stack.enter_async_context(running)
    return await plane.join_cloud(simulated)


class ControlPlane:
    """All controllers, each with its own account, over one set of caches, which machina may read.

    No Lease is needed: the lock on the data directory excludes other processes.

    Args:
        admin: acts for the user of `--lab`.
        providers: their processes.
        absences: providers that are not served, for messages of operations.
        settings: those of metalman.
        machines: settings for hosts that are set up over SSH.
    """

    def __init__(
        self,
        admin: Api,
        as_machina: Runtime,
        as_metalman: Runtime,
        screen: Screen,
        providers: ProviderProcesses,
        absences: ExecutorHealth,
        settings: MetalmanSettings,
        machines: MachineSettings | None = None,
    ) -> None:
        self.admin = admin
        self._machines = machines
        self._settings = settings
        self._machina = as_machina
        self._metalman = as_metalman
        self._screen = screen
        self._providers = providers
        self._absences = absences
        self._caches = machina.create_machina_caches(as_machina.api)
        self.cloud_environment: Mapping[str, str] = {}  # variables with which a process reaches the simulated cloud

    async def run(self, guide: Callable[[], Awaitable[int]]) -> int:
        """Run the controllers until `guide` returns the exit status."""
        caches = self._caches
        metrics = OperationMetrics(self._machina.metrics.registry)
        seen = Caches(operations=caches.operations, machines=caches.machines, pause=caches.pause)
        shared = metalman.SharedCaches(seen, caches.nodes, metrics)
        async with (
            running_caches(self._machina, *caches.each()),
            asyncio.TaskGroup() as group,
        ):
            tasks = [
                group.create_task(
                    machina.run(
                        self._machina,
                        caches=caches,
                        metrics=metrics,
                        settings=self._machines,
                        absences=self._absences,
                    ),
                    name="machina",
                ),
                group.create_task(metalman.run(self._metalman, self._settings, shared=shared), name="metalman"),
                group.create_task(self._providers.run(caches.machines), name="providers"),
                group.create_task(self._screen.run(caches.machines, caches.operations), name="screen"),
            ]
            writers = (runtime.events for runtime in (self._machina, self._metalman) if runtime.events is not None)
            tasks += [group.create_task(events.run(), name="events") for events in writers]
            try:
                return await guide()
            finally:
                for task in tasks:
                    task.cancel()

    async def wait_for_users(self, settings: UpSettings) -> int:
        """Suggest first commands, and wait until cancelled."""
        begin = hints.without_lab if settings.netboot is None else hints.with_netboot
        self._screen.print_message(f"\n{begin(settings.data)}\nCtrl-C stops.\n")
        return await _for_ever()

    async def join_cloud(self, simulated: SimulatedCloud) -> list[str]:
        """Create the objects of a simulated cloud, and connect its provider; returns the names of the Machines."""
        from unbounded.cli import lab_cloud  # noqa: PLC0415  # an extra

        self._screen.print_message(simulated.summary)
        self.cloud_environment = simulated.environment
        self._providers.set_environment(simulated.provider, simulated.environment)
        return await lab_cloud.apply(self.admin, simulated)

    async def show_lab(self, names: list[str], settings: UpSettings) -> int:
        """Reboot a free machine, or replace one in a cloud; show the result and suggest next commands."""
        from unbounded.cli import lab, lab_cloud  # noqa: PLC0415  # an extra

        machines = self._caches.machines.all()
        for name in (*lab.left_over(machines, names), *lab_cloud.left_over(machines, names, LAB_CLOUDS)):
            self._screen.print_message(
                f"Machine {name} has no simulated host: it was created with other options of --lab."
            )
        kind = OperationKind.HOST_REPLACE if settings.lab_cloud else OperationKind.HOST_REBOOT
        operation = await self._wait_ended(await self._create_operation(kind, self._free_one(names)))
        self._screen.print_message(f"\n{_result_text(operation)}\n")
        if settings.once:
            return 0 if operation.status.phase == OperationPhase.COMPLETE else 1
        next_steps = hints.with_cloud if settings.lab_cloud else partial(hints.with_lab, site=lab.SIMULATED_SITE)
        self._screen.print_message(f"{next_steps(settings.data, operation)}\nCtrl-C stops.\n")
        return await _for_ever()

    def _free_one(self, names: list[str]) -> str:
        """Return a machine that no operation of an earlier run still occupies; the first one if there is none."""
        machines = filter(None, map(self._caches.machines.get, names))
        return next((machine.name for machine in machines if machine.status.active_operation is None), names[0])

    async def _create_operation(self, kind: OperationKind, machine: str) -> MachineOperation:
        verb = kind.removeprefix("Host").lower()
        created = await self.admin.create(
            MACHINE_OPERATIONS,
            {
                "metadata": {"name": f"{machine}-host-{verb}-{utc_now():%Y%m%d-%H%M%S}"},
                "spec": {"machineRef": machine, "operationKind": str(kind)},
            },
        )
        self._caches.operations.observe(created)
        return created

    async def _wait_ended(self, operation: MachineOperation) -> MachineOperation:
        """Wait until an operation has ended and its Machine is free, or the operation was deleted; returns its last
        state.
        """
        latest, changed = operation, asyncio.Event()
        with (
            self._caches.operations.subscribed(lambda _old, _new: changed.set()),
            self._caches.machines.subscribed(lambda _old, _new: changed.set()),
        ):
            while True:
                now = self._caches.operations.get(operation.name)
                if now is None or (now.terminal and not self._holds_lock(now)):
                    return now or latest
                latest = now
                await changed.wait()
                changed.clear()

    def _holds_lock(self, operation: MachineOperation) -> bool:
        machine = self._caches.machines.get(operation.spec.machine_ref or "")
        return machine is not None and holds_lock(operation, machine)


async def _for_ever() -> int:
    await asyncio.Event().wait()
    return 0


def _result_text(operation: MachineOperation) -> str:
    """Describe the result of an operation and its evidence."""
    status = operation.status
    lines = [f"{operation.name} is {status.phase}: {status.message}"]
    lines += [f"  {evidence.at}  {evidence.what}  ({evidence.where})" for evidence in status.evidence]
    return "\n".join(map(one_line, lines))


def _welcome(settings: UpSettings, server: ApiServer, health: HealthServers, reached: Reachability | None) -> str:
    port = health.servers[0].port
    lines = [
        f"unbounded {version('unbounded')} serves a Kubernetes API at {server.url}",
        f"  kubeconfig  {server.kubeconfig_path}",
        f"  data        {settings.data}",
        f"  health      http://{servers.LOOPBACK}:{port}/readyz and /metrics",
    ]
    if (backups := settings.backups) is not None:
        lines.append(f"  backups     {backups.folder}, every {backups.every_s / 60:.0f} min, the last {backups.keep}")
    if settings.netboot is not None and reached is not None:
        lines.append(pxe.screen_line(settings.netboot, reached.serve_url))
        lines += filter(None, (pxe.unreachable_warning(server.url, format_address(reached.server)),))
    return "\n".join(lines)


def _check_not_migrated(settings: UpSettings) -> None:
    """Refuse to start on migrated data: two control planes must never act on one machine."""
    try:
        words = migrated_reason(settings.data)
    except Rejected as error:
        raise servers.UpFailed(f"--data {settings.data}: {error}") from error
    if words:
        raise servers.UpFailed(f"--data {settings.data}: {words}")
