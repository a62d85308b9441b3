"""An agent writes what is its own: what it may do. What is refused to it: tests/conformance/test_agent_rights.py."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from tests.apiserver.support import Client, client_identity
from tests.cli.deployed import deployed
from tests.cli.running import KUBECTL
from tests.support.agent_rights import (
    AGENT,
    AGENTS,
    MACHINES,
    MERGE,
    NODES,
    NOW,
    OPERATIONS,
    active,
    condition,
    drained,
    execution,
    obj,
    recent,
    stage,
    status,
)
from tests.support.spans import SpanList
from tests.support.waiting import eventually
from unbounded.api.conditions import CONDITIONS
from unbounded.api.machine import Machine
from unbounded.api.operation import MachineOperation, OperationKind, OperationPhase
from unbounded.cli.manifests import manifests
from unbounded.console.models.fleet import FleetFilter, FleetIndex, Need
from unbounded.kube.tracing import Tracer
from unbounded.operations import machine_lock
from unbounded.operations.disruption.model import started_change
from unbounded.operations.execution_record import Run, running_patch, terminal_patch
from unbounded.operations.executor_selection import ExecutorKind, executor_of
from unbounded.operations.telemetry import AgentResults, OperationMetrics
from unbounded_apiserver.server import ApiServer

pytestmark = pytest.mark.slow


def on_top_of(machine: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    """The merge patch of a StatusWriter."""
    return {"metadata": {"resourceVersion": machine["metadata"]["resourceVersion"]}, "status": change}


@asynccontextmanager
async def acting(server: ApiServer, user: str, *groups: str) -> AsyncIterator[Client]:
    connector = aiohttp.TCPConnector(ssl=client_identity(server.data_dir, user, *groups))
    async with aiohttp.ClientSession(connector=connector) as session:
        yield Client(session, server.url)


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[tuple[ApiServer, Client]]:
    """A server as `unbounded up` makes it, with two Machines, their Nodes, and operations on them."""
    async with deployed(tmp_path) as (server, admin):
        await stage(admin)
        yield server, admin


async def test_an_agent_carries_its_operation_out_as_executors_do(served: tuple[ApiServer, Client]) -> None:
    server, admin = served

    async with acting(server, AGENT, AGENTS) as agent:
        operation = msgspec.convert(await admin.get(f"{OPERATIONS}/mine"), MachineOperation)
        await status(admin, MACHINES, "m1", {"disruption": drained(operation.metadata.uid)})
        machine = await admin.get(f"{MACHINES}/m1")
        finalizers = {"metadata": {"finalizers": ["unbounded-cloud.io/operation"]}}
        await agent.merge(f"{OPERATIONS}/mine", finalizers)
        take = machine_lock.take_change(machine, operation, "unbounded-agent/m1", (), now=NOW)
        take |= started_change(msgspec.convert(machine, Machine), operation.metadata.uid, NOW)
        machine = await agent.merge(f"{MACHINES}/m1/status", on_top_of(machine, take))
        assert machine["status"]["disruption"]["stage"] == "Working"
        run = Run(
            machine="m1",
            machine_uid=machine["metadata"]["uid"],
            executor="unbounded-agent/m1",
            epoch="i",
            target_digest="b",
            stage="Starting",
            started_at=NOW,
        )
        patch = running_patch(run, message="at work", waiting=None, conditions=[])
        await agent.merge(f"{OPERATIONS}/mine/status", {"status": patch})
        report = {"status": {"agent": {"version": "v1", "hostBootID": "b"}}}
        machine = await agent.merge(f"{MACHINES}/m1/status", report)
        marks = [*machine["status"]["conditions"], condition("RepavePending", "True")]
        await agent.merge(f"{MACHINES}/m1/status", {"status": {"conditions": marks}})
        end = terminal_patch(run, OperationPhase.COMPLETE, "Completed", "done", now=NOW, conditions=[])
        done = await agent.merge(f"{OPERATIONS}/mine/status", {"status": end})
        machine = await admin.get(f"{MACHINES}/m1")
        release = machine_lock.release_change(machine, msgspec.convert(done, MachineOperation), None, now=NOW)
        machine = await agent.merge(f"{MACHINES}/m1/status", on_top_of(machine, release))
        assert [one["name"] for one in machine["status"]["recentOperations"]] == ["old", "mine"]
        assert "activeOperation" not in machine["status"]
        node = await agent.merge(f"{NODES}/m1", {"metadata": {"labels": {"unbounded-cloud.io/machine": "m1"}}})
        assert node["metadata"]["labels"] == {"unbounded-cloud.io/machine": "m1"}


async def test_agent_may_take_the_lock_only_if_free_or_holder_lost(
    served: tuple[ApiServer, Client],
) -> None:
    server, admin = served
    mine = {"status": {"activeOperation": active("unbounded-agent/m1")}}
    async with acting(server, AGENT, AGENTS) as agent:
        await status(admin, MACHINES, "m1", {"activeOperation": active("metalman/lab")})
        for patch in (mine, {"status": {"activeOperation": None}}):
            answer = await agent.ask("PATCH", f"{MACHINES}/m1/status", patch, headers=MERGE)
            assert answer.json()["message"].endswith("an agent may acquire a free lock, and release its own")
        report = {"status": {"agent": {"version": "v2"}}}  # which does not touch the slot
        assert (await agent.ask("PATCH", f"{MACHINES}/m1/status", report, headers=MERGE)).status == 200
        await status(admin, MACHINES, "m1", {"activeOperation": active("metalman/lab", lost=True)})
        changes: list[tuple[dict[str, Any], int]] = [
            ({"lostSeconds": 5}, 200),
            ({"lost": False}, 403),
            ({"name": "y"}, 403),
        ]
        for change, code in changes:
            counted = {"status": {"activeOperation": change}}
            assert (await agent.ask("PATCH", f"{MACHINES}/m1/status", counted, headers=MERGE)).status == code
        assert (await agent.ask("PATCH", f"{MACHINES}/m1/status", mine, headers=MERGE)).status == 200


async def test_an_agent_hides_no_machine_by_a_time_of_another_form(served: tuple[ApiServer, Client]) -> None:
    """The console showed no fleet to anybody."""
    server, admin = served
    await status(admin, MACHINES, "m1", {"activeOperation": active("unbounded-agent/m1")})
    failed = {**recent("x"), "phase": "Failed", "reason": "Broken", "completedAt": "2026-01-01t00:00:00z"}
    async with acting(server, AGENT, AGENTS) as agent:
        history = {"recentOperations": [recent("old"), failed], "activeOperation": None}
        machine = msgspec.convert(await agent.merge(f"{MACHINES}/m1/status", {"status": history}), Machine)
        start = {"execution": execution("unbounded-agent/m1"), "startedAt": "2026-01-01T00:00:00z"}
        running = await agent.merge(f"{OPERATIONS}/mine/status", {"status": {**start, "phase": "InProgress"}})
        ended = await agent.merge(f"{OPERATIONS}/mine/status", {"status": {"phase": "Failed", "reason": "Broken"}})
    fleet = FleetIndex()
    fleet.changed(None, machine)
    (row,) = fleet.page(FleetFilter(), 0).rows
    assert (row.need, row.failed_at) == (Need.FAILED, 1767225600.0)
    sink = SpanList()
    results = AgentResults(OperationMetrics(), Tracer(sink))
    results.changed(*(msgspec.convert(one, MachineOperation) for one in (running, ended)))
    assert [one.name for one in sink.spans] == ["NodeReboot"]


def test_the_policies_name_the_conditions_and_kinds_that_are_an_agents() -> None:
    variables = {
        variable["name"]: variable["expression"]
        for manifest in manifests()
        if manifest["kind"] == "ValidatingAdmissionPolicy"
        and manifest["metadata"]["name"].startswith("unbounded-agent-")
        for variable in manifest["spec"]["variables"]
    }
    own = [str(kind) for kind, meaning in CONDITIONS.items() if meaning.writer == ExecutorKind.AGENT]
    assert variables["types"] == str(own)
    with_agent = msgspec.convert(obj("Machine", "m") | {"status": {"agent": {"version": "v1"}}}, Machine)
    kinds = [str(kind) for kind in OperationKind if executor_of(kind, with_agent) is ExecutorKind.AGENT]
    assert sorted(msgspec.json.decode(variables["kinds"].replace("'", '"'))) == sorted(kinds)


async def test_the_policies_fit_the_schemas_of_what_they_match(served: tuple[ApiServer, Client]) -> None:
    _, admin = served
    path = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"

    async def checked() -> Any:
        items = (await admin.get(path))["items"]
        return [one["status"] for one in items] if all(one["status"] for one in items) else None

    count = sum(manifest["kind"] == "ValidatingAdmissionPolicy" for manifest in manifests())
    assert count >= 4
    assert await eventually(checked) == [{"observedGeneration": 1, "typeChecking": {}}] * count


@pytest.mark.skipif(KUBECTL is None, reason="kubectl is not installed")
async def test_kubectl_shows_the_refusal(served: tuple[ApiServer, Client]) -> None:
    server, _ = served
    assert KUBECTL is not None
    command = [KUBECTL, "--kubeconfig", str(server.kubeconfig_path), "--as", AGENT, "--as-group", AGENTS]
    process = await asyncio.create_subprocess_exec(
        *command, *["label", "node", "m2", "a=b"], stderr=asyncio.subprocess.PIPE
    )
    _, error = await process.communicate()
    assert process.returncode == 1
    assert "an agent may write its own Node only, and m2 is not that of system:node:m1" in error.decode()
