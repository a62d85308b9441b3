"""Provisioning of 100 OpenSSH servers by machina's client, by OpenSSH's and by ansible.

All three log in with the same key, use the same algorithms and pin the keys of the servers. They upload the same
configuration and script, and run the script, which ends at once. All have the same concurrency limit. The servers, the
same for all, take more CPU than any client.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import msgspec

from benchmarks import children
from benchmarks.frame import Limit, Measured, print_progress, run_benchmark
from benchmarks.ssh_jobs import Job, JobResult, Open, Target
from tests.support.ssh import sshd
from tests.support.ssh.sshd import Fleet, sshd_fleet
from unbounded.join.agent_install import install_script

WITHIN_S: Final = 900.0
CONFIG_BYTES: Final = 4000
SAME: Final = (
    "Ciphers aes128-gcm@openssh.com",
    "KexAlgorithms curve25519-sha256",
    "HostKeyAlgorithms ssh-ed25519",
    "PubkeyAcceptedAlgorithms ssh-ed25519",
    "Subsystem sftp internal-sftp",  # ansible would try two other ways first
)
ONE_BY_SSH: Final = """#!/bin/sh
exec ssh -F {folder}/ssh_config "$1" 'umask 077; rm -rf /srv/run; mkdir /srv/run && cd /srv/run && tar -xf - &&
UNBOUNDED_AGENT_CONFIG_FILE=/srv/run/config bash ./script
status=$?; rm -rf /srv/run; exit $status' <{folder}/payload.tar
"""
SSH_CONFIG: Final = """Host *
  User root
  Port 22
  IdentityFile {key}
  IdentitiesOnly yes
  UserKnownHostsFile {folder}/known_hosts
  StrictHostKeyChecking yes
  BatchMode yes
  ControlMaster no
"""
PLAYBOOK: Final = """- hosts: all
  gather_facts: false
  tasks:
    - ansible.builtin.copy: {{src: "{folder}/config", dest: /srv/config, mode: "0600"}}
    - ansible.builtin.copy: {{src: "{folder}/script", dest: /srv/script, mode: "0700"}}
    - ansible.builtin.command: bash /srv/script
      environment: {{UNBOUNDED_AGENT_CONFIG_FILE: /srv/config}}
