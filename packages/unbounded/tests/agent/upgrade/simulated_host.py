"""A host in virtual time: real folders, links and script, and a table of effects in place of systemd.

An agent lives on it as a process of tests.operations.world. So it can be interrupted at every call to the API or to
systemd, and at every change of the file system.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import os
import subprocess
from collections.abc import Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest

from tests.agent.upgrade.making import digest_of, host_with, release_tarball
from tests.agent.upgrade.natures import WINDOW_S, WORKING, Nature, ShortSighted
from tests.operations.faults import Incarnation, Weather
from tests.operations.simulated import Violation
from tests.operations.world import Process, Running, World, run_engine
from unbounded.agent.executor import AgentExecutor
from unbounded.agent.interfaces import HostCommandResult, UnitFacts
from unbounded.agent.operations.agent_upgrade import AgentUpgrade
from unbounded.agent.paths import DAEMON_UNIT, RECOVERY_TIMER, RECOVERY_UNIT, HostPaths
from unbounded.agent.upgrade.health import ReleaseHealth, UpgradeContext
from unbounded.agent.upgrade.releases import ReleaseSlots
from unbounded.agent.upgrade.staging import ReleaseRequest, TarballLimits
from unbounded.agent.upgrade.units import install_units, is_armed
from unbounded.api.failures import Transient
from unbounded.api.operation import OperationKind
from unbounded.fetch.download import OnBytes
from unbounded.join.agent_config import UpgradeConfig
from unbounded.kube.api import Api
from unbounded.operations.executor_protocol import Refusal

MACHINE: Final = "m1"
URL: Final = "https://releases.example/unbounded-agent-linux-amd64.tar.gz"

CHANGES: Final = ("replace", "rename", "symlink", "unlink", "rmdir", "mkdir", "fsync")
_living: contextvars.ContextVar[Incarnation | None] = contextvars.ContextVar("_living", default=None)


@contextlib.contextmanager
def deadly_file_system() -> Iterator[None]:
    """Let every change of the file system by an agent be a point at which it can be cut off, before the change."""

    def guarded(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            life = _living.get()
            if life is not None:
                life.hold_if_dead()
                life.awaits += 1
                if life.awaits - 1 == life.crash_at:
                    life.crashed_in = f"os.{real.__name__} {arguments[0]}"
                    life.crash()
                    life.hold_if_dead()
            return real(*arguments, **named)

        return call

    with pytest.MonkeyPatch.context() as patch:
        for name in CHANGES:
            patch.setattr(os, name, guarded(getattr(os, name)))
        yield


SYSTEMCTL: Final = """#!/bin/sh
case $1 in
show) cat {folder}/state ;;
*) echo "$@" >>{folder}/asked ;;
esac
"""


async def no_key() -> str:
    """Any release may run."""
    return ""


@dataclass
class SimulatedHost:
    """Args:
    natures: by version; "1" is the one that runs at first.
    """

    world: World
    root: Path
    natures: Mapping[str, Nature]
    paths: HostPaths = field(init=False)
    running: Running | None = None
    version: str = ""  # that runs now
    history: list[str] = field(default_factory=list)
    crashes: list[int] = field(default_factory=list)  # at which await the agent is cut off, life by life
    outages: float = 0.0  # the chance of a crash to be a loss of power
    failed: bool = False
    trouble: list[BaseException] = field(default_factory=list)
    _starts: list[float] = field(default_factory=list)
    _jobs: set[asyncio.Task[None]] = field(default_factory=set)
    _timer: asyncio.Task[None] | None = None
    _busy: asyncio.Lock = field(default_factory=asyncio.Lock)

    def __post_init__(self) -> None:
        self.paths = host_with(self.root / "host", "1")
        install_units(self.paths)
        self.archive = release_tarball(self.root / "release.tar.gz", "2")
        self.tools = self.root / "tools"
        self.tools.mkdir()
        (self.tools / "systemctl").write_text(SYSTEMCTL.replace("{folder}", str(self.tools)))
        (self.tools / "systemctl").chmod(0o755)

    # systemd

    def job(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run work that systemd does by itself, regardless of the caller's life."""
        nobody = contextvars.copy_context()
        nobody.run(_living.set, None)
        task = asyncio.get_running_loop().create_task(work, context=nobody)
        self._jobs.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._jobs.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.trouble.append(error)

    def _process_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.trouble.append(error)

    def boot(self) -> None:
        if is_armed(self.paths):
            self.arm()
        self.job(self.start())

    async def power_cut(self) -> None:
        async with self._busy:
            await self._kill()
            self.disarm()
            self._starts.clear()
            self.failed = False
            await asyncio.sleep(5)
        self.boot()

    def arm(self) -> None:
        text = (self.paths.units / RECOVERY_TIMER).read_text()
        seconds = float(text.partition("OnActiveSec=")[2].partition("\n")[0])
        self.disarm()

        async def fire() -> None:
            await asyncio.sleep(seconds)
            self._timer = None
            await self.recover()

        self._timer = self.job(fire())

    def disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def start(self) -> None:
        async with self._busy:
            await self._start()

    async def _start(self) -> None:
        now = asyncio.get_running_loop().time()
        self._starts = [at for at in self._starts if now - at < 120]
        if len(self._starts) >= 4:
            self.failed = True
            self.job(self.recover())
            return
        self._starts.append(now)
        (self.tools / "asked").unlink(missing_ok=True)
        self.script("start")
        if (self.tools / "asked").exists():
            self.arm()
        executable = self.paths.current.resolve()
        self.version = executable.read_text().split()[-1]
        self.history.append(self.version)
        self.check()
        crash_at = self.crashes.pop(0) if self.crashes else None
        nature = self.natures[self.version]
        weather = Weather(unreachable=1.0) if nature.deaf else self.world.weather
        process = Process(self.world, "agent", lambda life, api: self._agent(life, api, executable))
        self.running = process.start(crash_at=crash_at, weather=weather)
        self.running.task.add_done_callback(self._process_ended)
        self.job(self._watch(self.running, nature))

    async def _watch(self, running: Running, nature: Nature) -> None:
        """Until it fails; then it is started again."""
        result, status = "signal", "KILL"
        try:
            async with asyncio.timeout(nature.lives_s):
                await running.life.dead.wait()
        except TimeoutError:
            result, status = ("watchdog", "ABRT") if nature.watched else ("exit-code", "3")
        if running is not self.running:
            return
        outage = running.life.crash_at is not None and self.world.chance.random() < self.outages
        if outage:
            self.job(self.power_cut())
            return
        async with self._busy:
            if running is self.running:
                await self._kill(result, status)
                await asyncio.sleep(2)
                await self._start()

    async def _kill(self, result: str = "", status: str = "") -> None:
        running, self.running = self.running, None
        self.version = ""
        if running is not None:
            await running.stop()
            if result:
                self.script("stopped", SERVICE_RESULT=result, EXIT_STATUS=status)

    async def restart(self) -> None:
        async with self._busy:
            await self._kill("success", "0")
            await self._start()

    async def recover(self) -> None:
        """The recovery unit."""
        (self.tools / "state").write_text("failed\n" if self.failed else "active\n")
        (self.tools / "asked").unlink(missing_ok=True)
        self.script("recover")
        self.check()
        if (self.tools / "asked").exists():
            self.reset_failed()
            await asyncio.sleep(1)
            await self.restart()

    def reset_failed(self) -> None:
        self.failed = False
        self._starts.clear()

    def script(self, mode: str, **environment: str) -> None:
        settings = {
            "PATH": f"{self.tools}:{os.environ['PATH']}",
            "UNBOUNDED_AGENT_RECOVERY_TRIES": "0",
            "UNBOUNDED_AGENT_RECOVERY_PAUSE": "0",
        }
        subprocess.run(
            [self.paths.recovery_script, mode], env=settings | environment, check=True, capture_output=True, timeout=60
        )

    # The agent

    async def _agent(self, life: Incarnation, api: Api, executable: Path) -> None:
        _living.set(life)
        nature = self.natures[executable.read_text().split()[-1]]
        if nature.idle:
            await life.hang()
        reading = api if nature.blind is None else ShortSighted(self.world.api, life, nature.blind)
        ground = UpgradeContext.of(self.paths, SimulatedUnits(self, life), executable)
        health = ReleaseHealth(ground, MACHINE)
        await health.note_start()
        async with asyncio.TaskGroup() as tasks:
            upgrade = AgentUpgrade(
                ground,
                SimulatedCommands(life),
                reading,
                UpgradeConfig(health_window_seconds=WINDOW_S),
                tasks=tasks,
                key=no_key,
                fetch=lambda *arguments: self._fetch(life, *arguments),
            )
            executor = AgentExecutor(MACHINE, {OperationKind.AGENT_UPGRADE: upgrade}, host_id="h", call_limit_s=90.0)
            tasks.create_task(health.run(reading))
            tasks.create_task(
                run_engine(life, api, executor, self.world.announce, concurrent=1, alone=True, watches_pause=False)
            )

    async def _fetch(
        self, life: Incarnation, wish: ReleaseRequest, archive: Path, limits: TarballLimits, told: OnBytes
    ) -> str:
        if "missing" in wish.url:
            raise Refusal("DownloadFailed", "404")

        async def copy() -> str:
            await asyncio.sleep(3)
            told(1 << 20, None)
            archive.write_bytes(self.archive.read_bytes())
            return digest_of(archive)

        return await life.through("fetch", copy)

    # Rules that always hold

    def check(self) -> None:
        """Both links lead to a release, and the last good one was proven: an unproven one never is."""
        releases = ReleaseSlots(self.paths)
        selection = releases.selection()
        if not releases.works(selection.current) or not releases.works(selection.last_good):
            raise Violation(f"no agent could be started: {selection}")
        if selection.last_good is None:
            raise Violation("there is no last good release")
        good = releases.executable(selection.last_good).read_text().split()[-1]
        if good != "1" and self.natures[good] not in WORKING:
            raise Violation(f"{good} is the last good release, and it is none")


