"""The daemon's part of a trial of its release: at its start, and concurrently with its work until the trial ends.

READY=1 is due as soon as the daemon's event loop runs, whatever the state of the API server: reachability of the API is
judged here, and an outage must not appear as a hang.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final

from unbounded.agent.durations import BOUNDS, TimedWork
from unbounded.agent.interfaces import Units
from unbounded.agent.lock import WITHIN_S, host_lock
from unbounded.agent.paths import RECOVERY_UNIT, HostPaths
from unbounded.agent.upgrade import units as unit_files
from unbounded.agent.upgrade.releases import ReleaseSlots
from unbounded.agent.upgrade.trial import FailedRelease, Trial, TrialStore
from unbounded.api.failures import Failure, Rejected, Transient
from unbounded.api.machine import MACHINES
from unbounded.api.operation import MACHINE_OPERATIONS, MachineOperation, OperationPhase
from unbounded.kube.api import Api, NotFound
from unbounded.kube.logs import Log
from unbounded.kube.tasks import run_in_thread

log = Log("agent")

DEFAULT_WINDOW_S: Final = 90
POLL_S: Final = 5.0
_OBSERVE_LIMIT_S: Final = 10.0
_WHO: Final = "the trial of a release"


def overdue_s(window_s: int, start_s: float = BOUNDS[TimedWork.DAEMON].floor) -> int:
    """Return the seconds from the switch until a release that is not proven is rolled back.

    Args:
        start_s: this host's limit for the start of a daemon.
    """
    return window_s + math.ceil(start_s) + window_s // 2


class TrialVerdict(Enum):
    """Verdict on this process's release."""

    SETTLED = "no release is on trial"
    ON_TRIAL = "this release is on trial"
    LEAVING = "another release was put on trial, and takes over"


@dataclass(frozen=True)
class UpgradeContext:
    """Environment of an upgrade, which all its parts share."""

    paths: HostPaths
    units: Units
    releases: ReleaseSlots
    store: TrialStore
    running: Path  # the executable of this process

    @classmethod
    def of(cls, paths: HostPaths, units: Units, running: Path) -> UpgradeContext:
        return cls(paths, units, ReleaseSlots(paths), TrialStore(paths), running)

    @contextlib.asynccontextmanager
    async def locked(self, who: str, *, within_s: float = WITHIN_S) -> AsyncIterator[None]:
        """Hold the host's lock while its agent changes.

        Args:
            who, within_s: as for `host_lock`.
        Raises:
            Transient: another process holds the lock, or a reset has begun: what that removes must not come back.
        """
        async with host_lock(self.paths, who, within_s=within_s):
            self.refuse_in_reset()
            yield

    def refuse_in_reset(self) -> None:
        """Raise Transient where a reset has begun: what that removes must not come back."""
        if self.paths.reset_state.exists():
            raise Transient("a reset of this host has started and not finished")

    def verdict(self) -> TrialVerdict:
        selection = self.releases.selection()
        if not selection.on_trial:
            return TrialVerdict.SETTLED
        mine = self.releases.colour_of(self.running)
        return TrialVerdict.ON_TRIAL if mine is not None and mine == selection.current else TrialVerdict.LEAVING


