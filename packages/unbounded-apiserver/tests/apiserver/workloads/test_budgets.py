"""Disruption budgets: their rules, their status, and the evictions that they allow."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.apiserver import recorded
from tests.apiserver.support import Answer, Client, running
from tests.support.waiting import eventually
from unbounded_apiserver import metadata
from unbounded_apiserver.controllers.disruption import DisruptionController
from unbounded_apiserver.decoding import normalize
from unbounded_apiserver.patches import STRATEGIC
from unbounded_apiserver.resource_model import Object
from unbounded_apiserver.server import ApiServer
from unbounded_apiserver.status import StatusError
from unbounded_apiserver.workloads.disruption_budgets import (
    BUDGETS,
    DisruptionBudgets,
    PodFacts,
    affects_budget,
    observed_status,
)
from unbounded_apiserver.workloads.evictions import Evictions
from unbounded_apiserver.workloads.pods import PODS
from unbounded_apiserver.writes import WriteTarget

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
SELECTOR: dict[str, Any] = {"matchLabels": {"app": "x"}}
READY = PodFacts("p", {"app": "x"}, "Running", ready=True, deleting=False)
UNREADY = replace(READY, name="u", ready=False)
ENDED = replace(UNREADY, name="e", phase="Failed")
OTHER = replace(READY, labels={"app": "y"})
POD_PATH = "/api/v1/namespaces/default/pods"
BUDGET_PATH = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
RUNNING = {"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}
MUST = "Cannot evict pod as it would violate the pod's disruption budget."


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[tuple[ApiServer, Client]]:
    async with running(tmp_path) as pair:
        yield pair


@pytest.fixture
def client(served: tuple[ApiServer, Client]) -> Client:
    return served[1]


async def run_pod(client: Client, name: str, *, ready: bool = True) -> None:
    spec = {"nodeName": "n1", "containers": [{"name": "c", "image": "i"}], "tolerations": [{"operator": "Exists"}]}
    await client.create(POD_PATH, {"metadata": {"name": name, "labels": {"app": "x"}}, "spec": spec})
    status = RUNNING if ready else {"status": {"phase": "Running"}}
    await client.merge(f"{POD_PATH}/{name}/status", status)


async def create_budget(client: Client, name: str = "b", **spec: Any) -> None:
    await client.create(BUDGET_PATH, {"metadata": {"name": name}, "spec": {"selector": SELECTOR, **spec}})


async def evict(client: Client, name: str, query: str = "", *, version: str = "policy/v1", **options: Any) -> Answer:
    body = {"apiVersion": version, "kind": "Eviction", "metadata": {"name": name}, "deleteOptions": options}
    return await client.ask("POST", f"{POD_PATH}/{name}/eviction{query}", body)


async def become(client: Client, **expected: int) -> None:
    async def reached() -> bool:
        status = (await client.get(f"{BUDGET_PATH}/b"))["status"]
        return all(status.get(key) == value for key, value in expected.items())

    await eventually(reached)


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (None, READY, True),
        (READY, None, True),
        (READY, READY, False),
        (READY, replace(READY, ready=False), True),
        (READY, replace(READY, deleting=True), True),
        (UNREADY, replace(UNREADY, deleting=True), True),
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


@pytest.mark.parametrize(
    ("spec", "pods", "expected"),
    [
        # allowed, healthy, desired, expected
        ({"minAvailable": 2}, [READY] * 3 + [UNREADY], (1, 3, 2, 4)),
        ({"minAvailable": 2}, [READY], (0, 1, 2, 1)),
        ({"minAvailable": 0}, [], (0, 0, 0, 0)),
        ({"minAvailable": 1}, [READY, READY, ENDED], (1, 2, 1, 3)),
        ({"minAvailable": "50%"}, [READY] * 3, (1, 3, 2, 3)),
        ({"minAvailable": "50%"}, [READY] * 2 + [ENDED], (1, 2, 1, 2)),
        ({"minAvailable": "100%"}, [READY] * 3, (0, 3, 3, 3)),
        ({"maxUnavailable": 1}, [READY] * 3, (1, 3, 2, 3)),
        ({"maxUnavailable": 1}, [READY] * 2 + [UNREADY], (0, 2, 2, 3)),
        ({"maxUnavailable": 1}, [READY] * 2 + [replace(READY, deleting=True)], (0, 2, 2, 3)),
        ({"maxUnavailable": 5}, [READY], (1, 1, 0, 1)),
        ({"maxUnavailable": "30%"}, [READY] * 4, (2, 4, 2, 4)),
        ({"maxUnavailable": "0%"}, [READY] * 4, (0, 4, 4, 4)),
        ({}, [READY] * 2, (0, 2, 0, 0)),
    ],
)
def test_amounts_are_those_of_the_disruption_controller(
    spec: Object, pods: list[PodFacts], expected: tuple[int, ...]
) -> None:
    status = observed_status({"metadata": {"generation": 4}, "spec": spec, "status": {}}, pods, NOW)
    counts = ("disruptionsAllowed", "currentHealthy", "desiredHealthy", "expectedPods")
    assert tuple(status[name] for name in counts) == expected
    assert status["observedGeneration"] == 4
    (condition,) = status["conditions"]
    assert condition["status"] == ("True" if expected[0] else "False")
    assert condition["reason"] == ("SufficientPods" if expected[0] else "InsufficientPods")
    assert (condition["type"], condition["observedGeneration"]) == ("DisruptionAllowed", 4)


def test_granted_pods_count_as_unavailable_until_they_go_or_two_minutes_have_passed() -> None:
    times = {"p": NOW - timedelta(seconds=119), "q": NOW - timedelta(seconds=121), "r": NOW, "gone": NOW}
    granted = {name: metadata.format_time(time) for name, time in times.items()}
    pods = [READY, replace(READY, name="q"), replace(READY, name="r", deleting=True), replace(READY, name="s")]
    budget = {"metadata": {}, "spec": {"minAvailable": 1}, "status": {"disruptedPods": granted}}
    status = observed_status(budget, pods, NOW)
    assert status["disruptedPods"] == {"p": granted["p"]}
    assert (status["currentHealthy"], status["disruptionsAllowed"]) == (2, 1)


def test_transition_times_change_with_the_status_alone_and_other_conditions_stay() -> None:
    foreign = {"type": "Foreign", "status": "True", "reason": "R", "message": "", "lastTransitionTime": "x"}
    budget: Object = {"metadata": {}, "spec": {"minAvailable": 1}, "status": {"conditions": [foreign]}}
    first = budget["status"] = observed_status(budget, [READY], NOW)
    second = budget["status"] = observed_status(budget, [UNREADY], NOW + timedelta(seconds=1))
    third = observed_status(budget, [READY] * 2, NOW + timedelta(seconds=2))
    assert first["conditions"] == second["conditions"]
    assert first["conditions"][0] == third["conditions"][0] == foreign
    assert third["conditions"][1]["lastTransitionTime"] == metadata.format_time(NOW + timedelta(seconds=2))


PERCENT = (
    "a valid percent string must be a numeric string followed by an ending '%' "
    "(e.g. '1%',  or '93%', regex used for validation is '[0-9]+%')"
)
NEGATIVE = "must be greater than or equal to 0"
IN, EXISTS = "must be specified when `operator` is 'In' or 'NotIn'", "may not be specified when `operator` is 'Exists'"


@pytest.mark.parametrize(
    ("spec", "field", "message"),
    [
        ({"minAvailable": 1, "maxUnavailable": 1}, "spec", "minAvailable and maxUnavailable cannot be both set"),
        ({"minAvailable": -1}, "spec.minAvailable", f"Invalid value: -1: {NEGATIVE}"),
        ({"minAvailable": "1"}, "spec.minAvailable", f'Invalid value: "1": {PERCENT}'),
        ({"maxUnavailable": "101%"}, "spec.maxUnavailable", "must not be greater than 100%"),
        ({"maxUnavailable": "-1%"}, "spec.maxUnavailable", f'Invalid value: "-1%": {PERCENT}'),
        ({"unhealthyPodEvictionPolicy": "Never"}, "spec.unhealthyPodEvictionPolicy",
         'Unsupported value: "Never": supported values: "AlwaysAllow", "IfHealthyBudget"'),
        ({"selector": {"matchExpressions": [{"key": "a", "operator": "In"}]}},
         "spec.selector.matchExpressions[0].values", f"Required value: {IN}"),
        ({"selector": {"matchExpressions": [{"key": "a", "operator": "Exists", "values": ["b"]}]}},
         "spec.selector.matchExpressions[0].values", f"Forbidden: {EXISTS}"),
        ({"selector": {"matchExpressions": [{"key": "a", "operator": "In", "values": ["b c"]}]}},
         "spec.selector.matchExpressions[0].values[0]", 'Invalid value: "b c"'),
        ({"selector": {"matchLabels": {"a/b/c": "d"}}}, "spec.selector.matchLabels", 'Invalid value: "a/b/c"'),
    ],
)  # fmt: skip
def test_bad_specifications_are_refused_by_field(spec: dict[str, Any], field: str, message: str) -> None:
    obj = {"metadata": {"name": "b"}, "spec": spec}
    assert normalize(BUDGETS, obj) == []
    BUDGETS.type.prepare(obj, None)
    (error,) = BUDGETS.type.validate(obj, None)
    assert error.field == field
    assert message in error.message


@pytest.mark.parametrize(
    ("status", "field", "message"),
    [
        ({"disruptionsAllowed": -1}, "status.disruptionsAllowed", f"Invalid value: -1: {NEGATIVE}"),
        ({"expectedPods": -1}, "status.expectedPods", f"Invalid value: -1: {NEGATIVE}"),
        ({"conditions": [{}]}, "status.conditions[0].status", 'supported values: "False", "True", "Unknown"'),
        ({"conditions": [{}]}, "status.conditions[0].lastTransitionTime", "Required value: must be set"),
        ({"conditions": [{}]}, "status.conditions[0].reason", "Required value: must be set"),
        ({"conditions": [{"reason": "a b"}]}, "status.conditions[0].reason", "a condition reason must start with"),
        ({"conditions": [{"reason": "a" * 1025}]}, "status.conditions[0].reason", "may not be more than 1024 bytes"),
        ({"conditions": [{"observedGeneration": -1}]}, "status.conditions[0].observedGeneration", "equal to zero"),
        ({"conditions": [{"type": "A"}] * 2}, "status.conditions[1].type", 'Duplicate value: "A"'),
    ],
)
def test_bad_statuses_are_refused_by_field(status: dict[str, Any], field: str, message: str) -> None:
    obj = {"metadata": {"name": "b"}, "status": status}
    assert normalize(BUDGETS, obj) == []
    found = BUDGETS.subresources["status"].rules(obj, {})
    assert [error for error in found if error.field == field and message in error.message], found


@pytest.mark.slow
async def test_counts_follow_labels_readiness_and_deletion(client: Client) -> None:
    await create_budget(client, minAvailable=1)
    for name in ("one", "two"):
        await run_pod(client, name, ready=False)
    await become(client, expectedPods=2, currentHealthy=0, disruptionsAllowed=0)
    for name in ("one", "two"):
        await client.merge(f"{POD_PATH}/{name}/status", RUNNING)
    await become(client, expectedPods=2, currentHealthy=2, disruptionsAllowed=1)
    await client.merge(f"{POD_PATH}/two", {"metadata": {"labels": {"app": "y"}}})
    await become(client, expectedPods=1, currentHealthy=1, disruptionsAllowed=0)
    refused = await evict(client, "one")
    assert (refused.status, "needs 1 healthy pods and has 1" in refused.text) == (429, True)
    assert (await evict(client, "two")).status == 201
    await client.merge(f"{POD_PATH}/one/status", {"status": {"conditions": None}})
    await become(client, expectedPods=1, currentHealthy=0, disruptionsAllowed=0)
    assert (await client.ask("DELETE", f"{POD_PATH}/one?gracePeriodSeconds=0")).status == 200
    await become(client, expectedPods=0, currentHealthy=0, disruptionsAllowed=0)


@pytest.mark.slow
async def test_a_refused_eviction_is_answered_as_recorded(client: Client) -> None:
    """Exchanges 219 and 233 of the recording: a Pod, ready, with minAvailable 1."""
    await client.create("/api/v1/namespaces", {"metadata": {"name": "demo"}})
    where = "/api/v1/namespaces/demo/pods"
    await client.create("/apis/policy/v1/namespaces/demo/poddisruptionbudgets", recorded.request(219))
    pod = {
        "metadata": {"name": "guarded", "labels": {"app": "guarded"}},
        "spec": {"containers": [{"name": "c", "image": "i"}]},
    }
    await client.create(where, pod)
    await client.merge(f"{where}/guarded/status", RUNNING)
    answer = await client.ask("POST", f"{where}/guarded/eviction", recorded.request(233))
    assert answer.json() == recorded.exchanges()[233]["response"]
    assert "Retry-After" not in answer.headers


@pytest.mark.slow
async def test_of_many_evictions_at_once_as_many_succeed_as_the_budget_allows(client: Client) -> None:
    names = [f"p{number}" for number in range(6)]
    for name in names:
        await run_pod(client, name)
    await create_budget(client, maxUnavailable=2)
    codes = [answer.status for answer in await asyncio.gather(*(evict(client, name) for name in names))]
    assert sorted(codes) == [201, 201, 429, 429, 429, 429]
    await become(client, currentHealthy=4, desiredHealthy=4, disruptionsAllowed=0)

    async def forgotten() -> bool:
        return "disruptedPods" not in (await client.get(f"{BUDGET_PATH}/b"))["status"]

    await eventually(forgotten)


@pytest.mark.slow
async def test_a_grant_shows_in_the_status_before_the_pod_goes(served: tuple[ApiServer, Client]) -> None:
    server, client = served
    await run_pod(client, "one")
    await create_budget(client, minAvailable=0)
    await become(client, disruptionsAllowed=1)
    begun = (await client.get(BUDGET_PATH))["metadata"]["resourceVersion"]
    assert (await evict(client, "one")).status == 201
    watch = await client.ask("GET", f"{BUDGET_PATH}?watch=1&resourceVersion={begun}&timeoutSeconds=1")
    first = watch.text.splitlines()[0]
    assert '"disruptedPods":{"one":"' in first
    assert '"disruptionsAllowed":0' in first
    assert server.core.store.get(PODS.name, "default/one") is not None


@pytest.mark.slow
@pytest.mark.parametrize("wrong", [{"uid": "another"}, {"resourceVersion": "1"}])
async def test_an_eviction_that_fails_its_preconditions_takes_no_disruption(client: Client, wrong: Any) -> None:
    await run_pod(client, "one")
    await create_budget(client, minAvailable=0)
    await become(client, disruptionsAllowed=1)
    before = await client.get(f"{BUDGET_PATH}/b")
    failed = await evict(client, "one", preconditions=wrong)
    assert (failed.status, failed.json()["reason"]) == (409, "Conflict")
    assert "in the precondition" in failed.json()["message"]
    for tried in (await evict(client, "one", "?dryRun=All"), await evict(client, "one", dryRun=["All"])):
        assert tried.status == 201
    assert await client.get(f"{BUDGET_PATH}/b") == before
    meta = (await client.get(f"{POD_PATH}/one"))["metadata"]
    right = {"uid": meta["uid"], "resourceVersion": meta["resourceVersion"]}
    assert (await evict(client, "one", preconditions=right)).status == 201


@pytest.mark.slow
async def test_of_two_budgets_for_a_pod_none_is_asked(client: Client) -> None:
    await run_pod(client, "one")
    for name in ("a", "b"):
        await create_budget(client, name, minAvailable=0)
    answer = await evict(client, "one")
    assert answer.status == 500
    message = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."
    expected = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": message}
    assert answer.json() == {**expected, "code": 500}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("policy", "healthy", "expected"),
    [
        # of minAvailable 2; with the default, an unready Pod goes while enough others are healthy
        (None, 1, 429),
        (None, 2, 201),
        ("IfHealthyBudget", 1, 429),
        ("IfHealthyBudget", 2, 201),
        ("AlwaysAllow", 1, 201),
    ],
)
async def test_unready_pods_go_by_the_policy_of_the_budget(
    client: Client, policy: str | None, healthy: int, expected: int
) -> None:
    await run_pod(client, "broken", ready=False)
    for number in range(healthy):
        await run_pod(client, f"p{number}")
    await create_budget(client, minAvailable=2, **({"unhealthyPodEvictionPolicy": policy} if policy else {}))
    assert (await evict(client, "p0")).status == 429
    answer = await evict(client, "broken")
    assert answer.status == expected
    if expected == 429:
        cause = {
            "reason": "DisruptionBudget",
            "message": "The disruption budget b needs 2 healthy pods and has 1 currently",
        }
        assert answer.json()["details"] == {"causes": [cause]}


@pytest.mark.slow
@pytest.mark.parametrize("phase", ["Pending", "Succeeded", "Failed"])
async def test_pods_that_do_not_run_go_without_a_budget(client: Client, phase: str) -> None:
    await run_pod(client, "one", ready=False)
    await client.merge(f"{POD_PATH}/one/status", {"status": {"phase": phase}})
    for name in ("a", "b"):
        await create_budget(client, name, minAvailable=1)
    assert (await evict(client, "one")).status == 201


@pytest.mark.slow
async def test_a_body_of_the_earlier_version_is_taken(client: Client) -> None:
    await run_pod(client, "one")
    unknown = await evict(client, "one", version="policy/v1alpha1")
    assert unknown.status == 400
    assert (await evict(client, "one", version="policy/v1beta1", gracePeriodSeconds=7)).status == 201
    assert (await client.get(f"{POD_PATH}/one"))["metadata"]["deletionGracePeriodSeconds"] == 7


class TurnsReady(DisruptionBudgets):
    """Budgets, of which a check begins a write of the Pod: kubelet reports it as ready."""

    def guarding(self, namespace: str, pod: PodFacts) -> Object | None:
        record = self._store.get(PODS.name, f"{namespace}/{pod.name}")
        assert record is not None
        obj = record.decode()
        obj["status"] |= RUNNING["status"]
        if not pod.ready:
            self._store.write(PODS.name, record.key, lambda revision: metadata.encode(obj, revision), record.owners)
        return super().guarding(namespace, pod)


@pytest.mark.slow
@pytest.mark.parametrize("phase", ["Running", "Pending"])
async def test_a_pod_that_turns_ready_meanwhile_needs_the_budget(served: tuple[ApiServer, Client], phase: str) -> None:
    server, client = served
    await run_pod(client, "one", ready=False)
    await client.merge(f"{POD_PATH}/one/status", {"status": {"phase": phase}})
    await create_budget(client, minAvailable=1, unhealthyPodEvictionPolicy="AlwaysAllow")
    core = server.core
    budgets = TurnsReady(core.store)
    evictions = Evictions(core.store, budgets, core.writes, core.deletes, core.now)
    with pytest.raises(StatusError) as refused:
        await evictions.evict("default", "one", {"metadata": {"name": "one"}}, dry_run=False)
    assert (refused.value.code, refused.value.message) == (429, MUST)
    assert refused.value.details is not None
    (cause,) = refused.value.details["causes"]
    if phase == "Running":  # the client tries again, and the budget decides then
        assert cause["message"] == "The disruption budget b is still being processed by the server."
        assert (refused.value.retry_after_s, refused.value.details["retryAfterSeconds"]) == (10, 10)
    else:
        assert cause["message"] == "The disruption budget b needs 1 healthy pods and has 1 currently"
    assert "deletionTimestamp" not in (await client.get(f"{POD_PATH}/one"))["metadata"]


@pytest.mark.slow
async def test_grants_and_marks_without_a_deletion_end_after_two_minutes(served: tuple[ApiServer, Client]) -> None:
    """As a server leaves them that ended between the grant and the deletion."""
    server, client = served
    core = server.core
    await run_pod(client, "one")
    await create_budget(client, minAvailable=0)
    await become(client, disruptionsAllowed=1)
    left = metadata.format_time(core.now() - timedelta(seconds=118))

    def grant(budget: Object) -> None:
        budget["status"]["disruptedPods"] = {"one": left}

    def mark(pod: Object) -> None:
        condition = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI", "message": "m"}
        pod["status"]["conditions"].append({**condition, "lastProbeTime": None, "lastTransitionTime": left})

    await core.writes.edit(WriteTarget(BUDGETS, "default", "b"), grant)
    await become(client, currentHealthy=0, disruptionsAllowed=0)
    await become(client, currentHealthy=1, disruptionsAllowed=1)
    await core.writes.edit(WriteTarget(PODS, "default", "one"), mark)
    soon = DisruptionController(core.store, core.budgets, core.writes, core.now, mark_lasts=timedelta(seconds=0.2))
    soon.begin()
    task = asyncio.create_task(soon.run())

    async def unmarked() -> bool:
        condition = (await client.get(f"{POD_PATH}/one"))["status"]["conditions"][-1]
        return condition["type"] == "DisruptionTarget" and condition["status"] == "False" and "reason" not in condition

    try:
        await eventually(unmarked)
    finally:
        task.cancel()


@pytest.mark.slow
async def test_a_strategic_patch_replaces_the_selector(client: Client) -> None:
    await create_budget(client, minAvailable=1)
    patch = {"spec": {"selector": {"matchLabels": {"tier": "a"}}}}
    changed = await client.ask("PATCH", f"{BUDGET_PATH}/b", patch, headers={"Content-Type": STRATEGIC})
    assert changed.json()["spec"] == {"minAvailable": 1, "selector": {"matchLabels": {"tier": "a"}}}
    assert changed.json()["metadata"]["generation"] == 2


@pytest.mark.slow
async def test_a_table_shows_the_columns_of_kubernetes(client: Client) -> None:
    await run_pod(client, "one")
    await create_budget(client, maxUnavailable="100%")
    await become(client, disruptionsAllowed=1)
    table = (
        await client.ask("GET", BUDGET_PATH, headers={"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"})
    ).json()
    names = [column["name"] for column in table["columnDefinitions"]]
    assert names == ["Name", "Min Available", "Max Unavailable", "Allowed Disruptions", "Age"]
    assert table["rows"][0]["cells"][:4] == ["b", "N/A", "100%", 1]
