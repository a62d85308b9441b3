"""Servers of `unbounded up`: the API server and the health server, errors of their start, and ConfigMap cluster-info.

ConfigMap kube-public/cluster-info has the URL and the CA of the API server, as kubeadm publishes them. Each component
is a client with its own service account and only the rights of that account, and an epoch.
"""

from __future__ import annotations

import errno
from base64 import b64encode
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit
from uuid import uuid4

import yaml

from unbounded.api.core import CONFIG_MAPS
from unbounded.api.machine import MACHINES
from unbounded.api.meta import Kind
from unbounded.api.names import GROUP, NAMESPACE
from unbounded.api.operation import MACHINE_OPERATIONS
from unbounded.cli import hints
from unbounded.cli.explain_extension import ExplainExtension
from unbounded.cli.loop_thread import LoopThread
from unbounded.cli.settings import UpSettings
from unbounded.kube import cluster_info
from unbounded.kube.api import AlreadyExists, Api, ServerError
from unbounded.kube.client import HttpApi
from unbounded.kube.config import ClientConfig, from_kubeconfig
from unbounded.kube.credentials import AccountToken
from unbounded.kube.durable_files import write_durably
from unbounded.kube.events import EventRecorder
from unbounded.kube.metrics import ControllerMetrics
from unbounded.kube.process import HealthServers, Runtime, serving_health
from unbounded.kube.process_epoch import Epoch, ProcessEpoch, parse_epoch
from unbounded.kube.process_tuning import raise_gc_threshold
from unbounded.kube.settings import Address
from unbounded.kube.tracing import NO_TRACER, Tracer
from unbounded_apiserver.access.default_roles import GrantedResources
from unbounded_apiserver.controllers.nodes import NodeTimes
from unbounded_apiserver.data_dir import Damaged, DataInUse, DataUnusable
from unbounded_apiserver.server import ANY_ADDRESS, ApiServer
from unbounded_apiserver.status import StatusError

USUAL_PORT: Final = 6443
LOOPBACK: Final = "127.0.0.1"
LOOPBACK_V6: Final = "::1"
GRANTED: Final = (GrantedResources(GROUP, (MACHINES.plural, MACHINE_OPERATIONS.plural)),)
RBAC: Final = "rbac.authorization.k8s.io"
ROLES: Final[Kind[dict[str, Any]]] = Kind(RBAC, "v1", "Role", "roles", dict, namespaced=True)
ROLE_BINDINGS: Final[Kind[dict[str, Any]]] = Kind(RBAC, "v1", "RoleBinding", "rolebindings", dict, namespaced=True)
READERS: Final = "kubeadm:bootstrap-signer-clusterinfo"  # the name that kubeadm uses


class UpFailed(Exception):
    """The settings do not work; the message has the cause and the flag."""


@contextmanager
def storage_errors(settings: UpSettings) -> Iterator[None]:
    """Add the data directory to errors of writes: the usual cause is a full disk."""
    try:
        yield
    except ServerError as error:
        raise UpFailed(f"--data {settings.data}: {error}") from error
    except OSError as error:
        raise UpFailed(f"--data {settings.data}: {error.strerror or error}") from error


@asynccontextmanager
async def serving_api(settings: UpSettings) -> AsyncIterator[ApiServer]:
    """Run the API server inside the context, on the port of the settings or on a free one.

    It also serves explanations and plans.
    """
    first = not (settings.data / "kubeconfig").exists()
    usual = USUAL_PORT if first else 0  # 0: the port of the last run
    async with LoopThread("explain") as thread:
        explain = ExplainExtension(thread)
        try:
            server = await _start(settings, usual if settings.port is None else settings.port, explain)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or settings.port is not None:
                raise _cannot_listen(settings, error) from error
            server = await _start(settings, 0, explain)
        explain.config = local_config(server, settings.bind)
        try:
            yield server
        finally:
            await server.stop()


def api_server(data: Path, **options: Any) -> ApiServer:
    """Return an API server with what the product adds to it: its namespace, its group, and rights on its resources."""
    return ApiServer(data, namespaces=(NAMESPACE,), granted=GRANTED, first_groups=(GROUP,), **options)


async def _start(settings: UpSettings, port: int, explain: ExplainExtension) -> ApiServer:
    raise_gc_threshold()
    server = api_server(
        settings.data,
        bind=settings.bind,
        port=port,
        advertise=settings.advertise_address,
        connections=settings.max_connections,
        address_connections=settings.max_connections_per_address,
        verify_kubelets=settings.verify_kubelets,
        node_times=NodeTimes(grace_s=settings.node_grace_s),
        extensions=explain.extensions,
    )
    try:
        await server.start()
    except Damaged as error:
        raise UpFailed(f"--data {settings.data}: {error}; {hints.DAMAGED}") from error
    # StatusError: from what the server itself stores at its start
    except (DataInUse, DataUnusable, StatusError) as error:
        raise UpFailed(f"--data {settings.data}: {error}") from error
    return server


