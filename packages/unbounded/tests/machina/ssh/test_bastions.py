"""Through a real bastion: one connection for all, whose troubles are its own."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from pathlib import Path

import pytest

from tests.machina.ssh.servers import FirstUses, at, hop_to, identity, through_bastion
from tests.support.ssh.sshd import Fleet, Server, fingerprint_of, keygen
from tests.support.waiting import eventually
from unbounded.api.machine import SSHHop
from unbounded.machina.ssh.client import SshClient
from unbounded.machina.ssh.model import (
    HostKeyPins,
    HostPort,
    SshLimits,
    SshReason,
    SshRejected,
    SshRoute,
    SshTransient,
    SshUncertain,
)

pytestmark = [pytest.mark.slow, pytest.mark.root]


def bastion_of(fleet: Fleet) -> Server:
    assert fleet.bastion is not None
    return fleet.bastion


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


async def many_through_one(fleet: Fleet, many: int) -> None:
    bastion = bastion_of(fleet)
    seen, files, tasks = len(bastion.log), open_files(), len(asyncio.all_tasks())
    ssh = SshClient(SshLimits(bastion_idle_s=0.5))
    route, first = through_bastion(fleet, fleet.servers[0], bastion=HostKeyPins()), FirstUses()

    async def one() -> bytes:
        async with ssh.login(route, on_first_use=first) as shell:
            return (await shell.run("id -u", limit_s=120)).stdout

    assert await asyncio.gather(*(one() for _ in range(many))) == [b"1000\n"] * many
    assert first.seen == [(SSHHop.BASTION, bastion.fingerprint)] * many
    assert bastion.log[seen:].count("Accepted publickey for") == 1
    await eventually(lambda: "Disconnected from user" in bastion.log[seen:], lambda: bastion.log[seen:])
    await ssh.close()
    await eventually(lambda: len(asyncio.all_tasks()) <= tasks, asyncio.all_tasks)
    await eventually(lambda: open_files() <= files, lambda: os.listdir("/proc/self/fd"))


async def test_many_share_one_connection_which_is_closed_when_idle(fleet: Fleet) -> None:
    await many_through_one(fleet, 16)


@pytest.mark.soak
@pytest.mark.timeout(300)
async def test_a_hundred_share_one_connection(fleet: Fleet) -> None:
    await many_through_one(fleet, 100)


async def test_bastion_key_is_pinned_on_first_use_by_each_login(fleet: Fleet, ssh: SshClient) -> None:
    route = through_bastion(fleet, fleet.servers[0], bastion=HostKeyPins(), pins=HostKeyPins())
    for _ in range(2):
        first = FirstUses()
        async with ssh.login(route, on_first_use=first):
            assert first.seen == [
                (SSHHop.BASTION, bastion_of(fleet).fingerprint),
                (SSHHop.HOST, fleet.servers[0].fingerprint),
            ]


async def test_bastion_with_another_key_gets_no_login_or_forwarding(
    fleet: Fleet, ssh: SshClient, tmp_path: Path
) -> None:
    bastion, host = bastion_of(fleet), fleet.servers[0]
    before, host_before = len(bastion.log), len(host.log)
    other = fingerprint_of(keygen(tmp_path / "other", "ed25519").with_suffix(".pub"))
    route = through_bastion(fleet, host, bastion=HostKeyPins(fingerprint=other))
    with pytest.raises(SshRejected) as refused:
        await ssh.probe(route, on_first_use=FirstUses())
    assert (refused.value.reason, refused.value.hop) == (SshReason.HOST_KEY, SSHHop.BASTION)
    assert "publickey" not in bastion.log[before:]
    assert "Connection from" not in host.log[host_before:]


async def test_a_shared_connection_does_not_count_for_who_has_another_key_pinned(
    fleet: Fleet, ssh: SshClient, tmp_path: Path
) -> None:
    host, other = fleet.servers[0], keygen(tmp_path / "other", "ed25519").with_suffix(".pub")
    async with ssh.login(through_bastion(fleet, host, bastion=HostKeyPins()), on_first_use=FirstUses()):
        wrong = through_bastion(fleet, host, bastion=HostKeyPins(fingerprint=fingerprint_of(other)))
        with pytest.raises(SshRejected, match="is pinned; nothing was sent to it"):
            await ssh.probe(wrong, on_first_use=FirstUses())


async def test_a_probe_logs_in_to_the_bastion_and_not_to_the_host(fleet: Fleet, ssh: SshClient) -> None:
    host, before = fleet.servers[0], len(fleet.servers[0].log)
    await ssh.probe(through_bastion(fleet, host), on_first_use=FirstUses())
    await eventually(lambda: "Connection closed" in host.log[before:], lambda: host.log[before:])
    assert "publickey" not in host.log[before:]
    await ssh.probe(SshRoute(hop_to(fleet, host)), on_first_use=FirstUses())


@pytest.mark.parametrize(
    ("beyond", "trouble"),
    [
        ("", SshReason.REFUSED),
        ("host.invalid", SshReason.NO_NAME),
        ("255.255.255.255", SshReason.NO_ROUTE),  # whatever routes there are, TCP has none there
    ],
    ids=["closed-port", "no-such-name", "no-route"],
)
async def test_connection_error_beyond_the_bastion_is_one_of_the_host(
    fleet: Fleet, ssh: SshClient, beyond: str, trouble: SshReason
) -> None:
    there = HostPort(beyond) if beyond else HostPort(fleet.servers[0].address, 9)
    route = through_bastion(fleet, fleet.servers[0])
    with pytest.raises(SshTransient) as failed:
        await ssh.probe(replace(route, host=replace(route.host, at=there)), on_first_use=FirstUses())
    assert (failed.value.reason, failed.value.hop) == (trouble, SSHHop.HOST)
    assert "from the bastion" in str(failed.value)


async def test_a_bastion_that_does_not_forward_says_so(fleet: Fleet, ssh: SshClient, tmp_path: Path) -> None:
    key = keygen(tmp_path / "no-forwarding", "ed25519")
    public = key.with_suffix(".pub")
    public.write_text(f"no-port-forwarding {public.read_text()}")
    fleet.authorize(public)
    route = through_bastion(fleet, fleet.servers[0])
    assert route.bastion is not None
    route = replace(route, bastion=replace(route.bastion, identity=identity(key)))
    with pytest.raises(SshRejected, match="see AllowTcpForwarding there") as refused:
        await ssh.probe(route, on_first_use=FirstUses())
    assert (refused.value.reason, refused.value.hop) == (SshReason.NO_FORWARDING, SSHHop.BASTION)


async def test_lost_bastion_fails_its_logins_and_is_connected_again(fleet: Fleet, ssh: SshClient) -> None:
    bastion = bastion_of(fleet)
    route, sent = through_bastion(fleet, fleet.servers[0]), asyncio.Event()

    async def ride() -> None:
        async with ssh.login(route, on_first_use=FirstUses()) as shell:
            async for _ in shell.follow("echo on the way; sleep 600", limit_s=600, silence_s=600):
                sent.set()

    riders = [asyncio.create_task(ride()) for _ in range(2)]
    await sent.wait()
    bastion.close_sessions()
    ends = await asyncio.gather(*riders, return_exceptions=True)
    assert [type(end) for end in ends] in (
        [SshUncertain] * 2,
        [SshUncertain, SshTransient],
        [SshTransient, SshUncertain],
    )
    assert all(f"bastion {at(bastion)}: the connection broke" in str(end) for end in ends)
    await ssh.probe(route, on_first_use=FirstUses())


async def test_bastion_lost_during_a_host_login_is_the_failed_hop(fleet: Fleet, ssh: SshClient) -> None:
    met = asyncio.Event()

    async def says_its_version_and_no_more(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"SSH-2.0-slow\r\n")
        await reader.readline()
        met.set()
        await reader.read()
        writer.close()

    listener = await asyncio.start_server(says_its_version_and_no_more, "127.0.0.1", 0)
    there = HostPort("127.0.0.1", listener.sockets[0].getsockname()[1])
    route = through_bastion(fleet, fleet.servers[0])
    slow = replace(route, host=replace(route.host, at=there))
    task = asyncio.ensure_future(ssh.login(slow, on_first_use=FirstUses()).__aenter__())
    await met.wait()
    bastion_of(fleet).close_sessions()
    with pytest.raises(SshTransient, match="the connection broke") as failed:
        await task
    assert (failed.value.reason, failed.value.hop) == (SshReason.LOST, SSHHop.BASTION)
    listener.close()
