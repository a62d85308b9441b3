"""`kubectl unbounded logs` of a real host: an install by machina's own code, and the journal of a real journald."""

from __future__ import annotations

import asyncio
import json
import signal
from base64 import b64encode
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.cli import ssh_hosts
from tests.cli.ssh_hosts import LIMIT_S, READER, UNIT, Hosts, api, documented, hosts, journald, say
from tests.machina.ssh.servers import FirstUses, direct_to
from tests.support.waiting import eventually
from unbounded.api.core import EVENTS, SECRETS
from unbounded.api.machine import MACHINES, Machine
from unbounded.api.names import NAMESPACE
from unbounded.api.serial_console import CONSOLE_KEY, CONSOLE_SECRET_TYPE
from unbounded.kube.client import HttpApi
from unbounded.kube.logs import SecretStr
from unbounded.machina.machines.model import PROVISIONING_FAILED
from unbounded.machina.provisioning.model import Install, ObservedRun
from unbounded.machina.provisioning.remote import HostInstaller
from unbounded.machina.ssh.client import SshClient

__all__ = ["api", "hosts"]
pytestmark = ssh_hosts.MARKS
TOKEN = "abcdef.0123456789abcdef"
PROVISIONING: dict[str, Any] = {"attempt": "a1", "generation": 1, "startedAt": "2026-01-01T00:00:00Z"}


@pytest.fixture(scope="module", autouse=True)
def journal(hosts: Hosts) -> Iterator[None]:
    """Let the agent's unit write a line with a token into a journal."""
    with journald(hosts.host):
        say(hosts.host, f"joined with {TOKEN}")
        yield


async def provision(hosts: Hosts, machine: Machine, script: str, *, settle_s: int, clear: bool = False) -> ObservedRun:
    client = SshClient()
    try:
        async with client.login(direct_to(hosts.fleet, hosts.host), on_first_use=FirstUses()) as shell:
            install = Install(machine.metadata.uid, "a1", SecretStr("{}"), script)
            installer = HostInstaller(settle_s=settle_s)
            ended = await installer.begin(shell, install)
            if clear:
                await installer.clear(shell, machine.metadata.uid)
            return ended
    finally:
        await client.close()


@asynccontextmanager
async def following(hosts: Hosts, *words: str) -> AsyncIterator[asyncio.StreamReader]:
    async with hosts.running(*words) as process, asyncio.timeout(LIMIT_S):
        assert process.stdout is not None
        yield process.stdout
        process.send_signal(signal.SIGINT)
        assert await process.wait() == 130


async def until(stream: asyncio.StreamReader, text: str) -> str:
    """Read lines until one has this text; return them."""
    found = ""
    while text not in found:
        line = await stream.readline()
        assert line, found
        found += line.decode()
    return found


async def test_all_logs_of_a_machine_whose_install_has_failed(hosts: Hosts, api: HttpApi) -> None:
    status = {"provisioning": PROVISIONING}
    machine = await hosts.machine(api, hosts.target(hosts.host), **status)
    script = f"printf '\\033]0;t\\007'; for n in 1 2 3; do echo line $n; done; echo token {TOKEN}; exit 3"
    await provision(hosts, machine, script, settle_s=30)
    await keep_console(api, machine, "kernel panic")
    await eventually(lambda: "joined" in hosts.host.run(f"journalctl -u {UNIT}").stdout, lambda: "no line")
    ran = await hosts.run("logs", machine.name)
    assert (ran.status, ran.err) == (0, "")
    head, *lines = ran.out.splitlines()
    where = f"{hosts.host.address}:22, over SSH"
    assert head == f"==> install: output of the install script on {where}; run a1 ended with status 3 <=="
    assert lines[:4] == ["line 1", "line 2", "line 3", "token [redacted]"]
    agent = lines.index(f"==> agent: journal of units unbounded-agent* on {where} <==")
    assert lines[agent + 1].endswith("joined with [redacted]")
    source = f"Secret unbounded-kube/console-{machine.name}: until reboot-1 failed, at 2026-02-02T00:00:00Z"
    assert lines[-2:] == [f"==> console: {source} <==", "kernel panic"]
    ran = await hosts.run("logs", machine.name, "--tail", "2", "--part", "install", "-o", "json")
    found = json.loads(ran.out)
    assert [one["text"] for one in found["logs"]] == ["line 3\ntoken [redacted]"]
    assert found["machine"] == machine.name


