"""What the daemon does about a release on trial: when it starts, and beside its work until the trial is over.

READY=1 is to be sent as soon as the daemon's loop turns, whatever the API server does: whether the API can be reached
is judged here, and an outage must not look like a hang.
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

from unbounded.agent.durations import BOUNDS, Work
from unbounded.agent.layout import RECOVERY_UNIT, Layout
from unbounded.agent.lock import WITHIN_S, host_lock
from unbounded.agent.ports import Units
from unbounded.agent.upgrade import units as unit_files
from unbounded.agent.upgrade.releases import Releases
from unbounded.agent.upgrade.trial import Failed, Trial, TrialStore
from unbounded.api.failures import Failure, Rejected, Transient
from unbounded.api.machine import MACHINES
from unbounded.api.operation import MACHINE_OPERATIONS, MachineOperation, OperationPhase
from unbounded.kube.errors import NotFound
from unbounded.kube.logs import Log
from unbounded.kube.port import Api
from unbounded.kube.threads import to_its_end

log = Log("agent")

DEFAULT_WINDOW_S: Final = 90
LOOK_EVERY_S: Final = 5.0
_LOOK_LIMIT_S: Final = 10.0
_WHO: Final = "the trial of a release"


def overdue_s(window_s: int, start_s: float = BOUNDS[Work.DAEMON].floor) -> int:
    """Return how many seconds after the switch a release that was not proven is taken back.

    Args:
        start_s: the limit of this host for the start of a daemon.
    """
    return window_s + math.ceil(start_s) + window_s // 2


class Verdict(Enum):
    """How things stand with the release that this process is."""

    SETTLED = "nothing is on trial"
    ON_TRIAL = "this release is on trial"
    LEAVING = "another release was put on trial, and takes over"


@dataclass(frozen=True)
class Ground:
    """Where an upgrade happens: what all parts of it share."""

    layout: Layout
    units: Units
    releases: Releases
    store: TrialStore
    running: Path  # the executable of this process

    @classmethod
    def of(cls, layout: Layout, units: Units, running: Path) -> Ground:
        return cls(layout, units, Releases(layout), TrialStore(layout), running)

    @contextlib.asynccontextmanager
    async def held(self, who: str, *, within_s: float = WITHIN_S) -> AsyncIterator[None]:
        """Hold the host while its agent is changed.

        Args:
            who, within_s: as for `host_lock`.
        Raises:
            Transient: somebody else has it, or a reset was begun: what that took away must not come back.
        """
        async with host_lock(self.layout, who, within_s=within_s):
            self.refuse_in_reset()
            yield

    def refuse_in_reset(self) -> None:
        """Raises Transient where a reset was begun: what that took away must not come back."""
        if self.layout.reset_state.exists():
            raise Transient("a reset of this host was begun and is not finished")

    def verdict(self) -> Verdict:
        selection = self.releases.selection()
        if not selection.on_trial:
            return Verdict.SETTLED
        mine = self.releases.colour_of(self.running)
        return Verdict.ON_TRIAL if mine is not None and mine == selection.current else Verdict.LEAVING


class Health:
    """Made once by the daemon.

    Args:
        ground: `Ground.of(layout, units, Path(sys.executable))`, the one that AgentUpgrade has too.
        machine: the Machine's name.
    """

    def __init__(self, ground: Ground, machine: str) -> None:
        self._ground = ground
        self._machine = machine
        self._said = ""
        self._healthy_since: float | None = None  # of a release that `start` brought

    async def note_start(self) -> None:
        """Called first of all in the daemon's life, before the API is spoken to: finish what a restart, the recovery
        unit or a loss of power left. Trouble here is logged and keeps the daemon from nothing."""
        try:
            trial = self._ground.store.read()
            self._remember_failure(trial)
        except (Rejected, OSError) as error:
            log.warning("the last upgrade cannot be read", error=error)
        try:
            if self._ground.verdict() is Verdict.SETTLED:
                await unit_files.disarm(self._ground.layout, self._ground.units)
        except (Failure, OSError) as error:
            log.warning("the timer of an upgrade could not be removed", error=error)

    def _remember_failure(self, trial: Trial | None) -> None:
        back = self._ground.store.way_back()
        if back is None or trial is None or self._ground.verdict() is not Verdict.SETTLED:
            return
        log.error("an upgrade was taken back", version=trial.version, cause=back.cause)
        self._ground.store.add_failed(trial.sha256, Failed(version=trial.version, cause=back.cause))

    async def run(self, api: Api) -> None:
        """Runs beside the daemon's work, and returns when no trial is left: at once where there is none.

        It notes why the API cannot be reached, and has the release taken back when its operation ended otherwise than
        well. Where `start` brought the release there is no operation, and it is proven here.
        """
        if self._ground.verdict() is not Verdict.ON_TRIAL:
            return
        trial = self._trial()
        if trial is None:
            return
        look_after = self._look_after if trial.uid else self._look_after_alone
        while self._ground.verdict() is Verdict.ON_TRIAL:
            try:
                if await look_after(api, trial):
                    return
            except (Failure, OSError) as error:  # of this host, such as a lock that is held: the daemon works on
                log.warning("the trial could not be ended, and will be again", error=error)
            await asyncio.sleep(LOOK_EVERY_S)

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

    async def _look_after(self, api: Api, trial: Trial) -> bool:
        """Whether the way back was taken, as the operation has ended otherwise than well."""
        refused = await self._seen(lambda: self._refused(api, trial))
        if refused:
            await self._give_up(refused)
        return bool(refused)

    async def _refused(self, api: Api, trial: Trial) -> str:
        """Why the release is to go. The Machine is read for nothing but a note of why it cannot be: whether that ends
        the trial is the operation's affair."""
        if ended := await _ended(api, trial):
            return ended
        await self._answers(api)
        return ""

    async def _look_after_alone(self, api: Api, trial: Trial) -> bool:
        """Whether the release is proven."""
        if not await self._seen(lambda: self._answers(api)):
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

    async def _seen(self, look: Callable[[], Awaitable[str]]) -> str:
        """What a look at the API finds; empty, and noted, where there is no answer."""
        try:
            async with asyncio.timeout(_LOOK_LIMIT_S):
                found = await look()
        except TimeoutError:
            self._note(f"the API server gave no answer within {_LOOK_LIMIT_S:g} s")
        except Failure as failure:
            self._note(f"the API server could not be used: {failure}")
        else:
            self._note("")
            return found
        return ""

    async def _give_up(self, why: str) -> None:
        """Ask for the way back; the unit that takes it ends this process."""
        self._note(why)
        async with self._ground.held(_WHO):
            await self._ground.units.start(RECOVERY_UNIT)

    def _note(self, words: str) -> None:
        if words == self._said:
            return
        self._said = words
        log.warning("the release on trial is not proven", why=words or "no trouble any more")
        try:
            self._ground.store.note_trouble(words)
        except OSError as error:
            log.warning("what troubles the trial could not be noted", error=error)


