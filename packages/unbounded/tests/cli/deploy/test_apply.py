"""Rollout of a Deployment, with the cause of a delay; the address of the API server in machina's configuration."""

from __future__ import annotations

import asyncio
from base64 import b64decode, b64encode
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.support.memory_api import MemoryApi
from tests.support.virtual_time import run_virtual
from unbounded.api.core import SECRETS
from unbounded.api.names import NAMESPACE
from unbounded.cli.deploy.apply import Rollout, config_for, problems_of, rollout_of, wait_rolled_out
from unbounded.cli.deploy.live_machina import LiveMachina
from unbounded.cli.deploy.server_side_apply import DEPLOYMENTS, LAST_APPLIED, Applier, ApplyOutcome, differences
from unbounded.cli.deploy.workloads import MACHINA_CONFIG
from unbounded.cli.plugin.command import CliError
from unbounded.kube.client import HttpApi

Raw = dict[str, Any]


def deployment(generation: int = 2, **status: Any) -> Raw:
    return {"metadata": {"generation": generation, "name": "d"}, "spec": {"replicas": 2}, "status": status}


STUCK = {"type": "Progressing", "status": "False", "message": "no progress"}
TABLE: list[tuple[Raw | None, Rollout]] = [
    (None, Rollout(done=False, text="it does not exist")),
    (deployment(), Rollout(done=False, text="no controller of the cluster has processed it yet")),
    (
        deployment(observedGeneration=1, availableReplicas=2),
        Rollout(done=False, text="no controller of the cluster has processed it yet"),
    ),
    (deployment(observedGeneration=2, updatedReplicas=1), Rollout(done=False, text="1 of 2 Pods have this version")),
    (
        deployment(observedGeneration=2, replicas=3, updatedReplicas=2, availableReplicas=2),
        Rollout(done=False, text="1 Pods of the previous version remain"),
    ),
    (
        deployment(observedGeneration=2, replicas=2, updatedReplicas=2, availableReplicas=1),
        Rollout(done=False, text="1 of 2 Pods are available"),
    ),
    (
        deployment(observedGeneration=2, replicas=2, updatedReplicas=2, availableReplicas=2),
        Rollout(done=True, text="2 of 2 Pods are available"),
    ),
    (
        deployment(observedGeneration=2, updatedReplicas=1, conditions=[STUCK]),
        Rollout(done=False, text="no progress", failed=True),
    ),
]


@pytest.mark.parametrize(("body", "wanted"), TABLE, ids=range(len(TABLE)))
def test_rollout_is_complete_when_all_pods_are_updated_and_available(body: Raw | None, wanted: Rollout) -> None:
    assert rollout_of(body) == wanted


def test_each_problem_of_pods_is_reported_once() -> None:
    unscheduled = {"type": "PodScheduled", "status": "False", "message": "0/3 nodes are available"}
    waiting = [
        {"state": {"waiting": {"reason": reason, "message": "no"}}} for reason in ("ContainerCreating", "ErrImagePull")
    ]
    pods: list[Raw] = [{"status": {"conditions": [unscheduled]}}, *[{"status": {"containerStatuses": waiting}}] * 2, {}]
    assert problems_of(pods) == ("0/3 nodes are available", "ErrImagePull: no")


def secret(value: str, **more: Any) -> Raw:
    metadata = {"name": "s", "namespace": NAMESPACE, **more}
    data = {"key": b64encode(value.encode()).decode(), "same": "c2FtZQ=="}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": data}


def test_no_difference_shows_a_value_of_a_secret() -> None:
    copy = {"annotations": {LAST_APPLIED: "canary", "note": "shown"}}
    before, after = secret("canary-1", **copy), secret("canary-2", **copy) | {"stringData": {"more": "canary"}}
    shown = differences(before, after, "s")
    assert "(12 characters, before)" in shown
    assert "(12 characters, after)" in shown
    assert "same: (8 characters)" in shown
    for text in (shown, differences({}, after, "s"), differences(before, before | {"type": "other"}, "s")):
        assert "canary" not in text
        assert b64encode(b"canary").decode()[:7] not in text
    assert differences(before, before, "s") == ""
    assert differences(before, secret("canary-1", annotations={LAST_APPLIED: "other", "note": "shown"}), "s")


@pytest.mark.slow
async def test_a_secret_with_another_value_of_the_same_length_is_applied(cluster_api: HttpApi) -> None:
    applier, kind = Applier(cluster_api), SECRETS.raw()
    outcomes = []
    for value in ("first-one", "other-one", "other-one"):
        (change,) = await applier.apply_all([secret(value)])
        outcomes.append(change.outcome)
        found = await cluster_api.get(kind, "s", namespace=NAMESPACE)
        assert b64decode(found["data"]["key"]).decode() == value
    assert outcomes == [ApplyOutcome.CREATED, ApplyOutcome.CONFIGURED, ApplyOutcome.UNCHANGED]
    await cluster_api.delete(kind, "s", namespace=NAMESPACE)


def test_it_is_followed_until_it_is_there_or_the_time_is_up() -> None:
    async def story() -> tuple[Rollout, Rollout, list[str]]:
        api, said = MemoryApi(), list[str]()
        body = {"metadata": {"name": "d"}, "spec": {"replicas": 2}}
        await api.create(DEPLOYMENTS, body, namespace="unbounded-kube")

        async def controller() -> None:
            for count in range(3):
                await asyncio.sleep(60)
                there: Raw = await api.get(DEPLOYMENTS, "d", namespace="unbounded-kube")
                generation = there["metadata"].get("generation", 0)
                status = {"observedGeneration": generation, "updatedReplicas": count, "availableReplicas": count}
                await api.patch(DEPLOYMENTS, "d", {"status": status}, namespace="unbounded-kube", subresource="status")

        async with asyncio.TaskGroup() as group:
            group.create_task(controller())
            late = await wait_rolled_out(api, "d", "unbounded-kube", within_s=90, report=said.append)
            done = await wait_rolled_out(api, "d", "unbounded-kube", within_s=300, report=said.append)
        return late, done, said

    late, done, said = run_virtual(story())
    assert (late.done, late.failed, late.text) == (False, False, "0 of 2 Pods have this version")
    assert done == Rollout(done=True, text="2 of 2 Pods are available")
    assert "1 of 2 Pods have this version" in said


async def test_kubeconfig_unusable_for_hosts_is_rejected_with_the_needed_flag() -> None:
    api = cast("Any", MemoryApi())
    api.config = SimpleNamespace(server="http://127.0.0.1:8001")  # of `kubectl proxy`
    session = cast("Any", SimpleNamespace(api=api, printer=None))
    with pytest.raises(CliError, match=r"http://127\.0\.0\.1:8001") as raised:
        await config_for(session, LiveMachina(config_map=MACHINA_CONFIG), {})
    assert "--api-server-endpoint HOST:PORT" in raised.value.next_step
