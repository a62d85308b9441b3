"""A child process that drains Nodes: `python -m benchmarks.drains KUBECONFIG CONCURRENT`.

Each line of its input is a job, as JSON; the answer has the seconds until the last Node is drained. Both jobs find the
same pods, and kubelets of another process end them:

- bare, the peer of the disruption controller: cordon a Node, evict its pods at once, wait until they are gone, uncordon
  it. CONCURRENT Nodes have their turn at a time. It stores no state, and handles no failure.
- maintenance: a user sets `spec.maintenance` of all Machines, and ends that of each one whose Node is drained. A
  MachineDisruptionBudget lets CONCURRENT have their turn at a time.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Coroutine, Iterable
from pathlib import Path
from typing import Any, Final

import msgspec

from benchmarks.progress import followed
from unbounded.api.core import NODES, PODS, evictions_of
from unbounded.api.disruption import DisruptionStage
from unbounded.api.machine import MACHINES, Machine
from unbounded.kube.api import Api, EventType
from unbounded.kube.client import HttpApi
from unbounded.kube.config import from_kubeconfig

AT_ONCE: Final = 50  # calls
NAMESPACE: Final = "default"  # of the pods


class DrainJob(msgspec.Struct, kw_only=True):
    """Nodes to drain: by the bare client, or by the maintenance of these Machines."""

    nodes: list[str] = []
    machines: list[str] = []


class Drained(msgspec.Struct, kw_only=True):
    """Result of a job: the seconds until the last Node is drained."""

    seconds: float


async def drain_bare(api: Api, nodes: Iterable[str], concurrent: int) -> Drained:
    limiter, calls = asyncio.Semaphore(concurrent), asyncio.Semaphore(AT_ONCE)

    async def drain(node: str) -> float:
        async with limiter:
            await api.patch(NODES, node, {"spec": {"unschedulable": True}})
            pods = await api.list(PODS, fields=f"spec.nodeName={node}")
            left = {pod.metadata.uid for pod in pods.items}
            await asyncio.gather(*(evict(pod.metadata.name, pod.metadata.uid) for pod in pods.items))
            await wait_gone(node, left, pods.resource_version)
            drained_at = time.monotonic()
            await api.patch(NODES, node, {"spec": {"unschedulable": None}})
            return drained_at

    async def wait_gone(node: str, left: set[str], since: str) -> None:
        async for event in api.watch(PODS, resource_version=since, fields=f"spec.nodeName={node}"):
            if event.type is EventType.DELETED and event.object is not None:
                left.discard(event.object.metadata.uid)
            if not left:
                return

    async def evict(pod: str, uid: str) -> None:
        body = {"metadata": {"name": pod, "namespace": NAMESPACE}, "deleteOptions": {"preconditions": {"uid": uid}}}
        async with calls:
            await api.create(evictions_of(pod), body, namespace=NAMESPACE)

    began = time.monotonic()
    return Drained(seconds=max(await asyncio.gather(*map(drain, nodes))) - began)


async def drain_by_maintenance(api: Api, machines: Iterable[str]) -> Drained:
    waiting, drained, returned = set(machines), dict[str, float](), asyncio.Event()
    group = asyncio.TaskGroup()

    def changed(machine: Machine) -> None:
        record = machine.status.disruption
        if machine.name not in waiting:
            return
        if record is not None and record.stage == DisruptionStage.DRAINED and machine.name not in drained:
            drained[machine.name] = time.monotonic()
            group.create_task(maintain(machine.name, enabled=False))
        elif record is None and machine.name in drained:
            waiting.discard(machine.name)
            if not waiting:
                returned.set()

    async def maintain(name: str, *, enabled: bool) -> None:
        await api.patch(MACHINES, name, {"spec": {"maintenance": {"enabled": enabled}}})

    async with group, followed(api, MACHINES, changed):
        began = time.monotonic()
        await each(maintain(name, enabled=True) for name in list(waiting))
        await returned.wait()
    return Drained(seconds=max(drained.values()) - began)


async def each(calls: Iterable[Coroutine[Any, Any, Any]]) -> None:
    """Await all, AT_ONCE at a time."""
    limiter = asyncio.Semaphore(AT_ONCE)

    async def one(call: Coroutine[Any, Any, Any]) -> None:
        async with limiter:
            await call

    async with asyncio.TaskGroup() as group:
        for call in calls:
            group.create_task(one(call))


async def carry_out(job: DrainJob, kubeconfig: Path, concurrent: int) -> Drained:
    async with HttpApi(from_kubeconfig(kubeconfig)) as api:
        if job.nodes:
            return await drain_bare(api, job.nodes, concurrent)
        return await drain_by_maintenance(api, job.machines)


def main(kubeconfig: Path, concurrent: int) -> None:
    """Carry out jobs until the input ends."""
    sys.stdout.buffer.write(b"{}\n")
    sys.stdout.buffer.flush()
    for line in sys.stdin.buffer:
        job = msgspec.json.decode(line, type=DrainJob)
        found = asyncio.run(carry_out(job, kubeconfig, concurrent))
        sys.stdout.buffer.write(msgspec.json.encode(found) + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
