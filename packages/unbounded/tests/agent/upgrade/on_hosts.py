"""A host's systemd and folders, as the agent's own parts use them, from outside."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from pathlib import Path

from tests.agent.upgrade.making import make_release
from tests.support.hosts import Host
from unbounded.agent.host import Systemctl
from unbounded.agent.interfaces import HostCommandResult
from unbounded.agent.paths import DAEMON_UNIT, HostPaths
from unbounded.agent.upgrade.health import UpgradeContext
from unbounded.agent.upgrade.releases import ReleaseInfo
from unbounded.agent.upgrade.switching import make_trial, put_on_trial, restart_daemon
from unbounded.agent.upgrade.trial import TrialProgress
from unbounded.agent.upgrade.units import unit_files
from unbounded.api.failures import Transient


class InsideCommands:
    """Commands that run in a host."""

    def __init__(self, host: Host) -> None:
        self._host = host

    async def run(
        self,
        *argv: str,
        timeout_s: float = 60.0,
        stdin: bytes | None = None,
        env: Mapping[str, str] | None = None,
        check: bool = True,
    ) -> HostCommandResult:
        ended = await self._host.run(*argv, stdin=stdin, env=env, check=False, timeout_s=timeout_s)
        if check and not ended.ok:
            raise Transient(f"{argv}: {ended.stderr}")
        return HostCommandResult(argv, ended.status, ended.stdout, ended.stderr)


GOOD = "systemd-notify --ready; while :; do systemd-notify WATCHDOG=1; sleep 3; done"
CRASHES = "echo 'this release crashes' >&2; exit 3"
CRASHES_SLOWLY = "systemd-notify --ready; sleep 10; exit 5"
HANGS = "systemd-notify --ready; exec sleep 1000"
NEVER_READY = "exec sleep 1000"


class TrialHost:
    """A host whose agent is a shell script: the units, the script and the links are the real ones."""

    def __init__(self, host: Host) -> None:
        self.host = host

    @property
    def ground(self) -> UpgradeContext:
        paths = HostPaths(self.host.outside("/"))
        return UpgradeContext.of(paths, Systemctl(InsideCommands(self.host)), paths.command)

    def place(self, version: str, daemon: str) -> None:
        """A release in the free slot whose daemon is a shell command."""
        releases = self.ground.releases
        with releases.scratch() as scratch:
            make_release(scratch, version, libraries=False).write_text(
                f"#!/bin/sh\n[ $1 = version ] && exec echo unbounded-agent {version}\n{daemon}\n"
            )
            releases.place(scratch, ReleaseInfo(version=version))

    async def install(self) -> None:
        """Version 1 runs."""
        ground = self.ground
        self.place("1", GOOD)
        ground.releases.first(next(one for one in type(ground.releases.free()) if ground.releases.works(one)))
        ground.releases.name_command()
        ground.paths.etc.mkdir(parents=True)
        ground.paths.config.write_text("{}")
        for path, (text, mode) in unit_files(HostPaths()).items():
            self.host.put(str(path), text.encode(), mode=mode)
        await ground.units.reload()
        await ground.units.enable(DAEMON_UNIT)
        await ground.units.start(DAEMON_UNIT)

    async def upgrade(self, version: str, daemon: str, *, window_s: int = 5) -> None:
        ground = self.ground
        free = ground.releases.free()
        self.place(version, daemon)
        trial = make_trial(ground, release=free, version=version, window_s=window_s, progress=TrialProgress.VERIFIED)
        await put_on_trial(ground, trial)
        await restart_daemon(ground)

    async def running(self) -> str:
        """The version whose daemon runs and is ready; empty while none is."""
        facts = await self.ground.units.observe(DAEMON_UNIT)
        if facts.active != "active" or not facts.main_pid:
            return ""
        said = await self.host.run(
            "sh", "-c", f"tr '\\0' '\\n' </proc/{facts.main_pid}/cmdline | grep /unbounded-agent", check=False
        )
        script = Path(said.stdout.strip())
        if not said.ok or not script.name:
            return ""
        return (await self.host.run(str(script), "version")).stdout.split()[-1]

    async def wait_running(self, version: str, *, within_s: float) -> float:
        """Wait until a version runs with nothing on trial; how long that took."""
        begun = time.monotonic()
        seen = ""
        while time.monotonic() - begun < within_s:
            seen = await self.running()
            if seen == version and not self.ground.releases.selection().on_trial:
                return time.monotonic() - begun
            await asyncio.sleep(0.2)
        journal = await self.host.journal("--lines=60", "--unit=unbounded-agent-daemon*")
        raise AssertionError(
            f"{seen or 'nothing'} runs after {within_s:g} s, {self.ground.releases.selection()}\n{journal}"
        )
