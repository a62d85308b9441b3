"""Contract of logins, with real servers and with the made-up hosts of other tests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests.machina.ssh.servers import FirstUses, direct_to, identity, through_bastion
from tests.support.machina import FakeHost, FakeSsh
from tests.support.ssh.sshd import Fleet, keygen
from unbounded.api.failures import Stale
from unbounded.api.machine import SSHHop
from unbounded.kube.logs import SecretStr
from unbounded.machina.controller import LazySshClient
from unbounded.machina.ssh.model import (
    Hop,
    HostKeyPins,
    HostPort,
    Ssh,
    SshCommandResult,
    SshIdentity,
    SshReason,
    SshRejected,
    SshRoute,
    SshTransient,
    SshUncertain,
)


@dataclass
class World:
    """Somewhere to log in.

    Attributes:
        direct, jumping: to the same host, nothing pinned.
        stranger: whose key is refused.
        fingerprints: of the bastion and of the host.
        logins: how many the host has let in.
        cut: all connections to the host break.
    """

    ssh: Ssh
    direct: SshRoute
    jumping: SshRoute
    stranger: SshIdentity
    fingerprints: tuple[str, str]
    logins: Callable[[], int]
    cut: Callable[[], None]


def real(fleet: Fleet, folder: Path) -> World:
    host, bastion = fleet.servers[0], fleet.bastion
    assert bastion is not None
    stranger = identity(keygen(folder / "stranger", "ed25519"))
    return World(
        LazySshClient(), direct_to(fleet, host, pins=HostKeyPins()),
        through_bastion(fleet, host, pins=HostKeyPins(), bastion=HostKeyPins()),
        stranger, (bastion.fingerprint, host.fingerprint), lambda: host.log.count("Accepted publickey for"),
        host.close_sessions,
    )  # fmt: skip


def made_up() -> World:
    me, stranger = (SshIdentity(SecretStr(name), f"unbounded-kube/{name}@1") for name in ("me", "stranger"))

    def answer(command: str, stdin: bytes) -> SshCommandResult:
        return {"cat": SshCommandResult(0, stdin, b""), "exit 3": SshCommandResult(3, b"", b"")}[command]

    host = FakeHost("SHA256:host", refused={stranger.version}, answer=answer, lines=[(0, b"one"), (0, b"two")])
    bastion = FakeHost("SHA256:bastion")
    direct = SshRoute(Hop(SSHHop.HOST, HostPort("host"), "ubuntu", me))
    return World(
        FakeSsh({"host:22": host, "bastion:22": bastion}), direct,
        replace(direct, bastion=Hop(SSHHop.BASTION, HostPort("bastion"), "jump", me)), stranger,
        (bastion.fingerprint, host.fingerprint), lambda: len(host.logins), host.cut,
    )  # fmt: skip


@pytest.fixture(params=[pytest.param("real", marks=[pytest.mark.slow, pytest.mark.root]), "made-up"])
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    world = made_up() if request.param == "made-up" else real(request.getfixturevalue("fleet"), tmp_path)
    yield world
    await world.ssh.close()


async def test_first_uses_are_reported_in_order_and_once(world: World) -> None:
    first, logins = FirstUses(), world.logins()
    async with world.ssh.login(world.jumping, on_first_use=first):
        bastion, host = world.fingerprints
        assert first.seen == [(SSHHop.BASTION, bastion), (SSHHop.HOST, host)]
    assert world.logins() == logins + 1
    assert world.jumping.bastion is not None
    pinned = SshRoute(
        replace(world.jumping.host, pins=HostKeyPins(fingerprint=host)),
        replace(world.jumping.bastion, pins=HostKeyPins(fingerprint=bastion)),
    )
    async with world.ssh.login(pinned, on_first_use=first):
        assert len(first.seen) == 2


async def test_who_cannot_pin_does_not_log_in(world: World) -> None:
    logins = world.logins()
    with pytest.raises(Stale, match="changed"):
        await world.ssh.login(world.direct, on_first_use=FirstUses(fails=Stale("changed"))).__aenter__()
    assert world.logins() == logins


async def test_another_host_key_and_a_refused_key_stay_so(world: World) -> None:
    logins, first = world.logins(), FirstUses()
    wrong = replace(world.direct.host, pins=HostKeyPins(fingerprint="SHA256:another"))
    with pytest.raises(SshRejected, match="SHA256:another is pinned") as refused:
        await world.ssh.login(SshRoute(wrong), on_first_use=first).__aenter__()
    assert (refused.value.reason, refused.value.hop) == (SshReason.HOST_KEY, SSHHop.HOST)
    assert world.fingerprints[1] in str(refused.value)
    assert first.seen == []
    stranger = replace(world.direct.host, identity=world.stranger)
    with pytest.raises(SshRejected) as refused:
        await world.ssh.login(SshRoute(stranger), on_first_use=first).__aenter__()
    assert (refused.value.reason, refused.value.hop) == (SshReason.LOGIN, SSHHop.HOST)
    assert world.logins() == logins


async def test_a_probe_logs_in_to_the_bastion_alone(world: World) -> None:
    first, logins = FirstUses(), world.logins()
    await world.ssh.probe(world.jumping, on_first_use=first)
    assert [hop for hop, _ in first.seen] == [SSHHop.BASTION]
    await world.ssh.probe(world.direct, on_first_use=first)
    assert len(first.seen) == 1
    assert world.logins() == logins


async def test_closed_port_is_a_refused_connection(world: World) -> None:
    nobody = replace(world.direct.host, at=HostPort(world.direct.host.at.host, 9))
    with pytest.raises(SshTransient) as failed:
        await world.ssh.probe(SshRoute(nobody), on_first_use=FirstUses())
    assert (failed.value.reason, failed.value.hop) == (SshReason.REFUSED, SSHHop.HOST)


async def test_commands_come_to_their_end_and_a_broken_line_leaves_it_open(world: World) -> None:
    assert world.ssh.connections == 0
    async with world.ssh.login(world.direct, on_first_use=FirstUses()) as shell:
        assert world.ssh.connections == 1
        assert await shell.run("cat", stdin=b"12345", limit_s=60) == SshCommandResult(0, b"12345", b"")
        assert await shell.run("cat", stdin=b"12345", limit_s=60, keep=2) == SshCommandResult(0, b"45", b"", 3)
        assert (await shell.run("exit 3", limit_s=60)).status == 3
        told = shell.follow("echo one; echo two", limit_s=60, silence_s=60)
        assert [line async for line in told] == [b"one", b"two"]
        world.cut()
        with pytest.raises((SshTransient, SshUncertain), match="the connection broke"):
            await shell.run("cat", limit_s=60)
        with pytest.raises(SshTransient) as failed:
            await shell.run("cat", limit_s=60)
        assert failed.value.reason is SshReason.LOST
    assert world.ssh.connections == 0
