"""Registries for tests: one with dials for what goes wrong, and Debian's docker-registry as a process of its own."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import aiohttp
from aiohttp import web

from tests.fetch.layers import Built
from tests.support.ports import free_port
from unbounded.fetch.reference import Digest
from unbounded.fetch.web import Patience
from unbounded.kube.clock import Backoff

START_S: Final = 20.0
HASTY: Final = Patience(
    connect_s=5.0, silence_s=1.0, attempts=4, backoff=Backoff(0.001, 0.002), longest_wait_s=3.0, pace_s=0.2
)
Answer = web.StreamResponse | None
Dial = Callable[[web.BaseRequest], Awaitable[Answer]]


@asynccontextmanager
async def served(
    handler: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]], address: str = "127.0.0.1"
) -> AsyncIterator[str]:
    """`host:port` of a server on loopback, or on another address of this system."""
    runner = web.ServerRunner(web.Server(handler), shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, address, 0)
    await site.start()
    try:
        host, port = runner.addresses[0][:2]
        yield f"{host}:{port}"
    finally:
        await runner.cleanup()


@dataclass
class Registry:
    """A registry in memory. A dial sees each request first, and may answer it.

    Args:
        seen: method, path and Authorization of each request.
    """

    manifests: dict[str, tuple[bytes, str]] = field(default_factory=dict)
    blobs: dict[str, bytes] = field(default_factory=dict)
    dial: Dial | None = None
    seen: list[tuple[str, str, str]] = field(default_factory=list)
    host: str = ""

    def add(self, built: Built, *names: str) -> None:
        for name in (*names, str(built.digest)):
            self.manifests[name] = (built.manifest, built.media_type)
        self.blobs.update(built.blobs)

    def count(self, part: str) -> int:
        """Return how many requests had this in their path."""
        return sum(part in path for _, path, _ in self.seen)

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        self.seen.append((request.method, request.path, request.headers.get("Authorization", "")))
        if self.dial is not None and (answer := await self.dial(request)) is not None:
            return answer
        kind, _, name = request.path.rpartition("/")
        if kind.endswith("/manifests") and name in self.manifests:
            body, media_type = self.manifests[name]
            headers = {"Docker-Content-Digest": str(Digest.of(body)), "Content-Type": media_type}
            return web.Response(body=body, headers=headers)
        if kind.endswith("/blobs") and name in self.blobs:
            return part_of(request, self.blobs[name])
        code = "MANIFEST_UNKNOWN" if kind.endswith("/manifests") else "BLOB_UNKNOWN"
        return web.json_response({"errors": [{"code": code, "message": "unknown"}]}, status=404)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Registry]:
        async with served(self.handle) as self.host:
            yield self


def part_of(request: web.BaseRequest, content: bytes, **headers: str) -> web.Response:
    """Return the content, or the part of it that Range requests."""
    start = request.http_range.start
    if start is None:
        return web.Response(body=content, headers=headers)
    if start >= len(content):
        return web.Response(status=416, headers={"Content-Range": f"bytes */{len(content)}"})
    named = {"Content-Range": f"bytes {start}-{len(content) - 1}/{len(content)}"}
    return web.Response(status=206, body=content[start:], headers=named | headers)


async def cut_after(request: web.BaseRequest, content: bytes, count: int, **headers: str) -> web.StreamResponse:
    """Send an answer that promises all from the requested offset, and breaks off after some bytes."""
    start = request.http_range.start or 0
    length = {"Content-Length": str(len(content) - start)}
    named = {"Content-Range": f"bytes {start}-{len(content) - 1}/{len(content)}"} if start else {}
    response = web.StreamResponse(status=206 if start else 200, headers=length | named | headers)
    await response.prepare(request)
    await response.write(content[start : start + count])
    assert request.transport is not None
    request.transport.close()
    return response


@asynccontextmanager
async def docker_registry(folder: Path, *, htpasswd: str = "") -> AsyncIterator[str]:
    """`host:port` of Debian's docker-registry, whose data stays in the folder."""
    program = shutil.which("docker-registry")
    assert program, "docker-registry (Debian package of that name) is missing: run scripts/test-tools"
    port = free_port()
    lines = [
        "version: 0.1",
        "log: {level: warn}",
        f"storage: {{filesystem: {{rootdirectory: {folder / 'data'}}}}}",
        f"http: {{addr: '127.0.0.1:{port}'}}",
    ]
    if htpasswd:
        (folder / "htpasswd").write_text(htpasswd)
        lines.append(f"auth: {{htpasswd: {{realm: lab, path: {folder / 'htpasswd'}}}}}")
    (folder / "config.yml").write_text("\n".join(lines))
    with (folder / "log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            program, "serve", str(folder / "config.yml"), stdout=log, stderr=log, env={"PATH": os.environ["PATH"]}
        )
        try:
            await _answers(port, folder / "log")
            yield f"127.0.0.1:{port}"
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            await process.wait()


async def _answers(port: int, log: Path) -> None:
    async with asyncio.timeout(START_S):
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                await asyncio.sleep(0.05)
                assert "panic" not in log.read_text(), log.read_text()
            else:
                writer.close()
                return


async def push(host: str, repository: str, tag: str, built: Built, *, user: str = "", password: str = "") -> None:
    """Bring an image into a registry through the distribution API."""
    headers: dict[str, str] = {}
    if user:
        headers["Authorization"] = "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()
    base = f"http://{host}/v2/{repository}"
    async with aiohttp.ClientSession(headers=headers) as session:
        for digest, content in built.blobs.items():
            async with session.post(f"{base}/blobs/uploads/") as answer:
                assert answer.status == 202, await answer.text()
                location = answer.headers["Location"]
            mark = "&" if "?" in location else "?"
            async with session.put(f"{location}{mark}digest={digest.replace(':', '%3A')}", data=content) as answer:
                assert answer.status == 201, await answer.text()
        await push_manifest(session, base, tag, built.manifest, built.media_type)


async def push_manifest(session: aiohttp.ClientSession, base: str, tag: str, body: bytes, media_type: str) -> None:
    async with session.put(f"{base}/manifests/{tag}", data=body, headers={"Content-Type": media_type}) as answer:
        assert answer.status == 201, await answer.text()


def docker_config(logins: dict[str, dict[str, Any]]) -> bytes:
    return json.dumps({"auths": logins}).encode()
