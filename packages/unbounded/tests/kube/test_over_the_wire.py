"""The whole runtime against real servers: client, cache, controller, leadership and events together."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.kube.conftest import connector, implementations
from tests.support.embedded_server import embedded_server, install_crds
from tests.support.proxy import Proxy, proxy
from tests.support.waiting import eventually
from unbounded.api.core import EVENTS, LEASES, NAMESPACES
from unbounded.api.machine import MACHINES, Machine
from unbounded.kube.api import ApiError, Conflict, ResponseLost
from unbounded.kube.cache import Cache
from unbounded.kube.client import HttpApi
from unbounded.kube.clock import Backoff
from unbounded.kube.config import ClientConfig, from_kubeconfig
from unbounded.kube.controller import Controller
from unbounded.kube.events import EventRecorder, object_reference
from unbounded.kube.lease import LeaderElection
from unbounded.kube.metrics import ControllerMetrics
from unbounded.kube.process_epoch import ProcessEpoch

WAIT_S = 20.0
QUICK = Backoff(base_s=0.02, max_s=0.2)


@dataclass(frozen=True)
class Server:
    admin: ClientConfig
    connect: Callable[..., HttpApi]  # from a ClientConfig and options


@pytest.fixture(params=implementations(memory=False))
def server(request: pytest.FixtureRequest) -> Server:
    return Server(*connector(request, request.param))


@pytest.fixture
async def api(server: Server) -> AsyncIterator[HttpApi]:
    async with server.connect(server.admin) as http:
        yield http
        for item in (await http.list(MACHINES)).items:
            await http.delete(MACHINES, item.name)


@pytest.fixture
async def namespace(api: HttpApi) -> AsyncIterator[str]:
    name = f"wire-{secrets.token_hex(4)}"
    await api.create(NAMESPACES, {"metadata": {"name": name}})
    yield name
    await api.delete(NAMESPACES, name)


@contextlib.asynccontextmanager
async def running(*parts: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
    tasks = [asyncio.ensure_future(part()) for part in parts]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


def machine(name: str, **labels: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "labels": labels}, "spec": {}}


@pytest.mark.slow
async def test_a_controller_brings_every_machine_to_its_status(api: HttpApi, namespace: str) -> None:
    metrics = ControllerMetrics()
    cache: Cache[Machine] = Cache(api, MACHINES)

    async def reconcile(name: str) -> float | None:
        item = cache.get(name)
        if item is None or item.status.message == f"seen {item.metadata.generation}":
            return None
        patch = {
            "metadata": {"resourceVersion": item.metadata.resource_version},
            "status": {"message": f"seen {item.metadata.generation}"},
        }
        cache.observe(await api.patch(MACHINES, name, patch, subresource="status"))
        return None

    controller = Controller("test", reconcile, metrics=metrics)
    controller.follow(cache, lambda item: [item.name])
    recorder = EventRecorder(api, "test")
    election = LeaderElection(api, name="wire", namespace=namespace, identity="me")

    async def lead(_epoch: ProcessEpoch) -> None:
        async with asyncio.TaskGroup() as group:
            for part in (cache.run, controller.run, recorder.run):
                group.create_task(part())

    async with running(lambda: election.run(lead)):
        for number in range(20):
            made = await api.create(MACHINES, machine(f"wire-{number}"))
            recorder.event(object_reference(MACHINES, made), "Normal", "Made", "by the test")
        await api.patch(MACHINES, "wire-3", {"spec": {"provider": "x"}})

        def done() -> bool:
            return sorted(item.status.message or "" for item in cache.all()) == ["seen 1"] * 19 + ["seen 2"]

        await eventually(done, lambda: [item.status.message for item in cache.all()])
        lease = await api.get(LEASES, "wire", namespace=namespace)
        assert lease.spec.holder_identity == "me"

        async def told() -> bool:
            return bool((await api.list(EVENTS, namespace="default")).items)

        await eventually(told)
    lease = await api.get(LEASES, "wire", namespace=namespace)
    assert lease.spec.holder_identity is None


@pytest.mark.slow
async def test_a_list_beyond_one_page_is_whole(api: HttpApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unbounded.kube.client.PAGE", 7)
    for number in range(20):
        await api.create(MACHINES, machine(f"page-{number:02}"))
    assert [item.name for item in (await api.list(MACHINES)).items] == [f"page-{number:02}" for number in range(20)]


# ---- a bad line between


@contextlib.asynccontextmanager
async def through_proxy(server: Server, **options: Any) -> AsyncIterator[tuple[HttpApi, Proxy]]:
    admin = server.admin
    if urlsplit(admin.server).hostname not in {"127.0.0.1", "localhost"}:
        pytest.skip("the proxy stands on loopback, for which the certificate of that server is not good")
    async with proxy(admin.server) as line:
        config = ClientConfig(line.url, admin.credentials, ca=admin.ca)
        async with server.connect(config, **options) as api:
            yield api, line


@pytest.mark.slow
@pytest.mark.parametrize("how", ["cut", "half-open"])
async def test_a_cache_comes_back_after_its_line_failed(api: HttpApi, server: Server, how: str) -> None:
    async with through_proxy(server, silence_s=0.5, call_s=5.0) as (far, line):
        cache: Cache[Machine] = Cache(far, MACHINES, backoff=QUICK)
        told: list[str] = []
        cache.subscribe(lambda old, new: told.append(f"new {new.name}" if new else f"gone {old.name if old else ''}"))
        for name in ("a", "b"):
            await api.create(MACHINES, machine(name))
        async with running(cache.run):
            await eventually(lambda: len(cache) == 2, cache.all)
            if how == "cut":
                line.cut()
                line.refuse = True
            else:
                line.stall = True
            await api.delete(MACHINES, "a")
            await api.create(MACHINES, machine("c"))
            if how == "cut":
                line.refuse = False
            else:
                line.stalled_for_good()  # what is open stays silent; new connections are fine
            await eventually(lambda: sorted(item.name for item in cache.all()) == ["b", "c"], cache.all)
        assert told == ["new a", "new b", "gone a", "new c"]


@pytest.mark.slow
async def test_a_write_whose_answer_is_lost_on_the_line_was_done(api: HttpApi, server: Server) -> None:
    async with through_proxy(server, call_s=1.0) as (far, line):
        made = await far.create(MACHINES, machine("a"))
        line.mute = True
        patch = {"metadata": {"resourceVersion": made.metadata.resource_version}, "spec": {"provider": "x"}}
        with pytest.raises(ResponseLost):
            await far.patch(MACHINES, "a", patch)
        line.mute = False
        line.cut()
        assert (await api.get(MACHINES, "a")).spec.provider == "x"
        with pytest.raises(Conflict):
            await far.patch(MACHINES, "a", patch)


@pytest.mark.slow
async def test_a_cache_outlives_a_restart_of_the_server(tmp_path: Path) -> None:
    """With a server of its own, whose data stays."""

    def start() -> contextlib.AbstractContextManager[Path]:
        return embedded_server(tmp_path / "data")

    with start() as kubeconfig:
        await install_crds(kubeconfig)
        config = from_kubeconfig(kubeconfig)
        async with HttpApi(config) as api:
            await api.create(MACHINES, machine("a"))
    async with HttpApi(config) as api:
        cache: Cache[Machine] = Cache(api, MACHINES, backoff=QUICK)
        async with running(cache.run):
            with start() as kubeconfig:
                api.config = from_kubeconfig(kubeconfig)
                await eventually(lambda: len(cache) == 1, cache.all)
            with start() as kubeconfig:
                api.config = from_kubeconfig(kubeconfig)
                await _patiently(lambda: api.create(MACHINES, machine("b")))
                await eventually(lambda: len(cache) == 2, cache.all)


async def _patiently(call: Callable[[], Awaitable[Any]]) -> None:
    async with asyncio.timeout(WAIT_S):
        while True:
            with contextlib.suppress(ApiError):
                await call()
                return
            await asyncio.sleep(0.05)
