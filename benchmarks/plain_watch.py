"""A child process with a plain watch of Machines and of operations: `python -m benchmarks.plain_watch KUBECONFIG`."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any, cast

from benchmarks import children
from unbounded.api.machine import MACHINES
from unbounded.api.meta import Kind
from unbounded.api.operation import MACHINE_OPERATIONS
from unbounded.kube.client import HttpApi
from unbounded.kube.config import from_kubeconfig


async def follow(api: HttpApi, kind: Kind[Any], begun: asyncio.Event) -> None:
    """Read all objects of a kind and their changes."""
    stream = cast("Any", api.watch(kind, resource_version=""))
    async with aclosing(stream):
        events: AsyncIterator[Any] = stream
        async for event in events:
            if event.synced:
                begun.set()


async def main(kubeconfig: Path) -> None:
    async with HttpApi(from_kubeconfig(kubeconfig)) as api, asyncio.TaskGroup() as group:
        kinds: tuple[Kind[Any], ...] = (MACHINES, MACHINE_OPERATIONS)
        begun = [asyncio.Event() for _ in kinds]
        tasks = [group.create_task(follow(api, *one)) for one in zip(kinds, begun, strict=True)]
        for event in begun:
            await event.wait()
        await children.serve({"watching": True})
        for task in tasks:
            task.cancel()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
