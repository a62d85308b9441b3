"""`unbounded up`: an API server and all controllers in one process, and simulated machines if they are wanted."""

from __future__ import annotations

import asyncio
import errno
import shutil
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from typing import Final
from urllib.parse import urlsplit

from unbounded.api.operation import MACHINE_OPERATIONS, MachineOperation, OperationKind, OperationPhase
from unbounded.apiserver.disk import Damaged, DataInUse, DataUnusable
from unbounded.apiserver.server import ANY_ADDRESS, ApiServer
from unbounded.cli import hints, lab
from unbounded.cli.definitions import install_definitions
from unbounded.cli.identities import acting_as
from unbounded.cli.manifests import install_manifests
from unbounded.cli.screen import LogStream, Screen, screen_for
from unbounded.cli.settings import UpSettings
from unbounded.kube.client import HttpApi
from unbounded.kube.clock import utc_now
from unbounded.kube.collector import collect_seldom
from unbounded.kube.config import ClientConfig, from_kubeconfig
from unbounded.kube.errors import Forbidden, Invalid, ServerTrouble
from unbounded.kube.logs import configure
from unbounded.kube.metrics import Metrics
from unbounded.kube.port import Api
from unbounded.kube.process import Health, Runtime, followed, served_health, until_signal
from unbounded.kube.settings import Address
from unbounded.lab.bmc.fleet import FleetFailed
from unbounded.lab.bmc.profiles import dials_for
from unbounded.machina import controller as machina
from unbounded.metalman import controller as metalman
from unbounded.metalman.settings import Settings as MetalmanSettings
from unbounded.operations.caches import Caches
from unbounded.operations.metrics import OperationMetrics
from unbounded.operations.slot import holds_slot

USUAL_PORT: Final = 6443
LOOPBACK: Final = "127.0.0.1"
LOOPBACK_V6: Final = "::1"


class UpFailed(Exception):
    """It cannot be started like that; the message says what to change."""


def run(settings: UpSettings, environ: Mapping[str, str]) -> int:
    """Be a control plane until SIGINT or SIGTERM; returns the exit status."""
    configure(json=settings.log_format == "json", level=settings.log_level, stream=LogStream())
    screen = screen_for(sys.stdout)
    if shutil.which("kubectl", path=environ.get("PATH")) is None:
        screen.say(hints.NO_KUBECTL)
    try:
        status = asyncio.run(until_signal(up(settings, screen)))
    except (UpFailed, FleetFailed) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    screen.say(f"Stopped. Everything is kept in {settings.data}.")
    return status


async def up(settings: UpSettings, screen: Screen) -> int:
    """Start everything and look after it until cancelled; with `once`, until a first operation has ended.

    Raises:
        UpFailed, FleetFailed
    """
    _check_profile(settings.lab_profile)
    metrics = Metrics()
    async with (
        _serving(settings) as server,
        _healthy(metrics, settings.health_port) as health,
        HttpApi(_local_config(server, settings.bind), user_agent="unbounded", metrics=metrics) as admin,
    ):
        with _storing(settings):
            await _install(admin, screen)
        health.check("storage", lambda: server.registry.store.trouble)
        screen.say(_welcome(settings, server, health))
        async with (
            acting_as("machina", admin, metrics=metrics, health=health) as as_machina,
            acting_as("metalman", admin, metrics=metrics, health=health) as as_metalman,
        ):
            return await _guided(settings, ControlPlane(admin, as_machina, as_metalman, screen))


async def _install(admin: Api, screen: Screen) -> None:
    """Bring definitions, rights and policies. Where a policy of the user's refuses that, it goes on with what there is:
    only on a server that runs can the policy be taken away again."""
    for install in (install_definitions, install_manifests):
        try:
            await install(admin)
        except (Forbidden, Invalid) as error:
            screen.say(f"warning: what comes with this version could not be written: {error}")