class SimulatedUnits:
    """systemctl, as one agent calls it."""

    def __init__(self, host: SimulatedHost, life: Incarnation) -> None:
        self._host = host
        self._life = life

    async def _ask(self, what: str, effect: Callable[[], object]) -> None:
        async def take() -> None:
            effect()

        await self._life.through(what, take)

    async def observe(self, unit: str) -> UnitFacts:
        return UnitFacts(unit, active="active")

    async def start(self, unit: str, *, timeout_s: float = 90.0) -> None:
        assert unit == RECOVERY_UNIT
        await self._ask(f"start {unit}", lambda: self._host.job(self._host.recover()))

    async def stop(self, unit: str, *, timeout_s: float = 90.0) -> None:
        assert unit == RECOVERY_TIMER
        await self._ask(f"stop {unit}", self._host.disarm)

    async def restart(self, unit: str, *, block: bool = True, timeout_s: float = 90.0) -> None:
        if unit == RECOVERY_TIMER:
            await self._ask(f"restart {unit}", self._host.arm)
        else:
            assert (unit, block) == (DAEMON_UNIT, False)
            await self._ask(f"restart {unit}", lambda: self._host.job(self._host.restart()))

    async def reset_failed(self, unit: str) -> None:
        await self._ask(f"reset-failed {unit}", self._host.reset_failed)

    async def reload(self) -> None:
        await self._ask("reload", lambda: None)

    async def kill(self, unit: str, signal: str = "SIGKILL") -> None:
        raise AssertionError(unit)

    async def enable(self, *units: str) -> None:
        raise AssertionError(units)

    async def disable(self, *units: str) -> None:
        raise AssertionError(units)

    async def mask(self, *units: str) -> None:
        raise AssertionError(units)

    async def unmask(self, *units: str) -> None:
        raise AssertionError(units)


class SimulatedCommands:
    """Programs that print their version."""

    def __init__(self, life: Incarnation) -> None:
        self._life = life

    async def run(
        self,
        *argv: str,
        timeout_s: float = 60.0,
        stdin: bytes | None = None,
        env: Mapping[str, str] | None = None,
        check: bool = True,
    ) -> HostCommandResult:
        async def run() -> HostCommandResult:
            if argv[1:] != ("version",):
                raise Transient(f"nobody knows {argv}")
            return HostCommandResult(argv, 0, f"unbounded-agent {Path(argv[0]).read_text().split()[-1]}\n", "")

        return await self._life.through("version", run)
