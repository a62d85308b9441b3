"""Health reports of a process."""

from __future__ import annotations

import asyncio

import aiohttp
import pytest

from unbounded.kube.metrics import ControllerMetrics
from unbounded.kube.process import HealthServer


async def test_readiness_names_what_is_missing() -> None:
    synced = asyncio.Event()
    metrics = ControllerMetrics()
    metrics.reconciles.labels("steward", "done").inc(3)
    async with HealthServer(metrics) as server, aiohttp.ClientSession(f"http://127.0.0.1:{server.port}") as session:
        server.synced("machines", synced)
        server.check("lease", lambda: None)
        async with session.get("/readyz") as response:
            assert (response.status, await response.text()) == (
                503,
                "[-]machines: not synced\n[+]lease ok\nnot ready",
            )
        synced.set()
        async with session.get("/readyz") as response:
            assert (response.status, (await response.text()).endswith("\nok")) == (200, True)
        async with session.get("/healthz") as response:
            assert (response.status, await response.text()) == (200, "ok")
        async with session.get("/metrics") as response:
            assert 'unbounded_reconciles_total{controller="steward",result="done"} 3.0' in await response.text()
            assert response.content_type == "text/plain"


async def test_it_stops_serving_when_it_is_left() -> None:
    async with HealthServer(ControllerMetrics()) as server:
        port = server.port
    async with aiohttp.ClientSession() as session:
        with pytest.raises(aiohttp.ClientConnectorError):
            await session.get(f"http://127.0.0.1:{port}/healthz")