async def prove(ground: Ground, trial: Trial) -> None:
    """The release that this process is becomes the last good one, whoever holds the host: a trial's time does not
    wait for somebody who makes a node, and the links have a lock of their own.

    Raises:
        Transient: it was taken back meanwhile, or a reset was begun.
    """
    ground.refuse_in_reset()
    if ground.store.way_back() is not None:
        raise Transient(f"{trial.release} is being taken back")
    await to_its_end(ground.releases.prove, trial.release)
    log.info("the release is proven", version=trial.version)
    try:
        await _tidy(ground, trial)
    except (Failure, OSError) as error:  # it is proven all the same
        log.warning("what a trial needed could not be removed", error=error)


async def _tidy(ground: Ground, trial: Trial) -> None:
    await unit_files.disarm(ground.layout, ground.units)
    ground.store.clear_notes()
    if unit_files.install_units(ground.layout):  # as this version has them, now that it stays
        await ground.units.reload()
    ground.store.clear_failed(trial.sha256)


async def _ended(api: Api, trial: Trial) -> str:
    """Why the operation wants its release no longer; empty as long as it does."""
    try:
        operation = await api.get(MACHINE_OPERATIONS, trial.operation)
    except NotFound:
        return f"MachineOperation {trial.operation} is gone"
    return _unwanted(operation, trial)


def _unwanted(operation: MachineOperation, trial: Trial) -> str:
    if operation.metadata.uid != trial.uid:
        return f"MachineOperation {trial.operation} is gone"
    if operation.status.phase == OperationPhase.FAILED:
        return f"MachineOperation {trial.operation} ended meanwhile: {operation.status.reason}"
    return ""
