"""Runs on a host with a real systemd: a unit of its own for each, so that the end of a login is not the run's."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from tests.machina.provisioning.local import ATTEMPT, UID, install, waits_for
from tests.support.hosts import AgentTools, Host, agent_tools, booted, fast_disk
from tests.support.qemu import Segment, segment
from tests.support.waiting import eventually
from unbounded.machina.provisioning.model import Finished, Interrupted, RunInProgress
from unbounded.machina.provisioning.remote import HostInstaller
from unbounded.machina.ssh.model import SshCommandResult

pytestmark = [pytest.mark.slow, pytest.mark.root]


@dataclass
class HostShell:
    """The Shell of root."""

    host: Host

    async def run(self, command: str, *, stdin: bytes = b"", limit_s: float, keep: int = 65536) -> SshCommandResult:
        command = command.replace("$", "$$")  # systemd-run puts variables of its own in their place
        ended = await self.host.run("sh", "-c", command, stdin=stdin, check=False, timeout_s=limit_s)
        return SshCommandResult(ended.status, ended.stdout.encode()[-keep:], ended.stderr.encode()[-keep:])

    async def follow(self, command: str, *, limit_s: float, silence_s: float) -> AsyncIterator[bytes]:
        ended = await self.run(command, limit_s=limit_s)
        for line in ended.stdout.splitlines():
            yield line


@pytest.fixture(scope="module")
def hosts() -> AgentTools:
    return agent_tools()


@pytest.fixture(scope="module")
def lan(hosts: AgentTools) -> Iterator[Segment]:
    with segment() as made:
        yield made


@pytest.fixture
async def host(hosts: AgentTools, lan: Segment, tmp_path: Path) -> AsyncIterator[Host]:
    with fast_disk(tmp_path / "disks") as folder:
        async with booted(hosts, lan, folder, "h1", "10.88.0.11") as up:
            yield up


async def test_install_runs_in_its_own_unit_and_a_host_restart_interrupts_it(host: Host) -> None:
    shell, installer = HostShell(host), HostInstaller(settle_s=0)
    unit = f"unbounded-install-{ATTEMPT}"
    first = await installer.begin(shell, install(waits_for(Path("/run/go"), "exit 3")))
    assert isinstance(first, RunInProgress)
    assert (await host.run("systemctl", "is-active", unit)).stdout == "active\n"
    assert isinstance(await installer.observe(shell, UID), RunInProgress)
    host.put("/run/go", b"")
    assert await installer.follow(shell, install(""), lambda _: None) == Finished(ATTEMPT, 3, "waiting\nwent on")

    async def is_over() -> bool:  # the result is there before systemd knows of the end
        return (await host.run("systemctl", "is-active", unit, check=False)).stdout == "inactive\n"

    await eventually(is_over)

    for attempt, restart in (("1" * 16, host.reboot), ("2" * 16, partial(power_cut, host))):
        endless = install(waits_for(Path("/run/never")), attempt=attempt)
        assert isinstance(await installer.begin(shell, endless), RunInProgress)
        await restart()
        found = await installer.observe(shell, UID)
        assert found == Interrupted(attempt, "the host restarted before it ended")
        left = sorted(path.name for path in host.outside(f"/var/lib/unbounded/install/{UID}/run-{attempt}").iterdir())
        assert not {"config.json", "environment", "install.sh", "run.sh"} & set(left)


async def power_cut(host: Host) -> None:
    host.cut()
    await host.up()
