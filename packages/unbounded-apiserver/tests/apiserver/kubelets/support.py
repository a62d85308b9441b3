"""A server in the place of a kubelet, and Pods whose node it is."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import trustme
from aiohttp import web

from tests.apiserver.support import Client
from tests.support.paths import GOLDENS
from unbounded_apiserver.pki import CertificateAuthority

PODS = "/api/v1/namespaces/default/pods"
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass
class Kubelet:
    """A kubelet of the tests, with the requests that it got.

    Args:
        port: of its listener, on 127.0.0.1.
        handler: answers; it may be replaced.
        users: the common names of the client certificates.
    """

    port: int
    handler: Handler
    requests: list[web.Request] = field(default_factory=list)
    users: list[str] = field(default_factory=list)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(request)
        certificate = request.get_extra_info("peercert") or {}
        self.users += [value for part in certificate.get("subject", ()) for key, value in part if key == "commonName"]
        return await self.handler(request)


def self_signed() -> ssl.SSLContext:
    """Return TLS as of a kubelet without serverTLSBootstrap: the API server does not know its signer."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("127.0.0.1").configure_cert(context)
    return context


def signed(data_dir: Path, folder: Path, *hosts: str) -> ssl.SSLContext:
    """Return TLS with a certificate of the API server's authority."""
    folder.mkdir()
    (folder / "pki").symlink_to(folder)
    for name in ("ca.crt", "ca.key"):
        (folder / name).symlink_to(data_dir.resolve() / "pki" / name)
    identity = CertificateAuthority(folder).issue_server(hosts)
    (folder / "both.pem").write_bytes(identity.key + identity.certificate)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "both.pem")
    return context


@asynccontextmanager
async def kubelet(
    data_dir: Path, handler: Handler, context: ssl.SSLContext | None = None, *, address: str = "127.0.0.1"
) -> AsyncIterator[Kubelet]:
    """Serve as a kubelet while inside. It takes client certificates of the API server's authority alone."""
    context = context or self_signed()
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(data_dir / "pki" / "ca.crt")
    server = Kubelet(0, handler)
    runner = web.AppRunner(_application(server), shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, address, 0, ssl_context=context).start()
    server.port = runner.addresses[0][1]
    try:
        yield server
    finally:
        await runner.cleanup()


def _application(server: Kubelet) -> web.Application:
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", server.handle)
    return application


async def add_node(client: Client, name: str, addresses: Sequence[tuple[str, str]], port: int) -> None:
    await client.create("/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
    status = {
        "addresses": [{"type": kind, "address": address} for kind, address in addresses],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
    }
    await client.merge(f"/api/v1/nodes/{name}/status", {"status": status})


async def add_pod(client: Client, name: str, node: str, *containers: str, before: str = "") -> None:
    spec: dict[str, Any] = {"containers": [{"name": one, "image": "i"} for one in containers]}
    if before:
        spec["initContainers"] = [{"name": before, "image": "i"}]
    if node:
        spec["nodeName"] = node
    await client.create(PODS, {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec})


@asynccontextmanager
async def closing_port() -> AsyncIterator[int]:
    """A port that does not speak TLS: it closes each connection that sends something."""

    async def close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.close()

    server = await asyncio.start_server(close, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


def golden() -> dict[str, Any]:
    path = GOLDENS / "kubelet-streams.json"
    found: dict[str, Any] = json.loads(path.read_text())
    return found
