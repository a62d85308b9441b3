"""Pods of controllers on an API server, with a server in the place of their kubelet."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

from aiohttp import web

from tests.apiserver.kubelets.support import Kubelet, kubelet
from unbounded.api.core import NODES, PODS
from unbounded.api.names import NAMESPACE
from unbounded.cli.deploy.pods import PART_OF
from unbounded.kube.api import AlreadyExists
from unbounded.kube.client import HttpApi
from unbounded.kube.config import from_kubeconfig

NODE: Final = "of-controllers"
Logs = Mapping[str, str]
"""The text of each log, by POD/CONTAINER; with `.previous` of the instance before a restart."""


@asynccontextmanager
async def controller_pods(kubeconfig: Path, logs: Logs, *, variable: str = "plain") -> AsyncIterator[Kubelet]:
    """Serve the logs of Pods while inside, as a kubelet does; the Pods stay.

    Args:
        variable: value of an environment variable of each container.
    """

    async def serve(request: web.Request) -> web.StreamResponse:
        _, _, _, pod, container = request.path.split("/")  # /containerLogs/NAMESPACE/POD/CONTAINER
        name = f"{pod}/{container}{'.previous' * (request.query.get('previous') == 'true')}"
        if name not in logs:
            return web.Response(status=400, text=f"container {container!r} in pod {pod!r} is waiting to start")
        lines = logs[name].splitlines(keepends=True)[-int(request.query["tailLines"]) :]
        return web.Response(text="".join(lines)[: int(request.query["limitBytes"])])

    async with kubelet(kubeconfig.parent, serve) as node, HttpApi(from_kubeconfig(kubeconfig)) as api:
        await add_node(api, NODE, node.port)
        for pod in sorted({name.partition("/")[0] for name in logs}):
            names = [name.partition("/")[2] for name in logs if name.startswith(f"{pod}/")]
            await add_pod(api, pod, NODE, names, variable=variable)
        yield node


async def add_node(api: HttpApi, name: str, port: int) -> None:
    """Create a Node, or change the port of its kubelet on 127.0.0.1."""
    with suppress(AlreadyExists):
        await api.create(NODES.raw(), {"metadata": {"name": name}})
    addresses = [{"type": "InternalIP", "address": "127.0.0.1"}]
    status = {"addresses": addresses, "daemonEndpoints": {"kubeletEndpoint": {"Port": port}}}
    await api.patch(NODES.raw(), name, {"status": status}, subresource="status")


async def add_pod(api: HttpApi, name: str, node: str, logs: Sequence[str], *, variable: str = "plain") -> None:
    """Create a Pod of a controller, with the containers of these logs; those with a previous one were restarted."""
    containers = sorted({one.removesuffix(".previous") for one in logs})
    spec: Any = {
        "nodeName": node,
        "containers": [
            {"name": one, "image": "i", "env": [{"name": "LICENSE", "value": variable}]} for one in containers
        ],
    }
    metadata = {"name": name, "labels": dict(PART_OF)}
    with suppress(AlreadyExists):
        await api.create(PODS.raw(), {"metadata": metadata, "spec": spec}, namespace=NAMESPACE)
    statuses = [
        {
            "name": one,
            "image": "i",
            "imageID": "",
            "ready": True,
            "restartCount": int(f"{one}.previous" in logs),
            "state": {"running": {}},
        }
        for one in containers
    ]
    status = {"phase": "Running", "containerStatuses": statuses}
    await api.patch(PODS.raw(), name, {"status": status}, namespace=NAMESPACE, subresource="status")