async def keep_console(api: HttpApi, machine: Machine, text: str) -> None:
    """Store the console of a boot that failed, as metalman does."""
    name = f"console-{machine.name}"
    data = {CONSOLE_KEY: b64encode(text.encode()).decode()}
    secret = {"metadata": {"name": name}, "type": CONSOLE_SECRET_TYPE, "data": data}
    await api.create(SECRETS, secret, namespace=NAMESPACE)
    kept = {"secret": name, "operation": "reboot-1", "at": "2026-02-02T00:00:00Z"}
    await api.patch(MACHINES, machine.name, {"status": {"consoleOutput": kept}}, subresource="status")


async def test_an_install_and_then_the_agent_are_followed(hosts: Hosts, api: HttpApi) -> None:
    machine = await hosts.machine(api, hosts.target(hosts.host), provisioning=PROVISIONING)
    hosts.host.run("rm -f /srv/go")
    script = "echo begins; until [ -e /srv/go ]; do sleep 0.05; done; echo ends; exit 4"
    await provision(hosts, machine, script, settle_s=0)
    follow, recent = documented("Logs", rack1_192_0_2_21=machine.name)
    async with following(hosts, *follow) as out:
        await until(out, "begins")
        hosts.host.run("touch /srv/go")
        agent = f"==> agent: journal of units unbounded-agent* on {hosts.host.address}:22, over SSH <=="
        assert await until(out, "==> agent: ") == f"ends\n{agent}\n"
        say(hosts.host, "comes later")
        await until(out, "comes later")
    ran = await hosts.run(*recent)
    assert (ran.status, ran.err) == (0, "")
    assert ran.out.splitlines()[-1].endswith("comes later")


async def test_the_end_of_an_install_that_has_failed_is_in_an_event(hosts: Hosts, api: HttpApi) -> None:
    """machina has removed the output from the host, and an Event about an earlier Machine of the name is another's."""
    machine = await hosts.machine(api, hosts.target(hosts.host), provisioning=PROVISIONING)
    await provision(hosts, machine, "echo gone; exit 3", settle_s=30, clear=True)
    for at, uid in ((1, machine.metadata.uid), (2, machine.metadata.uid), (3, "another")):
        about = {"apiVersion": MACHINES.api_version, "kind": "Machine", "name": machine.name, "uid": uid}
        event = {
            "metadata": {"name": f"{machine.name}.{at}"},
            "involvedObject": about,
            "reason": PROVISIONING_FAILED,
            "message": f"attempt {at} failed\nits output with {TOKEN}",
            "lastTimestamp": f"2026-01-0{at}T00:00:00Z",
        }
        await api.create(EVENTS, event, namespace="default")
    ran = await hosts.run("logs", machine.name, "--part", "install")
    assert (ran.status, ran.err) == (0, "")
    head, *lines = ran.out.splitlines()
    assert head.startswith(
        "==> install: Events ProvisioningFailed of the Machine, with the end of the output; the host"
    )
    assert "the host keeps no output of it" in head
    assert lines == [
        "2026-01-01T00:00:00Z attempt 1 failed",
        "its output with [redacted]",
        "2026-01-02T00:00:00Z attempt 2 failed",
        "its output with [redacted]",
    ]
    ran = await hosts.run("logs", machine.name, "--part", "install", "--since", "1h")
    assert (ran.status, "note: no install log: " in ran.err) == (1, True)
    ran = await hosts.run("logs", machine.name, "--part", "install", "--as", READER)
    assert "the Events of its attempts cannot be read: " in ran.err