def _cannot_listen(settings: UpSettings, error: OSError) -> UpFailed:
    if error.errno in (errno.EEXIST, errno.ENOTDIR):
        return UpFailed(f"--data {settings.data}: {error.filename} is not a directory")
    if error.filename is not None:
        return UpFailed(f"--data {settings.data}: {error.filename}: {error.strerror}")
    if error.errno == errno.EADDRINUSE:
        return UpFailed(f"--port {settings.port}: the port is in use on {settings.bind}; choose another port")
    return UpFailed(f"--bind {settings.bind}, --port {settings.port or USUAL_PORT}: {error.strerror or error}")


@asynccontextmanager
async def health_endpoint(metrics: ControllerMetrics, port: int) -> AsyncIterator[HealthServers]:
    """Serve health and metrics on loopback inside the context."""
    async with AsyncExitStack() as stack:
        try:
            health = await stack.enter_async_context(serving_health(metrics, (Address(LOOPBACK, port),)))
        except OSError as error:
            why = "the port is in use" if error.errno == errno.EADDRINUSE else error.strerror
            raise UpFailed(f"--health-port {port}: {why}; choose another port") from error
        yield health


def local_config(server: ApiServer, bind: str) -> ClientConfig:
    """Return the config of the users' kubeconfig, with the address at which this process always reaches the server."""
    host = {"::": LOOPBACK_V6}.get(bind, LOOPBACK) if bind in ANY_ADDRESS else bind
    port = urlsplit(server.url).port
    where = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
    return replace(from_kubeconfig(server.kubeconfig_path), server=where)


async def publish_cluster_info(api: Api, url: str, ca: bytes) -> None:
    """Create or update the ConfigMap and let everybody read it; writes nothing that is up to date.

    Joining hosts read it before they present a token. The server adds the signatures.

    Args:
        url: the API server's URL for other machines.
        ca: PEM.
    """
    cluster = {"certificate-authority-data": b64encode(ca).decode(), "server": url}
    kubeconfig = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"cluster": cluster, "name": ""}],
        "contexts": [],
        "current-context": "",
        "preferences": {},
        "users": [],
    }
    data = {"kubeconfig": yaml.dump(kubeconfig, Dumper=yaml.CSafeDumper)}
    body = {"metadata": {"name": cluster_info.NAME, "namespace": cluster_info.NAMESPACE}, "data": data}
    for kind, obj in ((ROLES, _role()), (ROLE_BINDINGS, _binding())):
        with suppress(AlreadyExists):  # from its creation on, the administrator owns it
            await api.create(kind, obj, namespace=cluster_info.NAMESPACE)
    try:
        await api.create(CONFIG_MAPS, body, namespace=cluster_info.NAMESPACE)
    except AlreadyExists:  # the server does not write an equal one
        await api.patch(CONFIG_MAPS, cluster_info.NAME, {"data": data}, namespace=cluster_info.NAMESPACE)


def _role() -> dict[str, Any]:
    rule = {"apiGroups": [""], "resources": ["configmaps"], "resourceNames": [cluster_info.NAME], "verbs": ["get"]}
    return {"metadata": {"name": READERS, "namespace": cluster_info.NAMESPACE}, "rules": [rule]}


def _binding() -> dict[str, Any]:
    return {
        "metadata": {"name": READERS, "namespace": cluster_info.NAMESPACE},
        "roleRef": {"apiGroup": RBAC, "kind": "Role", "name": READERS},
        "subjects": [{"apiGroup": RBAC, "kind": "User", "name": "system:anonymous"}],
    }


class EpochFile:
    """The last epoch, in a file of the data directory.

    Only the process with the lock on the directory uses it, so that a start begins after the one before has ended.
    """

    def __init__(self, data: Path) -> None:
        self._file = data / "epoch"

    def next(self) -> Epoch:
        """Return an epoch later than all before it. A file that cannot be read starts a new line of epochs."""
        try:
            last = parse_epoch(self._file.read_text().strip())
        except (OSError, ValueError):
            last = Epoch(uuid4().hex, 0)
        epoch = Epoch(last.line, last.number + 1)
        write_durably(self._file, f"{epoch}\n".encode())
        return epoch


@asynccontextmanager
async def component_runtime(
    component: str,
    admin: HttpApi,
    *,
    metrics: ControllerMetrics,
    health: HealthServers | None = None,
    elects: bool = False,
    epoch: Epoch | None = None,
    tracer: Tracer = NO_TRACER,
) -> AsyncIterator[Runtime]:
    """Open the runtime of a component that shares its process with others. The caller runs the runtime's `events`.

    Args:
        admin: issues the component's tokens.
        health: gets the component's readiness checks.
        elects: whether the component elects a leader by Lease, as other instances may run.
        epoch: of the process, where the caller knows that all earlier ones have ended.
    """
    issue = partial(admin.token, component, namespace=NAMESPACE)
    config = replace(admin.config, credentials=AccountToken(f"service account {component}", issue))
    async with HttpApi(config, user_agent=component, metrics=metrics) as api:
        events = EventRecorder(api, component, metrics=metrics)
        runtime = Runtime(api, metrics, events, elects=elects, epoch=ProcessEpoch(epoch), now=api.now, tracer=tracer)
        yield runtime if health is None else replace(runtime, checks=health.check)
