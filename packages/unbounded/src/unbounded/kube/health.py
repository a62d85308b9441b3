"""The HTTP server for operators of a process: /metrics, /healthz and /readyz."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

from aiohttp import web

from unbounded.kube.logs import Log
from unbounded.kube.metrics import CONTENT_TYPE, ControllerMetrics

SHUTDOWN_S: Final = 1.0

HealthCheck = Callable[[], str | None]

log = Log(__name__)


class HealthServer:
    """An async context manager that serves health and metrics; with `port` 0 it takes a free one and sets `port`.

    /healthz answers as long as the event loop turns. /readyz answers 200 when every registered check returns None, and
    else 503 with the messages of the failed checks.
    """

    def __init__(self, metrics: ControllerMetrics, *, host: str = "127.0.0.1", port: int = 0) -> None:
        self.host = host
        self.port = port
        self._metrics = metrics
        self._checks: dict[str, HealthCheck] = {}
        self._runner: web.AppRunner | None = None

    def check(self, name: str, check: HealthCheck) -> None:
        """Register a readiness check: None when ready, else what is missing."""
        self._checks[name] = check

    def synced(self, name: str, event: asyncio.Event) -> None:
        """Register a check that waits for an event, as `Cache.synced` is one."""
        self.check(name, lambda: None if event.is_set() else "not synced")

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.router.add_get("/metrics", self._serve_metrics)
        app.router.add_get("/healthz", self._serve_health)
        app.router.add_get("/readyz", self._serve_readiness)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=SHUTDOWN_S)
        await self._runner.setup()
        site = web.TCPSite(self._runner, self.host, self.port)
        await site.start()
        self.port = self._runner.addresses[0][1]
        log.debug("serving health", host=self.host, port=self.port)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _serve_metrics(self, _: web.Request) -> web.Response:
        return web.Response(body=self._metrics.text(), headers={"Content-Type": CONTENT_TYPE})

    async def _serve_health(self, _: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def _serve_readiness(self, _: web.Request) -> web.Response:
        missing = {name: why for name, check in self._checks.items() if (why := check()) is not None}
        lines = [f"[-]{name}: {missing[name]}" if name in missing else f"[+]{name} ok" for name in self._checks]
        return web.Response(text="\n".join([*lines, "not ready" if missing else "ok"]), status=503 if missing else 200)
