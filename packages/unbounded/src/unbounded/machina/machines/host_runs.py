"""Background work on hosts: one run at a time for a Machine, until its result; probes of SSH ports; metrics."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from unbounded.api.conditions import fit_message
from unbounded.api.failures import Failure, Transient
from unbounded.api.machine import PROVISIONING, SSHHop
from unbounded.kube.clock import loop_time
from unbounded.kube.logs import Log
from unbounded.kube.tracing import NO_TRACER, Tracer
from unbounded.machina.machines.model import Attempt
from unbounded.machina.provisioning.model import ObservedRun
from unbounded.machina.ssh.model import FirstUse, Ssh, SshReason, SshRejected, SshRoute, SshTransient

PROGRESS_EVERY_S: Final = 5.0  # shortest interval between writes of progress
PROGRESS_CHARACTERS: Final = 512

log = Log("machines")

Wake = Callable[[str, float], None]  # (machine, seconds until its next pass)


@dataclass
class HostRun:
    """State of a run.

    Args:
        generation: of the Machine at the start of the login.
        sent: something may run on the host, so a broken connection does not end the run.
        touched: something may have been started on the host, by this run or an earlier one.
    """

    attempt: str
    began_at: float
    step: str = "waiting for capacity"
    progress: str = ""
    version: str = ""
    generation: int = 0
    sent: bool = False
    touched: bool = False
    ended: ObservedRun | Failure | None = None
    on_news: Callable[[], None] = field(default=lambda: None, repr=False)

    def snapshot(self, now: float) -> Attempt:
        return Attempt(
            attempt=self.attempt,
            step=self.step,
            seconds=now - self.began_at,
            progress=self.progress,
            ended=self.ended,
            version=self.version,
            generation=self.generation,
            touched=self.touched,
        )


class HostRuns:
    """Runs of one kind, in a task group of the term. They end with the term; processes on the hosts continue.

    A Machine that cannot start a run because of the limit waits in a queue. It is woken when a run may start. Then it
    must leave the queue: by a start, or by `dequeue`, which wakes the next Machine.

    Args:
        at_once: concurrency limit.
        wake: called when a Machine has news.
        kind: of the runs, for traces. The trace of a run has an id of its own.
    """

    def __init__(self, at_once: int, wake: Wake, *, kind: str = PROVISIONING, tracer: Tracer = NO_TRACER) -> None:
        self._kind = kind
        self._tracer = tracer
        self._at_once = at_once
        self._wake = wake
        self._runs: dict[str, tuple[HostRun, asyncio.Task[None]]] = {}
        self._reserved: set[str] = set()  # Machines that are about to start a run
        self._waiting: dict[str, None] = {}  # Machines beyond the limit, in order

    def of(self, machine: str) -> Attempt | None:
        known = self._runs.get(machine)
        return None if known is None else known[0].snapshot(loop_time())

    @property
    def active(self) -> int:
        """Number of active runs. A cancelled run has no result and is not active."""
        return sum(run.ended is None and not task.done() for run, task in self._runs.values())

    @property
    def free(self) -> int:
        return max(self._at_once - self.active - len(self._reserved), 0)

    @contextmanager
    def reserve(self, machine: str) -> Iterator[None]:
        """Reserve capacity for a Machine that is about to start a run; unused capacity goes to the next one."""
        self._waiting.pop(machine, None)
        self._reserved.add(machine)
        try:
            yield
        finally:
            self._reserved.discard(machine)
            self._wake_next()

    def enqueue(self, machine: str) -> None:
        """Add a Machine to the queue, as the limit is reached."""
        self._waiting.setdefault(machine)

    def dequeue(self, machine: str) -> None:
        """Remove a Machine that does not want to start a run, or cannot."""
        if machine in self._waiting:
            del self._waiting[machine]
            self._wake_next()

    def start(
        self, group: asyncio.TaskGroup, machine: str, attempt: str, work: Callable[[HostRun], Awaitable[ObservedRun]]
    ) -> None:
        """Start a run unless one of the Machine is active."""
        known = self._runs.get(machine)
        if known is not None and known[0].ended is None:
            return
        run = HostRun(attempt, loop_time())
        task = group.create_task(self._carry(machine, run, work), name=f"{machine}: {attempt}")
        self._runs[machine] = (run, task)

    async def stop(self, machine: str) -> None:
        """Cancel the run in this process; the process on the host continues."""
        known = self._runs.get(machine)
        if known is not None:
            _, task = known
            task.cancel()
            await asyncio.wait({task})
        self.forget(machine)

    def forget(self, machine: str) -> None:
        """Drop the run of a Machine after its result was recorded, or if no controller needs it."""
        self._runs.pop(machine, None)
        self._waiting.pop(machine, None)
        self._wake_next()

    def report_progress(self, machine: str, run: HostRun, text: str) -> None:
        """Store a line of progress and wake the Machine."""
        run.on_news()
        line = fit_message(text.strip(), PROGRESS_CHARACTERS)
        if line and line != run.progress:
            run.progress = line
            self._wake(machine, PROGRESS_EVERY_S)

    async def _carry(self, machine: str, run: HostRun, work: Callable[[HostRun], Awaitable[ObservedRun]]) -> None:
        trace, began = f"{machine} {run.attempt}", time.time()
        try:
            with self._tracer.within(trace):
                run.ended = await work(run)
        except Failure as failure:
            run.ended = failure
        except Exception:
            log.exception("work on the host failed", machine=machine, attempt=run.attempt)
            run.ended = Transient("machina met an internal error; its log has the details")
        error = str(run.ended) if isinstance(run.ended, Failure) else None
        attributes = {"unbounded.machine": machine, "unbounded.attempt": run.attempt}
        self._tracer.ended(trace, self._kind, began, attributes, error)
        self._wake(machine, 0.0)
        self._wake_next()

    def _wake_next(self) -> None:
        """Wake as many Machines as the limit allows. A woken one stays queued until its pass: another may be faster."""
        for machine in islice(self._waiting, self.free if self._waiting else 0):
            self._wake(machine, 0.0)


PROBE_S: Final = 90.0  # of one probe, through a bastion and with the write of a pin: beyond the limits of SSH itself

ProbeCallback = Callable[[SshTransient | SshRejected | None], None]
"""(error of the probe, None if the port answered): called when a probe has ended."""


class Prober:
    """Probes of SSH ports, with a concurrency limit; a host that hangs delays only itself."""

    def __init__(self, ssh: Ssh, at_once: int, metrics: MachineMetrics) -> None:
        self._ssh = ssh
        self._turns = asyncio.Semaphore(at_once)
        self._metrics = metrics

    def start(
        self,
        group: asyncio.TaskGroup,
        machine: str,
        route: Callable[[], Awaitable[SshRoute]],
        first_use: FirstUse,
        on_probe: ProbeCallback,
    ) -> asyncio.Task[None]:
        return group.create_task(self._probe(machine, route, first_use, on_probe), name=f"{machine}: probe")

    async def _probe(
        self, machine: str, route: Callable[[], Awaitable[SshRoute]], first_use: FirstUse, on_probe: ProbeCallback
    ) -> None:
        async with self._turns:
            error = await self._error(machine, route, first_use)
        self._metrics.probed(str(error.reason) if error is not None else "Reachable")
        on_probe(error)

    async def _error(
        self, machine: str, route: Callable[[], Awaitable[SshRoute]], first_use: FirstUse
    ) -> SshTransient | SshRejected | None:
        try:
            async with asyncio.timeout(PROBE_S):
                await self._ssh.probe(await route(), on_first_use=first_use)
        except (SshTransient, SshRejected) as error:
            return error
        except TimeoutError:
            return SshTransient(SshReason.TIMED_OUT, SSHHop.HOST, f"no answer within {PROBE_S:.0f} s")
        except Failure as error:  # an error of the API while a key was pinned, or an invalid address
            return SshTransient(SshReason.UNREACHABLE, SSHHop.HOST, str(error))
        except Exception:
            log.exception("probe failed", machine=machine)
            return SshTransient(
                SshReason.UNREACHABLE, SSHHop.HOST, "machina met an internal error; its log has the details"
            )
        return None


class MachineMetrics:
    """Metrics of one process, in its registry. Without names of Machines, so that labels stay few."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        registry = registry or CollectorRegistry()
        self._attempts = Counter(
            "unbounded_provisioning_attempts",
            "Ended attempts to set up a host over SSH, by result: Completed, or the reason of the failure.",
            ("result",),
            registry=registry,
        )
        self._seconds = Histogram(
            "unbounded_provisioning_seconds",
            "Duration of attempts to set up a host over SSH, by success.",
            ("result",),
            buckets=(5, 15, 30, 60, 120, 300, 600, 1200, 1800, 3600),
            registry=registry,
        )
        self._probes = Counter("unbounded_ssh_probes", "Probes of SSH ports by result.", ("result",), registry=registry)
        self._running = Gauge("unbounded_provisioning_running", "Hosts in setup over SSH.", registry=registry)

        self._connections = Gauge("unbounded_ssh_connections", "Open logins to hosts and bastions.", registry=registry)

    def attempt_ended(self, failure: str | None, seconds: float) -> None:
        self._attempts.labels(failure or "Completed").inc()
        self._seconds.labels("Failed" if failure else "Completed").observe(seconds)

    def probed(self, result: str) -> None:
        self._probes.labels(result).inc()

    def count_running(self, count: Callable[[], int]) -> None:
        self._running.set_function(count)

    def count_connections(self, count: Callable[[], int]) -> None:
        self._connections.set_function(count)
