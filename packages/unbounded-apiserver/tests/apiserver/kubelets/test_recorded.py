"""Requests for logs and connections, as a kube-apiserver answered them and passed them on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.apiserver.kubelets.support import add_node, add_pod, closing_port, golden, kubelet
from tests.apiserver.support import Client, running

UPGRADES: Mapping[str, Mapping[str, str]] = {
    "": {},
    "websocket": {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Protocol": "v5.channel.k8s.io",
    },
    "SPDY/3.1": {
        "Connection": "Upgrade",
        "Upgrade": "SPDY/3.1",
        "X-Stream-Protocol-Version": "v4.channel.k8s.io",
    },
}
SAME_NAME = ("refusing", "plain", "unresolved", "noaddress", "otheraddress")
CODES = (302, 400, 401, 403, 404, 405, 409, 415, 422, 429, 500, 501, 503, 504)


async def answer(request: web.Request) -> web.StreamResponse:
    """Answer as the recording's `nodes` does for n1."""
    first, _, pod, *_ = request.path.strip("/").split("/")
    if pod.startswith("code"):
        code = int(pod.removeprefix("code"))
        headers = {"Location": "/elsewhere"} if 300 <= code < 400 else {}
        return web.Response(status=code, text="words of the kubelet", headers=headers)
    if first == "containerLogs":
        return web.Response(text="line 1\nline 2\n")
    return web.Response(status=403, text="no upgrade here")


async def set_up(client: Client, port: int, plain: int) -> None:
    """Make the recording's nodes and pods."""
    loopback = [("InternalIP", "127.0.0.1")]
    await add_node(client, "n1", loopback, port)
    await add_node(client, "refusing", loopback, 1)
    await add_node(client, "plain", loopback, plain)
    await add_node(client, "unresolved", [("Hostname", "no-such-host.invalid")], 10250)
    await add_node(client, "noaddress", [], 10250)
    await add_pod(client, "one", "n1", "c")
    await add_pod(client, "two", "n1", "a", "b", before="i")
    await add_pod(client, "unbound", "", "c")
    await add_pod(client, "lost", "gone", "c")
    for name in SAME_NAME:
        await add_pod(client, name, name, "c")
    for code in CODES:
        await add_pod(client, f"code{code}", "n1", "c")


# As recorded, as it is here, and why.
DIFFERENCES = (
    (r"pods \"gone\" not found", r"nodes \"gone\" not found", "the Node is what is missing"),
    ('{"name": "gone", "kind": "pods"}', '{"name": "gone", "kind": "nodes"}', "the Node is what is missing"),
    (" on 192.0.2.53:53: no such host", ": no such host", "the resolver does not tell which server it asked"),
    (", application/vnd.kubernetes.protobuf", "", "answers are JSON or YAML"),
    (
        r"406: Not Acceptable\n\nAvailable representations: text/plain, application/json, application/yaml",
        "only the following media types are accepted: application/json, application/yaml",
        "one text for every type that cannot be had",
    ),
    ('"reason": "NotAcceptable", "details": {}', '"reason": "NotAcceptable"', "the same"),
)
BY_NAME = "otheraddress/"  # recorded with InternalIP and Hostname alone; here DNS names are tried as well


def expected(exchange: Mapping[str, Any], plain: int) -> tuple[Any, ...]:
    text = json.dumps(exchange["body"]).replace("127.0.0.1:23790", f"127.0.0.1:{plain}")
    for recorded, ours, _ in DIFFERENCES:
        text = text.replace(recorded, ours)
    return exchange["code"], json.loads(text), exchange.get("kubelet")


@pytest.mark.slow
async def test_all_is_answered_and_passed_on_as_recorded(tmp_path: Path) -> None:
    wrong = []
    async with running(tmp_path) as (_, client), kubelet(tmp_path, answer) as server, closing_port() as plain:
        await set_up(client, server.port, plain)
        exchanges = [one for one in golden()["exchanges"] if BY_NAME not in one["path"]]
        for exchange in exchanges:
            server.requests.clear()
            headers = dict(UPGRADES[exchange.get("upgrade", "")])
            if "accept" in exchange:
                headers["Accept"] = exchange["accept"]
            given = await client.ask(exchange["method"], exchange["path"], headers=headers)
            body: Any = given.json() if given.text.startswith("{") else given.text
            passed = [f"{one.method} {one.path_qs}" for one in server.requests]
            got = given.status, body, passed[0] if passed else None
            if got != expected(exchange, plain):
                wrong.append((exchange["method"], exchange["path"], headers, got, expected(exchange, plain)))
    assert len(exchanges) > 140
    assert wrong == [], "\n".join(map(str, wrong))
