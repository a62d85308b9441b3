"""Bad input, one by one: what was once answered with a 500, took too long, or took too much."""

from __future__ import annotations

import asyncio
import gzip
import json
import time
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import pytest

from tests.apiserver.support import Client, refusal, running
from unbounded_apiserver import gojson
from unbounded_apiserver.cel.values import SHOWN_CHARACTERS, CompileError, Issue

MAPS = "/api/v1/namespaces/default/configmaps"
STRATEGIC = {"Content-Type": "application/strategic-merge-patch+json"}
QUICK_S = 10.0  # on a machine that others use; what these tests found took minutes, or for ever


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[Client]:
    async with running(tmp_path) as (_, client):
        await client.create(MAPS, {"metadata": {"name": "a", "finalizers": ["example.com/f"]}})
        yield client


@pytest.mark.slow
@pytest.mark.parametrize(
    ("patch", "why"),
    [
        ({"$setElementOrder/finalizers": "replace"}, "invalid patch format of setElementOrder list"),
        ({"$deleteFromPrimitiveList/finalizers": 1}, "invalid patch format of primitive list"),
        ({"$retainKeys": True}, "invalid patch format of retainKeys"),
    ],
)
async def test_directives_of_the_wrong_type_are_refused(client: Client, patch: Any, why: str) -> None:
    answer = await client.ask("PATCH", f"{MAPS}/a", {"metadata": patch}, headers=STRATEGIC)
    assert (answer.status, answer.json()["message"]) == (400, why)


ORDER: Final[list[Any]] = [{"a": 1}, "example.com/f", [], None]


@pytest.mark.slow
async def test_an_order_of_things_that_cannot_be_compared_is_followed_or_refused(client: Client) -> None:
    patch = {"metadata": {"$setElementOrder/finalizers": ORDER}}
    assert (await client.ask("PATCH", f"{MAPS}/a", patch, headers=STRATEGIC)).status in {200, 422}


@pytest.mark.slow
@pytest.mark.parametrize("path", [None, 5, [], {}])
async def test_a_json_patch_whose_path_is_no_text_is_refused(client: Client, path: Any) -> None:
    headers = {"Content-Type": "application/json-patch+json"}
    answer = await client.ask("PATCH", f"{MAPS}/a", [{"op": "replace", "path": path, "value": 1}], headers=headers)
    assert (answer.status, answer.json()["reason"]) in {(400, "BadRequest"), (422, "Invalid")}


@pytest.mark.slow
async def test_malformed_media_type_is_rejected_only_with_a_body(client: Client) -> None:
    for media in (")%utf-8'';charset*", ";", "=", "a/b/c;x", "application/json/"):
        headers = {"Content-Type": media}
        codes = [(await client.ask("GET", MAPS, data=b"", headers=headers)).status]
        codes += [(await client.ask("POST", MAPS, data=b"{}", headers=headers)).status for _ in range(2)]
        assert codes == [200, 415, 415], media
    made = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"generateName": "a"}}
    for media in ("application/json", "Application/JSON ; charset=utf-8", "application/json;"):
        assert (await client.ask("POST", MAPS, made, headers={"Content-Type": media})).status == 201, media


@pytest.mark.slow
@pytest.mark.parametrize("number", ["9" * 19, "-" + "9" * 30, "9" * 5000])
async def test_a_number_beyond_64_bits_is_refused_as_go_does(client: Client, number: str) -> None:
    answer = await client.ask("GET", f"{MAPS}?limit={number}")
    assert answer.status == 400
    assert answer.json()["message"] == f'strconv.ParseInt: parsing "{number}": value out of range'


@pytest.mark.slow
async def test_bodies_are_not_decompressed(client: Client) -> None:
    """As in Kubernetes: a few kilobytes could otherwise be made to fill the memory."""
    bomb = gzip.compress(b" " * 2**26, 9)
    answer = await client.ask("POST", MAPS, data=bomb, headers={"Content-Encoding": "gzip"})
    assert answer.status == 400
    assert "couldn't get version/kind" in answer.json()["message"]


