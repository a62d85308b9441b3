"""Traces of a running control plane, as a receiver of OTLP gets them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import pytest

from tests.cli.running import KUBECTL
from tests.e2e.plane import plane
from tests.monitoring.otlp import OtlpReceiver, ReceivedSpan, receiving
from tests.support.waiting import eventually
from unbounded_lab.bmc import LabBmc

pytestmark = [pytest.mark.slow, pytest.mark.skipif(KUBECTL is None, reason="kubectl is not installed")]
NAME: Final = "reboot-rack1-01"
FLAGS: Final = ("--log-format", "json", "--log-level", "info")


def rebooting(bmc: LabBmc) -> Iterator[dict[str, Any]]:
    """A Machine with this BMC, and its reboot."""
    place = {"name": "bmc", "namespace": "unbounded-kube"}
    yield {"apiVersion": "v1", "kind": "Secret", "metadata": place, "stringData": {"password": bmc.password}}
    redfish = {"url": bmc.url, "username": bmc.username, "passwordRef": {**place, "key": "password"}}
    spec: dict[str, Any] = {"pxe": {"image": "registry.example.com/none:1", "redfish": redfish}}
    yield {"kind": "Machine", "metadata": {"name": "rack1-01"}, "spec": spec}
    spec = {"machineRef": "rack1-01", "operationKind": "HostReboot"}
    yield {"kind": "MachineOperation", "metadata": {"name": NAME}, "spec": spec}


def by_name(spans: list[ReceivedSpan]) -> dict[str, list[ReceivedSpan]]:
    found: dict[str, list[ReceivedSpan]] = {}
    for one in spans:
        found.setdefault(one.name, []).append(one)
    return found


async def whole(receiver: OtlpReceiver, trace: str) -> list[ReceivedSpan]:
    """Wait for the root of a trace, which is sent at the end."""

    async def root() -> bool:
        return any(not one.parent for one in receiver.of(trace))

    await eventually(root, within_s=20.0)
    return receiver.of(trace)


async def test_an_operation_is_one_trace_although_its_process_restarts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with receiving() as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
        async with LabBmc(boot_s=0.5, shutdown_s=1.0) as bmc:
            async with plane(tmp_path / "data", *FLAGS) as it:
                await it.running.apply(*rebooting(bmc))
                await it.running.says(f"operation {NAME}: InProgress .* GracefulShutdown requested")
                await it.running.stops()
            before = list(receiver.spans)
            assert all(one.parent for one in before)
            async with plane(tmp_path / "data", *FLAGS) as it:
                await it.running.says(f"operation {NAME}: Complete")
                operation = await it.running.get("machineoperations.unbounded-cloud.io", NAME)
                trace = UUID(operation["metadata"]["uid"]).hex
                spans = await whole(receiver, trace)
                await it.running.stops()
                lines = it.running.printed
    found = by_name(spans)
    (root,) = [one for one in spans if not one.parent]
    assert (root.name, root.service, root.failed) == ("HostReboot", "unbounded", False)
    assert root.attributes["unbounded.operation.name"] == NAME
    assert root.attributes["unbounded.operation.phase"] == "Complete"
    stages = {one.id: one for stage in ("ShuttingDown", "WaitingOn") for one in found[stage]}
    assert {one.parent for one in stages.values()} == {root.id}
    performed = [one for one in spans if one.name.startswith("perform ")]
    assert {one.name for one in performed if one.id in {other.id for other in before}} == {"perform GracefulShutdown"}
    assert "perform On" in {one.name for one in performed}
    calls = [one for one in spans if one.name == "observe" or one.name.startswith("perform ")]
    assert {one.parent for one in calls} >= stages.keys()
    requests = [one for one in spans if "http.request.method" in one.attributes]
    assert {one.parent for one in requests} <= {one.id for one in calls}
    assert {"GET", "POST"} <= {one.attributes["http.request.method"] for one in requests}
    assert {one.attributes["http.response.status_code"] for one in requests} <= {200, 201, 202, 204}
    assert all(one.span.start_time_unix_nano <= one.span.end_time_unix_nano for one in spans)
    logged = [json.loads(line) for line in lines.splitlines() if line.startswith("{")]
    parents = {one["traceparent"] for one in logged if one.get("operation") == NAME}
    assert all(re.fullmatch(rf"00-{trace}-[0-9a-f]{{16}}-01", parent) for parent in parents)
    assert {parent.split("-")[2] for parent in parents} >= {one.id for one in found["WaitingOn"]}
