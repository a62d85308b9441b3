"""Definitions that kube-apiserver accepted and rejected: the embedded server answers each in the same words."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from tests.apiserver.support import GOLDENS, Answer, Client, running
from tests.support.waiting import eventually

DEFINITIONS: Final = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
OBJECTS: Final = "/apis/golden.example.com/v1/namespaces/default"
RECORDED: Final[Mapping[str, Any]] = json.loads((GOLDENS.parent / "crd-acceptance.json").read_text())
DRY_RUN: Final = "?dryRun=All"

DIFFERENT: Final[Mapping[str, str]] = {}
"""Answers that differ on purpose, by case, with the reason."""


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[Client]:
    async with running(tmp_path) as (_, client):
        yield client


def plain(value: Any) -> Any:
    """An answer without what differs from one run to the next."""
    if isinstance(value, dict):
        return {k: "<time>" if k == "lastTransitionTime" else plain(v) for k, v in value.items()}
    return [plain(v) for v in value] if isinstance(value, list) else value


def in_any_order(causes: Any) -> list[str]:
    return sorted(json.dumps(cause, sort_keys=True) for cause in causes or ())


def differences(recorded: Mapping[str, Any], answer: Answer, *, varies: bool = False) -> list[str]:
    """Each part of an answer that is not as recorded."""
    if answer.status != recorded["code"]:
        return [f"code {answer.status}, not {recorded['code']}: {answer.text[:800]}"]
    if varies:
        return []
    body = answer.json()
    found: dict[str, Any] = {part: plain(body.get(part)) for part in ("spec", "status", "reason", "message")}
    found["annotations"] = body["metadata"].get("annotations")
    found["causes"] = in_any_order((body.get("details") or {}).get("causes"))
    wanted = dict(recorded)
    if "causes" in wanted:
        wanted["causes"] = in_any_order(wanted["causes"])
    parts = [part for part in wanted if part not in {"code", "warnings"}]
    report = [f"{part}: {found[part]!r}\n  not {wanted[part]!r}" for part in parts if found[part] != wanted[part]]
    warnings = [f"299 - {json.dumps(w)}" if not w.startswith("299 ") else w for w in wanted.get("warnings", ())]
    if answer.status < 300 and answer.warnings != warnings:
        report.append(f"warnings: {answer.warnings!r}\n  not {warnings!r}")
    return report


class Report:
    """The cases that differ from the recording without a row, and rows that no case needs."""

    def __init__(self) -> None:
        self.unexpected: dict[str, list[str]] = {}

    def add(self, case: str, found: list[str]) -> None:
        if found and case not in DIFFERENT:
            self.unexpected[case] = found
        if not found and case in DIFFERENT:
            self.unexpected[case] = ["answers as recorded; remove it from the table"]

    def check(self) -> None:
        shown = "\n".join(f"{case}\n  " + "\n  ".join(found) for case, found in self.unexpected.items())
        assert not self.unexpected, f"{len(self.unexpected)} cases differ\n{shown}"


@pytest.mark.slow
async def test_creates_are_answered_as_recorded(client: Client) -> None:
    report = Report()
    for case in RECORDED["creates"]:
        answer = await client.ask("POST", f"{DEFINITIONS}{DRY_RUN}", case["definition"])
        report.add(case["name"], differences(case["answer"], answer, varies=case.get("varies", False)))
    assert len(RECORDED["creates"]) == 155
    report.check()


@pytest.mark.slow
async def test_updates_are_answered_as_recorded(client: Client) -> None:
    report = Report()
    for case in RECORDED["updates"]:
        path = f"{DEFINITIONS}/{case['created']['metadata']['name']}"
        if (await client.ask("GET", path)).status == 404:
            await client.create(DEFINITIONS, case["created"])
        current = await established(client, path)
        put = json.loads(json.dumps(case["put"]))
        if case["name"] == "update/old-resource-version":
            put["metadata"]["resourceVersion"] = "1"
        elif case["name"] != "update/no-resource-version":
            put["metadata"]["resourceVersion"] = current["metadata"]["resourceVersion"]
        report.add(case["name"], differences(case["answer"], await client.ask("PUT", f"{path}{DRY_RUN}", put)))
    assert len(RECORDED["updates"]) == 19
    report.check()


async def established(client: Client, path: str) -> Any:
    async def ready() -> Any:
        definition = await client.get(path)
        found = {c["type"]: c["status"] for c in definition["status"]["conditions"] or ()}
        return definition if found.get("Established") == "True" else None

    return await eventually(ready)


@pytest.mark.slow
async def test_objects_of_an_older_schema_are_answered_as_recorded(client: Client) -> None:
    report = Report()
    found = await asyncio.gather(*(ratcheted(client, case) for case in RECORDED["ratcheting"]))
    for answers in found:
        for name, different in answers.items():
            report.add(name, different)
    assert len(found) == 18
    report.check()


async def ratcheted(client: Client, case: Mapping[str, Any]) -> dict[str, list[str]]:
    """The differences of each step of a case, by the step's name."""
    kind = kind_of(case)
    plural = f"{kind.lower()}s"
    path = f"{OBJECTS}/{plural}"
    whole = case["name"] == "rule-root"
    before = {"type": "object", "properties": {"spec": case["before"]}}
    after = case["schema"] if whole else {"type": "object", "properties": {"spec": case["schema"]}}
    await client.create(DEFINITIONS, definition(kind, plural, before))
    current = await established(client, f"{DEFINITIONS}/{plural}.golden.example.com")
    await client.create(path, an_object(kind, "x", case["object"]))
    current["spec"]["versions"][0]["schema"]["openAPIV3Schema"] = after
    answer = await client.ask("PUT", f"{DEFINITIONS}/{plural}.golden.example.com", current)
    assert answer.status == 200, answer.text

    async def again() -> Answer | None:
        answer = await client.ask("POST", f"{path}{DRY_RUN}", an_object(kind, "y", case["object"]))
        return answer if answer.status == case["create-again"]["code"] else None

    report = {f"{case['name']}/create-again": differences(case["create-again"], await eventually(again))}
    stored = await client.get(f"{path}/x")
    for update in case["updates"]:
        sent = {**stored, "spec": update["spec"]}
        if update["what"] == "a label only":
            sent["metadata"] = {**stored["metadata"], "labels": {"a": "b"}}
        answer = await client.ask("PUT", f"{path}/x{DRY_RUN}", sent)
        report[f"{case['name']}/{update['what']}"] = differences(update["answer"], answer)
    return report


def kind_of(case: Mapping[str, Any]) -> str:
    """The kind that the recorded messages name."""
    messages = (step["answer"].get("message", "") for step in case["updates"])
    named = (re.match(r"\w+", message) for message in [case["create-again"].get("message", ""), *messages])
    return next((match[0] for match in named if match is not None), f"Ratchet{RECORDED['ratcheting'].index(case)}")


def definition(kind: str, plural: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    names = {"plural": plural, "singular": kind.lower(), "kind": kind, "listKind": f"{kind}List"}
    spec = {"group": "golden.example.com", "scope": "Namespaced", "names": names, "versions": [version]}
    metadata = {"name": f"{plural}.golden.example.com"}
    api_version = "apiextensions.k8s.io/v1"
    return {"apiVersion": api_version, "kind": "CustomResourceDefinition", "metadata": metadata, "spec": spec}


def an_object(kind: str, name: str, spec: Any) -> dict[str, Any]:
    return {"apiVersion": "golden.example.com/v1", "kind": kind, "metadata": {"name": name}, "spec": spec}
