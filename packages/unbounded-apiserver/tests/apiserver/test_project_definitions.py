"""The project's definitions: requests that a kube-apiserver answered, sent to ours."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from tests.apiserver.replay import Replay
from tests.apiserver.support import GOLDENS, Client, client_of, running
from tests.support.waiting import eventually

DEFINITIONS: Final = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
RECORDED: Final[Mapping[str, Any]] = json.loads((GOLDENS.parent / "custom-resources.json").read_text())
RULES: Final = "x-kubernetes-validations"

DIFFERENT: Final[Mapping[str, str]] = {}
"""Answers that differ on purpose, by the exchange, with the reason."""


async def serve(client: Client, definitions: list[Any]) -> None:
    for definition in definitions:
        await client.create(DEFINITIONS, definition)
    await client.create("/api/v1/namespaces", {"metadata": {"name": "example-ns"}})
    for definition in definitions:
        spec = definition["spec"]
        path = f"/apis/{spec['group']}/{spec['versions'][0]['name']}/{spec['names']['plural']}"
        await eventually(partial(served, client, path))


async def served(client: Client, path: str) -> bool:
    return (await client.ask("GET", path)).status == 200


@pytest.mark.slow
async def test_answers_are_those_of_a_kube_apiserver(tmp_path: Path) -> None:
    different: dict[str, list[str]] = {}
    async with running(tmp_path) as (server, _), client_of(server, "admin", "system:masters") as client:
        await serve(client, RECORDED["definitions"])
        replay = Replay(client, hopeless=DIFFERENT.get)
        async for exchange, differences in replay.all(RECORDED["exchanges"]):
            if differences and exchange["id"] not in DIFFERENT:
                different[exchange["id"]] = differences
            if not differences and exchange["id"] in DIFFERENT:
                different[exchange["id"]] = ["answers as recorded by now; take it out of the table"]
    assert not different, json.dumps(different, indent=1)


def rules(schema: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, str]]:
    """Yield the field that each rule of a schema names, as an expression, and its message."""
    for rule in schema.get(RULES, ()):
        yield path + re.escape(rule.get("fieldPath", "")), rule["message"]
    for name, inner in schema.get("properties", {}).items():
        yield from rules(inner, f"{path}{re.escape(f'.{name}')}")
    for key, step in (("items", r"\[[0-9]+\]"), ("additionalProperties", r"\..+")):
        if isinstance(inner := schema.get(key), dict):
            yield from rules(inner, path + step)


def refusals(definition: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return each field and message that the kube-apiserver has named in objects of a definition."""
    kind, group = definition["spec"]["names"]["kind"], definition["spec"]["group"]
    bodies = (exchange["response"].get("body", {}) for exchange in RECORDED["exchanges"])
    about = [body["details"] for body in bodies if body.get("reason") == "Invalid"]
    return [
        (cause["field"], cause["message"])
        for details in about
        if (details.get("kind"), details.get("group")) == (kind, group)
        for cause in details["causes"]
    ]


@pytest.mark.parametrize("definition", RECORDED["definitions"], ids=lambda one: one["metadata"]["name"])
def test_each_rule_has_refused_a_request(definition: Mapping[str, Any]) -> None:
    found = refusals(definition)
    (version,) = definition["spec"]["versions"]
    for path, message in rules(version["schema"]["openAPIV3Schema"]):
        field = path.removeprefix(r"\.") or "<nil>"
        failed = f"evaluating rule: {message}"  # the field is then that of the whole value
        assert any(
            (re.fullmatch(field, where) and text.endswith(message)) or text.endswith(failed) for where, text in found
        ), (field, message)
