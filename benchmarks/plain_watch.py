"""A child process that watches the kinds that the console watches as a whole.

`python -m benchmarks.plain_watch KUBECONFIG`. Watches of single objects, which open pages of the console have, are not
among them.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any, Final, cast

from benchmarks import children
from unbounded.api.configuration import MACHINE_CONFIGURATIONS
from unbounded.api.core import LEASES
from unbounded.api.disruption import MACHINE_DISRUPTION_BUDGETS
from unbounded.api.machine import MACHINES
from unbounded.api.meta import Kind
from unbounded.api.names import NAMESPACE
from unbounded.api.operation import MACHINE_OPERATIONS
from unbounded.kube.client import HttpApi
from unbounded.kube.config import from_kubeconfig

KINDS: Final[tuple[tuple[Kind[Any], str], ...]] = (
    (MACHINES, ""),
    (MACHINE_OPERATIONS, ""),
    (MACHINE_CONFIGURATIONS, ""),
    (MACHINE_DISRUPTION_BUDGETS, ""),
    (LEASES, NAMESPACE),
)
"""The kinds, each with its namespace; empty for all."""


async def follow(api: HttpApi, kind: Kind[Any], namespace: str, begun: asyncio.Event) -> None:
    """Read all objects of a kind and their changes."""
    stream = cast("Any", api.watch(kind, resource_version="", namespace=namespace))
    async with aclosing(stream):
        events: AsyncIterator[Any] = stream
        async for event in events:
            if event.synced:
                begun.set()


async def main(kubeconfig: Path) -> None:
    async with HttpApi(from_kubeconfig(kubeconfig)) as api, asyncio.TaskGroup() as group:
        begun = [asyncio.Event() for _ in KINDS]
        tasks = [group.create_task(follow(api, *one, event)) for one, event in zip(KINDS, begun, strict=True)]
        for event in begun:
            await event.wait()
        await children.serve({"watching": True})
        for task in tasks:
            task.cancel()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
