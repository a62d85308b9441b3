"""A child process with a simulated Azure that counts the calls of each kind of operation.

`python -m benchmarks.cloud_lab SUBSCRIPTIONS MACHINES CA [--stalled] [--swift | --slow]` creates MACHINES machines in
each subscription, with the kind of their operation in their names. With `--stalled` the last subscription answers each
request after 30 s. Changes take no longer than in tests with `--swift`, and as long as for a large VM with `--slow`.
The process writes the endpoint's authority to CA, and answers each line of standard input with the counts.
"""

from __future__ import annotations

import asyncio
import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import cycle, islice
from pathlib import Path
from typing import Any, Final

from benchmarks import children
from unbounded_lab.cloud.azure import LabAzure, VmShape
from unbounded_lab.cloud.azure.model import USUAL_TIMES, AzureTimes, VmPower
from unbounded_lab.faults import FOR_EVER
from unbounded_lab.http import LabReply, LabRequest

MIX: Final = (
    "HostReboot", "HostReplace", "HostPowerOff", "HostReboot", "HostPowerOn",
    "HostReboot", "HostReplace", "HostPowerOff", "HostReboot", "HostPowerOn",
)  # fmt: skip
"""The operations of ten consecutive machines."""

TIMES: Final = AzureTimes(
    create_s=10.0,
    update_s=2.0,
    delete_s=6.0,
    start_s=6.0,
    stop_s=6.0,
    restart_s=6.0,
    deallocate_s=6.0,
    disk_delete_s=2.0,
    poll_s=5.0,
)
SLOW: Final = replace(TIMES, create_s=60.0, delete_s=45.0)  # the times of a large VM
SHAPE: Final = VmShape(data_disks=1, nic_delete_option="Delete")  # the portal's defaults
STALL_S: Final = 30.0
_MACHINE: Final = re.compile(r"s(\d+)-([a-z]+)-\d+", re.IGNORECASE)
_OPERATION: Final = re.compile(r"/operations/([^/?]+)")


@dataclass(frozen=True)
class LabMachine:
    """A machine, and the kind of its operation."""

    name: str
    provider_id: str
    kind: str
    subscription: int


@dataclass(frozen=True)
class Ready:
    url: str
    tenant: str
    client_id: str
    client_secret: str
    machines: list[LabMachine]


@dataclass(frozen=True)
class Counted:
    """Counts of the answered requests.

    Args:
        passed: `{subscription: {reads, writes or deletes: count}}`, in the order of the subscriptions.
        calls: `{kind of operation: {call: count}}`.
        refused: requests that were rejected as too many.
    """

    passed: list[dict[str, int]]
    calls: dict[str, dict[str, int]]
    refused: int


class CountingAzure(LabAzure):
    """A simulated Azure that counts its calls."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._passed = [Counter[str]() for _ in self.subscriptions]
        self._calls: dict[str, Counter[str]] = {}
        self._refused = 0

    async def exchange(self, request: LabRequest) -> LabReply:
        reply = await super().exchange(request)
        if (call := self.front.cloud.call(request)).account:
            self._count(request, call.name, reply)
        return reply

    def _count(self, request: LabRequest, call: str, reply: LabReply) -> None:
        self._refused += reply.status == 429
        if reply.status == 429 or (machine := self._machine(request.path)) is None:
            return
        self._passed[int(machine[1])][{"GET": "reads", "DELETE": "deletes"}.get(request.method, "writes")] += 1
        self._calls.setdefault(machine[2], Counter())[call] += 1

    def _machine(self, path: str) -> re.Match[str] | None:
        """Find the machine's name in a request; disks have it in their names."""
        if operation := _OPERATION.search(path):
            known = self.estate.operations.get(operation[1])
            path = "" if known is None else known.subject.name
        return _MACHINE.search(path)

    def counted(self) -> Counted:
        kinds = {_short(kind): kind for kind in MIX}
        calls = {kinds[short]: dict(counts) for short, counts in self._calls.items()}
        return Counted([dict(counts) for counts in self._passed], calls, self._refused)


def _short(kind: str) -> str:
    return kind.removeprefix("Host").lower()


def fill(cloud: LabAzure, count: int) -> Iterator[LabMachine]:
    """Create machines in each subscription, in the state that their operations need."""
    for number, kind in enumerate(islice(cycle(MIX), count)):
        for place, subscription in enumerate(cloud.subscriptions):
            resource = cloud.add_machine(f"s{place}-{_short(kind)}-{number}", SHAPE, subscription=subscription)
            if kind == "HostPowerOn":
                off = replace(cloud.estate.machine(resource), power=VmPower.DEALLOCATED)
                cloud.estate.put_machine(off, cloud.now)
            yield LabMachine(resource.name, f"azure://{resource}", kind, place)


async def main(subscriptions: int, machines: int, ca: Path, *, stalled: bool, times: AzureTimes) -> None:
    async with CountingAzure(subscriptions=subscriptions, times=times) as cloud:
        made = list(fill(cloud, machines))
        await asyncio.to_thread(ca.write_bytes, cloud.ca)
        if stalled:
            cloud.set_faults(accounts=(cloud.subscriptions[-1],), stalls=FOR_EVER, stall_s=STALL_S)
        ready = Ready(cloud.url, cloud.tenant, cloud.client_id, cloud.client_secret, made)
        await children.serve(ready, answer=cloud.counted)


if __name__ == "__main__":
    count, each, file, *flags = sys.argv[1:]
    duration = USUAL_TIMES if "--swift" in flags else SLOW if "--slow" in flags else TIMES
    asyncio.run(main(int(count), int(each), Path(file), stalled="--stalled" in flags, times=duration))
