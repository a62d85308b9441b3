"""The packaged agent on a host, as a daemon without a node: all that an upgrade needs, and nothing that takes long."""

from __future__ import annotations

import asyncio
import json
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.agent.upgrade.making import program, tarball
from tests.support.agent_release import AgentRelease, release_like
from tests.support.hosts import Host
from tests.support.hosts.mirror import Mirror
from tests.support.hosts.plane import ControlPlane
from unbounded.agent.daemon.identity import join
from unbounded.agent.paths import DAEMON_UNIT, RECOVERY_TIMER, HostPaths
from unbounded.agent.settings import store_config
from unbounded.agent.upgrade.releases import ReleaseInfo, ReleaseLinks, ReleaseSlots
from unbounded.agent.upgrade.units import unit_files
from unbounded.api.machine import MACHINES
from unbounded.join.agent_config_file import read_agent_config

WINDOW_S: Final = 4
# A script that runs before the daemon of a whole release, without a network.
DEAF: Final = 'exec unshare --net "$(dirname "$(readlink -f "$0")")/unbounded-agent.whole" "$@"'

# The daemons of releases that are nothing but a script.
CRASHES: Final = "echo 'this release crashes' >&2; exit 1"
CRASHES_SLOWLY: Final = "systemd-notify --ready; sleep 10; kill -KILL $$"
HANGS: Final = "systemd-notify --ready; exec sleep 1000"


def publish(mirror: Mirror, release: AgentRelease, folder: Path, version: str, **bad: str) -> str:
    """The release under another version on the mirror; its path."""
    made = release_like(release, folder / version, version=version, **bad)
    return _added(mirror, version, made.archive)


def publish_script(mirror: Mirror, folder: Path, version: str, *, daemon: str, says: str = "") -> str:
    """Publish a release that is a script on the mirror, and return its path.

    Args:
        says: the script for `version`.
    """
    text = f"case $1 in version) {says or f'echo unbounded-agent {version}'} ;; daemon) {daemon} ;; esac"
    return _added(mirror, version, tarball(folder / f"{version}.tar.gz", ("unbounded-agent", program(text), 0o755)))


def _added(mirror: Mirror, version: str, archive: Path) -> str:
    path = f"/{version}/unbounded-agent-linux-amd64.tar.gz"
    mirror.add(path, archive)
    return path


@dataclass
class UpgradeHost:
    """A host whose agent is registered as `machine`, and runs."""

    host: Host
    plane: ControlPlane
    mirror: Mirror
    machine: str
    asked: int = 0

    @property
    def paths(self) -> HostPaths:
        return HostPaths(self.host.outside("/"))

    @property
    def selection(self) -> ReleaseLinks:
        return ReleaseSlots(self.paths).selection()

    async def install(self, release: AgentRelease, *, window_s: int = WINDOW_S) -> None:
        """Install what `start` leaves, without the node."""
        config = {
            "MachineName": self.machine,
            "Cluster": {"CaCertBase64": self.plane.ca_base64, "Version": "1.34.0"},
            "Kubelet": {"ApiServer": self.plane.address, "Auth": {"BootstrapToken": await self.plane.site_token()}},
            "Upgrade": {"AllowHTTP": True, "HealthWindowSeconds": window_s},
        }
        read = read_agent_config(json.dumps(config).encode(), "the test's configuration")
        self.paths.etc.mkdir(parents=True, exist_ok=True)
        store_config(self.paths, read)
        await join(self.paths, read, token=None, report=lambda _words: None)
        await asyncio.to_thread(self._place, release)
        for path, (text, mode) in unit_files(HostPaths()).items():
            self.host.put(str(path), text.encode(), mode=mode)
        await self.host.run("systemctl", "daemon-reload")
        await self.host.run("systemctl", "enable", "--now", DAEMON_UNIT)
        await self.said(release.version)

    def _place(self, release: AgentRelease) -> None:
        releases = ReleaseSlots(self.paths)
        with releases.scratch() as scratch:
            shutil.copytree(release.folder, scratch, symlinks=True, dirs_exist_ok=True)
            releases.first(releases.place(scratch, ReleaseInfo(version=release.version)))
        releases.name_command()

    async def said(self, version: str, *, within_s: float = 60.0) -> None:
        """Wait until the Machine's status has this version."""
        await self.plane.wait(
            MACHINES,
            self.machine,
            lambda seen: seen.get("status", {}).get("agent", {}).get("version") == version,
            within_s=within_s,
        )

    async def ask(self, path: str, **parameters: str) -> str:
        """An AgentUpgrade to what lies at this path of the mirror; its name."""
        self.asked += 1
        name = f"up-{self.machine}-{self.asked}"
        given = {key: value for key, value in parameters.items() if value}
        await self.plane.operate(name, self.machine, "AgentUpgrade", downloadURL=f"{self.mirror.base}{path}", **given)
        return name

    async def upgraded(self, path: str, *, within_s: float = 120.0, **parameters: str) -> dict[str, Any]:
        """The status with which it ends."""
        ended = await self.plane.ended(await self.ask(path, **parameters), within_s=within_s)
        return dict(ended["status"])

    async def runs(self, version: str, *, within_s: float = 30.0) -> None:
        """The daemon is this version, the command as well, it is proven, and nothing of a trial is left."""
        until = time.monotonic() + within_s
        while True:
            seen = await self._running()
            if seen == (version, "active", False, False):
                return
            if time.monotonic() > until:
                journal = await self.host.journal("--lines=40", "--unit=unbounded-agent-daemon*")
                raise AssertionError(f"{self.machine}: {version} was to run: {seen} {self.selection}\n{journal}")
            await asyncio.sleep(0.3)

    async def _running(self) -> tuple[str, str, bool, bool]:
        said = await self.host.run("unbounded-agent", "version", check=False)
        active = await self.host.run("systemctl", "is-active", DAEMON_UNIT, check=False)
        armed = self.host.exists(f"/etc/systemd/system/{RECOVERY_TIMER}")
        return said.stdout.split()[-1] if said.ok else "", active.stdout.strip(), self.selection.on_trial, armed

    async def note(self) -> str:
        """Return the text for an error of the test."""
        return await self.host.journal("--lines=80", "--unit=unbounded-agent-daemon*")