"""
AMOUNT: Final = (
    "{hosts:g} OpenSSH servers on loopback, {at_once:g} at once, a no-op script, {connections:g} connections"
)
LIMITS: Final[Mapping[str, Limit]] = {
    "wall_vs_openssh": Limit("provisioning of all, over OpenSSH's client by xargs -P", most=1.5, aim=1.2),
    "wall_vs_ansible": Limit("the same, over ansible", most=0.2, aim=0.1),
    "machina_s": Limit("provisioning of all, s"),
    "openssh_s": Limit("by OpenSSH's client, s"),
    "ansible_s": Limit("by ansible, s"),
    "machina_cpu_s": Limit("CPU of machina's client, s"),
    "openssh_cpu_s": Limit("CPU of OpenSSH's clients, s"),
    "ansible_cpu_s": Limit("CPU of ansible, s"),
    "connection_kib": Limit("memory for each connection that stays open, KiB"),
}


@dataclass(frozen=True)
class Size:
    """Amounts of one run.

    Args:
        logins: open connections to each host at the same time.
    """

    hosts: int
    at_once: int
    logins: int
    rounds: int


FULL: Final = Size(hosts=100, at_once=50, logins=10, rounds=3)
QUICK: Final = Size(hosts=4, at_once=2, logins=2, rounds=1)


class CommandUsage(msgspec.Struct, frozen=True):
    """Result of benchmarks.ssh_peer."""

    status: int
    wall_s: float
    cpu_s: float


def missing() -> str | None:
    """Return a missing requirement; None if there is none."""
    lacking = sshd.missing()
    if lacking is not None:
        return lacking
    names = ("ssh", "xargs", "tar", "ansible-playbook")
    return next((name for name in names if shutil.which(name, path=_path()) is None), None)


def _path() -> str:
    return f"{Path(sys.prefix) / 'bin'}{os.pathsep}{os.environ['PATH']}"


async def run(quick: bool) -> Measured:
    absent = missing()
    if absent is not None:
        raise SystemExit(f"this needs {absent}")
    size = QUICK if quick else FULL
    with TemporaryDirectory(prefix="unbounded-benchmark-") as folder:
        place = Path(folder) / "client"
        with sshd_fleet(Path(folder) / "fleet", size.hosts, options=SAME) as fleet:
            _write_files(place, fleet)
            return await _measured(place, fleet, size)


async def _measured(place: Path, fleet: Fleet, size: Size) -> Measured:
    xargs = f"xargs -a {place}/hosts -P {size.at_once} -n 1 sh {place}/one"
    ansible = f"ansible-playbook -i {place}/hosts -f {size.at_once} {place}/playbook.yml"
    found: dict[str, list[tuple[float, float]]] = {"machina": [], "openssh": [], "ansible": []}
    async with _client(place, fleet, size) as client:
        for number in range(size.rounds):
            ours = await client.request(msgspec.json.encode(Job(size.at_once)), JobResult, within_s=WITHIN_S)
            found["machina"].append((ours.wall_s, ours.cpu_s))
            found["openssh"].append(await _peer(place, xargs, fleet))
            if number == 0:  # ansible takes ten times as long as the others
                found["ansible"].append(await _peer(place, ansible, fleet))
        held = await client.request(msgspec.json.encode(Open(size.logins)), JobResult, within_s=WITHIN_S)
    print_progress(f"{found}")
    walls, cpus = ({name: _middle([took[part] for took in all_]) for name, all_ in found.items()} for part in (0, 1))
    connections = size.hosts * size.logins
    return Measured(
        figures={
            "hosts": size.hosts,
            "at_once": size.at_once,
            "connections": connections,
            **{f"{name}_s": wall for name, wall in walls.items()},
            **{f"{name}_cpu_s": cpu for name, cpu in cpus.items()},
            "connection_kib": held.more_kib / connections,
            "connections_mib": held.more_kib / 1024,
        },
        ratios={
            "wall_vs_openssh": walls["machina"] / walls["openssh"],
            "wall_vs_ansible": walls["machina"] / walls["ansible"],
        },
    )


def _middle(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 2]


@asynccontextmanager
async def _client(place: Path, fleet: Fleet, size: Size) -> AsyncIterator[children.Child]:
    targets = [Target(host.name, host.address, host.port, host.host_key) for host in fleet.servers]
    (place / "targets").write_bytes(msgspec.json.encode(targets))
    arguments = (str(place / "targets"), str(fleet.key), str(place / "config"), str(place / "script"))
    async with children.start("benchmarks.ssh_client", *arguments) as client:
        yield client


async def _peer(place: Path, command: str, fleet: Fleet) -> tuple[float, float]:
    """Return the wall time and CPU of a peer's command."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks.ssh_peer", *command.split()),
        stdout=asyncio.subprocess.PIPE,
        env=os.environ | _ansible(place, fleet) | {"PATH": _path()},
    )
    async with asyncio.timeout(WITHIN_S):
        out, _ = await process.communicate()
    took = msgspec.json.decode(out.splitlines()[-1], type=CommandUsage)
    if took.status:
        raise RuntimeError(f"{command}: status {took.status}")
    return took.wall_s, took.cpu_s


def _ansible(place: Path, fleet: Fleet) -> dict[str, str]:
    persist = "-o ControlMaster=auto -o ControlPersist=60s"
    return {
        "ANSIBLE_HOME": str(place / "ansible"),
        "ANSIBLE_CONFIG": str(place / "ansible.cfg"),
        "ANSIBLE_PIPELINING": "True",
        "ANSIBLE_SSH_ARGS": f"-F {place}/ssh_config {persist}",
        "ANSIBLE_SSH_CONTROL_PATH_DIR": str(place / "c"),
        "ANSIBLE_DISPLAY_OK_HOSTS": "False",
        "ANSIBLE_PYTHON_INTERPRETER": "/usr/bin/python3",
        "ANSIBLE_LOCALHOST_WARNING": "False",
        "ANSIBLE_NOCOLOR": "True",
    }


def _write_files(place: Path, fleet: Fleet) -> None:
    """Write the files that the clients read."""
    place.mkdir()
    (place / "config").write_text('{"MachineName": "' + "m" * (CONFIG_BYTES - 20) + '"}\n')
    (place / "script").write_text(f"#!/bin/bash\nexit 0\n{install_script()}")
    (place / "ansible.cfg").write_text("[defaults]\n")
    (place / "playbook.yml").write_text(PLAYBOOK.format(folder=place))
    (place / "one").write_text(ONE_BY_SSH.format(folder=place))
    (place / "ssh_config").write_text(SSH_CONFIG.format(folder=place, key=fleet.key))
    (place / "hosts").write_text("".join(f"{host.address}\n" for host in fleet.servers))
    (place / "known_hosts").write_text("".join(f"{host.address} {host.host_key}\n" for host in fleet.servers))
    subprocess.run(["tar", "-C", place, "-cf", place / "payload.tar", "config", "script"], check=True)


if __name__ == "__main__":
    run_benchmark("ssh", run)
