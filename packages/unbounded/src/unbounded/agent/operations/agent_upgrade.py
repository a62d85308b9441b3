"""AgentUpgrade: observes the progress of an upgrade and executes its next action.

`agent.upgrade.procedure` has the table of its stages.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from unbounded.agent.durations import BOUNDS, Durations, TimedWork
from unbounded.agent.interfaces import Commands
from unbounded.agent.lock import WITHIN_S
from unbounded.agent.upgrade import procedure as table
from unbounded.agent.upgrade import staging
from unbounded.agent.upgrade.health import DEFAULT_WINDOW_S, UpgradeContext, overdue_s, prove
from unbounded.agent.upgrade.procedure import UpgradeState
from unbounded.agent.upgrade.switching import discard, put_on_trial, restart_daemon, revert_switch
from unbounded.agent.upgrade.trial import Trial, TrialProgress
from unbounded.api.failures import Failure, Rejected, Transient
from unbounded.api.machine import MACHINES
from unbounded.api.operation import MachineOperation
from unbounded.join.agent_config import UpgradeConfig
from unbounded.kube.api import Api
from unbounded.kube.logs import Log
from unbounded.operations.deadline import deadline_s
from unbounded.operations.execution_record import run_of
from unbounded.operations.executor_protocol import Refusal, Target
from unbounded.operations.executor_selection import ExecutorKind
from unbounded.operations.parameters import invalid
from unbounded.operations.reasons import INTERNAL_ERROR, INVALID_PARAMETERS
from unbounded.workflow.procedure import Observation, Procedure

log = Log("agent")

_ROOM_S: Final = 60.0  # part of a deadline beyond the health window
_KEY_PAUSES_S: Final = (1.0, 5.0, 15.0)
_OVERDUE_ROOM_S: Final = 120.0  # time for a rollback to complete and to be observed
_FAILED: Final = {
    table.DOWNLOAD_FAILED: UpgradeState.FETCH_FAILED,
    table.UNUSABLE_RELEASE: UpgradeState.UNUSABLE,
    table.FAILED_BEFORE: UpgradeState.KNOWN_BAD,
}


def trial_limit_s(window_s: int, start_s: float = BOUNDS[TimedWork.DAEMON].floor) -> float:
    """Return the seconds from the switch until a release with this health window is proven or rolled back."""
    return overdue_s(window_s, start_s) + _OVERDUE_ROOM_S


@dataclass
class _Job:
    """Download of a release into its slot, outside of the engine, as it may take long."""

    uid: str
    task: asyncio.Task[None] | None = None
    progress: str = ""
    fact: UpgradeState = UpgradeState.FETCHING
    detail: str = ""


@dataclass(frozen=True)
class _Window:
    """Time of the event loop at which this process was first observed healthy; each process starts a new window."""

    uid: str
    since: float


class AgentUpgrade:
    """The executor's work for AgentUpgrade; the daemon creates it once.

    Args:
        ground: the same object as ReleaseHealth's.
        api: with the access of the new version; the health check reads it.
        tasks: runs downloads.
        key: returns the public key that verifies releases, empty where any may run; raises a Failure.
        fetch: downloads the archive; replaceable where there is no network.
    """

    def __init__(
        self,
        ground: UpgradeContext,
        commands: Commands,
        api: Api,
        settings: UpgradeConfig,
        *,
        tasks: asyncio.TaskGroup,
        key: Callable[[], Awaitable[str]],
        limits: staging.TarballLimits = staging.LIMITS,
        fetch: staging.Fetch = staging.fetch_release,
    ) -> None:
        self._ground = ground
        self._commands = commands
        self._api = api
        self._settings = settings
        self._tasks = tasks
        self._key = key
        self._limits = limits
        self._bring = fetch
        self._job: _Job | None = None
        self._window: _Window | None = None

    @property
    def _window_s(self) -> int:
        return self._settings.health_window_seconds or DEFAULT_WINDOW_S

    # Port of the executor

    def procedure(self, operation: MachineOperation) -> Procedure:
        run = run_of(operation)
        if run is None:
            self._validate(operation)
        window_s = max(self._window_s, self._recorded_window_s())
        start_s = Durations(self._ground.paths).limit(TimedWork.DAEMON)
        return table.procedure(trial_s=trial_limit_s(window_s, start_s), stage=run.stage if run is not None else "")

    def _recorded_window_s(self) -> int:
        try:
            trial = self._ground.store.read()
        except (Rejected, OSError):
            return 0
        return trial.window_s if trial is not None else 0

    def _validate(self, operation: MachineOperation) -> None:
        """Raise Refusal for an operation that cannot be executed, before its first action."""
        if wrong := invalid(operation, ExecutorKind.AGENT):
            raise Refusal(INVALID_PARAMETERS, wrong)
        scheme = urlsplit(operation.spec.parameters["downloadURL"].strip()).scheme
        if scheme == "http" and not self._settings.allow_http:
            text = (
                "spec.parameters.downloadURL must be an https URL; plain http needs Upgrade.AllowHTTP in the "
                "agent's configuration on the host"
            )
            raise Refusal(INVALID_PARAMETERS, text)
        if deadline_s(operation) < self._window_s + _ROOM_S:
            text = (
                f"spec.deadlineSeconds {deadline_s(operation)} is too short for the health window of "
                f"{self._window_s} s: the minimum is {self._window_s + _ROOM_S:.0f}"
            )
            raise Refusal(INVALID_PARAMETERS, text)

    # Observation

    async def observe(self, target: Target) -> Observation:
        return await asyncio.to_thread(self._observe, target, asyncio.get_running_loop().time())

    def _observe(self, target: Target, now: float) -> Observation:
        uid = target.operation.metadata.uid
        try:
            trial = self._ground.store.read()
        except Rejected as failure:
            if self._ground.releases.selection().on_trial or target.run.stage != table.DOWNLOADING:
                return _observation(UpgradeState.UNREADABLE, str(failure))
            trial = None  # an earlier trial that has ended; this operation will replace it
        if self._job is not None and self._job.uid == uid and (trial is None or trial.uid != uid):
            return _observation(self._job.fact, self._job.detail or "fetching the release", self._job.progress)
        if trial is None or trial.uid != uid:
            return self._without_trial()
        if trial.progress is not TrialProgress.SWITCHING:
            return _staged(trial, target)
        return self._switched(trial, target, now)

    def _without_trial(self) -> Observation:
        selection = self._ground.releases.selection()
        if selection.on_trial:
            text = f"another release is on trial in {selection.current}; the last good one is {selection.last_good}"
            return _observation(UpgradeState.HELD, text, text)
        return _observation(UpgradeState.ABSENT, "no part of the release is on this host")

    def _switched(self, trial: Trial, target: Target, now: float) -> Observation:
        selection = self._ground.releases.selection()
        name = f"unbounded-agent {trial.version}"
        if selection.current != trial.release:
            back = self._ground.store.rollback_note()
            if back is not None and self._is(trial):
                return _observation(UpgradeState.LEAVING, f"{name} was rolled back, and is about to end")
            if back is not None:
                return _observation(UpgradeState.TAKEN_BACK, f"{name} was rolled back: {back.cause}")
            return _staged(trial, target)
        if not selection.on_trial:
            words = f"{name} runs" if self._is(trial) else f"{name} is in use"
            return _observation(UpgradeState.PROVEN, f"{words} and stayed healthy for {trial.window_s} s")
        if not self._is(trial):
            return _observation(UpgradeState.SWITCHED, f"{name} is selected, and the former version is still running")
        return self._on_trial(trial, name, now)

    def _on_trial(self, trial: Trial, name: str, now: float) -> Observation:
        if self._window is None or self._window.uid != trial.uid:
            return _observation(UpgradeState.STARTED, f"{name} runs, started {self._ground.store.starts()} times")
        if now - self._window.since < trial.window_s:
            return _observation(
                UpgradeState.HEALTHY, f"{name} is healthy; its window of {trial.window_s} s has not passed"
            )
        return _observation(UpgradeState.DUE, f"{name} was healthy for {now - self._window.since:.0f} s")

    def _is(self, trial: Trial) -> bool:
        """Return whether this process is the release on trial."""
        return self._ground.releases.colour_of(self._ground.running) == trial.release

    # Actions

    async def perform(self, target: Target, action: str, *, before: float) -> str | None:
        _in_time(before)
        try:
            await self._advance(target, action, before)
        except Refusal:
            raise
        except Rejected as failure:
            on_trial = action in (table.BEGIN, table.PROVE)
            raise Refusal(table.DAEMON_FAILED if on_trial else table.UNUSABLE_RELEASE, str(failure)) from failure
        except OSError as error:
            raise Transient(f"{action}: {error}") from error
        return None

    async def _advance(self, target: Target, action: str, before: float) -> None:
        match action:
            case table.FETCH:
                await self._fetch(target.operation, before)
            case table.DISCARD:
                await self._discard(target, before)
            case table.VERIFY:
                await staging.verify(self._ground, self._commands, self._trial_of(target))
            case table.SWITCH:
                async with self._locked(before):
                    await put_on_trial(self._ground, self._trial_of(target))
                await restart_daemon(self._ground)
            case table.BEGIN:
                await self._api.get(MACHINES, target.machine.name)
                self._window = _Window(self._trial_of(target).uid, asyncio.get_running_loop().time())
            case table.PROVE:
                await self._api.get(MACHINES, target.machine.name)
                await prove(self._ground, self._trial_of(target))
            case table.TAKE_BACK:
                async with self._locked(before):
                    await revert_switch(self._ground, self._trial_of(target))
            case _:
                raise Refusal(INTERNAL_ERROR, f"{action} is not an action of an upgrade")

    @contextlib.asynccontextmanager
    async def _locked(self, before: float) -> AsyncIterator[None]:
        """Hold the host's lock, if it is free while the action may still begin. Values read before may be stale."""
        left_s = before - asyncio.get_running_loop().time()
        async with self._ground.locked(staging.WHO, within_s=min(max(left_s, 0.0), WITHIN_S)):
            yield

    def _trial_of(self, target: Target) -> Trial:
        trial = self._ground.store.read()
        if trial is None or trial.uid != target.operation.metadata.uid:
            raise Transient("this host has no release of this operation")
        return trial

    # Download, outside of the engine

    async def _fetch(self, operation: MachineOperation, before: float) -> None:
        uid = operation.metadata.uid
        if self._job is not None and self._job.uid == uid and self._job.fact is UpgradeState.FETCHING:
            return
        await self._cancel_job()
        _in_time(before)
        job = self._job = _Job(uid)
        job.task = self._tasks.create_task(self._run_job(job, operation))

    async def _request(self, operation: MachineOperation) -> staging.ReleaseRequest:
        given = operation.spec.parameters
        return staging.ReleaseRequest(
            url=given["downloadURL"].strip(),
            operation=operation.name,
            uid=operation.metadata.uid,
            sha256=given.get("sha256", "").lower().removeprefix("sha256:"),
            retry_failed=given.get("retryFailedDigest") == "true",
            plain=self._settings.allow_http,
            window_s=self._window_s,
            public_key=await self._current_key(),
        )

    async def _current_key(self) -> str:
        """Return the public key that verifies the release. Errors of the API server are retried, as those of the
        release's source are.
        """
        for pause_s in _KEY_PAUSES_S:
            try:
                return await self._key()
            except Transient as failure:
                log.warning("the public key of releases is not known yet", error=failure)
            await asyncio.sleep(pause_s)
        return await self._key()

    async def _run_job(self, job: _Job, operation: MachineOperation) -> None:
        """Download the release into its slot, or record why that failed."""

        def report_bytes(done: int, total: int | None) -> None:
            job.progress = staging.shown_progress(done, total)

        try:
            await staging.stage(
                self._ground, await self._request(operation), report_bytes, limits=self._limits, fetch=self._bring
            )
            job.fact, job.detail = UpgradeState.ABSENT, "the release was in its slot, and does not exist any more"
        except Refusal as refusal:
            job.fact, job.detail = _FAILED[refusal.reason], str(refusal)
        except (Failure, OSError) as failure:
            job.fact, job.detail = UpgradeState.FETCH_FAILED, str(failure)
        except Exception as error:
            log.exception("cannot fetch a release", operation=operation.name)
            job.fact, job.detail = UpgradeState.FETCH_FAILED, f"{type(error).__name__}; see the agent's log"

    async def _cancel_job(self) -> None:
        """Cancel the download and wait for its end: the next job uses the same files."""
        if self._job is not None and self._job.task is not None:
            self._job.task.cancel()
            await asyncio.wait({self._job.task})
        self._job = None

    async def _discard(self, target: Target, before: float) -> None:
        await self._cancel_job()
        async with self._locked(before):
            with contextlib.suppress(Rejected):  # an unreadable trial does not belong to this operation
                trial = self._ground.store.read()
                if trial is not None and trial.uid == target.operation.metadata.uid:
                    discard(self._ground, trial)


def _in_time(before: float) -> None:
    if asyncio.get_running_loop().time() > before:
        raise Transient("the time limit for the action has passed")


def _staged(trial: Trial, target: Target) -> Observation:
    """Return the observation of a release that is in its slot and not in use."""
    operation = target.operation
    if trial.progress is TrialProgress.STAGED:
        return _observation(UpgradeState.STAGED, f"the release is in {trial.release}")
    text = f"unbounded-agent {trial.version} is in {trial.release}"
    unwanted = operation.spec.cancel or operation.metadata.deletion_timestamp is not None
    if unwanted and target.run.stage in (table.DOWNLOADING, table.STAGED):
        return _observation(UpgradeState.WITHDRAWN, text)
    return _observation(UpgradeState.VERIFIED, text)


def _observation(fact: UpgradeState, detail: str, progress: str = "") -> Observation:
    return Observation(fact, detail=detail, where="the host", progress=progress)
