"""Logs and connections into Pods, from clients of others to a server in the place of a kubelet."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import aiohttp
import pytest
import websocket
from aiohttp import web

from tests.apiserver.kubelets.support import PODS, Kubelet, add_node, add_pod, kubelet, signed
from tests.apiserver.support import Client, admin_context, client_of, running
from tests.support.waiting import eventually
from unbounded_apiserver.http.kubelet_client import KubeletClient, KubeletEndpoint, KubeletUnreachable
from unbounded_apiserver.pki import CertificateAuthority
from unbounded_apiserver.server import ApiServer
from unbounded_apiserver.server_core import utc_now

pytestmark = pytest.mark.slow
PROTOCOLS = ("v5.channel.k8s.io", "v4.channel.k8s.io")
CLOSED = b"\xff\x00"  # v5: the client's standard input has ended
SPDY = {"Connection": "Upgrade", "Upgrade": "SPDY/3.1"}
SWITCHED = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n"
MIB = 2**20
LOG_MIB = 48


async def shout(request: web.Request) -> web.StreamResponse:
    """Answer standard input in capitals, as kubelet frames it (remotecommand over WebSocket)."""
    socket = web.WebSocketResponse(protocols=PROTOCOLS)
    await socket.prepare(request)
    async for message in socket:
        data = message.data if isinstance(message.data, bytes) else message.data.encode()
        if data == CLOSED:
            break
        await socket.send_bytes(b"\x01" + data[1:].upper())
        if b"fail" in data:
            break
    causes = [{"reason": "ExitCode", "message": "3"}]
    failed = {"status": "Failure", "reason": "NonZeroExitCode", "details": {"causes": causes}}
    await socket.send_bytes(b"\x03" + json.dumps({"metadata": {}, **failed}).encode())
    await socket.close()
    return socket


async def echo_raw(request: web.Request) -> web.StreamResponse:
    """Switch protocols, and send back each byte that comes."""
    transport = request.transport
    assert transport is not None
    reader = asyncio.StreamReader()
    cast(Any, request.protocol).set_parser(_Into(reader))
    transport.write(SWITCHED + b"hello")
    while data := await reader.read(65536):
        transport.write(data)
    return web.Response()


class _Into:
    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader = reader

    def feed_data(self, data: bytes) -> tuple[bool, bytes]:
        self._reader.feed_data(data)
        return False, b""

    def feed_eof(self) -> None:
        self._reader.feed_eof()


@dataclass
class Lab:
    """A server, its administrator, and the kubelet of the node of pod `one`."""

    server: ApiServer
    client: Client
    kubelet: Kubelet

    def audited(self, subresource: str, *, stage: str) -> list[int]:
        """Return the codes that the audit log notes."""
        entries = map(json.loads, (self.server.data_dir / "audit.log").read_text().splitlines())
        return [
            entry["responseStatus"]["code"]
            for entry in entries
            if entry["stage"] == stage and entry.get("objectRef", {}).get("subresource") == subresource
        ]


@asynccontextmanager
async def lab(tmp_path: Path) -> AsyncIterator[Lab]:
    async with running(tmp_path) as (server, client), kubelet(tmp_path, shout) as node:
        await add_node(client, "n1", [("Hostname", "n1"), ("InternalIP", "127.0.0.1")], node.port)
        await add_pod(client, "one", "n1", "c")
        yield Lab(server, client, node)


@asynccontextmanager
async def connected(
    lab: Lab, subresource: str = "exec"
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection that was upgraded to SPDY, past the answer's head."""
    host, port = lab.server.url.removeprefix("https://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port), ssl=admin_context(lab.server.kubeconfig_path))
    try:
        head = "".join(f"{name}: {value}\r\n" for name, value in {"Host": "x", **SPDY}.items())
        writer.write(f"POST {PODS}/one/{subresource}?command=x HTTP/1.1\r\n{head}\r\n".encode())
        answer = await reader.readuntil(b"\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 101 "), answer
        assert b"Upgrade: SPDY/3.1\r\n" in answer
        yield reader, writer
    finally:
        writer.transport.abort()


@pytest.mark.parametrize(
    "address", ["{there}/run/default/other/c?cmd=x#", "127.0.0.1/run/x#", "u@127.0.0.1", "[::1]", "::1%lo", ""]
)
async def test_the_address_of_a_node_is_no_path_to_another_kubelet(tmp_path: Path, address: str) -> None:
    """A node writes its own addresses, and the API server's certificate opens all kubelets."""
    async with lab(tmp_path) as here:
        there = f"127.0.0.1:{here.kubelet.port}"
        await add_node(here.client, "evil", [("InternalIP", address.format(there=there))], here.kubelet.port)
        await add_pod(here.client, "bait", "evil", "c")
        for method, path in (("GET", "log"), ("POST", "exec?command=x"), ("GET", "exec?command=x")):
            answer = await here.client.ask(method, f"{PODS}/bait/{path}", headers=SPDY if "exec" in path else {})
            assert [f"{one.method} {one.path_qs}" for one in here.kubelet.requests] == []
            text = answer.json()["message"]
            assert (answer.status, "no such host" in text or "no preferred addresses" in text) == (500, True)


async def test_commands_run_over_websocket(tmp_path: Path) -> None:
    async with lab(tmp_path) as here:
        url = f"{here.server.url.replace('https', 'wss')}{PODS}/one/exec?command=cat&command=a+b&stdin=true&stdout=true"

        def run() -> list[str | bytes]:
            tls = {"context": admin_context(here.server.kubeconfig_path)}
            socket = websocket.create_connection(url, subprotocols=["v4.channel.k8s.io"], sslopt=tls, timeout=20)
            assert socket.getsubprotocol() == "v4.channel.k8s.io"
            socket.send_binary(b"\x00fail please")
            received = [socket.recv(), socket.recv()]
            socket.close()
            return received

        said, status = await asyncio.to_thread(run)
        assert said == b"\x01FAIL PLEASE"
        assert json.loads(status[1:])["details"]["causes"][0]["message"] == "3"
        asked = here.kubelet.requests[0]
        assert here.audited("exec", stage="ResponseStarted") == [101]

        async def noted() -> bool:
            return here.audited("exec", stage="ResponseComplete") == [101]

        await eventually(noted)
    assert asked.path_qs == "/exec/default/one/c?command=cat&command=a+b&input=1&output=1"
    assert not {"Authorization", "Cookie", "Origin"} & set(asked.headers)
    assert here.kubelet.users == ["kube-apiserver-kubelet-client"]


@pytest.mark.parametrize("subresource", ["exec", "attach", "portforward"])
async def test_bytes_of_spdy_pass_unchanged(tmp_path: Path, subresource: str) -> None:
    async with lab(tmp_path) as here:
        here.kubelet.handler = echo_raw
        async with connected(here, subresource) as (reader, writer):
            assert await reader.readexactly(5) == b"hello"
            sent = os.urandom(2 * MIB)
            writer.write(sent)
            assert await asyncio.wait_for(reader.readexactly(len(sent)), 20) == sent
            samples = (await here.client.ask("GET", "/metrics")).text
            assert "unbounded_apiserver_kubelet_streams 1.0" in samples


async def test_a_client_that_goes_ends_the_kubelets_connection(tmp_path: Path) -> None:
    ended = asyncio.Event()

    async def watched(request: web.Request) -> web.StreamResponse:
        try:
            return await echo_raw(request)
        finally:
            ended.set()

    async with lab(tmp_path) as here:
        here.kubelet.handler = watched
        async with connected(here) as (_, writer):
            writer.close()
            await asyncio.wait_for(ended.wait(), 30)

        async def all_ended() -> bool:
            return "unbounded_apiserver_kubelet_streams 0.0" in (await here.client.ask("GET", "/metrics")).text

        await eventually(all_ended)


async def test_a_kubelet_that_goes_ends_the_clients_connection(tmp_path: Path) -> None:
    async def cut(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.write(SWITCHED + b"last words")
        request.transport.close()
        return web.Response()

    async with lab(tmp_path) as here:
        here.kubelet.handler = cut
        async with connected(here) as (reader, _):
            assert await asyncio.wait_for(reader.read(), 30) == b"last words"


async def test_a_server_that_stops_ends_its_streams(tmp_path: Path) -> None:
    async with lab(tmp_path) as here:
        here.kubelet.handler = echo_raw
        async with connected(here) as (reader, _):
            await reader.readexactly(5)
            await asyncio.wait_for(here.server.stop(), 30)
            with suppress(OSError):
                assert await asyncio.wait_for(reader.read(), 30) == b""


async def test_a_client_that_does_not_read_holds_the_kubelet_back(tmp_path: Path) -> None:
    taken = 0

    async def flood(request: web.Request) -> web.StreamResponse:
        nonlocal taken
        response = web.StreamResponse()
        await response.prepare(request)
        for _ in range(LOG_MIB):
            await response.write(bytes(MIB))
            taken += 1
        return response

    async with lab(tmp_path) as here:
        here.kubelet.handler = flood
        url = f"{here.server.url}{PODS}/one/log?follow=true"
        async with here.client.session.get(url) as response:
            assert response.status == 200
            before = -1
            while taken != before:
                before = taken
                await asyncio.sleep(0.5)
            assert taken < LOG_MIB // 2  # what sockets hold on loopback
            size = 0
            async for part in response.content.iter_any():
                size += len(part)
    assert size == LOG_MIB * MIB


async def test_a_tunnel_holds_a_kubelet_back_as_well(tmp_path: Path) -> None:
    taken = 0

    async def flood(request: web.Request) -> web.StreamResponse:
        nonlocal taken
        transport = request.transport
        assert transport is not None
        transport.write(SWITCHED)
        for _ in range(LOG_MIB):
            transport.write(bytes(MIB))
            await cast(Any, request.protocol)._drain_helper()
            taken += 1
        transport.close()
        return web.Response()

    async with lab(tmp_path) as here:
        here.kubelet.handler = flood
        async with connected(here) as (reader, _):
            before = -1
            while taken != before:
                before = taken
                await asyncio.sleep(0.5)
            assert taken < LOG_MIB // 2
            size = 0
            while part := await asyncio.wait_for(reader.read(MIB), 20):
                size += len(part)
    assert size == LOG_MIB * MIB


async def test_a_log_that_breaks_off_is_not_taken_for_the_whole(tmp_path: Path) -> None:
    async def broken(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        response.content_length = 100
        await response.prepare(request)
        await response.write(b"begun")
        assert request.transport is not None
        request.transport.close()
        return response

    async with lab(tmp_path) as here:
        here.kubelet.handler = broken
        with pytest.raises(aiohttp.ClientPayloadError):
            await here.client.ask("GET", f"{PODS}/one/log")


async def test_rights_are_those_of_the_subresource(tmp_path: Path) -> None:
    async with lab(tmp_path) as here:
        rules = {"reader": ["pods/log"], "getter": ["pods/exec"]}
        roles = "/apis/rbac.authorization.k8s.io/v1"
        for user, resources in rules.items():
            rule = {"apiGroups": [""], "resources": resources, "verbs": ["get"]}
            await here.client.create(f"{roles}/clusterroles", {"metadata": {"name": user}, "rules": [rule]})
            reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": user}
            subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}
            binding = {"metadata": {"name": user}, "roleRef": reference, "subjects": [subject]}
            await here.client.create(f"{roles}/clusterrolebindings", binding)

        async def lines(_request: web.Request) -> web.StreamResponse:
            return web.Response(text="line\n")

        here.kubelet.handler = lines
        async with client_of(here.server, "reader") as reader, client_of(here.server, "getter") as getter:
            assert (await reader.ask("GET", f"{PODS}/one/log")).text == "line\n"
            refused = await reader.ask("POST", f"{PODS}/one/exec?command=x", headers=SPDY)
            assert refused.status == 403
            assert 'cannot create resource "pods/exec"' in refused.json()["message"]
            assert (await getter.ask("GET", f"{PODS}/one/log")).status == 403
            upgrade = {"Connection": "Upgrade", "Upgrade": "websocket"}
            refused = await getter.ask("GET", f"{PODS}/one/exec?command=x", headers=upgrade)
            assert refused.status == 403  # as kube-apiserver from 1.35 on
            assert 'cannot create resource "pods/exec"' in refused.json()["message"]
        assert len(here.kubelet.requests) == 1


async def test_a_policy_can_forbid_connections(tmp_path: Path) -> None:
    policies = "/apis/admissionregistration.k8s.io/v1"
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CONNECT"], "resources": ["pods/exec"]}
    allowed = {"expression": "object.command[0] != 'sh' && request.operation == 'CONNECT'", "message": "no shells"}
    spec = {"matchConstraints": {"resourceRules": [rule]}, "validations": [allowed]}
    async with lab(tmp_path) as here:
        name = {"metadata": {"name": "shells"}}
        await here.client.create(f"{policies}/validatingadmissionpolicies", {**name, "spec": spec})
        binding = {"policyName": "shells", "validationActions": ["Deny"]}
        await here.client.create(f"{policies}/validatingadmissionpolicybindings", {**name, "spec": binding})
        refused = await here.client.ask("POST", f"{PODS}/one/exec?command=sh", headers=SPDY)
        assert refused.status == 422
        assert "no shells" in refused.json()["message"]
        assert here.kubelet.requests == []
        async with here.client.session.ws_connect(
            f"{here.server.url}{PODS}/one/exec?command=ls&stdin=true", protocols=PROTOCOLS
        ) as socket:
            await socket.send_bytes(b"\x00fail")
            assert (await socket.receive()).data == b"\x01FAIL"


@pytest.mark.parametrize(
    ("host", "answer"),
    [("127.0.0.1", 200), ("192.0.2.1", "IP address mismatch"), ("", "unable to get local issuer certificate")],
)
async def test_kubelets_are_verified_where_that_is_wanted(tmp_path: Path, host: str, answer: int | str) -> None:
    async def lines(_request: web.Request) -> web.StreamResponse:
        return web.Response(text="line\n")

    server = ApiServer(tmp_path / "data", verify_kubelets=True)
    await server.start()
    try:
        context = signed(server.data_dir, tmp_path / "own", host) if host else None
        connector = aiohttp.TCPConnector(ssl=admin_context(server.kubeconfig_path))
        async with (
            aiohttp.ClientSession(connector=connector) as session,
            kubelet(server.data_dir, lines, context) as node,
        ):
            client = Client(session, server.url)
            await add_node(client, "n1", [("InternalIP", "127.0.0.1")], node.port)
            await add_pod(client, "one", "n1", "c")
            given = await client.ask("GET", f"{PODS}/one/log")
            if isinstance(answer, int):
                assert (given.status, given.text) == (answer, "line\n")
            else:
                assert given.status == 500
                assert "tls: failed to verify certificate: " in given.json()["message"]
                assert answer in given.json()["message"]
            skipped = await client.ask("GET", f"{PODS}/one/log?insecureSkipTLSVerifyBackend=true")
            assert (skipped.status, skipped.text) == (200, "line\n")
    finally:
        await server.stop()


async def test_a_kubelet_that_does_not_answer_is_an_error_in_time(tmp_path: Path) -> None:
    authority = CertificateAuthority(tmp_path)
    client = KubeletClient(authority, utc_now, verify=False)
    hasty = KubeletClient(authority, utc_now, verify=False, connect_s=0.2)

    async def silent(_reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(30)

    async def unready(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Send the alert of a kubelet that waits for its first serving certificate."""
        await reader.read(4096)
        writer.write(b"\x15\x03\x03\x00\x02\x02\x50")
        writer.close()

    async def late(_request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(30)
        return web.Response()

    try:
        async with await asyncio.start_server(unready, "127.0.0.1", 0) as bare:
            endpoint = KubeletEndpoint("127.0.0.1", bare.sockets[0].getsockname()[1])
            with pytest.raises(KubeletUnreachable, match=r"^remote error: tls: internal error$"):
                await client.open("GET", endpoint, "/", {})
        async with await asyncio.start_server(silent, "127.0.0.1", 0) as mute:
            endpoint = KubeletEndpoint("127.0.0.1", mute.sockets[0].getsockname()[1])
            with pytest.raises(KubeletUnreachable, match=rf"^dial tcp {endpoint.address}: i/o timeout$"):
                await hasty.open("GET", endpoint, "/", {})
        async with kubelet(tmp_path, late) as node:
            with pytest.raises(KubeletUnreachable, match=r"^net/http: timeout awaiting response headers$"):
                await client.open("GET", KubeletEndpoint("127.0.0.1", node.port), "/", {}, head_within_s=0.3)
    finally:
        await client.close()
        await hasty.close()
