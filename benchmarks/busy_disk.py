"""Rate of creates on a disk with foreign writers, beside bare sqlite3 on the same disk.

Each round measures creates of 0.65 kB by 50 clients over TLS, and the same bytes by bare sqlite3 with group commit
(`raw_commits`). It measures both on an idle disk, then beside two processes that write and sync 32 MiB in a loop
(`foreign_writer`). All files are on the file system of the folder for temporary files.

With UNBOUNDED_BENCHMARK_PEER=KUBECONFIG the benchmark sends the same creates to that server too, such as a
kube-apiserver with its etcd on the same disk. `peer_loaded_least` is our rate over the peer's in the worst round.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import msgspec

from benchmarks import children, raw_commits
from benchmarks.apiserver import BODY_BYTES, GROUP, WIDGETS, WITHIN_S, checked, define, widget
from benchmarks.frame import Limit, Measured, print_progress, run_benchmark
from benchmarks.load import Job, Report
from unbounded.api.core import NAMESPACES
from unbounded.kube.api import AlreadyExists
from unbounded.kube.client import HttpApi
from unbounded.kube.config import from_kubeconfig

WRITERS: Final = 2
PEER: Final = "UNBOUNDED_BENCHMARK_PEER"

AMOUNT: Final = "{clients:g} clients over TLS, {objects:g} creates, {writers:g} foreign writers, {rounds:g} rounds"
LIMITS: Final[Mapping[str, Limit]] = {
    "loaded_vs_unloaded": Limit("creates beside foreign writers, over creates alone"),
    "raw_loaded_vs_unloaded": Limit("the same for bare sqlite3 with group commit"),
    "loaded_vs_raw_group_commit": Limit("creates beside foreign writers, over bare sqlite3 beside them", least=0.5),
    "create_per_s": Limit("creates alone, in a second"),
    "create_loaded_per_s": Limit("creates beside foreign writers, in a second"),
    "create_loaded_least_per_s": Limit("the same in the worst round"),
    "create_loaded_p99_ms": Limit("a create beside foreign writers, p99, ms"),
}


@dataclass(frozen=True)
class Size:
    """Amounts of one round, and the number of rounds."""

    rounds: int
    clients: int
    objects: int


FULL: Final = Size(rounds=6, clients=50, objects=2000)
QUICK: Final = Size(rounds=1, clients=10, objects=100)


@dataclass(frozen=True)
class Bench:
    """The processes of one run. `peer` is the kubeconfig of another server, '' for none."""

    size: Size
    folder: Path
    server: str
    peer: str
    generator: children.Child

    async def create(self, kubeconfig: str, namespace: str) -> Report:
        async with HttpApi(from_kubeconfig(Path(kubeconfig))) as api:
            await api.create(NAMESPACES, {"metadata": {"name": namespace}})
        job = Job(
            kubeconfig=kubeconfig, method="POST", path=f"/apis/{GROUP}/v1/namespaces/{namespace}/{WIDGETS.plural}",
            body=widget(), clients=self.size.clients, requests=self.size.objects, objects=self.size.objects,
        )  # fmt: skip
        return checked(await self.generator.request(msgspec.json.encode(job), Report, within_s=WITHIN_S))

    async def commit(self) -> float:
        """Return the commits of bare sqlite3 in a second."""
        job = raw_commits.CommitJob(
            path=str(self.folder / "raw"), writes=self.size.objects, writers=self.size.clients, bytes=BODY_BYTES + 300
        )
        async with children.start("benchmarks.raw_commits") as process:
            done = await process.request(msgspec.json.encode(job), raw_commits.CommitResult, within_s=WITHIN_S)
        return done.per_s


@dataclass(frozen=True)
class Round:
    """Rates of one round, alone and beside foreign writers. `peer` is 0 without one."""

    alone: Report
    raw_alone: float
    loaded: Report
    raw_loaded: float
    peer: float


async def run(quick: bool) -> Measured:
    size = QUICK if quick else FULL
    with TemporaryDirectory(prefix="unbounded-benchmark-") as folder:
        async with _running(size, Path(folder)) as bench:
            rounds = [await _round(bench, f"{int(time.time())}-{number}") for number in range(size.rounds)]
    alone = statistics.median(one.alone.per_s for one in rounds)
    loaded = statistics.median(one.loaded.per_s for one in rounds)
    figures = {
        "clients": size.clients,
        "objects": size.objects,
        "rounds": size.rounds,
        "writers": WRITERS,
        "create_per_s": alone,
        "create_loaded_per_s": loaded,
        "create_loaded_least_per_s": min(one.loaded.per_s for one in rounds),
        "create_loaded_p99_ms": statistics.median(one.loaded.p99_ms for one in rounds),
    }
    ratios = {
        "loaded_vs_unloaded": loaded / alone,
        "raw_loaded_vs_unloaded": statistics.median(one.raw_loaded / one.raw_alone for one in rounds),
        "loaded_vs_raw_group_commit": statistics.median(one.loaded.per_s / one.raw_loaded for one in rounds),
    }
    if bench.peer:
        ratios["peer_loaded"] = statistics.median(one.loaded.per_s / one.peer for one in rounds)
        ratios["peer_loaded_least"] = min(one.loaded.per_s / one.peer for one in rounds)
    return Measured(figures, ratios)


@asynccontextmanager
async def _running(size: Size, folder: Path) -> AsyncIterator[Bench]:
    peer = os.environ.get(PEER, "")
    async with (
        children.start("benchmarks.server", str(folder / "data"), "--bare") as server,
        children.start("benchmarks.load") as generator,
    ):
        bench = Bench(size, folder, server.ready["kubeconfig"], peer, generator)
        for kubeconfig in filter(None, (bench.server, peer)):
            async with HttpApi(from_kubeconfig(Path(kubeconfig))) as api:
                try:
                    await define(api)
                except AlreadyExists:  # of a former run
                    print_progress(f"{kubeconfig} already serves widgets")
        yield bench


async def _round(bench: Bench, name: str) -> Round:
    alone, raw_alone = await bench.create(bench.server, f"alone-{name}"), await bench.commit()
    async with AsyncExitStack() as stack:
        for _ in range(WRITERS):
            await stack.enter_async_context(children.start("benchmarks.foreign_writer", str(bench.folder)))
        loaded = await bench.create(bench.server, f"loaded-{name}")
        peer = (await bench.create(bench.peer, f"loaded-{name}")).per_s if bench.peer else 0.0
        raw_loaded = await bench.commit()
    for left in bench.folder.glob("foreign-*"):
        left.unlink()
    beside = f", the peer {peer:.0f}/s" if peer else ""
    print_progress(
        f"alone {alone.per_s:.0f}/s, bare {raw_alone:.0f}/s; "
        f"loaded {loaded.per_s:.0f}/s, bare {raw_loaded:.0f}/s{beside}"
    )
    return Round(alone, raw_alone, loaded, raw_loaded, peer)


if __name__ == "__main__":
    run_benchmark("busy_disk", run)
