"""Runs on a real OpenSSH server, by a user who is not root: what breaks on the way, and on the host."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

from tests.machina.provisioning.local import ATTEMPT, TOKEN, UID, install
from tests.machina.ssh.servers import FirstUses, direct_to
from tests.support.ssh.sshd import Fleet, Server, missing, sshd_fleet
from tests.support.waiting import eventually
from unbounded.machina.provisioning.model import Finished, HostRefuses, NoRun, ObservedRun, RunInProgress
from unbounded.machina.provisioning.remote import HostInstaller
from unbounded.machina.ssh.client import SshClient
from unbounded.machina.ssh.model import Shell, SshUncertain

ABSENT = missing()
pytestmark = [
    pytest.mark.slow,
    pytest.mark.root,
    pytest.mark.skipif(ABSENT is not None, reason=f"needs {ABSENT}"),
]
WAITS = "echo waiting; while [ ! -e /srv/go ]; do sleep 0.05; done; echo went on; exit 3"
SMALL = (
    "mkdir -p /srv/install; mount -t tmpfs -o size=256k,noexec none /srv/install",
    "mount --bind /tmp /tmp; mount -o remount,bind,noexec /tmp",
    f"mount --bind '{sys.prefix}' '{sys.prefix}'; mount -o remount,bind,exec '{sys.prefix}'",  # sshd may lie there
)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """One host: little room for installs, and no programs from there or from /tmp."""
    with sshd_fleet(tmp_path_factory.mktemp("ssh") / "fleet", 1, mounts=SMALL) as made:
        yield made


@pytest.fixture
def server(fleet: Fleet) -> Iterator[Server]:
    server = fleet.servers[0]
    yield server
    server.sudo("allows")
    server.run("rm -rf /srv/install/* /srv/go")


@pytest.fixture
async def ssh() -> AsyncIterator[SshClient]:
    client = SshClient()
    try:
        yield client
    finally:
        await client.close()


@asynccontextmanager
async def login(ssh: SshClient, fleet: Fleet) -> AsyncIterator[Shell]:
    async with ssh.login(direct_to(fleet, fleet.servers[0]), on_first_use=FirstUses()) as shell:
        yield shell


async def test_a_run_goes_on_when_the_line_breaks_and_is_taken_up(fleet: Fleet, server: Server, ssh: SshClient) -> None:
    installer, told = HostInstaller(settle_s=0), list[str]()
    async with login(ssh, fleet) as shell:
        assert await installer.observe(shell, UID) == NoRun()
        assert isinstance(await installer.begin(shell, install(WAITS)), RunInProgress)
        following = asyncio.create_task(installer.follow(shell, install(WAITS), told.append))
        await eventually(lambda: "waiting" in told, lambda: told)
        server.close_sessions()
        with pytest.raises(SshUncertain):
            await following
    async with login(ssh, fleet) as shell:
        assert isinstance(await installer.observe(shell, UID), RunInProgress)
        assert isinstance(await installer.begin(shell, install("touch /srv/twice", attempt="f" * 16)), RunInProgress)
        assert TOKEN not in server.run("ps axwwe").stdout
        server.run("touch /srv/go")
        assert await installer.follow(shell, install(WAITS), told.append) == Finished(ATTEMPT, 3, "waiting\nwent on")
        await installer.clear(shell, UID)
    assert TOKEN not in server.run("grep -rs . /srv/install").stdout
    assert "twice" not in server.run("ls /srv").stdout


@pytest.mark.parametrize(
    ("mode", "words"),
    [("wants a password", "sudo requires a password"), ("forbids the environment", "")],
    ids=["password", "environment"],
)
async def test_sudo_as_it_is_set_up(fleet: Fleet, server: Server, ssh: SshClient, mode: str, words: str) -> None:
    server.sudo(mode)
    installer = HostInstaller(settle_s=20)

    async def begin() -> ObservedRun:
        async with login(ssh, fleet) as shell:
            return await installer.begin(shell, install("exit 0"))

    if not words:
        assert await begin() == Finished(ATTEMPT, 0)
        return
    with pytest.raises(HostRefuses, match=words):
        await begin()


async def test_a_disk_that_is_full_and_output_without_end(fleet: Fleet, server: Server, ssh: SshClient) -> None:
    """The log takes what room there is, and the end is known."""
    installer = HostInstaller(settle_s=60)
    async with login(ssh, fleet) as shell:
        found = await installer.begin(shell, install("head -c 300000 /dev/urandom | base64; echo error: full; exit 1"))
        assert isinstance(found, Finished)
        assert found.status == 1
        await installer.clear(shell, UID)
        server.run("cat /dev/zero > /srv/install/rest")
        with pytest.raises(HostRefuses, match="the disk is full"):
            await installer.begin(shell, install("exit 0", attempt="f" * 16))
        assert await installer.observe(shell, UID) == Finished(ATTEMPT, 1)


async def test_what_is_short_takes_one_session(fleet: Fleet, server: Server, ssh: SshClient) -> None:
    installer = HostInstaller(settle_s=20)
    before = server.log.count("Starting session")
    async with login(ssh, fleet) as shell:
        assert await installer.begin(shell, install("exit 0")) == Finished(ATTEMPT, 0)
        await installer.clear(shell, UID)
    assert server.log.count("Starting session") == before + 1
