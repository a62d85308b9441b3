"""The update of a Cluster with several managers and workers, by the real controllers, in virtual time."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import pytest

from tests.containercloud.storm import NAMESPACE, RELEASES, CrashSite, crash_site
from tests.support.virtual_time import run_virtual
from unbounded.api.container_cloud.cluster import CLUSTERS
from unbounded.api.operation import MACHINE_OPERATIONS

MANAGERS = {"m0": 3, "m1": 1, "m2": 2}
WORKERS = {"w0": 9, "w1": 4, "w2": 5}


@dataclass(frozen=True)
class Turn:
    """The HostReplace with which one Machine is updated."""

    machine: str
    began: str
    ended: str


def turns(site: CrashSite, before: set[str]) -> list[Turn]:
    """Return the turns of all Machines in their order.

    Args:
        before: names of the operations that installed them.
    """
    owners = {one.status.execution.machine: one.name for one in site.machines() if one.status.execution is not None}
    found = [
        Turn(owners[one.spec.machine_ref], one.status.started_at or "", one.status.completed_at or "")
        for one in site.judge.all(MACHINE_OPERATIONS)
        if one.spec.operation_kind == "HostReplace" and one.name not in before
    ]
    return sorted(found, key=lambda one: one.began)


def most_at_once(found: list[Turn]) -> int:
    return max(sum(other.began <= one.began < other.ended for other in found) for one in found)


@pytest.mark.parametrize(("dedicated", "limit"), [(True, 1), (False, 2)])
def test_managers_are_updated_one_by_one_by_index_and_workers_within_their_limit(dedicated: bool, limit: int) -> None:
    async def scene() -> None:
        async with crash_site(1) as site:
            processes = [one.start().task for one in (site.container_cloud(), site.disrupter(), site.updater())]
            await site.surroundings()
            value = {"dedicatedControlPlane": dedicated, "maxWorkerUpgradeCount": limit}
            patch = {"spec": {"providerSpec": {"value": value}}}
            await site.api.patch(CLUSTERS, "example-cluster", patch, namespace=NAMESPACE)
            for name, index in (MANAGERS | WORKERS).items():
                await site.asked(name, manager=name in MANAGERS, upgradeIndex=index)
            await site.stocked(6)
            await site.wait(lambda: len(site.ready()) == 6)
            before = {one.name for one in site.judge.all(MACHINE_OPERATIONS)}
            await site.release(RELEASES[1])
            await site.wait(lambda: len(site.ready()) == 6 and site.updated() and len(turns(site, before)) == 6)
            managers = [one for one in turns(site, before) if one.machine in MANAGERS]
            workers = [one for one in turns(site, before) if one.machine in WORKERS]
            assert [one.machine for one in managers] == ["m1", "m2", "m0"]
            assert all(first.ended <= second.began for first, second in pairwise(managers))
            assert [one.machine for one in workers][-1] == "w0"
            assert most_at_once(workers) == limit
            assert workers[0].began >= managers[0 if dedicated else -1].ended
            assert dedicated == (workers[0].began < managers[-1].ended)
            site.assert_sound()
            for task in processes:
                task.cancel()

    run_virtual(scene())
