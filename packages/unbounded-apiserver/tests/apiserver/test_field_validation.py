"""Warnings and errors about unknown and repeated fields."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.apiserver.support import Client, golden_definitions, running
from unbounded_apiserver import patches

pytestmark = pytest.mark.slow

DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
CONFIG_MAP = "/api/v1/namespaces/default/configmaps/c"
WIDGET = "/apis/example.com/v1/namespaces/default/widgets/w"

TWICE_MERGED = b'{"metadata":{"labels":{"a":"1","a":"2"}}}'
TWICE = 'duplicate field "metadata.labels.a"'
ODD_OPERATION = b'[{"op":"add","path":"/metadata/labels","value":{"a":"1"},"why":"","op":"add"}]'
ODD = 'json patch unknown field "[0].why"', 'json patch duplicate field "[0].op"'


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[Client]:
    async with running(tmp_path) as (_, client):
        for definition in golden_definitions():
            await client.create(DEFINITIONS, definition)
        widget = {"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "w"}, "spec": {"size": 1}}
        await client.create(WIDGET.rpartition("/")[0], widget)
        await client.create(CONFIG_MAP.rpartition("/")[0], {"metadata": {"name": "c"}})
        yield client


def said(warnings: list[str]) -> list[str]:
    return [json.loads(text.partition("- ")[2]) for text in warnings]


PATCHES = pytest.mark.parametrize(
    ("path", "kind", "data", "complaints"),
    [
        (WIDGET, patches.MERGE, TWICE_MERGED, (TWICE,)),
        (WIDGET, patches.JSON, ODD_OPERATION, ODD),
        (CONFIG_MAP, patches.MERGE, TWICE_MERGED, (TWICE,)),
        (CONFIG_MAP, patches.STRATEGIC, TWICE_MERGED, (TWICE,)),
        (CONFIG_MAP, patches.JSON, ODD_OPERATION, ODD),
        (WIDGET, patches.MERGE, b'{"metadata":{"odd":1},"spec":{"size":1,"size":2}}',
         ('duplicate field "spec.size"', 'unknown field "metadata.odd"')),
    ],
)  # fmt: skip


@PATCHES
async def test_a_patch_is_warned_of_unless_it_says_otherwise(
    client: Client, path: str, kind: str, data: bytes, complaints: tuple[str, ...]
) -> None:
    for query, expected in (("", complaints), ("?fieldValidation=Warn", complaints), ("?fieldValidation=Ignore", ())):
        answer = await client.ask("PATCH", path + query, data=data, headers={"Content-Type": kind})
        assert answer.status == 200, answer.text
        assert tuple(said(answer.warnings)) == expected


@PATCHES
async def test_a_strict_patch_is_refused(
    client: Client, path: str, kind: str, data: bytes, complaints: tuple[str, ...]
) -> None:
    before = await client.get(path)
    answer = await client.ask("PATCH", f"{path}?fieldValidation=Strict", data=data, headers={"Content-Type": kind})
    assert answer.status == 422
    status: dict[str, Any] = answer.json()
    assert status["message"].endswith(f": strict decoding error: {', '.join(complaints)}")
    assert [cause["field"] for cause in status["details"]["causes"]] == ["patch"]
    assert await client.get(path) == before


TWICE_IN_YAML = b"""
metadata:
  name: twice
  labels:
    a: "1"
    a: "2"
data:
  k: x
  k: z
odd: 1
"""


async def test_duplicate_yaml_keys_are_reported_by_line(client: Client) -> None:
    path, headers = CONFIG_MAP.rpartition("/")[0], {"Content-Type": "application/yaml"}
    lines = ['line 6: key "a" already set in map', 'line 9: key "k" already set in map']
    unknown = 'unknown field "odd"'
    strict = await client.ask("POST", f"{path}?fieldValidation=Strict", data=TWICE_IN_YAML, headers=headers)
    assert (strict.status, strict.json()["message"]) == (
        400,
        'ConfigMap in version "v1" cannot be handled as a ConfigMap: strict decoding error: yaml: unmarshal errors:\n'
        f"  {lines[0]}\n  {lines[1]}, {unknown}",
    )
    warned = await client.ask("POST", path, data=TWICE_IN_YAML, headers=headers)
    assert warned.status == 201
    assert said(warned.warnings) == [*lines, unknown]
    assert warned.json()["data"] == {"k": "z"}


async def test_an_anchor_is_no_repetition(client: Client) -> None:
    path = f"{CONFIG_MAP.rpartition('/')[0]}?fieldValidation=Strict"
    document = b"metadata: {name: anchored, labels: &same {a: b}, annotations: *same}"
    answer = await client.ask("POST", path, data=document, headers={"Content-Type": "application/yaml"})
    assert answer.status == 201, answer.text
    assert answer.json()["metadata"]["annotations"] == {"a": "b"}
