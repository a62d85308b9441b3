"""Disruption budgets: the relevant changes of Pods, and the number of reads of a Pod."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.apiserver.support import running
from tests.support.waiting import eventually
from unbounded_apiserver.workloads.disruption_budgets import PodFacts, affects_budget

SELECTOR: dict[str, Any] = {"matchLabels": {"app": "x"}}
READY = PodFacts({"app": "x"}, "Running", ready=True, deleting=False)
OTHER = replace(READY, labels={"app": "y"})
PODS = "/api/v1/namespaces/default/pods"
BUDGETS = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (None, READY, True),
        (READY, None, True),
        (READY, READY, False),
        (READY, replace(READY, ready=False), True),
        (READY, replace(READY, deleting=True), True),
        (READY, replace(READY, phase="Succeeded"), True),
        (READY, replace(READY, phase="Pending"), False),
        (READY, OTHER, True),
        (OTHER, replace(OTHER, ready=False), False),
        (None, OTHER, False),
    ],
)
def test_changes_that_concern_a_budget(before: PodFacts | None, after: PodFacts | None, expected: bool) -> None:
    assert affects_budget(SELECTOR, before, after) is expected
    assert affects_budget(None, before, after) is False


@pytest.mark.slow
async def test_counts_follow_labels_readiness_and_deletion(tmp_path: Path) -> None:
    async with running(tmp_path) as (_, client):
        await client.create(BUDGETS, {"metadata": {"name": "b"}, "spec": {"minAvailable": 1, "selector": SELECTOR}})
        spec = {"nodeName": "n1", "containers": [{"name": "c", "image": "i"}]}
        for name in ("one", "two"):
            await client.create(PODS, {"metadata": {"name": name, "labels": {"app": "x"}}, "spec": spec})

        async def counts() -> tuple[int, int, int]:
            status = (await client.get(f"{BUDGETS}/b"))["status"]
            return status["expectedPods"], status["currentHealthy"], status["disruptionsAllowed"]

        async def become(*expected: int) -> None:
            async def reached() -> bool:
                return await counts() == expected

            await eventually(reached)

        await become(2, 0, 0)
        ready = {"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}
        for name in ("one", "two"):
            await client.merge(f"{PODS}/{name}/status", ready)
        await become(2, 2, 1)
        await client.merge(f"{PODS}/two", {"metadata": {"labels": {"app": "y"}}})
        await become(1, 1, 0)
        refused = await client.ask("POST", f"{PODS}/one/eviction", eviction("one"))
        assert (refused.status, "needs 1 healthy pods and has 1" in refused.text) == (429, True)
        assert (await client.ask("POST", f"{PODS}/two/eviction", eviction("two"))).status == 201
        await client.merge(f"{PODS}/one/status", {"status": {"conditions": None}})
        await become(1, 0, 0)
        assert (await client.ask("DELETE", f"{PODS}/one?gracePeriodSeconds=0")).status == 200
        await become(0, 0, 0)


def eviction(name: str) -> dict[str, Any]:
    return {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
