"""Scheduled back-ups of `unbounded up` into a folder, which should be on another machine.

A separate process makes each back-up (`backup_commands`). The schedule kills a process that exceeds the time limit, as
on a hung share. A failed back-up does not make the control plane unready. The failure is logged as an error, counted
in /metrics, and shown in ConfigMap unbounded-kube/unbounded-backups until a back-up succeeds.
"""

from __future__ import annotations

import asyncio
import contextlib
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec
from prometheus_client import CollectorRegistry, Counter, Gauge

from unbounded.api.core import CONFIG_MAPS, NAMESPACES
from unbounded.api.failures import Failure
from unbounded.api.names import NAMESPACE
from unbounded.cli import child
from unbounded.cli.backup_commands import BackupResult
from unbounded.cli.settings import BackupSettings
from unbounded.kube.api import Api, NotFound
from unbounded.kube.clock import rfc3339, utc_now
from unbounded.kube.logs import Log

NAME: Final = "unbounded-backups"
RESTART_S: Final = 300.0  # after an unexpected error in the schedule itself
LEAVE_S: Final = 5.0  # for a killed process to end; one that is blocked on a hung share does not

log = Log("backups")


class ScheduledBackupFailed(Exception):
    """No back-up was written; the message has the cause."""


@dataclass
class BackupMetrics:
    """Metrics of back-ups, in the registry of the process."""

    registry: CollectorRegistry
    done: Counter = field(init=False)
    last: Gauge = field(init=False)
    size: Gauge = field(init=False)

    def __post_init__(self) -> None:
        self.done = Counter("unbounded_backups", "Backups by result.", ("result",), registry=self.registry)
        for result in ("success", "failure"):
            self.done.labels(result)
        self.last = Gauge(
            "unbounded_backup_last_success_timestamp_seconds",
            "Time of the newest backup; 0 if there is none.",
            registry=self.registry,
        )
        self.size = Gauge("unbounded_backup_size_bytes", "Size of the newest backup.", registry=self.registry)


Command = Callable[..., Sequence[str]]


