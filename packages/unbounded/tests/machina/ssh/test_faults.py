"""Servers that are none, silent connections, and a client that distinguishes them, within its limits."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import asyncssh
import pytest

from tests.machina.ssh.servers import FirstUses, at, hop_to
from tests.support.ports import free_port
from tests.support.proxy import proxy
from tests.support.ssh.sshd import Fleet, fingerprint_of, keygen, sshd_fleet
from tests.support.waiting import eventually
from unbounded.api.machine import SSHHop
from unbounded.kube.logs import SecretStr
from unbounded.kube.tasks import DaemonThreads
from unbounded.machina.ssh.client import SshClient
from unbounded.machina.ssh.handshake import HandshakeClient
from unbounded.machina.ssh.keys import read_key
from unbounded.machina.ssh.model import (
    Hop,
    HostKeyPins,
    HostPort,
    SshIdentity,
    SshLimits,
    SshReason,
    SshRejected,
    SshRoute,
    SshTransient,
    SshUncertain,
)
from unbounded.machina.ssh.shell import RemoteShell

LOOPBACK = "127.0.0.1"
NOT_TRUSTED = "Host key is not trusted"
SOON = SshLimits(probe_s=0.5, login_s=0.5)  # for what never comes

Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def somebody(key: str) -> SshIdentity:
    return SshIdentity(SecretStr(key), "unbounded-kube/key@1")


@asynccontextmanager
async def server(answer: Answer) -> AsyncIterator[HostPort]:
    """Something that listens; it closes when it has answered."""
    working: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        working.add(task)
        try:
            await answer(reader, writer)
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            working.discard(task)
            writer.close()

    listener = await asyncio.start_server(serve, LOOPBACK, 0)
    try:
        yield HostPort(LOOPBACK, listener.sockets[0].getsockname()[1])
    finally:
        listener.close()
        for task in working:
            task.cancel()


def saying(text: bytes, *, first: bool = True) -> Answer:
    """Return a server that sends this, at once or after the client's first bytes, and closes."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not first:
            await reader.readline()
        writer.write(text)
        await writer.drain()

    return answer


async def says_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()


