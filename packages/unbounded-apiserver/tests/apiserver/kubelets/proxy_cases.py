"""Requests that the API server passes on to a kubelet, for those who have the right.

`test_node_proxy` runs these in a network where ADDRESS is of this machine: none on loopback is passed on to.
"""

from __future__ import annotations

import gzip
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from tests.apiserver.kubelets.support import Kubelet, add_node, kubelet
from tests.apiserver.kubelets.test_kubectl import kubectl
from tests.apiserver.support import Client, client_of, running
from unbounded_apiserver.pki import KUBELET_CLIENT
from unbounded_apiserver.server import ApiServer

ADDRESS = "192.0.2.1"
NODES = "/api/v1/nodes"
N1 = f"{NODES}/n1/proxy"
RBAC = "/apis/rbac.authorization.k8s.io/v1"


async def answer(request: web.Request) -> web.StreamResponse:
    match request.path:
        case "/metrics":
            body = gzip.compress(b"up 1\n")
            return web.Response(body=body, headers={"Content-Encoding": "gzip", "Content-Type": "text/plain"})
        case "/logs":
            return web.Response(status=301, headers={"Location": "/logs/"})
        case "/elsewhere":
            return web.Response(status=302, headers={"Location": "//example.com/"})
        case "/echo":
            heads = {name.lower(): value for name, value in request.headers.items()}
            said = {"method": request.method, "query": request.rel_url.raw_query_string, "heads": heads}
            return web.json_response(said | {"body": await request.text()}, status=202)
        case "/cut":
            response = web.StreamResponse(headers={"Content-Length": "100"})
            await response.prepare(request)
            await response.write(b"half")
            assert request.transport is not None
            request.transport.close()
            return response
    return web.Response(status=404, text=f"404 {request.raw_path}\n")


@asynccontextmanager
async def lab(tmp_path: Path, bind: str = "127.0.0.1") -> AsyncIterator[tuple[ApiServer, Client, Kubelet]]:
    async with running(tmp_path, bind=bind) as (server, client), kubelet(tmp_path, answer, address=ADDRESS) as node:
        await add_node(client, "n1", [("InternalIP", ADDRESS)], node.port)
        yield server, client, node


async def test_requests_and_answers_pass_unchanged(tmp_path: Path) -> None:
    async with lab(tmp_path) as (_, client, node):
        headers = {"X-Own": "1", "Cookie": "c=1", "Content-Type": "text/x", "Authorization": "Basic eDp5"}
        for method in ("POST", "PUT", "PATCH", "DELETE"):
            given = await client.ask(method, f"{N1}/echo?a=%2F&b=1", data=b"body", headers=headers)
            said = given.json()
            assert (given.status, said["method"], said["query"], said["body"]) == (202, method, "a=%2F&b=1", "body")
            assert said["heads"]["content-type"] == "text/x"
            assert not {"x-own", "cookie", "authorization"} & said["heads"].keys()
        got = await client.ask("GET", f"{N1}/metrics")  # a client that reads gzip
        assert (got.status, got.text) == (200, "up 1\n")
        got = await client.ask("GET", f"{N1}/a%2Fb//c/?x=y")
        assert (got.status, got.text) == (404, "404 /a%2Fb//c/?x=y\n")
        assert (await client.ask("HEAD", f"{N1}/metrics")).status == 200
        assert set(node.users) == {KUBELET_CLIENT}


async def test_kubectl_reads_what_a_kubelet_serves(tmp_path: Path) -> None:
    async with lab(tmp_path):
        assert await kubectl(tmp_path, "get", "--raw", f"{N1}/metrics") == (0, b"up 1\n", b"")


async def test_redirects_stay_below_the_node(tmp_path: Path) -> None:
    async with lab(tmp_path) as (server, client, _):
        for path, where in (("", f"{N1}/"), ("/logs", f"{N1}/logs/"), ("/elsewhere", "//example.com/")):
            async with client.session.get(f"{server.url}{N1}{path}", allow_redirects=False) as got:
                assert got.headers["Location"] == where


async def test_what_is_cut_off_is_no_whole_answer(tmp_path: Path) -> None:
    async with lab(tmp_path) as (_, client, node):
        with pytest.raises(Exception, match=r"payload|disconnected|reset"):
            await client.ask("GET", f"{N1}/cut")
        for name, address, port in (
            ("refusing", ADDRESS, 1),
            ("itself", "127.0.0.1", node.port),
            ("itself-by-name", "localhost", node.port),
            ("a-path", "192.0.2.1/x#", node.port),
        ):
            await add_node(client, name, [("InternalIP", address)], port)
        for name, code, text in (
            ("refusing", 503, "error trying to reach service: dial tcp 192.0.2.1:1: connect: connection refused"),
            ("itself", 400, "address not allowed"),
            ("itself-by-name", 400, "address not allowed"),
            ("a-path", 400, "lookup 192.0.2.1/x#: no such host"),
            ("none", 404, 'nodes "none" not found'),
            ("n1:10250", 404, 'nodes "n1:10250" not found'),
        ):
            given = await client.ask("GET", f"{NODES}/{name}/proxy/healthz")
            assert (given.status, given.json()["message"]) == (code, text)


async def test_it_takes_a_right_of_its_own(tmp_path: Path) -> None:
    async with lab(tmp_path) as (server, admin, node):
        rule = {"verbs": ["get"], "apiGroups": [""], "resources": ["nodes/proxy"], "resourceNames": ["n1"]}
        await admin.create(f"{RBAC}/clusterroles", {"metadata": {"name": "metrics"}, "rules": [rule]})
        reference, subject = {"kind": "ClusterRole", "name": "metrics"}, {"kind": "User", "name": "prometheus"}
        binding = {"metadata": {"name": "metrics"}, "roleRef": reference, "subjects": [subject]}
        await admin.create(f"{RBAC}/clusterrolebindings", binding)
        await add_node(admin, "n2", [("InternalIP", ADDRESS)], node.port)
        async with client_of(server, "prometheus") as client, client_of(server, "system:node:n1", "system:nodes") as n1:
            assert (await client.ask("GET", f"{N1}/metrics")).status == 200
            node.requests.clear()
            for who, method, path in (
                (client, "POST", f"{N1}/run/default/p/c"),
                (client, "GET", f"{NODES}/n2/proxy/metrics"),
                (n1, "GET", f"{N1}/metrics"),
                (n1, "GET", f"{NODES}/n2/proxy/metrics"),
            ):
                assert (await who.ask(method, path)).status == 403
            upgrade = {"Connection": "Upgrade", "Upgrade": "websocket"}
            given = await client.ask("GET", f"{N1}/exec/default/p/c", headers=upgrade)
            assert (given.status, "not served" in given.json()["message"]) == (400, True)
            assert node.requests == []


async def test_a_node_that_names_the_api_server_gains_nothing(tmp_path: Path) -> None:
    async with lab(tmp_path, bind=ADDRESS) as (server, client, node):
        await add_node(client, "evil", [("InternalIP", ADDRESS)], int(server.url.rpartition(":")[2]))
        given = await client.ask("GET", f"{NODES}/evil/proxy{N1}/metrics")
        assert (given.status, "does not proxy requests to itself" in given.text) == (403, True)
        assert node.requests == []