class BackupSchedule:
    """Schedule of the back-ups of one data directory.

    Args:
        command: returns the command line that runs a module in a child process.
    """

    def __init__(
        self,
        settings: BackupSettings,
        data: Path,
        api: Api,
        metrics: BackupMetrics,
        *,
        command: Command = child.command,
    ) -> None:
        self._settings = settings
        self._data = data
        self._api = api
        self._metrics = metrics
        self._command = command
        self._identity = ""
        self._elsewhere = False
        self._failing_since: str | None = None
        self._last: datetime | None = None
        self._warned = False  # whether it has warned that back-ups are on the disk of the data

    async def run(self) -> None:
        """Make a back-up whenever one is due, until cancelled. A restart of the process makes none before its time."""
        await self._load_state()
        wait_s = self._first_s()
        while True:
            await asyncio.sleep(wait_s)
            wait_s = await self._make_backup()

    async def _load_state(self) -> None:
        self._identity = (await self._api.get(NAMESPACES, "kube-system")).metadata.uid or ""
        with contextlib.suppress(NotFound):
            values = (await self._api.get(CONFIG_MAPS, NAME, namespace=NAMESPACE)).data
            self._failing_since = values.get("failingSince")
            if values.get("folder") == str(self._settings.folder):
                self._elsewhere = values.get("elsewhere") == "true"
                self._last = _moment(values.get("lastSuccess", ""))

    def _first_s(self) -> float:
        """Return the seconds until the first back-up is due; does not touch the folder, which may be a hung share."""
        if self._last is None:
            return 0.0
        self._metrics.last.set(self._last.timestamp())
        age_s = (utc_now() - self._last).total_seconds()
        return min(max(self._settings.every_s - age_s, 0.0), self._settings.every_s)

    async def _make_backup(self) -> float:
        """Make one back-up and report its result; returns the seconds until the next one."""
        try:
            written = await self._run_process()
        except ScheduledBackupFailed as error:
            why = str(error)
        else:
            await self._succeeded(written)
            return self._settings.every_s
        await self._failed(why)
        return min(self._settings.every_s, self._settings.again_s)

    async def _failed(self, why: str) -> None:
        self._metrics.done.labels("failure").inc()
        self._failing_since = self._failing_since or rfc3339(utc_now())
        log.error("backup failed", folder=str(self._settings.folder), why=why, since=self._failing_since)
        await self._publish({"failingSince": self._failing_since, "trouble": why})

    async def _succeeded(self, written: BackupResult) -> None:
        folder = str(self._settings.folder)
        self._metrics.done.labels("success").inc()
        self._metrics.last.set(written.created.timestamp())
        self._metrics.size.set(written.size)
        log.info("backup created", folder=folder, file=written.file, objects=written.objects, size=written.size)
        if written.same_disk and not self._warned:
            self._warned = True
            log.warning("backups are on the disk of the data, and are lost with it", folder=folder)
        self._failing_since, self._elsewhere = None, not written.same_disk
        values = {"lastSuccess": rfc3339(written.created), "lastFile": written.file}
        values["elsewhere"] = "false" if written.same_disk else "true"
        await self._publish({**values, "failingSince": None, "trouble": None})

    async def _run_process(self) -> BackupResult:
        settings = self._settings
        flags = ("--keep", str(settings.keep), *(("--elsewhere",) if self._elsewhere else ()))
        arguments = (str(self._data), str(settings.folder), self._identity, *flags)
        command = self._command("unbounded.cli.backup_commands", *arguments)
        process = await asyncio.create_subprocess_exec(
            *command, stdin=asyncio.subprocess.DEVNULL, stdout=PIPE, stderr=PIPE
        )
        try:
            async with asyncio.timeout(settings.limit_s):
                output, errors = await process.communicate()
        except TimeoutError:
            raise ScheduledBackupFailed(
                f"it was not complete after {settings.limit_s:g} s; a network share may hang"
            ) from None
        finally:
            await _end(process)
        if process.returncode != 0:
            values = errors.decode(errors="replace").strip().splitlines()
            raise ScheduledBackupFailed(values[-1] if values else f"its process ended with status {process.returncode}")
        return msgspec.json.decode(output, type=BackupResult)

    async def _publish(self, values: Mapping[str, str | None]) -> None:
        data = {"folder": str(self._settings.folder), **values}
        metadata = {"name": NAME, "namespace": NAMESPACE}
        try:
            try:
                await self._api.patch(CONFIG_MAPS, NAME, {"data": data}, namespace=NAMESPACE)
            except NotFound:
                there = {key: value for key, value in data.items() if value is not None}
                await self._api.create(CONFIG_MAPS, {"metadata": metadata, "data": there}, namespace=NAMESPACE)
        except Failure as error:
            log.warning("cannot report the result of the backup in the API", error=error)


def _moment(text: str) -> datetime | None:
    """Parse a time as `rfc3339` writes it. Return None for anything else: users can edit the ConfigMap."""
    try:
        return datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
    except ValueError:
        return None


async def _end(process: Process) -> None:
    if process.returncode is None:
        process.kill()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), LEAVE_S)


@asynccontextmanager
async def scheduled_backups(
    settings: BackupSettings | None, data: Path, api: Api, registry: CollectorRegistry
) -> AsyncIterator[None]:
    """Make back-ups inside the context, if settings for them are given."""
    if settings is None:
        yield
        return
    schedule = BackupSchedule(settings, data, api, BackupMetrics(registry))
    task = asyncio.create_task(_run_for_ever(schedule), name="backups")
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})


async def _run_for_ever(schedule: BackupSchedule) -> None:
    """Run a schedule; an unexpected exception stops back-ups for RESTART_S, and nothing else."""
    while True:
        try:
            await schedule.run()
        except Exception:
            log.exception("backups failed, starting again")
            await asyncio.sleep(RESTART_S)
