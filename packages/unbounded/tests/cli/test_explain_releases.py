"""Plugin and server of two releases: the answers that another release has given, and its OpenAPI document.

`python -m scripts.record_explain_answers REVISION` records them. There is no release before 0.1.0 yet: 0.1.0.json is of
the first revision that has served answers.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import aiohttp
import pytest
from aiohttp import web
from jsonschema import Draft202012Validator

from tests.apiserver.support import admin_context
from tests.cli.plugin.conftest import Cli
from tests.cli.running import up
from tests.support.paths import ROOT
from unbounded.api.machine import MACHINES
from unbounded.api.operation import MACHINE_OPERATIONS
from unbounded.explain.results import RELEASE
from unbounded.explain_api.client import ExplainClient
from unbounded.explain_api.releases import HEADER
from unbounded.kube.api import NotFound
from unbounded.kube.client import HttpApi
from unbounded.kube.config import ClientConfig, from_kubeconfig
from unbounded.kube.credentials import AuthInfo, StaticCredentials

pytestmark = pytest.mark.slow
FILES: Final = sorted((ROOT / "packages/unbounded/tests/explain_api/recorded").glob("*.json"))
Raw = dict[str, Any]


@pytest.fixture(params=FILES, ids=[one.stem for one in FILES])
def recorded(request: pytest.FixtureRequest) -> Raw:
    found: Raw = json.loads(request.param.read_text())
    return found


def neighbour() -> str:
    """Return a release that differs by one minor release."""
    major, minor, *_ = RELEASE.split(".")
    return f"{major}.{int(minor) + 1}.0"


@asynccontextmanager
async def replay(recorded: Raw) -> AsyncIterator[str]:
    """Answer as the other release has, while inside; yields the URL."""

    async def answer(request: web.Request) -> web.Response:
        assert request.headers[HEADER] == RELEASE
        found = next(one for one in recorded["answers"] if one["path"] == request.path)
        return web.json_response(found["answer"], status=found["status"], headers={HEADER: neighbour()})

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def explained(recorded: Raw) -> list[Raw]:
    return [one for one in recorded["answers"] if one["path"].startswith("/explain/")]


async def test_the_plugin_reads_the_answers_of_another_release(recorded: Raw, tmp_path: Path) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    async with replay(recorded) as url:
        user = {"users": [{"name": "u", "user": {"token": "t"}}]}
        context = {"contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}], "current-context": "c"}
        clusters = {"clusters": [{"name": "c", "cluster": {"server": url}}]}
        kubeconfig.write_text(json.dumps({"apiVersion": "v1", "kind": "Config", **user, **context, **clusters}))
        client = ExplainClient(ClientConfig(server=url, credentials=StaticCredentials(AuthInfo(token="t"))))
        for one in explained(recorded):
            _, _, kind, name = one["path"].split("/")
            if one["status"] == 404:
                with pytest.raises(NotFound):
                    await client.explain(kind, name)
                continue
            found = await client.explain(kind, name)
            links = [(link["about"], link["what"], link["code"]) for link in one["answer"]["links"]]
            assert [(link.about, link.what, link.code) for link in found.links] == links
            fixes = [[fix["command"] for fix in link.get("fixes", ())] for link in one["answer"]["links"]]
            assert [[fix.command for fix in link.fixes] for link in found.links] == fixes
            printed = await Cli(kubeconfig)("why", f"{kind}/{name}", "--url", url)
            assert (printed.status, printed.err) == (0, "")
            text = " ".join(printed.out.split())  # its lines are wrapped
            assert [what for _, what, _ in links if what not in text] == []
    assert any(len(one["answer"].get("links", ())) > 1 for one in explained(recorded))


async def test_the_server_answers_what_another_release_reads(recorded: Raw, tmp_path: Path) -> None:
    async with up(tmp_path, "--port", "0", "--health-port", "0") as running:
        await running.says("Ctrl-C stops")
        config = from_kubeconfig(tmp_path / "kubeconfig")
        async with HttpApi(config) as api:
            for body in recorded["objects"]["machines"]:
                await api.create(MACHINES, body)
            for body in recorded["objects"]["operations"]:
                await api.create(MACHINE_OPERATIONS, body)
        tls = aiohttp.TCPConnector(ssl=admin_context(tmp_path / "kubeconfig"))
        async with aiohttp.ClientSession(config.server, connector=tls, headers={HEADER: neighbour()}) as session:
            for one in recorded["answers"]:
                method = "GET" if one["body"] is None else "POST"
                async with session.request(method, one["path"], json=one["body"]) as response:
                    assert response.status == one["status"], one["path"]
                    answer = await response.json()
                reader = _reader(recorded["document"], one)
                assert [error.message for error in reader.iter_errors(answer)] == [], one["path"]
                assert list(reader.iter_errors({})), "a reader that takes anything reads nothing"


def _reader(document: Raw, one: Raw) -> Draft202012Validator:
    """Return the validator of an answer by the schema that the document has for it."""
    path = "/plan" if one["body"] is not None else "/explain/{kind}/{name}"
    operation = document["paths"][path]["get" if one["body"] is None else "post"]
    schema = operation["responses"][str(one["status"])]["content"]["application/json"]["schema"]
    return Draft202012Validator({**schema, "components": document["components"]})
