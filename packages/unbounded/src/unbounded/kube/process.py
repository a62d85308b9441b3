"""The frame of every controller process: connect, lead, serve health and metrics, and stop.

A process whose code ignores cancellation or blocks is ended by force, with a log of where it does so.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Final, Self

from aiohttp import web

from unbounded.api.names import NAMESPACE
from unbounded.kube.api import Api
from unbounded.kube.cache import Cache
from unbounded.kube.client import HttpApi
from unbounded.kube.clock import WallClock, utc_now
from unbounded.kube.config import ConfigError, find_config
from unbounded.kube.events import EventRecorder
from unbounded.kube.lease import LeaderElection
from unbounded.kube.logs import Log, configure
from unbounded.kube.metrics import CONTENT_TYPE, ControllerMetrics
from unbounded.kube.process_epoch import SYSTEM, Predecessor, ProcessEpoch, new_identity, runtime_folder
from unbounded.kube.process_tuning import raise_gc_threshold
from unbounded.kube.settings import HEARTBEAT_ALIVE, HEARTBEAT_S, HEARTBEAT_SERVING, Address, Election, ProcessSettings
from unbounded.kube.tracing import NO_TRACER, Tracer

ELECTION: Final = Election()
FORCED_EXIT_STATUS: Final = 3  # exit status
MAX_LOGGED: Final = 20
STALLED_S: Final = 10.0
_ASYNCIO: Final = str(Path(asyncio.__file__).parent)
SHUTDOWN_S: Final = 1.0  # of the health server
_WAITING_FILES: Final = frozenset({"taskgroups.py", "selectors.py"})

HealthCheck = Callable[[], str | None]

log = Log("process")


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


class StartupError(Exception):
    """A process that cannot start as configured; the message names the fault, and what would be right."""


def print_startup_error(start: Callable[[], int]) -> int:
    """Return the exit status of a process: that of `start`, or 1 and a message on standard error for a StartupError."""
    try:
        return start()
    except* StartupError as group:
        for reason in _messages(group):
            print(f"error: {reason}", file=sys.stderr)
    return 1


def _messages(group: BaseExceptionGroup[StartupError]) -> list[str]:
    """The messages of what came out of nested task groups, each once."""
    found: list[str] = []
    for one in group.exceptions:
        found += _messages(one) if isinstance(one, BaseExceptionGroup) else [str(one)]
    return list(dict.fromkeys(found))


@dataclass(frozen=True)
class Runtime:
    """The services that a process provides to its controllers.

    Args:
        elects: whether a Lease elects the leader; False where another lock excludes other processes.
        checks: receives everything that has to exist before the process is ready.
        serving: called once its controllers work; the process is starting until then.
        epoch: of the process, where it does not elect.
        now: the API server's time, for timestamps and for comparisons with the server's timestamps.
        runtime_folder: proves to a process that its predecessor on this machine has ended.
    """

    api: Api
    metrics: ControllerMetrics = field(default_factory=ControllerMetrics)
    events: EventRecorder | None = None
    elects: bool = False
    checks: Callable[[str, HealthCheck], None] = lambda _name, _check: None
    serving: Callable[[], None] = lambda: None
    epoch: ProcessEpoch = field(default_factory=ProcessEpoch)
    now: WallClock = utc_now
    runtime_folder: Path = SYSTEM
    tracer: Tracer = NO_TRACER

    async def lead(
        self,
        lease: str,
        work: Callable[[ProcessEpoch], Awaitable[None]],
        times: Election = ELECTION,
        *,
        namespace: str = NAMESPACE,
    ) -> None:
        """Do the work as long as this process leads, each time in another epoch: again after it lost the Lease."""
        if not self.elects:
            self.metrics.leading.labels(lease).set(1)
            if self.epoch.epoch is not None:
                self.metrics.epoch.labels(lease).set(self.epoch.epoch.number)
            await work(self.epoch)
            return
        identity, predecessor = new_identity(), Predecessor(self.runtime_folder, lease)
        election = LeaderElection(
            self.api,
            name=lease,
            namespace=namespace,
            identity=identity,
            ended=predecessor.succeed(identity),
            duration_s=times.duration_s,
            renew_s=times.renew_s,
            retry_s=times.retry_s,
            metrics=self.metrics,
        )
        await election.run(work)


@asynccontextmanager
async def running_caches(runtime: Runtime, *caches: Cache[Any]) -> AsyncIterator[None]:
    """Run caches while inside; entered when all of them are filled."""
    for cache in caches:
        runtime.checks(f"{cache.kind.plural} cache", _synced(cache))
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(cache.run(), name=f"cache {cache.kind.plural}") for cache in caches]
        try:
            for cache in caches:
                await cache.synced.wait()
            yield
        finally:
            for task in tasks:
                task.cancel()


def _synced(cache: Cache[Any]) -> HealthCheck:
    return lambda: None if cache.synced.is_set() else "not synced"


@dataclass(frozen=True)
class HealthServers:
    """The servers of /metrics, /healthz and /readyz of one process."""

    servers: tuple[HealthServer, ...]

    def check(self, name: str, check: HealthCheck) -> None:
        """Register what has to be there before the process counts as ready."""
        for server in self.servers:
            server.check(name, check)


@asynccontextmanager
async def serving_health(metrics: ControllerMetrics, addresses: tuple[Address, ...]) -> AsyncIterator[HealthServers]:
    """Serve on each address while inside."""
    health = HealthServers(
        tuple(HealthServer(metrics, host=address.host, port=address.port) for address in dict.fromkeys(addresses))
    )
    async with AsyncExitStack() as stack:
        for server in health.servers:
            await stack.enter_async_context(server)
            log.info("serving health and metrics", host=server.host or "*", port=server.port)
        yield health


_ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS: Final = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_HTTP: Final = "http/protobuf"


def wants_traces(environ: Mapping[str, str]) -> bool:
    """Return whether the variables of OpenTelemetry request traces: an endpoint, or the exporter `otlp`.

    Raises:
        StartupError: they request what this project does not send.
    """
    exporter = environ.get("OTEL_TRACES_EXPORTER", "").strip()
    endpoint = any(environ.get(name, "").strip() for name in _ENDPOINTS)
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true" or exporter == "none":
        return False
    if not exporter and not endpoint:
        return False
    if exporter not in ("", "otlp"):
        raise StartupError(f"OTEL_TRACES_EXPORTER: {exporter!r} is not supported; set it to otlp or none")
    protocol = next((found for name in _PROTOCOLS if (found := environ.get(name, "").strip())), _HTTP)
    if protocol != _HTTP:
        raise StartupError(f"{' or '.join(_PROTOCOLS)}: {protocol!r} is not supported; set it to {_HTTP}")
    return True


@contextmanager
def open_tracer(environ: Mapping[str, str], service: str) -> Iterator[Tracer]:
    """Send traces inside of the context, where the variables of OpenTelemetry request that.

    Args:
        service: the default of OTEL_SERVICE_NAME.

    Raises:
        StartupError: the SDK is missing, or the variables request what this project does not send.
    """
    if not wants_traces(environ):
        yield NO_TRACER
        return
    try:
        from unbounded.kube.otel import otlp_tracer  # noqa: PLC0415  # an extra
    except ImportError as error:
        raise StartupError(f"traces are requested by OTEL_*: install unbounded[otel] ({error})") from error
    with otlp_tracer(service) as tracer:
        yield tracer


def run_process(
    settings: ProcessSettings, environ: Mapping[str, str], main: Callable[[Runtime], Coroutine[Any, Any, None]]
) -> int:
    """Run a controller process until SIGINT or SIGTERM; returns its exit status."""
    configure(json=settings.log_format == "json", level=settings.log_level)
    raise_gc_threshold()
    return print_startup_error(lambda: _run(settings, environ, main))


def _run(
    settings: ProcessSettings, environ: Mapping[str, str], main: Callable[[Runtime], Coroutine[Any, Any, None]]
) -> int:
    try:
        with open_tracer(environ, settings.component) as tracer:
            work = _connected(settings, environ, main, tracer)
            return asyncio.run(until_signal(work, ends_within_s=settings.ends_within_s))
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        listening = ", ".join(f"{address.host}:{address.port}" for address in settings.health)
        print(f"error: {error.strerror or error} (health and metrics are served on {listening})", file=sys.stderr)
        return 1


async def _connected(
    settings: ProcessSettings,
    environ: Mapping[str, str],
    main: Callable[[Runtime], Coroutine[Any, Any, None]],
    tracer: Tracer,
) -> None:
    """Run `main` with a connection to the cluster, its events, and its health."""
    config = find_config(environ, kubeconfig=settings.kubeconfig, context=settings.context)
    metrics = ControllerMetrics()
    async with (
        serving_health(metrics, settings.health) as health,
        HttpApi(config, user_agent=settings.component, metrics=metrics) as api,
        asyncio.TaskGroup() as group,
    ):
        if settings.ends_within_s is not None:
            log_loop_stalls(asyncio.get_running_loop())
        events = EventRecorder(api, settings.component, metrics=metrics)
        tasks = [group.create_task(events.run(), name="events")]
        heart = Heartbeat(settings.heartbeat_fd)
        if settings.heartbeat_fd is not None:
            tasks.append(group.create_task(heart.beat(), name="heartbeat"))
        try:
            await main(
                Runtime(
                    api,
                    metrics,
                    events,
                    settings.leader_election,
                    health.check,
                    serving=heart.serving,
                    now=api.now,
                    runtime_folder=runtime_folder(environ),
                    tracer=tracer,
                )
            )
        finally:
            for task in tasks:
                task.cancel()


class Heartbeat:
    """The heartbeat of a process on a pipe to its parent.

    Args:
        descriptor: the pipe; None without a parent that listens.
    """

    def __init__(self, descriptor: int | None) -> None:
        self._descriptor = descriptor
        self._state = HEARTBEAT_ALIVE

    async def beat(self) -> None:
        """Report at once and then every HEARTBEAT_S that the loop turns and whether the process serves."""
        while True:
            self._write()
            await asyncio.sleep(HEARTBEAT_S)

    def serving(self) -> None:
        """Report from now on that the process serves."""
        self._state = HEARTBEAT_SERVING
        self._write()

    def _write(self) -> None:
        if self._descriptor is None:
            return
        os.set_blocking(self._descriptor, False)
        with contextlib.suppress(OSError):  # the parent does not read, or has ended
            os.write(self._descriptor, self._state)


async def until_signal(work: Coroutine[Any, Any, int | None], *, ends_within_s: float | None = None) -> int:
    """Run `work` to its end, or cancel it at the first SIGINT or SIGTERM and wait for it; the exit status.

    A second signal does what it does by default: it ends the process at once.

    Args:
        ends_within_s: of the first one, the process ends all the same; None waits for as long as it takes.
    """
    loop = asyncio.get_running_loop()
    task = loop.create_task(work, name="main")
    signals = (signal.SIGINT, signal.SIGTERM)

    def stop(number: signal.Signals) -> None:
        log.info("stopping", signal=number.name, pid=os.getpid())
        for one in signals:
            loop.remove_signal_handler(one)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        if ends_within_s is not None:
            exit_within(ends_within_s)
        task.cancel()

    for number in signals:
        loop.add_signal_handler(number, stop, number)
    with contextlib.suppress(asyncio.CancelledError):
        return await task or 0
    return 0


def exit_within(limit_s: float) -> None:
    """End the process after a limit, whatever still runs in it. The event loop must be running.

    The Lease of unfinished work is not released, as its next write is unknown. It expires after its duration.
    """
    loop = asyncio.get_running_loop()
    timer = threading.Timer(limit_s, _force_exit, (loop, limit_s))
    timer.daemon = True
    timer.start()


def _force_exit(loop: asyncio.AbstractEventLoop, limit_s: float) -> None:
    try:
        for where in unfinished_work(loop)[:MAX_LOGGED]:
            log.error("does not end", within_s=limit_s, **where)
        log.error("cut off", exit_status=FORCED_EXIT_STATUS)
        sys.stderr.flush()
    finally:
        os._exit(FORCED_EXIT_STATUS)


def unfinished_work(loop: asyncio.AbstractEventLoop) -> list[dict[str, str]]:
    """Return the cancelled tasks that do more than wait for others, and the threads, each with its position."""
    found = [
        {"task": task.get_name(), "at": at}
        for task in asyncio.all_tasks(loop)
        if task.cancelling() and (at := _position(_frames(task.get_coro())))
    ]
    running = sys._current_frames()
    found += [
        {"thread": thread.name, "at": at}
        for thread in threading.enumerate()
        if not thread.daemon and (at := _position([running[one] for one in (thread.ident,) if one in running]))
    ]
    return found


def log_loop_stalls(loop: asyncio.AbstractEventLoop, after_s: float = STALLED_S) -> None:
    """Log the position of the main thread when its event loop stalls for `after_s`; once a stall."""
    threading.Thread(target=_watch_loop, args=(loop, after_s), name="standstill", daemon=True).start()


def _watch_loop(loop: asyncio.AbstractEventLoop, after_s: float) -> None:
    with suppress(RuntimeError):  # it has been closed
        while True:
            turned = threading.Event()
            loop.call_soon_threadsafe(turned.set)
            if not turned.wait(after_s):
                frame = sys._current_frames().get(threading.main_thread().ident or 0)
                at = "" if frame is None else _position([frame])
                log.warning("event loop is blocked", within_s=after_s, at=at)
                turned.wait()
            time.sleep(after_s)


def _frames(coroutine: Any) -> list[FrameType]:
    """Return the frames of a coroutine, the outermost first."""
    frames: list[FrameType] = []
    while coroutine is not None:
        frame = getattr(coroutine, "cr_frame", None) or getattr(coroutine, "gi_frame", None)
        frames += [frame] if frame is not None else []
        coroutine = getattr(coroutine, "cr_await", None) or getattr(coroutine, "gi_yieldfrom", None)
    return frames


def _position(frames: Sequence[FrameType]) -> str:
    """Return the innermost position; empty if it only waits for other tasks or for I/O."""
    if not frames or Path(frames[-1].f_code.co_filename).name in _WAITING_FILES:
        return ""
    named = next((frame for frame in reversed(frames) if _ASYNCIO not in frame.f_code.co_filename), frames[-1])
    return f"{named.f_code.co_filename}:{named.f_lineno} {named.f_code.co_qualname}"