async def test_what_is_missing_is_named_with_its_reason(hosts: Hosts, api: HttpApi) -> None:
    machine = await hosts.machine(api, hosts.target(hosts.host))
    ran = await hosts.run("logs", machine.name, "--since", "1s", "--part", "install", "--part", "console")
    assert (ran.status, ran.out) == (1, "")
    assert "note: no install log: machina has not begun to set up the host; its status has no report" in ran.err
    assert "note: no console log: none is kept: the Machine has no BMC (spec.pxe.redfish) with a console" in ran.err
    await keep_console(api, machine, "panic")
    await api.patch(MACHINES, machine.name, {"status": {"provisioning": PROVISIONING}}, subresource="status")
    ran = await hosts.run("logs", machine.name, "--since", "1s", "--part", "console")
    assert "note: no console log: it ended before --since" in ran.err
    hosts.host.sudo("wants a password")
    try:
        ran = await hosts.run("logs", machine.name)
    finally:
        hosts.host.sudo("allows")
    assert (ran.status, ran.out.splitlines()[-1:]) == (0, ["panic"]), ran.err
    for part in ("install", "agent"):
        assert f"note: no {part} log: sudo requires a password" in ran.err, ran.err
    ran = await hosts.run("logs", machine.name)
    assert "note: no install log: the host has no run of this Machine" in ran.err
    ran = await hosts.run("logs", "--as", READER, machine.name)
    assert ran.status == 1
    assert "note: spec.ssh.privateKeyRef: Secret unbounded-kube/ssh-key" in ran.err
    assert "note: no agent log: ssh: " in ran.err
    assert "Permission denied (publickey)" in ran.err
    assert "note: no console log: " in ran.err
    assert f'User "{READER}" cannot get resource "secrets"' in ran.err or "forbidden" in ran.err, ran.err


async def test_a_machine_that_is_not_reached_over_ssh_shows_the_last_report(hosts: Hosts, api: HttpApi) -> None:
    condition = {
        "type": "Repaved",
        "status": "False",
        "reason": "InstallFailed",
        "message": "the installer found no disk",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    boot = {"boot": "repave-1", "milestone": "Failed", "at": "2026-01-01T00:00:00Z", "message": "no disk"}
    machine = await hosts.machine(api, None, conditions=[condition], netboot=boot)
    ref = {"name": "bmc", "namespace": NAMESPACE, "key": "password"}
    redfish = {"url": "https://bmc.example.com", "username": "admin", "passwordRef": ref}
    pxe = {"image": "registry.example.com/i:1", "redfish": redfish}
    await api.patch(MACHINES, machine.name, {"spec": {"pxe": pxe}})
    ran = await hosts.run("logs", machine.name, "-o", "json")
    assert ran.status == 1
    install, agent, console = (one["missing"] for one in json.loads(ran.out)["logs"])
    assert agent == f"Machine {machine.name} has no spec.ssh, so that no address of its host for SSH is known"
    assert install == (
        f"{agent}; its last boot from the network reached Failed at 2026-01-01T00:00:00Z: no disk; the last report is "
        "condition Repaved=False (InstallFailed): the installer found no disk"
    )
    assert console.startswith("none is kept: no boot failed while metalman recorded the console; `kubectl unbounded")
    closed = hosts.target(hosts.host, host=f"{hosts.host.address}:1")
    ran = await hosts.run("logs", (await hosts.machine(api, closed)).name, "--part", "agent")
    assert "port 1: Connection refused" in ran.err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--tail", "0"), "--tail: '0' is not a number of lines from 1"),
        (("--since", "yesterday"), "--since: 'yesterday' is not a duration"),
        (("-f", "-o", "json"), "-o json: -f prints only text"),
        (("-f", "--part", "console"), "-f: the kept console has ended"),
    ],
)
async def test_arguments_that_cannot_be_meant(hosts: Hosts, api: HttpApi, words: tuple[str, ...], says: str) -> None:
    machine = await hosts.machine(api, None)
    ran = await hosts.run("logs", machine.name, *words)
    assert ran.status == 2
    assert says in ran.err
