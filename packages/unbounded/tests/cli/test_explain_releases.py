"""Plugin and server of two releases: the answers that another release has given, and its OpenAPI document.

The kinds of Container Cloud are among them, with a claim that waits, a host, and the plan of a further claim.

`python -m scripts.record_explain_answers REVISION` records them. There is no release before 0.1.0 yet: 0.1.0.json is of
the first revision that has served answers.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import aiohttp
import msgspec
import pytest
from aiohttp import web
from jsonschema import Draft202012Validator
from scripts.record_explain_answers import FLAGS, create_objects

from tests.apiserver.support import admin_context
from tests.cli.plugin.conftest import Cli
from tests.cli.running import up
from tests.support.paths import ROOT
from unbounded.explain.results import RELEASE
from unbounded.explain_api.client import ExplainClient
from unbounded.explain_api.releases import HEADER
from unbounded.explain_api.requests import PlanRequest
from unbounded.kube.api import NotFound
from unbounded.kube.client import HttpApi
from unbounded.kube.config import ClientConfig, from_kubeconfig
from unbounded.kube.credentials import AuthInfo, StaticCredentials
from unbounded.plan.model import Plan
from unbounded.plan.text import change_lines

pytestmark = pytest.mark.slow
FILES: Final = sorted((ROOT / "packages/unbounded/tests/explain_api/recorded").glob("*.json"))
KINDS: Final = {"machine", "operation", "ma", "bmh", "cluster.cluster.k8s.io", "mp"}
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
        body = await request.json() if request.can_read_body else None
        found = next(
            one for one in recorded["answers"] if (one["path"], _writes(one["body"])) == (request.path, _writes(body))
        )
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


def _writes(body: Raw | None) -> PlanRequest | None:
    return None if body is None else msgspec.convert(body, PlanRequest)


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
            _, _, kind, *namespaces, name = one["path"].split("/")
            namespace = "".join(namespaces)
            if one["status"] == 404:
                with pytest.raises(NotFound):
                    await client.explain(kind, name, namespace=namespace)
                continue
            found = await client.explain(kind, name, namespace=namespace)
            links = [(link["about"], link["what"], link["code"]) for link in one["answer"]["links"]]
            assert [(link.about, link.what, link.code) for link in found.links] == links
            fixes = [[fix["command"] for fix in link.get("fixes", ())] for link in one["answer"]["links"]]
            assert [[fix.command for fix in link.fixes] for link in found.links] == fixes
            within = ("-n", namespace) if namespace else ()
            printed = await Cli(kubeconfig)("why", f"{kind}/{name}", "--url", url, *within)
            assert (printed.status, printed.err) == (0, "")
            text = " ".join(printed.out.split())  # its lines are wrapped
            assert [what for _, what, _ in links if what not in text] == []
    assert any(len(one["answer"].get("links", ())) > 1 for one in explained(recorded))
    assert {one["path"].split("/")[2] for one in explained(recorded)} >= KINDS


async def test_a_client_reads_the_plans_of_another_release(recorded: Raw) -> None:
    """Its values are those of the answer; as the structs of this release, they are printed with all that they name."""
    planned = [one for one in recorded["answers"] if one["body"] is not None]
    async with replay(recorded) as url:
        client = ExplainClient(ClientConfig(server=url, credentials=StaticCredentials(AuthInfo(token="t"))))
        for one in planned:
            answer = await client.plan(msgspec.convert(one["body"], PlanRequest))
            assert answer == one["answer"]
            plan = msgspec.convert(answer, Plan)
            assert plan.version == recorded["document"]["info"]["version"]
            text = "\n".join(change_lines(plan.changes, "kubectl unbounded", wide=True, digest=plan.hash))
            named = [*_named(answer), answer["hash"]]
            assert [each for each in named if each not in text] == []
    assert {kind for one in planned for kind in one["body"]} == {"creates", "patches", "objects"}


def _named(answer: Mapping[str, Any]) -> list[str]:
    """Return the writes of a plan, their effects, obstacles and stages, and what it has not checked."""
    found = []
    for change in answer["changes"]:
        found += [change["what"], *change["effects"]]
        operation = change["operation"] or {"targets": [], "stages": [], "unchecked": [], "loses": []}
        found += [each["what"] for target in operation["targets"] for each in target["obstacles"]]
        found += [each["name"] for each in operation["stages"]]
        found += [*operation["unchecked"], *operation["loses"]]
    return found


async def test_the_server_answers_what_another_release_reads(recorded: Raw, tmp_path: Path) -> None:
    async with up(tmp_path, *FLAGS) as running:
        await running.says("Ctrl-C stops")
        config = from_kubeconfig(tmp_path / "kubeconfig")
        async with HttpApi(config) as api:
            await create_objects(api, recorded["objects"])
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
    is_namespaced = one["path"].count("/") > 3
    explained = "/explain/{kind}/{namespace}/{name}" if is_namespaced else "/explain/{kind}/{name}"
    path = "/plan" if one["body"] is not None else explained
    operation = document["paths"][path]["get" if one["body"] is None else "post"]
    schema = operation["responses"][str(one["status"])]["content"]["application/json"]["schema"]
    return Draft202012Validator({**schema, "components": document["components"]})