@pytest.mark.slow
@pytest.mark.parametrize("opening", ["[", '{"a":'])
@pytest.mark.parametrize("depth", [250, 700, 100_000])
async def test_what_is_nested_too_deeply_is_refused(client: Client, opening: str, depth: int) -> None:
    text = f'{{"data":{opening * depth}1{("]" if opening == "[" else "}") * depth}}}'
    for media in ("application/json", "application/yaml"):
        answer = await client.ask("POST", MAPS, data=text.encode(), headers={"Content-Type": media})
        assert answer.status == 400, media
        assert "exceeded max depth" in answer.json()["message"]
    for media in ("merge-patch", "strategic-merge-patch", "json-patch"):
        headers = {"Content-Type": f"application/{media}+json"}
        answer = await client.ask("PATCH", f"{MAPS}/a", data=text.encode(), headers=headers)
        assert answer.status == 400, media


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    [
        pytest.param("a: 1" + ":59" * 2**20, id="a number in base 60"),
        pytest.param("- 1\n" * 750_000, id="a long list"),
        pytest.param("[" + "1," * 2**20 + "1]", id="a long list in one line"),
        pytest.param("a: 0x" + "9" * 2**21, id="a long number"),
        pytest.param("".join(f"- &a{n} x\n" for n in range(200_000)), id="many anchors"),
        pytest.param("a: &a [" + "x," * 999 + "x]\nb: [" + "*a," * 9999 + "*a]", id="many aliases"),
        pytest.param(
            "a: &a {" + ",".join(f"k{n}: 1" for n in range(1000)) + "}\nb: {<<: [" + "*a," * 9999 + "*a]}",
            id="many merges",
        ),
    ],
)
async def test_yaml_of_any_kind_is_read_or_refused_soon(text: str) -> None:
    begun = time.monotonic()
    error = refusal(gojson.MalformedJson, lambda: gojson.decode_yaml(text.encode()))
    assert error is None or "yaml:" in str(error)
    assert time.monotonic() - begun < QUICK_S


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a: 12:30:45", "12:30:45"),
        ("a: 0o17", 15),
        ("a: 017", 15),
        ("a: 0b101", 5),
        ("a: 1_000", 1000),
        ("a: +5", 5),
        ("a: 1e3", 1000),
        ("a: .5", 0.5),
        ("a: 2020-01-01", "2020-01-01"),
        ("a: '5'", "5"),
        ("a: !!str 5", "5"),
        ("a: !!int '5'", 5),
        ("a: !!timestamp x", "x"),
        ("a: ~", None),
        ("a: 18446744073709551615", 2**64 - 1),
        ("a: '-'", "-"),
        ("b: &b {c: 1, d: 2}\na: {<<: *b, d: 3}", {"c": 1, "d": 3}),
    ],
)
def test_yaml_scalars_are_resolved_as_go_yaml_does(text: str, value: Any) -> None:
    assert gojson.decode_yaml(text.encode())[0]["a"] == value


@pytest.mark.parametrize(
    "text", ["!!bool maybe", "!!int x", "!!float y", "!!binary '?'", "!x y", ".inf", "1e999", "*a"]
)
def test_yaml_that_has_no_json_is_refused(text: str) -> None:
    with pytest.raises(gojson.MalformedJson, match="yaml"):
        gojson.decode_yaml(f"a: {text}".encode())


def test_the_complaints_about_a_rule_do_not_grow_with_its_square() -> None:
    source = "x && " * 20_000 + "x"
    error = CompileError(source, [Issue(5 * n, "undeclared reference to 'x'") for n in range(20_000)])
    assert len(error.issues) == 20_000
    assert len(str(error)) < max(SHOWN_CHARACTERS, 3 * len(source))


@pytest.mark.slow
async def test_a_long_text_that_is_not_json_is_refused_soon(client: Client) -> None:
    begun = time.monotonic()
    answer = await client.ask("POST", MAPS, data=b"{" + b'"a":1,' * 450_000 + b"x")
    assert answer.status == 400
    assert "json parse error" in answer.json()["message"]
    assert time.monotonic() - begun < QUICK_S


YAML_BODY = ("data:\n" + "".join(f"  k{n}: v\n" for n in range(49_000))).encode()
PROTOBUF_BODY = b"k8s\0" + b"\x78\x00" * 1_000_000  # unknown fields


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "path", "media", "body"),
    [
        ("POST", MAPS, "application/yaml", YAML_BODY),
        ("POST", MAPS.replace("configmaps", "pods"), "application/vnd.kubernetes.protobuf", PROTOBUF_BODY),
        ("DELETE", f"{MAPS}/a", "application/vnd.kubernetes.protobuf", PROTOBUF_BODY),
    ],
)
async def test_others_are_answered_while_a_long_body_is_read(
    client: Client, method: str, path: str, media: str, body: bytes
) -> None:
    """The event loop is not held up: no other request takes as long as most of the reading."""
    headers = {"Content-Type": media}
    begun = time.monotonic()
    long = asyncio.create_task(client.ask(method, f"{path}?dryRun=All", data=body, headers=headers))
    times = [begun]
    while not long.done():
        assert (await client.ask("GET", f"{MAPS}/a")).status == 200
        times.append(time.monotonic())
    assert max(after - before for before, after in pairwise(times)) < (times[-1] - begun) / 2
    assert json.loads((await long).text)["kind"] in {"ConfigMap", "Status"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "what", ["authentication.k8s.io/v1/tokenreviews", "authentication.k8s.io/v1/selfsubjectreviews"]
)
async def test_what_has_no_name_can_be_asked_for_as_a_table(client: Client, what: str) -> None:
    group, version, plural = what.split("/")
    kind = {"tokenreviews": "TokenReview", "selfsubjectreviews": "SelfSubjectReview"}[plural]
    review = {"apiVersion": f"{group}/{version}", "kind": kind, "spec": {"token": "x"}}
    headers = {"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"}
    answer = await client.ask("POST", f"/apis/{what}", review, headers=headers)
    assert answer.status == 201
    assert answer.json()["rows"][0]["cells"][0] == ""