async def _guided(settings: UpSettings, plane: ControlPlane) -> int:
    """Run the control plane, with simulated machines if they are wanted; the exit status."""
    if not settings.lab:
        return await plane.look_after(partial(plane.wait_for_users, settings))
    async with AsyncExitStack() as stack:
        with _storing(settings):
            running = lab.running_lab(settings.data, settings.lab, settings.lab_profile)
            fleet = await stack.enter_async_context(running)
            try:
                names = await lab.apply(plane.admin, fleet)
            except (Forbidden, Invalid) as error:
                raise UpFailed(f"--lab: {error}") from error
        return await plane.look_after(partial(plane.show_lab, names, settings))


class ControlPlane:
    """All controllers, each as itself, over one set of caches, which machina may read.

    No Lease is needed: the lock on the data lets nobody else run.

    Args:
        admin: does what the user of `--lab` would do.
    """

    def __init__(self, admin: Api, as_machina: Runtime, as_metalman: Runtime, screen: Screen) -> None:
        self.admin = admin
        self._machina = as_machina
        self._metalman = as_metalman
        self._screen = screen
        self._caches = machina.caches_of(as_machina.api)

    async def look_after(self, guide: Callable[[], Awaitable[int]]) -> int:
        """Run the controllers until `guide` returns the exit status."""
        caches = self._caches
        metrics = OperationMetrics(self._machina.metrics.registry)
        shared = Caches(operations=caches.operations, machines=caches.machines, pause=caches.pause)
        async with (
            followed(self._machina, caches.operations, caches.machines, caches.nodes, caches.pause),
            asyncio.TaskGroup() as group,
        ):
            tasks = [
                group.create_task(machina.run(self._machina, caches=caches, metrics=metrics), name="machina"),
                group.create_task(
                    metalman.run(self._metalman, MetalmanSettings(site=None), caches=shared, metrics=metrics),
                    name="metalman",
                ),
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
        """Say how to begin."""
        self._screen.say(f"\n{hints.without_lab(settings.data)}\nCtrl-C stops.\n")
        return await _for_ever()

    async def show_lab(self, names: list[str], settings: UpSettings) -> int:
        """Reboot a machine that is free, say how that went and what to try next."""
        for name in lab.left_over(self._caches.machines.all(), names):
            self._screen.say(f"Machine {name} has no BMC this time: it is from a run with a larger --lab.")
        ended = await self._ended(await self._reboot(self._free_one(names)))
        self._screen.say(f"\n{_outcome(ended)}\n")
        if settings.once:
            return 0 if ended.status.phase == OperationPhase.COMPLETE else 1
        self._screen.say(f"{hints.with_lab(settings.data, ended.name)}\nCtrl-C stops.\n")
        return await _for_ever()

    def _free_one(self, names: list[str]) -> str:
        """A machine that no operation of an earlier run is still at work on; the first one if there is none."""
        machines = filter(None, map(self._caches.machines.get, names))
        return next((machine.name for machine in machines if machine.status.active_operation is None), names[0])

    async def _reboot(self, machine: str) -> MachineOperation:
        created = await self.admin.create(
            MACHINE_OPERATIONS,
            {
                "metadata": {"name": f"{machine}-host-reboot-{utc_now():%Y%m%d-%H%M%S}"},
                "spec": {"machineRef": machine, "operationKind": str(OperationKind.HOST_REBOOT)},
            },
        )
        self._caches.operations.saw(created)
        return created

    async def _ended(self, operation: MachineOperation) -> MachineOperation:
        """Wait until an operation has ended and its Machine is free again, or it was deleted: then as seen last."""
        latest, changed = operation, asyncio.Event()
        unsubscribe = (
            self._caches.operations.subscribe(lambda _old, _new: changed.set()),
            self._caches.machines.subscribe(lambda _old, _new: changed.set()),
        )
        try:
            while True:
                now = self._caches.operations.get(operation.name)
                if now is None or (now.terminal and not self._holds_slot(now)):
                    return now or latest
                latest = now
                await changed.wait()
                changed.clear()
        finally:
            for stop in unsubscribe:
                stop()

    def _holds_slot(self, operation: MachineOperation) -> bool:
        machine = self._caches.machines.get(operation.spec.machine_ref or "")
        return machine is not None and holds_slot(operation, machine)


async def _for_ever() -> int:
    await asyncio.Event().wait()
    return 0


def _outcome(operation: MachineOperation) -> str:
    """How an operation ended, and what proves it."""
    status = operation.status
    lines = [f"{operation.name} is {status.phase}: {status.message}"]
    lines += [f"  {evidence.at}  {evidence.what}  ({evidence.where})" for evidence in status.evidence]
    return "\n".join(lines)


def _welcome(settings: UpSettings, server: ApiServer, health: Health) -> str:
    port = health.servers[0].port
    return "\n".join(
        (
            f"unbounded {version('unbounded')} serves a Kubernetes API at {server.url}",
            f"  kubeconfig  {server.kubeconfig_path}",
            f"  data        {settings.data}",
            f"  health      http://{LOOPBACK}:{port}/readyz and /metrics",
        )
    )


@contextmanager
def _storing(settings: UpSettings) -> Iterator[None]:
    """Say of what cannot be stored where it was to be stored: mostly, the disk is full."""
    try:
        yield
    except ServerTrouble as error:
        raise UpFailed(f"--data {settings.data}: {error}") from error
    except OSError as error:
        raise UpFailed(f"--data {settings.data}: {error.strerror or error}") from error


def _check_profile(profile: str) -> None:
    try:
        dials_for(profile)
    except ValueError as error:
        raise UpFailed(f"--lab-profile: {error}") from error


@asynccontextmanager
async def _serving(settings: UpSettings) -> AsyncIterator[ApiServer]:
    """Run the API server while inside, on the wanted port, or on one that is free."""
    first = not (settings.data / "kubeconfig").exists()
    usual = USUAL_PORT if first else 0  # 0: the port of the last time
    try:
        server = await _start(settings, usual if settings.port is None else settings.port)
    except OSError as error:
        if error.errno != errno.EADDRINUSE or settings.port is not None:
            raise _cannot_listen(settings, error) from error
        server = await _start(settings, 0)
    try:
        yield server
    finally:
        await server.stop()


async def _start(settings: UpSettings, port: int) -> ApiServer:
    collect_seldom()
    server = ApiServer(
        settings.data,
        bind=settings.bind,
        port=port,
        advertise=settings.advertise_address,
        connections=settings.max_connections,
    )
    try:
        await server.start()
    except Damaged as error:
        raise UpFailed(f"--data {settings.data}: {error}; {hints.DAMAGED}") from error
    except (DataInUse, DataUnusable) as error:
        raise UpFailed(f"--data {settings.data}: {error}") from error
    return server


def _cannot_listen(settings: UpSettings, error: OSError) -> UpFailed:
    if error.errno in (errno.EEXIST, errno.ENOTDIR):
        return UpFailed(f"--data {settings.data}: {error.filename} is not a directory")
    if error.filename is not None:
        return UpFailed(f"--data {settings.data}: {error.filename}: {error.strerror}")
    if error.errno == errno.EADDRINUSE:
        return UpFailed(f"--port {settings.port}: something else listens there on {settings.bind}; choose another port")
    return UpFailed(f"--bind {settings.bind}, --port {settings.port or USUAL_PORT}: {error.strerror or error}")


@asynccontextmanager
async def _healthy(metrics: Metrics, port: int) -> AsyncIterator[Health]:
    """Serve health and metrics on loopback while inside."""
    async with AsyncExitStack() as stack:
        try:
            health = await stack.enter_async_context(served_health(metrics, (Address(LOOPBACK, port),)))
        except OSError as error:
            why = "something else listens there" if error.errno == errno.EADDRINUSE else error.strerror
            raise UpFailed(f"--health-port {port}: {why}; choose another port") from error
        yield health


def _local_config(server: ApiServer, bind: str) -> ClientConfig:
    """The kubeconfig that everybody uses, at the address where this process reaches the server for sure."""
    host = {"::": LOOPBACK_V6}.get(bind, LOOPBACK) if bind in ANY_ADDRESS else bind
    port = urlsplit(server.url).port
    where = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
    return replace(from_kubeconfig(server.kubeconfig_path), server=where)