class ReleaseHealth:
    """Health check of a release on trial; the daemon creates it once.

    Args:
        ground: `UpgradeContext.of(paths, units, Path(sys.executable))`, the same object as AgentUpgrade's.
        machine: the Machine's name.
    """

    def __init__(self, ground: UpgradeContext, machine: str) -> None:
        self._ground = ground
        self._machine = machine
        self._logged = ""
        self._healthy_since: float | None = None  # of a release that `start` brought

    async def note_start(self) -> None:
        """Complete the state that a restart, the recovery unit or a loss of power left behind.

        The daemon calls this first, before any API request. Errors are logged and do not stop the daemon.
        """
        try:
            trial = self._ground.store.read()
            self._remember_failure(trial)
        except (Rejected, OSError) as error:
            log.warning("cannot read the last upgrade", error=error)
        try:
            if self._ground.verdict() is TrialVerdict.SETTLED:
                await unit_files.disarm(self._ground.paths, self._ground.units)
        except (Failure, OSError) as error:
            log.warning("cannot remove the timer of an upgrade", error=error)

    def _remember_failure(self, trial: Trial | None) -> None:
        back = self._ground.store.rollback_note()
        if back is None or trial is None or self._ground.verdict() is not TrialVerdict.SETTLED:
            return
        log.error("upgrade rolled back", version=trial.version, cause=back.cause)
        self._ground.store.add_failed(trial.sha256, FailedRelease(version=trial.version, cause=back.cause))

    async def run(self, api: Api) -> None:
        """Run concurrently with the daemon's work; return when no release is on trial any more.

        It records why the API is not reachable, and rolls the release back when its operation did not succeed. A
        release from `start` has no operation and is proven here.
        """
        if self._ground.verdict() is not TrialVerdict.ON_TRIAL:
            return
        trial = self._trial()
        if trial is None:
            return
        look_after = self._check_operation if trial.uid else self._prove_alone
        while self._ground.verdict() is TrialVerdict.ON_TRIAL:
            try:
                if await look_after(api, trial):
                    return
            # a local error, such as a lock held by another process: the daemon continues
            except (Failure, OSError) as error:
                log.warning("cannot end the trial; retrying", error=error)
            await asyncio.sleep(POLL_S)

    def _trial(self) -> Trial | None:
        try:
            trial = self._ground.store.read()
        except Rejected as error:
            self._note(str(error))
            return None
        mine = self._ground.releases.colour_of(self._ground.running)
        if trial is None or trial.release != mine:
            self._note("the file that describes the trial is missing")
            return None
        return trial

    async def _check_operation(self, api: Api, trial: Trial) -> bool:
        """Roll back a release whose operation did not succeed; return whether it did."""
        refused = await self._read_api(lambda: self._rejection(api, trial))
        if refused:
            await self._start_rollback(refused)
        return bool(refused)

    async def _rejection(self, api: Api, trial: Trial) -> str:
        """Return why the release is to be rolled back.

        The Machine is read only to record an error of that read; whether the error ends the trial is up to the
        operation.
        """
        if end := await _ended(api, trial):
            return end
        await self._answers(api)
        return ""

    async def _prove_alone(self, api: Api, trial: Trial) -> bool:
        """Prove a release that has no operation; return whether it is proven."""
        if not await self._read_api(lambda: self._answers(api)):
            return False
        now = asyncio.get_running_loop().time()
        if self._healthy_since is None:
            self._healthy_since = now
        if now - self._healthy_since < trial.window_s:
            return False
        await prove(self._ground, trial)
        return True

    async def _answers(self, api: Api) -> str:
        await api.get(MACHINES, self._machine)
        return "it answers"

    async def _read_api(self, observe: Callable[[], Awaitable[str]]) -> str:
        """Return the result of an API read; empty, with the error recorded, where there is no answer."""
        try:
            async with asyncio.timeout(_OBSERVE_LIMIT_S):
                found = await observe()
        except TimeoutError:
            self._note(f"the API server did not answer within {_OBSERVE_LIMIT_S:g} s")
        except Failure as failure:
            self._note(f"cannot use the API server: {failure}")
        else:
            self._note("")
            return found
        return ""

    async def _start_rollback(self, why: str) -> None:
        """Start the rollback; its unit ends this process."""
        self._note(why)
        async with self._ground.locked(_WHO):
            await self._ground.units.start(RECOVERY_UNIT)

    def _note(self, words: str) -> None:
        if words == self._logged:
            return
        self._logged = words
        log.warning("release on trial is not healthy yet", why=words or "no problem any more")
        try:
            self._ground.store.record_problem(words)
        except OSError as error:
            log.warning("cannot record the problem of a trial", error=error)


async def prove(ground: UpgradeContext, trial: Trial) -> None:
    """Make this process's release the last good one, whether or not the host's lock is held. The trial's time limit
    does not wait for a build of a node, and the links have a lock of their own.

    Raises:
        Transient: the release was rolled back in between, or a reset has begun.
    """
    ground.refuse_in_reset()
    if ground.store.rollback_note() is not None:
        raise Transient(f"{trial.release} is being rolled back")
    await run_in_thread(ground.releases.prove, trial.release)
    log.info("release on trial is healthy", version=trial.version)
    try:
        await _tidy(ground, trial)
    except (Failure, OSError) as error:  # the release is proven nevertheless
        log.warning("cannot remove the files of a trial", error=error)


async def _tidy(ground: UpgradeContext, trial: Trial) -> None:
    await unit_files.disarm(ground.paths, ground.units)
    ground.store.clear_notes()
    if unit_files.install_units(ground.paths):  # unit files of this version, now that it stays
        await ground.units.reload()
    ground.store.clear_failed(trial.sha256)


async def _ended(api: Api, trial: Trial) -> str:
    """Return why the operation no longer needs its release; empty while it does."""
    try:
        operation = await api.get(MACHINE_OPERATIONS, trial.operation)
    except NotFound:
        return f"MachineOperation {trial.operation} does not exist any more"
    return _end_of_operation(operation, trial)


def _end_of_operation(operation: MachineOperation, trial: Trial) -> str:
    if operation.metadata.uid != trial.uid:
        return f"MachineOperation {trial.operation} does not exist any more"
    if operation.status.phase == OperationPhase.FAILED:
        return f"MachineOperation {trial.operation} ended in the meantime: {operation.status.reason}"
    return ""
