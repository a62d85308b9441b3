"""Logs and connections into Pods, by kubectl."""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path

import pytest
from aiohttp import web

from tests.apiserver.kubelets.support import add_node, add_pod, kubelet
from tests.apiserver.kubelets.test_streams import shout
from tests.apiserver.support import running

KUBECTL = shutil.which("kubectl")
LIMIT_S = 30.0

pytestmark = [pytest.mark.slow, pytest.mark.skipif(KUBECTL is None, reason="kubectl is not installed")]


async def answer(request: web.Request) -> web.StreamResponse:
    if not request.path.startswith("/containerLogs/"):
        return await shout(request)
    response = web.StreamResponse()
    await response.prepare(request)
    for number in range(int(request.query["tailLines"])):
        await response.write(b"line %d\n" % number)
    return response


async def kubectl(home: Path, *arguments: str, stdin: bytes = b"") -> tuple[int | None, bytes, bytes]:
    """Return its exit status, and what it prints."""
    process = await asyncio.create_subprocess_exec(
        KUBECTL or "kubectl",
        *arguments,
        env={"PATH": os.environ["PATH"], "HOME": str(home), "KUBECONFIG": str(home / "kubeconfig")},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(LIMIT_S):
        out, err = await process.communicate(stdin)
    return process.returncode, out, err


async def test_kubectl_reaches_the_kubelet(tmp_path: Path) -> None:
    async with running(tmp_path) as (_, client), kubelet(tmp_path, answer) as node:
        await add_node(client, "n1", [("InternalIP", "127.0.0.1")], node.port)
        await add_pod(client, "one", "n1", "c")
        state = {"name": "c", "ready": True, "restartCount": 0, "image": "i", "imageID": "", "state": {"running": {}}}
        status = {"phase": "Running", "containerStatuses": [state]}
        await client.merge("/api/v1/namespaces/default/pods/one/status", {"status": status})
        assert await kubectl(tmp_path, "logs", "one", "-f", "--tail=2") == (0, b"line 0\nline 1\n", b"")
        code, out, err = await kubectl(tmp_path, "exec", "-i", "one", "--", "cat", stdin=b"a word")
        assert (code, out) == (3, b"A WORD"), err
        code, out, err = await kubectl(tmp_path, "attach", "-i", "one", stdin=b"another")
        assert out == b"ANOTHER", err
        node_gone = node.port
    async with running(tmp_path) as (_, client):
        code, out, err = await kubectl(tmp_path, "logs", "one", "--tail=1")
    refused = f"dial tcp 127.0.0.1:{node_gone}: connect: connection refused"
    assert (code, out) == (1, b"")
    assert refused in err.decode()
