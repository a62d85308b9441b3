"""Explanations from watch caches are those from the API."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

from tests.explain.test_answer import staged
from tests.support.virtual_time import run_virtual, virtual_now
from unbounded.api.core import CONFIG_MAPS, EVENTS, LEASES, NODES
from unbounded.api.machine import MACHINES
from unbounded.api.names import LABEL_SITE
from unbounded.api.operation import MACHINE_OPERATIONS
from unbounded.explain.cached_reads import CachedReads
from unbounded.explain.chain import explain
from unbounded.explain.links import Topic
from unbounded.kube.cache import Cache

KINDS = (MACHINES, MACHINE_OPERATIONS, NODES, EVENTS, LEASES, CONFIG_MAPS)


def test_explanations_from_caches_are_those_from_the_api() -> None:
    async def ask() -> None:
        api = await staged()
        expected = {
            (topic, name): await explain(api, topic, name, now=virtual_now)
            for topic, name in ((Topic.MACHINE, "m1"), (Topic.OPERATION, "op-1"), (Topic.OPERATION, "op-2"))
        }
        caches: list[Cache[Any]] = [Cache(api, kind) for kind in KINDS]
        async with AsyncExitStack() as stack:
            tasks = [asyncio.create_task(cache.run()) for cache in caches]
            stack.callback(lambda: [task.cancel() for task in tasks])
            reads = CachedReads(api, caches)
            assert (await explain(reads, Topic.MACHINE, "m1", now=virtual_now)).links, "before the caches are filled"
            for cache in caches:
                await cache.synced.wait()
            api.reads = 0
            for (topic, name), found in expected.items():
                assert await explain(reads, topic, name, now=virtual_now) == found
            assert api.reads == 0
            site = await reads.list(MACHINES, labels=f"{LABEL_SITE}=lab")
            assert [one.name for one in site.items] == ["m1"]
            assert not (await reads.list(MACHINES, labels=f"{LABEL_SITE}=other")).items
            assert not (await reads.list(MACHINE_OPERATIONS, fields="spec.machineRef!=m1")).items
            assert not (await reads.list(LEASES, namespace="default")).items

    run_virtual(ask())
