"""Fixtures: a host and a bastion with real OpenSSH servers, a server with the CRDs, and users of different rights."""

from __future__ import annotations

import asyncio
import itertools
import os
import re
import shlex
import signal
import subprocess
import sys
from asyncio.subprocess import PIPE, Process
from base64 import b64encode
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.cli.plugin.conftest import Ran
from tests.docs.runner import DOCS, blocks
from tests.support.embedded_server import embedded_server, install_crds
from tests.support.paths import PYTHONPATH
from tests.support.ssh.sshd import USER, Fleet, Server, missing, sshd_fleet
from unbounded.api.container_cloud.names import GROUPS
from unbounded.api.core import SECRETS
from unbounded.api.machine import MACHINES, Machine
from unbounded.api.meta import Kind
from unbounded.api.names import NAMESPACE
from unbounded.kube.client import HttpApi
from unbounded.kube.config import from_kubeconfig

ABSENT = missing()
MARKS = [
    pytest.mark.slow,
    pytest.mark.root,
    pytest.mark.skipif(ABSENT is not None, reason=f"needs {ABSENT}"),
]
UNIT = "unbounded-agent-daemon.service"
SLICE = f"unboundedtest{os.getpid()}.slice"  # of this process: tests of another one remove theirs at any time
JOURNALD = """
mount -t tmpfs none /run && mkdir -p /run/sshd /run/log/journal
(exec /lib/systemd/systemd-journald >/dev/null 2>&1 </dev/null) &
until [ -S /run/systemd/journal/stdout ]; do sleep 0.05; done
"""
SAY = f"""
for root in /sys/fs/cgroup /sys/fs/cgroup/unified /sys/fs/cgroup/systemd; do
  [ -e $root/cgroup.procs ] || continue
  mkdir -p $root/{SLICE}/{UNIT}
  echo $$ >$root/{SLICE}/{UNIT}/cgroup.procs
done
is_there() {{ journalctl --unit {UNIT} | grep -qF -e 'LAST'; }}
{{ echo 'LINE'; for _ in $(seq 200); do is_there && break; sleep 0.05; done; }} | systemd-cat
is_there || {{ cat /proc/self/cgroup; journalctl --output verbose --lines 3; exit 1; }} >&2
"""
SAYS = 3  # a line was not listed within a minute once, on a busy machine
PROGRAM = (sys.executable, "-m", "unbounded.cli.plugin.main")
LIMIT_S = 60.0
READER = "joe"  # may read the project's own kinds, and no Secrets
HELPER = "ann"  # may read all that `support` reads, and no Secrets
LISTER = "lee"  # may read Pods, and no logs
RULES = {
    READER: {"unbounded-cloud.io": ["*"]},
    LISTER: {"unbounded-cloud.io": ["*"], "": ["pods"]},
    HELPER: {
        "": ["nodes", "events", "configmaps", "pods", "pods/log"],
        "coordination.k8s.io": ["leases"],
        **{group: ["*"] for group in ("unbounded-cloud.io", *GROUPS)},
    },
}
_RBAC = "rbac.authorization.k8s.io"
_NUMBERS = itertools.count()
Raw = dict[str, Any]


def _take_interrupts() -> None:
    """Let SIGINT end a process, which tests that run in the background of a shell ignore."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@dataclass(frozen=True)
class Hosts:
    """Servers, and the environment of a user who runs the program.

    Args:
        private: the user's own folder, in which ssh's files are.
    """

    fleet: Fleet
    kubeconfig: Path
    private: Path

    @property
    def host(self) -> Server:
        return self.fleet.servers[0]

    @property
    def bastion(self) -> Server:
        assert self.fleet.bastion is not None
        return self.fleet.bastion

    def target(self, server: Server, **changes: Any) -> Raw:
        """Return a server as spec.ssh or spec.ssh.bastion names it."""
        ref = {"name": "ssh-key", "namespace": NAMESPACE, "key": "ssh-privatekey"}
        whole = {"host": server.at, "username": USER, "privateKeyRef": ref, "hostKeys": [server.host_key]}
        return {name: value for name, value in (whole | changes).items() if value is not None}

    async def machine(self, api: HttpApi, target: Raw | None, **status: Any) -> Machine:
        """Create a Machine with this spec.ssh and status.ssh."""
        name = f"host-{next(_NUMBERS)}"
        made = await api.create(MACHINES, {"metadata": {"name": name}, "spec": {"ssh": target} if target else {}})
        return await api.patch(MACHINES, name, {"status": status}, subresource="status") if status else made

    @property
    def environ(self) -> dict[str, str]:
        """The environment of the user."""
        own = {"KUBECONFIG": str(self.kubeconfig), "XDG_RUNTIME_DIR": str(self.private)}
        return {**os.environ, "PYTHONPATH": PYTHONPATH, **own}

    @asynccontextmanager
    async def running(self, *words: str, stdin: int = asyncio.subprocess.DEVNULL) -> AsyncIterator[Process]:
        """Run the program, as its users do."""
        process = await asyncio.create_subprocess_exec(
            *PROGRAM,
            *words,
            stdin=stdin,
            stdout=PIPE,
            stderr=PIPE,
            env=self.environ,
            start_new_session=True,
            preexec_fn=_take_interrupts,
        )
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # ssh, too, which holds the pipes
            await process.wait()

    @contextmanager
    def own_key(self) -> Iterator[None]:
        """Let the user's agent hold a key that opens the hosts."""
        started = subprocess.run(["ssh-agent", "-s"], capture_output=True, text=True, check=True).stdout
        found = dict(re.findall(r"(SSH_\w+)=([^;]+);", started))
        os.environ["SSH_AUTH_SOCK"] = found["SSH_AUTH_SOCK"]
        try:
            subprocess.run(["ssh-add", "-q", str(self.fleet.key)], check=True)
            yield
        finally:
            del os.environ["SSH_AUTH_SOCK"]
            os.kill(int(found["SSH_AGENT_PID"]), signal.SIGTERM)

    async def run(self, *words: str) -> Ran:
        async with self.running(*words) as process, asyncio.timeout(LIMIT_S):
            out, err = await process.communicate()
        return Ran(process.returncode or 0, out.decode(), err.decode())


