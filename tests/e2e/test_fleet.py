"""A hundred hosts behind a bastion, from `machine register` to Ready Nodes, with real OpenSSH and real scripts."""

from __future__ import annotations

import asyncio
import base64
import re
from pathlib import Path
from typing import Final

import pytest

from tests.cli.running import KUBECTL
from tests.docs.runner import Shell
from tests.e2e.plane import Plane, plane, reason
from tests.e2e.standin import SHA256, kubelets, standin_agent, started
from tests.support.ssh.sshd import USER, Fleet, missing, sshd_fleet
from unbounded.api.conditions import ConditionType
from unbounded.api.core import SECRETS
from unbounded.api.machine import MACHINES, Machine, MachinePhase

ABSENT: Final = missing()
pytestmark = [
    pytest.mark.slow,
    pytest.mark.root,
    pytest.mark.timeout(900, func_only=True),
    pytest.mark.skipif(ABSENT is not None, reason=f"needs {ABSENT}"),
    pytest.mark.skipif(KUBECTL is None, reason="kubectl is not installed"),
]
HOSTS: Final = 100
BY_KUBECTL: Final = 3
SITE: Final = "hall"
ALL_S: Final = 200.0  # under a tenth of that where nothing runs beside it
REGISTER: Final = "machine register --site {site} --name {name} --host {host} --ssh-username {user} \
--ssh-private-key {key} --bastion-host {bastion} --bastion-ssh-username {user} --agent-url {url} \
--agent-sha256 {sha256} --node-label rack=r1"
LOOP: Final = """
import shlex, sys
from unbounded.cli.plugin.main import main
for line in sys.stdin:
    status = main(shlex.split(line))
    assert status == 0, (status, line)
"""
"""The same command without kubectl before it, and without starting Python for each."""


@pytest.mark.parametrize("by_kubectl", [BY_KUBECTL, pytest.param(HOSTS, marks=pytest.mark.soak)])
async def test_a_hundred_hosts_behind_a_bastion_become_nodes(by_kubectl: int, tmp_path: Path) -> None:
    with sshd_fleet(tmp_path / "fleet", HOSTS, bastion=True) as fleet, standin_agent(tmp_path / "agent") as url:
        async with plane(tmp_path / "data") as it, kubelets(it.api):
            await it.shell.run(f"kubectl unbounded site init --name {SITE}")
            await it.shell.run("kubectl unbounded machine pause --all")  # so that all begin at once
            await _register(it.shell, fleet, url, by_kubectl)
            await it.shell.run("kubectl unbounded machine resume --all")
            machines = await _all_ready(it)
            _are_nodes(machines)
            _each_was_started_once(fleet)
            _nothing_is_left(fleet)
            assert _logins(fleet.bastion.log if fleet.bastion else "") <= 2, "they share a connection to the bastion"
            assert "Traceback" not in it.running.printed
            said = await it.shell.run("kubectl get nodes --no-headers")
            assert len(said.splitlines()) == HOSTS
            await _no_secret_is_shown(it)


async def _register(shell: Shell, fleet: Fleet, url: str, by_kubectl: int) -> None:
    assert fleet.bastion is not None
    lines = [
        REGISTER.format(
            site=SITE,
            name=host.name,
            host=host.at,
            user=USER,
            key=fleet.key,
            bastion=fleet.bastion.at,
            url=url,
            sha256=SHA256,
        )
        for host in fleet.servers
    ]
    for line in lines[:by_kubectl]:
        await shell.run(f"kubectl unbounded {line}")
    (shell.folder / "loop.py").write_text(LOOP)
    (shell.folder / "lines").write_text("\n".join(lines[by_kubectl:]))
    await shell.run("python loop.py <lines")


async def _all_ready(it: Plane) -> list[Machine]:
    seen: list[Machine] = []
    try:
        async with asyncio.timeout(ALL_S):
            while len(seen) < HOSTS or not all(map(_settled, seen)):
                seen = list((await it.api.list(MACHINES)).items)
                await asyncio.sleep(0.5)
    except TimeoutError:
        left = [f"{one.name} {one.status.phase}: {one.status.message}" for one in seen if not _settled(one)]
        raise AssertionError(f"{len(seen)} Machines, of which {len(left)} are not Ready: {left[:5]}") from None
    return seen


def _settled(machine: Machine) -> bool:
    bound = machine.spec.kubernetes is not None and machine.spec.kubernetes.node_ref is not None
    return machine.status.phase == MachinePhase.READY and bound and machine.status.active_operation is None


def _are_nodes(machines: list[Machine]) -> None:
    for machine in machines:
        assert reason(machine, ConditionType.SSH_REACHABLE) == "True/Reachable", machine.name
        assert reason(machine, ConditionType.PROVISIONING) == "False/Completed", machine.name
        assert reason(machine, ConditionType.PROVISIONED) == "True/Provisioned", machine.name
        assert machine.spec.kubernetes is not None
        assert machine.spec.kubernetes.node_ref is not None
        assert machine.spec.kubernetes.node_ref.name == machine.name


def _each_was_started_once(fleet: Fleet) -> None:
    for host in fleet.servers:
        assert started(host) == [f"{SITE}-{host.name}"]


def _nothing_is_left(fleet: Fleet) -> None:
    """Neither the configuration nor the script, in which there are secrets."""
    for host in fleet.servers:
        texts = [path.read_text(errors="replace") for path in host.install.rglob("*") if path.is_file()]
        assert not any("BootstrapToken" in text or "PRIVATE KEY" in text for text in texts), host.name


def _logins(log: str) -> int:
    return len(re.findall(r"Accepted publickey", log))


async def _no_secret_is_shown(it: Plane) -> None:
    """Check the content of the API, apart from Secrets, and the logs."""
    secrets = [one for one in (await it.api.list(SECRETS, namespace="kube-system")).items if "token-secret" in one.data]
    hidden = [base64.b64decode(one.data["token-secret"]).decode() for one in secrets]
    assert hidden
    shown = await it.shell.run("kubectl get mach,events --all-namespaces -o yaml") + it.running.printed
    assert not any(text in shown for text in ("PRIVATE KEY", *hidden))
