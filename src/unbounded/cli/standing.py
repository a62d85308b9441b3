"""The servers under `unbounded up`: the API server and the one of health, and why they cannot be started."""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import replace
from typing import Final
from urllib.parse import urlsplit

from unbounded.apiserver.disk import Damaged, DataInUse, DataUnusable
from unbounded.apiserver.housekeeping.nodes.settings import NodeTimes
from unbounded.apiserver.server import ANY_ADDRESS, ApiServer
from unbounded.apiserver.status import StatusError
from unbounded.cli import hints
from unbounded.cli.settings import UpSettings
from unbounded.kube.collector import collect_seldom
from unbounded.kube.config import ClientConfig, from_kubeconfig
from unbounded.kube.errors import ServerTrouble
from unbounded.kube.metrics import Metrics
from unbounded.kube.process import Health, served_health
from unbounded.kube.settings import Address

USUAL_PORT: Final = 6443
LOOPBACK: Final = "127.0.0.1"
LOOPBACK_V6: Final = "::1"


class UpFailed(Exception):
    """It cannot be started like that; the message says what to change."""


@contextmanager
def storing(settings: UpSettings) -> Iterator[None]:
    """Say of what cannot be stored where it was to be stored: mostly, the disk is full."""
    try:
        yield
    except ServerTrouble as error:
        raise UpFailed(f"--data {settings.data}: {error}") from error
    except OSError as error:
        raise UpFailed(f"--data {settings.data}: {error.strerror or error}") from error


@asynccontextmanager
async def serving(settings: UpSettings) -> AsyncIterator[ApiServer]:
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
        address_connections=settings.max_connections_per_address,
        verify_kubelets=settings.verify_kubelets,
        node_times=NodeTimes(grace_s=settings.node_grace_s),
    )
    try:
        await server.start()
    except Damaged as error:
        raise UpFailed(f"--data {settings.data}: {error}; {hints.DAMAGED}") from error
    except (DataInUse, DataUnusable, StatusError) as error:  # the last: what the server itself stores at its start
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
async def healthy(metrics: Metrics, port: int) -> AsyncIterator[Health]:
    """Serve health and metrics on loopback while inside."""
    async with AsyncExitStack() as stack:
        try:
            health = await stack.enter_async_context(served_health(metrics, (Address(LOOPBACK, port),)))
        except OSError as error:
            why = "something else listens there" if error.errno == errno.EADDRINUSE else error.strerror
            raise UpFailed(f"--health-port {port}: {why}; choose another port") from error
        yield health


def local_config(server: ApiServer, bind: str) -> ClientConfig:
    """The kubeconfig that everybody uses, at the address where this process reaches the server for sure."""
    host = {"::": LOOPBACK_V6}.get(bind, LOOPBACK) if bind in ANY_ADDRESS else bind
    port = urlsplit(server.url).port
    where = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
    return replace(from_kubeconfig(server.kubeconfig_path), server=where)