@contextmanager
def journald(host: Server) -> Iterator[None]:
    """Run systemd's journald on a host."""
    done = host.run(JOURNALD)
    assert done.returncode == 0, done.stderr
    try:
        yield
    finally:
        for root in ("", "/unified", "/systemd"):
            host.run(f"cd /sys/fs/cgroup{root}/{SLICE} && rmdir {UNIT} ../{SLICE}")


def say(host: Server, text: str) -> None:
    """Write lines into the journal of the agent's unit, and wait until the last one is there."""
    lines, answers = text.strip(), list[str]()
    for _ in range(SAYS):
        done = host.run(SAY.replace("LINE", lines).replace("LAST", lines.splitlines()[-1]))
        if done.returncode == 0:
            return
        answers.append(done.stderr)
    raise AssertionError(answers)


def documented(heading: str, **instead: str) -> list[list[str]]:
    """Return the words after `kubectl unbounded` of each command that docs/commands.md shows and CI cannot run.

    Args:
        instead: what stands in place of values of the document, which are named with _ for other characters.
    """
    (block,) = [one for one in blocks(DOCS / "commands.md", "sh") if one.heading == heading]
    found = [shlex.split(line)[2:] for line in block.code.splitlines()]
    return [[instead.get(re.sub(r"\W", "_", word), word) for word in words] for words in found]


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    private = tmp_path_factory.mktemp("private")
    with (
        sshd_fleet(tmp_path_factory.mktemp("ssh") / "fleet", 1, bastion=True) as fleet,
        embedded_server(tmp_path_factory.mktemp("server")) as kubeconfig,
    ):
        made = Hosts(fleet, kubeconfig, private)
        asyncio.run(_prepare(made))
        yield made


async def _prepare(hosts: Hosts) -> None:
    await install_crds(hosts.kubeconfig)
    key = b64encode(hosts.fleet.key.read_bytes()).decode()
    secret = {"metadata": {"name": "ssh-key"}, "data": {"ssh-privatekey": key}}
    async with HttpApi(from_kubeconfig(hosts.kubeconfig)) as api:
        await api.create(SECRETS, secret, namespace=NAMESPACE)
        for user, groups in RULES.items():
            await _grant(api, user, groups)


async def _grant(api: HttpApi, user: str, groups: Mapping[str, Sequence[str]]) -> None:
    """Let a user read these resources of these API groups."""
    verbs = ["get", "list", "watch"]
    rules = [{"apiGroups": [group], "resources": list(plurals), "verbs": verbs} for group, plurals in groups.items()]
    subject = {"apiGroup": _RBAC, "kind": "User", "name": user}
    role = {"apiGroup": _RBAC, "kind": "ClusterRole", "name": user}
    bound = {"roleRef": role, "subjects": [subject]}
    for plural, body in (("clusterroles", {"rules": rules}), ("clusterrolebindings", bound)):
        kind: Kind[Raw] = Kind(_RBAC, "v1", "", plural, dict)
        await api.create(kind, {"metadata": {"name": user}, **body})


@pytest.fixture
async def api(hosts: Hosts) -> AsyncIterator[HttpApi]:
    async with HttpApi(from_kubeconfig(hosts.kubeconfig)) as admin:
        yield admin
