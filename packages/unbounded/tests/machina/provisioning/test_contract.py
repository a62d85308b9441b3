"""Contract of a host's installs, with this machine's own shells and with the made-up installs of other tests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace

import pytest

from tests.machina.provisioning.local import (
    ATTEMPT,
    UID,
    Local,
    children,
    command_line,
    holders,
    install,
    processes_with,
    signalled,
    waits_for,
)
from tests.machina.ssh.servers import FirstUses
from tests.support.installer import FakeInstaller
from tests.support.machina import FakeHost, FakeSsh
from tests.support.waiting import eventually
from unbounded.api.machine import SSHHop
from unbounded.kube.logs import SecretStr
from unbounded.machina.provisioning.model import Finished, Install, Installer, Interrupted, NoRun, RunInProgress
from unbounded.machina.provisioning.remote import HostInstaller
from unbounded.machina.ssh.model import Hop, HostPort, Shell, SshIdentity, SshRoute

OTHER = "f" * 16


@dataclass
class World:
    """A host, and a client that sets it up.

    Attributes:
        waits: an install that continues until it gets a signal to end.
        ends: send the signal; it prints "the end", and its status is 3.
        killed: all of it is.
    """

    shell: Shell
    installer: Installer
    waits: Callable[[str], Install]
    ends: Callable[[], None]
    killed: Callable[[], Awaitable[None]]


def real(host: Local) -> World:
    go = host.folder / "go"

    async def killed() -> None:
        log = host.run_folder / "log"
        await eventually(lambda: log.exists() and "waiting" in log.read_text())
        keeper = next(pid for pid in holders(host) if "/run.sh" in command_line(pid))
        for process in reversed(children(keeper)):
            signalled(process)
        await eventually(lambda: not processes_with(str(host.run_folder)))

    script = waits_for(go, "echo 'the end'; exit 3")
    return World(host, HostInstaller(settle_s=0), lambda name: install(script, attempt=name), go.touch, killed)


async def made_up() -> AsyncIterator[World]:
    installer, hop = FakeInstaller(), Hop(SSHHop.HOST, HostPort("host"), "ubuntu", SshIdentity(SecretStr("me"), "k@1"))
    installs = installer.of(UID)

    async def killed() -> None:
        installs.reboot()

    async with FakeSsh({"host:22": FakeHost()}).login(SshRoute(hop), on_first_use=FirstUses()) as shell:
        yield World(
            shell, installer, lambda name: install("", attempt=name), lambda: installs.end(3, "the end"), killed
        )


@pytest.fixture(params=["real", "made-up"])
async def world(request: pytest.FixtureRequest) -> AsyncIterator[World]:
    if request.param == "real":
        yield real(request.getfixturevalue("host"))
        return
    async for world in made_up():
        yield world


@pytest.mark.slow
async def test_one_runs_at_a_time_and_is_known_until_another_begins(world: World) -> None:
    shell, installer, told = world.shell, world.installer, list[str]()
    assert await installer.observe(shell, UID) == NoRun()
    first, second = world.waits(ATTEMPT), world.waits(OTHER)
    for begun in (first, second, first):
        found = await installer.begin(shell, begun)
        assert isinstance(found, RunInProgress)
        assert found.attempt == ATTEMPT
    assert isinstance(await installer.observe(shell, UID), RunInProgress)

    def tell(words: str) -> None:
        told.append(words)
        world.ends()

    ended = await installer.follow(shell, second, tell)
    assert isinstance(ended, Finished)
    assert (ended.attempt, ended.status) == (ATTEMPT, 3)
    assert ended.tail.endswith("the end")
    assert told
    assert await installer.observe(shell, UID) == ended
    for _ in range(2):
        await installer.clear(shell, UID)
        assert await installer.observe(shell, UID) == replace(ended, tail="")
    assert await installer.begin(shell, first) == replace(ended, tail="")  # of this name it has been
    assert await installer.follow(shell, first, tell) == replace(ended, tail="")
    found = await installer.begin(shell, second)
    assert isinstance(found, RunInProgress | Finished)
    assert found.attempt == OTHER


async def test_killed_install_is_interrupted_and_restarts_with_the_same_attempt(world: World) -> None:
    shell, installer, first = world.shell, world.installer, world.waits(ATTEMPT)
    await installer.begin(shell, first)
    await world.killed()
    found = await installer.follow(shell, first, lambda _: None)
    assert isinstance(found, Interrupted)
    assert found.attempt == ATTEMPT
    assert await installer.observe(shell, UID) == found
    again = await installer.begin(shell, first)
    assert isinstance(again, RunInProgress)
    assert again.attempt == ATTEMPT
    world.ends()
    assert isinstance(await installer.follow(shell, first, lambda _: None), Finished)
