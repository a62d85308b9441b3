"""Metrics of the fleet: equal to a count of all objects after any changes, bounded, and cheap at a scrape."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from tests.operations.building import REDFISH
from tests.support.memory_api import MemoryApi
from tests.support.stories import told_in
from tests.support.virtual_time import virtual_now
from unbounded.api.core import SECRETS
from unbounded.api.disruption import MACHINE_DISRUPTION_BUDGETS
from unbounded.api.machine import MACHINES
from unbounded.api.names import LABEL_DEFAULT_BOOTSTRAP_TOKEN, LABEL_SITE
from unbounded.api.operation import MACHINE_OPERATIONS, MachineOperation
from unbounded.join.bootstrap_tokens import site_token_manifest
from unbounded.kube.cache import Cache
from unbounded.kube.clock import rfc3339
from unbounded.machina.configuration_versions import CONFIGURATIONS
from unbounded.machina.fleet_metrics import (
    MAX_REASONS,
    MAX_SITES,
    MAX_STAGES,
    OTHER,
    FleetMetrics,
    TimeLeft,
    bounded,
    time_left,
)
from unbounded.operations import reasons
from unbounded.operations.telemetry import MAX_LABELS, OperationMetrics

Raw = dict[str, Any]


class Fleet:
    """An API with caches, and the metrics of a process."""

    def __init__(self) -> None:
        self.api = MemoryApi(now=virtual_now)
        self.machines = Cache(self.api, MACHINES)
        self.operations = Cache(self.api, MACHINE_OPERATIONS)
        self.budgets = Cache(self.api, MACHINE_DISRUPTION_BUDGETS)
        self.configurations = Cache(self.api, CONFIGURATIONS)
        self.registry = CollectorRegistry()
        self.operation_metrics = OperationMetrics(self.registry)
        self.metrics = FleetMetrics(self.registry, self.operation_metrics, now=virtual_now)

    @asynccontextmanager
    async def following(self) -> AsyncIterator[None]:
        caches: tuple[Cache[Any], ...] = (self.machines, self.operations, self.budgets, self.configurations)
        tasks = [asyncio.create_task(cache.run()) for cache in caches]
        try:
            for cache in caches:
                await cache.synced.wait()
            with self.metrics.following(self.machines, self.operations, self.budgets, self.configurations):
                yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    async def machine(self, name: str, site: str, **status: Any) -> None:
        labels = {LABEL_SITE: site} if site else {}
        spec = {"pxe": {"image": "i", "redfish": REDFISH}}
        await self.api.create(MACHINES, {"metadata": {"name": name, "labels": labels}, "spec": spec})
        await self.status(MACHINES, name, **status)

    async def operation(self, name: str, kind: str = "HostReboot", **status: Any) -> None:
        spec = {"operationKind": kind, "machineRef": "m1"}
        await self.api.create(MACHINE_OPERATIONS, {"metadata": {"name": name}, "spec": spec})
        await self.status(MACHINE_OPERATIONS, name, **status)

    async def status(self, kind: Any, name: str, **status: Any) -> None:
        await self.api.patch(kind, name, {"status": status}, subresource="status")

    def samples(self, metric: str) -> dict[tuple[str, ...], float]:
        """The samples of a gauge: label values, in the order of the labels, with their value."""
        (family,) = [one for one in self.metrics.collect() if one.name == metric]
        return {tuple(sample.labels.values()): sample.value for sample in family.samples}


@told_in
@asynccontextmanager
async def in_fleet() -> AsyncIterator[Fleet]:
    yield Fleet()


async def settled() -> None:
    await asyncio.sleep(1)


@in_fleet
async def test_counts_after_any_changes_equal_a_count_of_all_machines(fleet: Fleet) -> None:
    draw = random.Random(7)
    names: set[str] = set()
    async with fleet.following():
        for number in range(400):
            name = f"m{draw.randrange(60)}"
            if name not in names:
                names.add(name)
                await fleet.machine(name, draw.choice(["", "a", "b"]), phase="Pending")
            elif draw.random() < 0.2:
                names.discard(name)
                await fleet.api.delete(MACHINES, name)
            else:
                phase, reason = draw.choice(["Ready", "Failed"]), draw.choice([None, "DiskFull", "SlotHeld"])
                await fleet.status(MACHINES, name, phase=phase, reason=reason)
            if number % 50 == 0:
                await settled()
        await settled()
        counted = Counter((m.site, m.status.phase, m.status.reason or "") for m in fleet.machines.all())
        assert fleet.samples("unbounded_machines") == counted
        assert sum(fleet.samples("unbounded_bmcs").values()) == len(names)
    assert not fleet.samples("unbounded_machines")


@in_fleet
async def test_sites_beyond_the_bound_are_other_and_the_largest_keep_their_names(fleet: Fleet) -> None:
    async with fleet.following():
        for number in range(MAX_SITES + 7):
            await fleet.machine(f"m{number}", f"site{number:03}", phase="Ready")
        await fleet.machine("more", "site056", phase="Ready")
        await settled()
        found = fleet.samples("unbounded_machines")
    assert len(found) == MAX_SITES + 1
    assert found[OTHER, "Ready", ""] == 7
    assert found["site056", "Ready", ""] == 2
    assert sum(found.values()) == MAX_SITES + 8
    assert {site for site, *_ in fleet.samples("unbounded_bmcs")} <= {site for site, *_ in found}


def test_values_beyond_a_bound_are_folded_and_no_count_is_lost() -> None:
    counts: dict[tuple[str, ...], float] = {
        ("a", f"Reason{number:03}"): float(number) for number in range(1, MAX_REASONS + 11)
    }
    found = bounded(counts, 1, MAX_REASONS)
    assert len(found) == MAX_REASONS + 1
    assert sum(found.values()) == sum(counts.values())
    assert found["a", OTHER] == sum(range(1, 11))
    assert bounded(counts, 0, 1) == counts


@in_fleet
async def test_no_name_of_an_object_is_in_the_text_of_a_scrape(fleet: Fleet) -> None:
    async with fleet.following():
        await fleet.machine("canary-machine", "lab", phase="Failed", reason="DiskFull")
        since = rfc3339(virtual_now())
        waiting = {"reason": reasons.SLOT_HELD, "heldBy": "Operation canary-other", "since": since}
        await fleet.operation("canary-operation", phase="Pending", waiting=waiting)
        await settled()
        text = generate_latest(fleet.registry).decode()
    assert 'unbounded_operations_blocked{by="operation",kind="HostReboot",reason="SlotHeld"} 1.0' in text
    assert "canary" not in text


@in_fleet
async def test_conditions_and_parts_are_counted_by_fixed_labels(fleet: Fleet) -> None:
    def condition(kind: str, status: str, reason: str) -> Raw:
        return {"type": kind, "status": status, "reason": reason, "lastTransitionTime": rfc3339(virtual_now())}

    parts = [
        {"kind": "disk", "name": "Disk 1", "health": "Critical"},
        {"kind": "power supply", "name": "PSU 1", "health": "OK"},
        {"kind": "power supply", "name": "PSU 2", "health": "Sad"},
        {"kind": "fan", "name": "Fan 1"},
    ]
    hardware: Raw = {"source": "Redfish", "at": rfc3339(virtual_now()), "digest": "0" * 64}
    hardware["bmc"] = {"at": rfc3339(virtual_now()), "parts": parts}
    async with fleet.following():
        conditions = [condition("NetbootImageReady", "False", "PullFailed"), condition("Mine", "True", "Yes")]
        await fleet.machine("m1", "lab", conditions=conditions, hardware=hardware)
        await settled()
        assert fleet.samples("unbounded_machine_conditions") == {("lab", "NetbootImageReady", "False", "PullFailed"): 1}
        assert fleet.samples("unbounded_hardware_parts") == {
            ("lab", "disk", "Critical"): 1,
            ("lab", "power supply", "OK"): 1,
            ("lab", "power supply", OTHER): 1,
            ("lab", OTHER, "unknown"): 1,
        }


@in_fleet
async def test_an_operation_is_blocked_for_as_long_as_its_wait_lasts_and_then_counted(fleet: Fleet) -> None:
    blocked = ("HostReboot", "executor", reasons.WAITING_FOR_EXECUTOR)
    async with fleet.following():
        waiting = {"reason": reasons.WAITING_FOR_EXECUTOR, "since": rfc3339(virtual_now())}
        await fleet.operation("one", phase="Pending", waiting=waiting)
        await fleet.operation("soak", phase="InProgress", waiting=waiting | {"reason": reasons.SOAKING})
        await asyncio.sleep(600)
        assert fleet.samples("unbounded_operations_blocked") == {blocked: 1}
        assert fleet.samples("unbounded_operations_blocked_seconds")[blocked] == pytest.approx(600, abs=1)
        assert fleet.samples("unbounded_operations_open") == {
            ("HostReboot", "Pending"): 1,
            ("HostReboot", "InProgress"): 1,
        }
        await fleet.status(MACHINE_OPERATIONS, "one", phase="InProgress", waiting=None)
        await fleet.status(MACHINE_OPERATIONS, "soak", phase="Complete")
        await settled()
        assert not fleet.samples("unbounded_operations_blocked")
        assert fleet.samples("unbounded_operations_open") == {("HostReboot", "InProgress"): 1}
    labels = {"by": "executor", "reason": reasons.WAITING_FOR_EXECUTOR}
    name = "unbounded_operation_blocked_duration_seconds"
    assert fleet.registry.get_sample_value(f"{name}_count", labels) == 1
    assert fleet.registry.get_sample_value(f"{name}_sum", labels) == pytest.approx(600, abs=1)


@in_fleet
async def test_the_time_in_a_stage_goes_on_after_the_last_write(fleet: Fleet) -> None:
    execution: Raw = {"executor": "metalman/lab", "incarnation": "i.1", "machineUID": "u", "binding": "b"}
    async with fleet.following():
        execution |= {"stageSeconds": 40, "recordedAt": rfc3339(virtual_now())}
        targets = [{"machineRef": "m1", "stage": "WaitingOff"}]
        await fleet.operation("one", phase="InProgress", execution=execution, targets=targets)
        await asyncio.sleep(100)
        found = fleet.samples("unbounded_operations_stage_seconds")
    assert found == {("HostReboot", "WaitingOff"): pytest.approx(140, abs=1)}


@in_fleet
async def test_no_status_that_an_agent_writes_fails_a_scrape_or_makes_series_without_bound(fleet: Fleet) -> None:
    execution: Raw = {"executor": "agent/m1", "incarnation": "i.1", "machineUID": "u", "binding": "b"}
    times = ("2026-01-01T00:00:00z", "2026-01-01T00:00:00+99:99", "2026-01-01T00:00:00", rfc3339(virtual_now()))
    names = [f"one-{number}" for number in range(3 * MAX_REASONS)]
    async with fleet.following():
        for number, name in enumerate(names):
            at = times[number % len(times)]
            await fleet.operation(
                name,
                phase="InProgress",
                waiting={"reason": f"Of{name}", "since": at},
                execution=execution | {"recordedAt": at},
                targets=[{"machineRef": "m1", "stage": name}],
            )
        await asyncio.sleep(100)
        for metric in ("unbounded_operations_blocked", "unbounded_operations_blocked_seconds"):
            found = fleet.samples(metric)
            assert len(found) == MAX_REASONS + 1
            assert ("HostReboot", "host", OTHER) in found
        assert max(found.values()) == pytest.approx(100, abs=1)
        assert len(fleet.samples("unbounded_operations_stage_seconds")) == MAX_STAGES + 1
        for name in names:
            await fleet.status(MACHINE_OPERATIONS, name, phase="Complete", waiting=None)
        await settled()
    text = generate_latest(fleet.registry).decode()
    ended = [
        line for line in text.splitlines() if line.startswith("unbounded_operation_blocked_duration_seconds_count")
    ]
    assert len(ended) == MAX_LABELS + 1
    assert sum(float(line.split()[-1]) for line in ended) == len(names)


def test_reasons_of_ended_operations_are_bounded() -> None:
    registry = CollectorRegistry()
    metrics = OperationMetrics(registry)
    spec = {"operationKind": "HostReboot", "machineRef": "m1"}
    for number in range(2 * MAX_LABELS):
        body = {"metadata": {"name": "o"}, "spec": spec, "status": {"phase": "Failed", "reason": f"R{number}"}}
        metrics.ended(msgspec.convert(body, MachineOperation), None)
    (family,) = [one for one in registry.collect() if one.name == "unbounded_operations"]
    counts = {sample.labels["reason"]: sample.value for sample in family.samples if sample.name.endswith("_total")}
    assert (len(counts), counts["Other"]) == (MAX_LABELS + 1, MAX_LABELS)


@in_fleet
async def test_a_halted_stage_halts_its_rollout_and_failed_targets_are_counted(fleet: Fleet) -> None:
    stages = [
        {"name": "canary", "phase": "Halted", "targets": 4, "completed": 1, "failed": 2},
        {"name": "rest", "phase": "Pending", "targets": 10, "completed": 0},
    ]
    async with fleet.following():
        await fleet.operation("all", phase="InProgress", rollout={"stages": stages})
        await fleet.api.create(CONFIGURATIONS, {"metadata": {"name": "workers"}, "spec": {"template": {}}})
        rollout = {"version": 2, "phase": "RolledBack", "updated": 3, "outdated": 5, "failed": [{"machine": "m1"}]}
        await fleet.status(CONFIGURATIONS, "workers", rollout=rollout)
        await settled()
        assert fleet.samples("unbounded_rollouts") == {
            ("operation", "Halted"): 1,
            ("configuration", "RolledBack"): 1,
        }
        assert fleet.samples("unbounded_rollout_targets") == {
            ("operation", "failed"): 2,
            ("operation", "done"): 1,
            ("operation", "open"): 11,
            ("configuration", "failed"): 1,
            ("configuration", "done"): 3,
            ("configuration", "open"): 4,
        }


@in_fleet
async def test_budgets_are_summed_and_exhausted_ones_counted(fleet: Fleet) -> None:
    spec = {"machineSelector": {"matchLabels": {"a": "b"}}, "maxUnavailable": 1}
    async with fleet.following():
        for name, allowed in (("full", 0), ("free", 2)):
            await fleet.api.create(MACHINE_DISRUPTION_BUDGETS, {"metadata": {"name": name}, "spec": spec})
            group = {"value": "", "machines": 10, "unavailable": 1, "granted": 1, "allowed": allowed}
            await fleet.status(MACHINE_DISRUPTION_BUDGETS, name, allowed=allowed, groups=[group])
        await settled()
        assert fleet.samples("unbounded_disruption_budgets") == {("available",): 1, ("exhausted",): 1}
        found = fleet.samples("unbounded_disruption_budget_machines")
    assert found == {("all",): 20, ("unavailable",): 2, ("granted",): 2, ("allowed",): 2}


@pytest.mark.parametrize(
    ("days", "left"),
    [(-1, "expired"), (0, "expired"), (0.5, "1d"), (1.1, "7d"), (7, "7d"), (29, "30d"), (31, "more")],
)
def test_a_remaining_time_has_one_class(days: float, left: str) -> None:
    assert time_left(days * 86400) is TimeLeft(left)


@in_fleet
async def test_tokens_and_agents_certificates_move_towards_their_end(fleet: Fleet) -> None:
    now = virtual_now()
    for site, days in (("lab", 3), ("lab", 90), ("rack", 1.1)):
        body = site_token_manifest(site, now=now, good_for=timedelta(days=days), default=True)
        assert body["metadata"]["labels"][LABEL_DEFAULT_BOOTSTRAP_TOKEN] == "true"
        await fleet.api.create(SECRETS, body, namespace="kube-system")
    async with fleet.following():
        for number, hours in enumerate((5, 40, 1000)):
            host = {"certificateExpires": rfc3339(now + timedelta(hours=hours, minutes=30))}
            await fleet.machine(f"m{number}", "lab", agent={"host": host})
        task = asyncio.create_task(fleet.metrics.follow_tokens(fleet.api))
        await settled()
        tokens = {("lab", "7d"): 1, ("lab", "more"): 1}
        assert fleet.samples("unbounded_bootstrap_tokens") == tokens | {("rack", "7d"): 1}
        certificates = {("lab", "7d"): 1, ("lab", "more"): 1}
        assert fleet.samples("unbounded_agent_certificates") == certificates | {("lab", "1d"): 1}
        await asyncio.sleep(6 * 3600)
        assert fleet.samples("unbounded_bootstrap_tokens") == tokens | {("rack", "1d"): 1}
        assert fleet.samples("unbounded_agent_certificates") == certificates | {("lab", "expired"): 1}
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