async def says_no_end_of_it(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while True:
        writer.write(b"x" * 4096)
        await writer.drain()


WRONG = {
    "http": (saying(b"HTTP/1.1 400 Bad Request\r\n\r\n", first=False), None, SshReason.NOT_SSH),
    "mail": (saying(b"220 mail.example ESMTP\r\n"), SshReason.NOT_SSH, SshReason.NOT_SSH),
    "old": (saying(b"SSH-1.5-old\r\n"), SshReason.NOT_SSH, SshReason.NOT_SSH),
    "busy": (saying(b"Exceeded MaxStartups\r\n"), SshReason.TOO_MANY, SshReason.TOO_MANY),
    "closes": (saying(b""), SshReason.LOST, SshReason.LOST),
    "silent": (says_nothing, SshReason.TIMED_OUT, SshReason.TIMED_OUT),
    "flood": (says_no_end_of_it, SshReason.NOT_SSH, SshReason.NOT_SSH),
    "half": (saying(b"SSH-2.0-half\r\n"), None, SshReason.LOST),
}


@pytest.mark.parametrize("what", WRONG)
async def test_server_without_ssh_is_recognized(what: str, ed25519: str) -> None:
    answer, probed, logged_in = WRONG[what]
    silent = what in ("silent", "http")
    ssh = SshClient(SOON if what == "silent" else SshLimits(probe_s=0.5 if silent else 60, login_s=60))
    async with server(answer) as there:
        route = SshRoute(Hop(SSHHop.HOST, there, "ubuntu", somebody(ed25519)))
        if what != "half":
            with pytest.raises(SshTransient) as failed:
                await ssh.probe(route, on_first_use=FirstUses())
            assert failed.value.reason is (probed or SshReason.TIMED_OUT)
        else:
            await ssh.probe(route, on_first_use=FirstUses())
        with pytest.raises(SshTransient) as failed:
            async with ssh.login(route, on_first_use=FirstUses()):
                pass
        assert failed.value.reason is logged_in
        assert str(there) in str(failed.value)
    await ssh.close()


def to(there: HostPort, fleet: Fleet) -> SshRoute:
    return SshRoute(replace(hop_to(fleet, fleet.servers[0]), at=there))


async def test_refused_unresolved_and_unreachable_hosts_are_transient(ssh: SshClient, ed25519: str) -> None:
    for there, trouble in (
        (HostPort(LOOPBACK, free_port(LOOPBACK)), SshReason.REFUSED),
        (HostPort("255.255.255.255"), SshReason.NO_ROUTE),  # whatever routes there are, TCP has none there
        (HostPort("host.invalid"), SshReason.NO_NAME),
        (HostPort("no..name"), SshReason.NO_NAME),
    ):
        route = SshRoute(Hop(SSHHop.HOST, there, "ubuntu", somebody(ed25519)))
        for tried in (
            ssh.probe(route, on_first_use=FirstUses()),
            ssh.login(route, on_first_use=FirstUses()).__aenter__(),
        ):
            with pytest.raises(SshTransient) as failed:
                await tried
            assert (failed.value.reason, failed.value.hop) == (trouble, SSHHop.HOST)


@pytest.mark.slow
async def test_hanging_name_resolution_delays_no_other_login(ed25519: str, monkeypatch: pytest.MonkeyPatch) -> None:
    hanging = threading.Event()
    known = socket.getaddrinfo

    def look_up(host: str, *more: Any, **named: Any) -> Any:
        if host == "hangs.example":
            assert hanging.wait(60)
        return known(host, *more, **named)

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    ssh = SshClient(SshLimits(probe_s=0.5))
    try:
        async with server(saying(b"SSH-2.0-x\r\n")) as there:
            slow = SshRoute(Hop(SSHHop.HOST, HostPort("hangs.example"), "ubuntu", somebody(ed25519)))
            with pytest.raises(SshTransient, match="no answer within") as failed:
                await ssh.probe(slow, on_first_use=FirstUses())
            assert failed.value.reason is SshReason.TIMED_OUT
            assert await asyncio.to_thread(lambda: 1) == 1
            del there
    finally:
        hanging.set()
        await ssh.close()


HANGS = """
import asyncio, os, socket, threading
from unbounded.api.machine import SSHHop
from unbounded.kube.logs import SecretStr
from unbounded.machina.ssh import keys
from unbounded.machina.ssh.client import Dialer
from unbounded.machina.ssh.model import HostPort, SshIdentity

hanging = []

def hangs(*_, **__):
    os.write(1, b"hangs\\n")  # in one piece: two threads call it
    hanging.append(1)
    threading.Event().wait()

socket.getaddrinfo = keys.read_key = hangs

async def main():
    identity = SshIdentity(SecretStr(""), "a/b@1")
    asks = [Dialer().dial(HostPort("host.example")), keys.KeyRing().read(identity, SSHHop.HOST)]
    asked = [asyncio.ensure_future(ask) for ask in asks]
    while len(hanging) < len(asked):
        await asyncio.sleep(0.01)

asyncio.run(main())
"""


@pytest.mark.slow
def test_a_process_ends_while_names_and_keys_are_waited_for() -> None:
    done = subprocess.run([sys.executable, "-c", HANGS], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout.split()) == (0, ["hangs"] * 2), done.stderr


async def test_threads_that_hang_keep_what_comes_after_them_waiting_and_no_longer() -> None:
    threads, free = DaemonThreads(1, "test"), threading.Event()
    try:
        hanging = asyncio.create_task(threads.run(lambda: free.wait(60)))
        await asyncio.sleep(0)
        later = asyncio.create_task(threads.run(lambda: 2))
        hanging.cancel()
        await asyncio.wait({hanging})
        assert not later.done()
    finally:
        free.set()
    assert await later == 2
    with pytest.raises(ZeroDivisionError):
        await threads.run(lambda: 1 // 0)


@dataclass
class Late(asyncssh.SSHServer):
    """A bastion that accepts every login, and opens connections at the test's signal; each begins like SSH."""

    free: asyncio.Event = field(default_factory=asyncio.Event)
    opened: int = 0
    closed: int = 0

    def begin_auth(self, username: str) -> bool:
        return False

    def connection_requested(self, *_: object) -> Any:
        return self.make()

    async def make(self) -> asyncssh.SSHTCPSession[bytes]:
        await self.free.wait()
        return Made(self)


class Made(asyncssh.SSHTCPSession[bytes]):
    def __init__(self, bastion: Late) -> None:
        self.bastion = bastion

    def connection_made(self, chan: asyncssh.SSHTCPChannel[bytes]) -> None:
        self.bastion.opened += 1
        self.channel = chan

    def session_started(self) -> None:
        self.channel.write(b"SSH-2.0-host\r\n")

    def connection_lost(self, exc: Exception | None) -> None:
        self.bastion.closed += 1


@pytest.mark.slow
async def test_a_connection_that_a_bastion_makes_too_late_is_closed(ed25519: str) -> None:
    ssh, late, many = SshClient(SshLimits(probe_s=2.0, login_s=60)), Late(), 5
    keys = [asyncssh.generate_private_key("ssh-ed25519")]
    listener = await asyncssh.create_server(lambda: late, LOOPBACK, 0, server_host_keys=keys, encoding=None)
    there = HostPort(LOOPBACK, listener.get_port())
    bastion = Hop(SSHHop.BASTION, there, "ubuntu", somebody(ed25519))
    route = SshRoute(Hop(SSHHop.HOST, HostPort("10.0.0.1"), "ubuntu", somebody(ed25519)), bastion)
    probes = (ssh.probe(route, on_first_use=FirstUses()) for _ in range(many))
    for failed in await asyncio.gather(*probes, return_exceptions=True):
        assert isinstance(failed, SshTransient)
        assert "no answer within" in str(failed)
    late.free.set()
    await eventually(lambda: late.closed == many, lambda: late)
    await replaced(ssh, SshLimits()).probe(route, on_first_use=FirstUses())
    assert late.opened == many + 1
    await ssh.close()
    listener.close()
    await listener.wait_closed()


async def test_what_a_bastion_never_answers_ends_with_its_connection(ed25519: str) -> None:
    before = asyncio.all_tasks()
    ssh, late = SshClient(SshLimits(probe_s=0.1, login_s=60)), Late()
    keys = [asyncssh.generate_private_key("ssh-ed25519")]
    listener = await asyncssh.create_server(lambda: late, LOOPBACK, 0, server_host_keys=keys, encoding=None)
    bastion = Hop(SSHHop.BASTION, HostPort(LOOPBACK, listener.get_port()), "ubuntu", somebody(ed25519))
    route = SshRoute(Hop(SSHHop.HOST, HostPort("10.0.0.1"), "ubuntu", somebody(ed25519)), bastion)
    with pytest.raises(SshTransient, match="no answer within"):
        await ssh.probe(route, on_first_use=FirstUses())
    await ssh.close()
    assert not [task for task in asyncio.all_tasks() - before if task.get_name().startswith("reach ")]
    listener.close()
    await listener.wait_closed()


async def test_a_user_name_that_cannot_be_one_is_said(ssh: SshClient, ed25519: str) -> None:
    async with server(says_nothing) as there:
        route = SshRoute(Hop(SSHHop.HOST, there, "bell\a", somebody(ed25519)))
        with pytest.raises(SshRejected, match="is not a valid user name"):
            await ssh.login(route, on_first_use=FirstUses()).__aenter__()


async def test_a_server_keeps_the_key_that_it_showed_first(ed25519: str) -> None:
    """Also in the key exchanges of a connection that has been open for long, and also on first use."""
    keys = [asyncssh.generate_private_key("ssh-ed25519").convert_to_public() for _ in range(2)]
    hop = Hop(SSHHop.HOST, HostPort("host"), "ubuntu", somebody(ed25519))
    client = HandshakeClient(hop, read_key(hop.identity), FirstUses())
    seen = [client.validate_host_public_key("host", "", 22, key) for key in (keys[0], keys[0], keys[1], keys[0])]
    assert seen == [True, True, False, True]
    assert client.shown is not None
    assert client.shown.fingerprint == keys[0].get_fingerprint()


@pytest.mark.slow
@pytest.mark.root
async def test_a_line_that_falls_silent_is_given_up(fleet: Fleet) -> None:
    ssh = SshClient(SshLimits(login_s=60))
    host = fleet.servers[0]
    async with proxy(f"ssh://{at(host)}") as line:
        port = int(line.url.rpartition(":")[2])
        async with ssh.login(to(HostPort(LOOPBACK, port), fleet), on_first_use=FirstUses()) as shell:
            assert (await shell.run("true", limit_s=60)).status == 0
            running = asyncio.create_task(shell.run("exec sleep 9876", limit_s=600))
            await eventually(lambda: bool(host.run("pgrep -fx 'sleep 9876'").stdout), lambda: host.log)
            line.stall = True
            assert isinstance(shell, RemoteShell)
            shell._connection.connection.set_keepalive(0.1, 3)
            with pytest.raises(SshUncertain, match="the connection broke during a command"):
                await running
            with pytest.raises(SshTransient) as failed:
                await shell.run("true", limit_s=60)
            assert failed.value.reason is SshReason.LOST
    await ssh.close()


@pytest.mark.slow
@pytest.mark.root
@pytest.mark.parametrize("room", [0, 100, 1500, 1800], ids=["nothing", "kexinit", "more", "most"])
async def test_stalled_handshake_times_out_and_broken_one_fails_at_once(fleet: Fleet, room: int) -> None:
    """The connection lets some of the server's bytes pass."""
    ssh = SshClient(SshLimits(login_s=60))
    async with proxy(f"ssh://{at(fleet.servers[0])}") as line:
        there = HostPort(LOOPBACK, int(line.url.rpartition(":")[2]))
        line.room = room
        with pytest.raises(SshTransient) as failed:
            async with ssh.login(to(there, fleet), on_first_use=FirstUses()):
                pass
        assert failed.value.reason is SshReason.LOST
        line.calm()
        line.stall = True
        with pytest.raises(SshTransient) as failed:
            async with replaced(ssh, SOON).login(to(there, fleet), on_first_use=FirstUses()):
                pass
        assert failed.value.reason is SshReason.TIMED_OUT
    await ssh.close()


def replaced(ssh: SshClient, limits: SshLimits) -> SshClient:
    """The same client with other limits."""
    ssh.limits = limits
    return ssh


@pytest.mark.slow
@pytest.mark.root
async def test_ipv6_and_several_host_keys(tmp_path: Path) -> None:
    """A server that gets a further key does not count as changed, whichever of them was pinned, and however."""
    ssh = SshClient()
    rsa = keygen(tmp_path / "rsa", "rsa").with_suffix(".pub")
    ecdsa = keygen(tmp_path / "ecdsa", "ecdsa").with_suffix(".pub")
    options = [f"HostKey {key.with_suffix('')}" for key in (rsa, ecdsa)]
    with sshd_fleet(tmp_path / "fleet", 1, address="::1", options=options) as fleet:
        host = fleet.servers[0]
        assert at(host).host == "::1"
        lines = [" ".join(key.read_text().split()[:2]) for key in (rsa, ecdsa)]
        shown = (*map(fingerprint_of, (rsa, ecdsa)), host.fingerprint)
        pins = [HostKeyPins(fingerprint=fingerprint) for fingerprint in shown]
        pins += [HostKeyPins((line,)) for line in (*lines, host.host_key)]
        for pin in pins:
            async with ssh.login(SshRoute(hop_to(fleet, host, pins=pin)), on_first_use=FirstUses()):
                pass
        unlearnt = 3  # handshakes that ended when Ed25519 or ECDSA was shown, before the kind of each was known
        await eventually(lambda: host.log.count(NOT_TRUSTED) == unlearnt, lambda: host.log)
        learnt = HostKeyPins(fingerprint=fingerprint_of(rsa))
        async with ssh.login(SshRoute(hop_to(fleet, host, pins=learnt)), on_first_use=FirstUses()):
            assert host.log.count(NOT_TRUSTED) == unlearnt
        before = host.log.count("publickey")
        gone = HostKeyPins(fingerprint="SHA256:gone")
        with pytest.raises(SshRejected) as refused:
            await ssh.login(SshRoute(hop_to(fleet, host, pins=gone)), on_first_use=FirstUses()).__aenter__()
        assert refused.value.reason is SshReason.HOST_KEY
        await eventually(lambda: host.log.count(NOT_TRUSTED) == unlearnt + 3, lambda: host.log)
        assert host.log.count("publickey") == before
    await ssh.close()
