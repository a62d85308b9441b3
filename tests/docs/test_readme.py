"""README.md and docs/tour.md: their commands from the first to the last, with simulated machines and SSH servers.

The environment is simulated: a cluster is `unbounded up`, a rack is a simulated BMC, a host is an SSH server, and its
agent and kubelet are stand-ins. Commands on a host are those of docs/agent.md.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

import pytest

from tests.cli.running import KUBECTL
from tests.console.running import URL
from tests.docs.runner import DOCS, RELEASE_URL, Shell, Stage, follow, printed_until, running
from tests.e2e.plane import Plane, plane
from tests.e2e.standin import SHA256, kubelets, make_node, standin_agent, started
from tests.support.paths import ROOT
from tests.support.ssh.sshd import Fleet, missing, sshd_fleet
from unbounded.api.machine import MACHINES
from unbounded_lab.bmc import LabBmc

ABSENT: Final = missing()
pytestmark = [
    pytest.mark.slow,
    pytest.mark.root,
    pytest.mark.timeout(600, func_only=True),
    pytest.mark.skipif(KUBECTL is None, reason="kubectl is not installed"),
    pytest.mark.skipif(ABSENT is not None, reason=f"needs {ABSENT}"),
]
README: Final = ROOT / "README.md"
TOUR: Final = DOCS / "tour.md"
LIMIT_S: Final = 120.0


async def test_their_commands_do_what_they_say(tmp_path: Path) -> None:
    with sshd_fleet(tmp_path / "fleet", 1) as fleet, standin_agent(tmp_path / "agent") as url:
        async with LabBmc(boot_s=0.2, shutdown_s=0.2) as bmc, Reader(tmp_path, fleet, url, bmc) as reader:
            stages = {"Hosts that become nodes": reader.has_a_node}
            await follow(README, reader.shell, starts={"make run": reader.runs})
            said = await follow(TOUR, reader.shell, stages, reader.starts())
            assert await reader.machines() == reader.backed_up
    assert "lab-01-host-reboot-" in reader.first_run
    assert URL.search(reader.first_run), "make run prints the address of the console"
    for promised in (
        "the host was Off",
        "the host was On",
        "replace-rack1-02",
        "unbounded-agent-linux-amd64.tar.gz.sha256",
    ):
        assert promised in said, promised
    assert len(started(fleet.servers[0])) == 1
    assert started(fleet.servers[0])[0] in reader.backed_up


class Reader:
    """A user with a rack, a host, and a control plane that is started, stopped and restarted as the pages require."""

    def __init__(self, folder: Path, fleet: Fleet, url: str, bmc: LabBmc) -> None:
        self.folder = folder / "home"
        (self.folder / ".ssh").mkdir(parents=True)
        shutil.copy(fleet.key, self.folder / ".ssh" / "id_ed25519")
        for name in ("examples", "packages", "scripts", "Makefile", "pyproject.toml", "requirements.lock"):
            (self.folder / name).symlink_to(ROOT / name)
        (self.folder / ".venv").symlink_to(sys.prefix)
        self.first_run = ""
        changes = {
            "https://bmc-rack1-01.example.com": bmc.url,
            "username: admin": f"username: {bmc.username}",
            "password='…'": f"password='{bmc.password}'",
            "10.0.0.50": fleet.servers[0].address,
            f"--agent-url {RELEASE_URL}": f"--agent-url {url} --agent-sha256 {SHA256}",
            RELEASE_URL: url,
        }
        self.shell = Shell(self.folder, self.folder / "data" / "kubeconfig", changes)
        self.backed_up: list[str] = []
        self._up = AsyncExitStack()
        self._it: Plane | None = None

    async def __aenter__(self) -> Reader:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._up.aclose()

    def starts(self) -> Mapping[str, Stage]:
        return {
            ".venv/bin/unbounded up": self.begins,
            "# stop `unbounded up` first": self.stops,
        }

    async def runs(self) -> None:
        """`make run`, on a network of its own, as its port is a fixed one, until the reboot is done; then Ctrl-C."""
        command = ("unshare", "--net", "sh", "-c", "ip link set lo up && exec make run")
        async with running(command, self.folder) as process:
            self.first_run = await printed_until(process, "Ctrl-C stops", within_s=LIMIT_S)
        (self.folder / "data").rename(self.folder / "first")  # machines whose BMCs are gone

    async def begins(self) -> None:
        self._it = await self._up.enter_async_context(plane(self.folder / "data"))
        await self._up.enter_async_context(kubelets(self._it.api))

    async def stops(self) -> None:
        """After something has changed that the backup does not know."""
        self.backed_up = await self.machines()
        await self._plane.api.delete(MACHINES, "rack1-02")
        await self._up.aclose()

    async def has_a_node(self) -> None:
        await make_node(self._plane.api, "worker-01")

    async def machines(self) -> list[str]:
        return sorted(one.name for one in (await self._plane.api.list(MACHINES)).items)

    @property
    def _plane(self) -> Plane:
        assert self._it is not None, "the tour has not started it"
        return self._it
