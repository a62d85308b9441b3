"""`kubectl unbounded ssh` with the real client of OpenSSH, a real host and a real bastion."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from pathlib import Path

import pytest

from tests.cli import ssh_hosts
from tests.cli.ssh_hosts import LIMIT_S, PROGRAM, READER, Hosts, api, documented, hosts
from tests.cli.test_terminal import terminal
from tests.support.ports import free_port
from tests.support.ssh.sshd import USER, fingerprint_of, keygen
from unbounded.api.machine import SSHHop
from unbounded.cli.host_ssh import config_text
from unbounded.cli.plugin.command import CliError
from unbounded.kube.client import HttpApi
from unbounded.kube.logs import SecretStr
from unbounded.machina.ssh.model import Hop, HostKeyPins, HostPort, SshIdentity, SshRoute

__all__ = ["api", "hosts"]
pytestmark = ssh_hosts.MARKS


async def test_the_documented_commands(hosts: Hosts, api: HttpApi) -> None:
    name, port = (await hosts.machine(api, hosts.target(hosts.host))).name, free_port()
    forward = f"{port}:{hosts.host.address}:{hosts.host.port}"
    replaced = {"rack1_192_0_2_21": name, "10250_127_0_0_1_10250": forward}
    shell, command, tunnel = documented("A shell on the host", **replaced)
    async with hosts.running(*shell, stdin=asyncio.subprocess.PIPE) as process, asyncio.timeout(LIMIT_S):
        out, _ = await process.communicate(b"id -un\n")
        assert out == f"{USER}\n".encode()
    ran = await hosts.run(*command)
    assert (ran.status, "Mounted on" in ran.out) == (0, True), ran.err
    async with hosts.running(*tunnel) as process, asyncio.timeout(LIMIT_S):
        while True:
            with contextlib.suppress(ConnectionRefusedError):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                assert (await reader.readline()).startswith(b"SSH-2.0-OpenSSH")
                writer.close()
                break
            await asyncio.sleep(0.05)
        process.terminate()
        assert await process.wait() == 128 + signal.SIGTERM


async def test_a_shell_on_a_terminal_gets_each_key(hosts: Hosts, api: HttpApi) -> None:
    """Ctrl-C ends the command on the host, and neither ssh nor the program."""
    machine = await hosts.machine(api, hosts.target(hosts.host))
    async with terminal(*PROGRAM, "ssh", machine.name, environ=hosts.environ) as screen:
        screen.type("sh -c 'echo begins$((6*7)); exec sleep 1000'\n")  # in the foreground before it says so
        await screen.shows("begins42")
        screen.type("\x03")
        await screen.shows(r"\^C\s+\S*\$ ")  # what is typed before is dropped with the interrupt
        screen.type("tty; echo alive$((1+1)); exit 5\n")
        await screen.shows(r"/dev/pts/\d+\s+alive2")
        async with asyncio.timeout(LIMIT_S):
            assert await screen.process.wait() == 5
    assert list(hosts.private.iterdir()) == []


async def test_a_host_behind_a_bastion_is_reached_with_the_keys_of_the_secret(hosts: Hosts, api: HttpApi) -> None:
    bastion = hosts.target(hosts.bastion, privateKeyRef=None)
    machine = await hosts.machine(api, hosts.target(hosts.host, bastion=bastion))
    before = len(hosts.bastion.log)
    ran = await hosts.run("ssh", machine.name, "--", "-T", "id -un; cat /etc/passwd >&2; exit 7")
    assert (ran.status, ran.out) == (7, f"{USER}\n"), ran.err
    assert f"{USER}:x:1000" in ran.err
    assert "Accepted publickey" in hosts.bastion.log[before:]
    assert list(hosts.private.iterdir()) == []


async def test_the_pins_of_the_status_are_those_of_the_host_and_of_the_bastion(hosts: Hosts, api: HttpApi) -> None:
    bastion = hosts.target(hosts.bastion, hostKeys=None)
    pins = {"fingerprint": hosts.host.fingerprint, "bastionFingerprint": hosts.bastion.fingerprint}
    machine = await hosts.machine(api, hosts.target(hosts.host, hostKeys=None, bastion=bastion), ssh=pins)
    ran = await hosts.run("ssh", machine.name, "--", "id", "-un")
    assert (ran.status, ran.out) == (0, f"{USER}\n"), ran.err


@pytest.mark.parametrize("whole", [True, False], ids=["key", "fingerprint"])
async def test_a_server_with_another_key_gets_no_login(
    hosts: Hosts, api: HttpApi, tmp_path: Path, *, whole: bool
) -> None:
    other = keygen(tmp_path / "other", "ed25519").with_suffix(".pub")
    lines = [" ".join(other.read_text().split()[:2])] if whole else None
    status = {"fingerprint": fingerprint_of(other)}
    machine = await hosts.machine(api, hosts.target(hosts.host, hostKeys=lines), ssh=status)
    before = len(hosts.host.log)
    ran = await hosts.run("ssh", machine.name, "id")
    assert (ran.status, ran.out) == (255, "")
    assert "Host key verification failed" in ran.err
    if not whole:
        presented = f"error: {machine.name} presents the host key {hosts.host.fingerprint}, and"
        assert f"{presented} {fingerprint_of(other)} is pinned" in ran.err
    assert "publickey" not in hosts.host.log[before:]


async def test_a_server_without_a_pin_is_not_called(hosts: Hosts, api: HttpApi) -> None:
    machine = await hosts.machine(api, hosts.target(hosts.host, hostKeys=None))
    before = len(hosts.host.log)
    ran = await hosts.run("ssh", machine.name)
    assert ran.status == 1
    assert f"the host key of the host {hosts.host.address}:22 is not pinned: neither spec.ssh.hostKeys" in ran.err
    assert f"machine trust-host-key {machine.name} --fingerprint" in ran.err
    assert "Connection from" not in hosts.host.log[before:]
    bastion = hosts.target(hosts.bastion, hostKeys=None)
    behind = await hosts.machine(api, hosts.target(hosts.host, bastion=bastion))
    ran = await hosts.run("ssh", behind.name)
    assert "neither spec.ssh.bastion.hostKeys nor status.ssh.bastionFingerprint has one" in ran.err
    assert f"machine trust-host-key {behind.name} --bastion" in ran.err


async def test_a_user_without_the_right_to_the_secret_logs_in_with_an_own_key(hosts: Hosts, api: HttpApi) -> None:
    machine = await hosts.machine(api, hosts.target(hosts.host))
    own = ("-o", f"IdentityFile={hosts.fleet.key}")
    ran = await hosts.run("ssh", "--as", READER, machine.name, "--", *own, "id", "-un")
    assert (ran.status, ran.out) == (0, f"{USER}\n"), ran.err
    assert "note: spec.ssh.privateKeyRef: Secret unbounded-kube/ssh-key" in ran.err
    assert "ssh uses your own keys at the host" in ran.err
    ran = await hosts.run("ssh", "--as", "nobody", machine.name)
    assert (ran.status, "no permission" in ran.err) == (1, True)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
async def test_the_key_is_in_a_file_of_the_user_alone_until_the_end(
    hosts: Hosts, api: HttpApi, number: signal.Signals
) -> None:
    machine = await hosts.machine(api, hosts.target(hosts.host))
    async with (
        hosts.running("ssh", machine.name, "echo here; cat", stdin=asyncio.subprocess.PIPE) as process,
        asyncio.timeout(LIMIT_S),
    ):
        assert process.stdout is not None
        assert await process.stdout.readline() == b"here\n"
        (folder,) = hosts.private.iterdir()
        assert folder.stat().st_mode & 0o777 == 0o700
        assert {one.stat().st_mode & 0o777 for one in folder.iterdir()} == {0o600}
        assert "PRIVATE KEY" in (folder / "host").read_text()
        process.send_signal(number)
        assert await process.wait() == 128 + number
    assert list(hosts.private.iterdir()) == []


async def test_a_machine_without_an_address_or_with_the_key_of_another_kind(hosts: Hosts, api: HttpApi) -> None:
    ran = await hosts.run("ssh", (await hosts.machine(api, None)).name)
    assert "has no spec.ssh" in ran.err
    assert "machine serial host-" in ran.err
    missing = hosts.target(hosts.host, privateKeyRef={"name": "none", "namespace": "unbounded-kube", "key": "k"})
    ran = await hosts.run("ssh", (await hosts.machine(api, missing)).name, "--", "-o", "BatchMode=yes")
    assert "note: spec.ssh.privateKeyRef: Secret unbounded-kube/none does not exist; ssh uses your own" in ran.err
    assert ran.status == 255


@pytest.mark.parametrize(
    ("user", "host"), [("u\nProxyCommand touch /tmp/x", "h"), ("-oX=y", "h"), ("u", "-oX=y"), ("u", "h\nUser root")]
)
def test_values_that_ssh_would_take_for_options_are_refused(user: str, host: str, tmp_path: Path) -> None:
    pins = HostKeyPins(fingerprint="SHA256:x")
    hop = Hop(SSHHop.HOST, HostPort(host), user, SshIdentity(SecretStr(""), ""), pins)
    with pytest.raises(CliError, match="is not one that ssh takes"):
        config_text("m", SshRoute(hop), tmp_path, [])
