"""The embedded API server under 50 clients, beside peers that do the minimum.

The objects are 1,000 custom resources of 0.65 kB with a CEL rule, over TLS. Server, peers and the load generator
(`load`) are separate processes on the same machine. Each round measures, one after the other:

- creates, beside two peers. Bare sqlite3 with group commit (`raw_commits`: WAL, `synchronous=FULL`) writes the same
  bytes for as many writers. A bare aiohttp server over TLS (`raw_http`) gets the same bodies from the same generator,
  decodes the JSON and writes the bytes in the same way: this peer shows the cost of HTTP and TLS alone;
- gets, and the same bytes from that server over TLS;
- status patches, server-side applies of 1,000 more (new ones, and again with another value), lists of all 1,000, and
  writes that 50 watches report.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import msgspec

from benchmarks import children, raw_commits
from benchmarks.frame import Limit, Measured, print_progress, run_benchmark
from benchmarks.load import Job, Report, Watching
from unbounded.api.core import NAMESPACES
from unbounded.api.meta import Kind
from unbounded.cli.manifests import CRDS
from unbounded.kube.api import Api, NotFound
from unbounded.kube.client import HttpApi
from unbounded.kube.config import from_kubeconfig

GROUP: Final = "benchmarks.unbounded-cloud.io"
WIDGETS: Final[Kind[dict[str, Any]]] = Kind(GROUP, "v1", "Widget", "widgets", dict, namespaced=True)
BODY_BYTES: Final = 650
WITHIN_S: Final = 120.0

AMOUNT: Final = "{clients:g} clients over TLS, {objects:g} custom resources of 0.65 kB, the median of {rounds:g} rounds"
LIMITS: Final[Mapping[str, Limit]] = {
    "create_vs_raw_group_commit": Limit("creates, over the same bytes written by bare sqlite3", least=0.25),
    "create_vs_bare_post": Limit("creates, over the same by a bare aiohttp server that checks nothing"),
    "bare_post_vs_raw_group_commit": Limit("that bare server, over the same bytes written by bare sqlite3"),
    "get_vs_raw_http_tls": Limit("gets, over the same bytes from a bare aiohttp server", least=0.5),
    "create_per_s": Limit("creates in a second", aim=1200),
    "get_per_s": Limit("gets in a second", aim=2400),
    "status_patch_per_s": Limit("status patches in a second", aim=1000),
    "apply_new_per_s": Limit("server-side applies of new objects in a second", aim=830),
    "apply_again_per_s": Limit("the same once more, with another value, in a second", aim=830),
    "list_ms": Limit("a list of all, ms", aim=17),
    "watch_p50_ms": Limit("from a write until 50 watches have reported it, p50, ms", aim=5),
    "watch_p99_ms": Limit("the same, p99, ms"),
    "ready_s": Limit("from the start of the process until it is ready, s", aim=4.5),
    "memory_idle_mib": Limit("memory when ready, MiB"),
    "memory_after_mib": Limit("memory after all rounds, MiB", aim=330),
}


@dataclass(frozen=True)
class Size:
    """Amounts of one round, and the number of rounds."""

    rounds: int
    clients: int
    objects: int
    gets: int
    patches: int
    lists: int
    watches: int
    writes: int


FULL: Final = Size(rounds=5, clients=50, objects=1000, gets=10_000, patches=3000, lists=20, watches=50, writes=200)
QUICK: Final = Size(rounds=1, clients=10, objects=100, gets=300, patches=100, lists=3, watches=5, writes=20)


@dataclass(frozen=True)
class Bench:
    """The processes of one run."""

    size: Size
    folder: Path
    kubeconfig: str
    server: children.Child
    generator: children.Child

    async def load(self, **job: Any) -> Report:
        """Send requests. Raises RuntimeError when the server rejects one."""
        report = await self.generator.request(
            msgspec.json.encode(Job(kubeconfig=self.kubeconfig, **job)), Report, within_s=WITHIN_S
        )
        return checked(report)


def checked(report: Report) -> Report:
    if rejected := {code: count for code, count in report.codes.items() if code not in {200, 201}}:
        raise RuntimeError(f"the server rejected requests: {rejected}")
    return report


async def run(quick: bool) -> Measured:
    size = QUICK if quick else FULL
    with TemporaryDirectory(prefix="unbounded-benchmark-") as folder:
        async with _running(size, Path(folder)) as (bench, ready_s):
            idle_mib = bench.server.memory_mib
            found = [await _round(bench, number) for number in range(size.rounds)]
            figures = {key: statistics.median(one.figures[key] for one in found) for key in found[0].figures}
            ratios = {key: statistics.median(one.ratios[key] for one in found) for key in found[0].ratios}
            memory = {"memory_idle_mib": idle_mib, "memory_after_mib": bench.server.memory_mib}
    counts = {"objects": size.objects, "clients": size.clients, "rounds": size.rounds}
    return Measured({**counts, **figures, "ready_s": ready_s, **memory}, ratios)


@asynccontextmanager
async def _running(size: Size, folder: Path) -> AsyncIterator[tuple[Bench, float]]:
    data = folder / "data"
    began = time.monotonic()
    async with children.start("benchmarks.server", str(data), "--bare") as server:
        ready_s = time.monotonic() - began
        kubeconfig = server.ready["kubeconfig"]
        async with HttpApi(from_kubeconfig(Path(kubeconfig))) as api:
            await define(api)
        async with children.start("benchmarks.load") as generator:
            yield Bench(size, folder, kubeconfig, server, generator), ready_s


async def define(api: Api) -> None:
    """Create the definition of widgets, and wait until they are served."""
    await api.create(CRDS, definition())
    async with asyncio.timeout(10):
        while True:
            try:
                await api.list(WIDGETS)
            except NotFound:
                await asyncio.sleep(0.01)
            else:
                return


def definition() -> dict[str, Any]:
    """Return a definition with defaults, bounds and a rule."""
    spec = {
        "type": "object",
        "required": ["replicas", "text"],
        "x-kubernetes-validations": [{"rule": "self.replicas >= self.least", "message": "replicas below least"}],
        "properties": {
            "replicas": {"type": "integer", "minimum": 0},
            "least": {"type": "integer", "default": 1},
            "text": {"type": "string", "maxLength": 1024},
            "tags": {"type": "array", "maxItems": 20, "items": {"type": "string", "maxLength": 64}},
            "serial": {"type": "integer"},
        },
    }
    status = {
        "type": "object",
        "properties": {"phase": {"type": "string"}, "serial": {"type": "integer"}, "message": {"type": "string"}},
    }
    schema = {"type": "object", "properties": {"spec": spec, "status": status}}
    version = {
        "name": "v1",
        "served": True,
        "storage": True,
        "subresources": {"status": {}},
        "schema": {"openAPIV3Schema": schema},
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{WIDGETS.plural}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {"plural": WIDGETS.plural, "singular": "widget", "kind": WIDGETS.kind, "listKind": "WidgetList"},
            "versions": [version],
        },
    }


def widget() -> str:
    """Return the JSON of a widget of 0.65 kB, with the placeholders `#` and `@`."""
    spec: dict[str, Any] = {"replicas": 3, "serial": 0, "tags": ["rack-12", "row-4", "burn-in"], "text": ""}
    labels = {"app": "benchmark", "site": "lab-1"}
    body = {"apiVersion": f"{GROUP}/v1", "kind": WIDGETS.kind, "metadata": {"name": "widget-#", "labels": labels}}
    missing = BODY_BYTES - len(msgspec.json.encode({**body, "spec": spec}))
    spec["text"] = "The quick brown fox jumps over the lazy dog. " * 20
    spec["text"] = spec["text"][:missing]
    return msgspec.json.encode({**body, "spec": spec}).decode().replace('"serial":0', '"serial":@')


async def _round(bench: Bench, number: int) -> Measured:
    """Run one round on 1,000 widgets of its own namespace."""
    size, clients, objects = bench.size, bench.size.clients, bench.size.objects
    namespace = f"round-{number}"
    await _namespace(bench, namespace)
    path = f"/apis/{GROUP}/v1/namespaces/{namespace}/{WIDGETS.plural}"
    one = f"{path}/widget-#"
    before = bench.server.cpu_s()
    create = await bench.load(
        method="POST", path=path, body=widget(), clients=clients, requests=objects, objects=objects
    )
    create_cpu_s = bench.server.cpu_s() - before
    raw_commits_per_s = await _raw_commits(bench, create.answer_bytes)
    bare_post_per_s = await _bare_posts(bench, create.answer_bytes)
    get = await bench.load(path=one, clients=clients, requests=size.gets, objects=objects)
    raw_get_per_s = await _raw_gets(bench, get.answer_bytes)
    status = '{"status":{"phase":"Ready","serial":@,"message":"observed at last sync"}}'
    patch = await bench.load(
        method="PATCH", path=f"{one}/status", body=status, media="application/merge-patch+json",
        clients=clients, requests=size.patches, objects=objects,
    )  # fmt: skip
    new, again = await _applied(bench, f"{namespace}-applied")
    listing = await bench.load(path=path, clients=1, requests=size.lists)
    watched = await _watched(bench, path, one)
    print_progress(
        f"round {number}: create {create.per_s:.0f}/s, get {get.per_s:.0f}/s, status patch {patch.per_s:.0f}/s, "
        f"apply {new.per_s:.0f} and {again.per_s:.0f}/s"
    )
    return Measured(
        figures={
            "create_per_s": create.per_s,
            "create_p99_ms": create.p99_ms,
            "create_cpu_ms": 1000 * create_cpu_s / objects,
            "raw_commits_per_s": raw_commits_per_s,
            "bare_post_per_s": bare_post_per_s,
            "get_per_s": get.per_s,
            "get_p99_ms": get.p99_ms,
            "raw_get_per_s": raw_get_per_s,
            "status_patch_per_s": patch.per_s,
            "status_patch_p99_ms": patch.p99_ms,
            "apply_new_per_s": new.per_s,
            "apply_again_per_s": again.per_s,
            "list_ms": listing.p50_ms,
            "watch_p50_ms": watched.p50_ms,
            "watch_p99_ms": watched.p99_ms,
        },
        ratios={
            "create_vs_raw_group_commit": create.per_s / raw_commits_per_s,
            "create_vs_bare_post": create.per_s / bare_post_per_s,
            "bare_post_vs_raw_group_commit": bare_post_per_s / raw_commits_per_s,
            "get_vs_raw_http_tls": get.per_s / raw_get_per_s,
        },
    )


async def _applied(bench: Bench, namespace: str) -> tuple[Report, Report]:
    """Apply widgets that do not exist, and the same widgets with another serial (server-side)."""
    await _namespace(bench, namespace)
    path = f"/apis/{GROUP}/v1/namespaces/{namespace}/{WIDGETS.plural}/widget-#?fieldManager=benchmark"
    new, again = [
        await bench.load(
            method="PATCH", path=path, body=widget(), media="application/apply-patch+yaml",
            clients=bench.size.clients, requests=bench.size.objects, objects=bench.size.objects, first=first,
        )
        for first in (0, bench.size.objects)
    ]  # fmt: skip
    return new, again


async def _namespace(bench: Bench, name: str) -> None:
    async with HttpApi(from_kubeconfig(Path(bench.kubeconfig))) as api:
        await api.create(NAMESPACES, {"metadata": {"name": name}})


async def _raw_commits(bench: Bench, length: int) -> float:
    job = raw_commits.CommitJob(
        path=str(bench.folder / "raw"), writes=bench.size.objects, writers=bench.size.clients, bytes=length
    )
    async with children.start("benchmarks.raw_commits") as peer:
        done = await peer.request(msgspec.json.encode(job), raw_commits.CommitResult, within_s=WITHIN_S)
    return done.per_s


async def _bare_posts(bench: Bench, length: int) -> float:
    objects = bench.size.objects
    async with _raw_http(bench, length) as port:
        report = await bench.load(
            method="POST", path="/", body=widget(), port=port,
            clients=bench.size.clients, requests=objects, objects=objects,
        )  # fmt: skip
    return report.per_s


async def _raw_gets(bench: Bench, length: int) -> float:
    async with _raw_http(bench, length) as port:
        report = await bench.load(path="/", port=port, clients=bench.size.clients, requests=bench.size.gets)
    return report.per_s


@asynccontextmanager
async def _raw_http(bench: Bench, length: int) -> AsyncIterator[int]:
    """Start a bare server with answers of a length; yield its port."""
    body = bench.folder / "body"
    body.write_bytes(b"x" * length)
    async with children.start("benchmarks.raw_http", str(bench.folder / "data"), str(body)) as peer:
        yield peer.ready["port"]


async def _watched(bench: Bench, path: str, one: str) -> Report:
    """Measure the time until watches report a write; each write changes another widget."""
    job = Job(
        kubeconfig=bench.kubeconfig, clients=1, requests=bench.size.writes, objects=bench.size.objects, first=1_000_000,
        method="PATCH", path=one, body='{"spec":{"serial":@}}', media="application/merge-patch+json",
    )  # fmt: skip
    watching = Watching(job=job, watches=bench.size.watches, path=f"{path}?watch=true&resourceVersion=0", pause_s=0.002)
    return checked(await bench.generator.request(msgspec.json.encode(watching), Report, within_s=WITHIN_S))


if __name__ == "__main__":
    run_benchmark("apiserver", run)
