"""Fixtures: a host and a bastion with real OpenSSH servers, a server with the CRDs, and users of different rights."""

from __future__ import annotations

import asyncio
import itertools
import os
import re
import shlex
import sys
from asyncio.subprocess import PIPE, Process
from base64 import b64encode
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.cli.plugin.conftest import Ran
from tests.docs.runner import DOCS, blocks
from tests.support.embedded_server import embedded_server, install_crds
from tests.support.paths import PYTHONPATH
from tests.support.ssh.sshd import USER, Fleet, Server, missing, sshd_fleet
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
LIMIT_S = 60.0
READER = "joe"  # who may read Machines, and no Secrets
_RBAC = "rbac.authorization.k8s.io"
_NUMBERS = itertools.count()
Raw = dict[str, Any]


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

    @asynccontextmanager
    async def running(self, *words: str, stdin: int = asyncio.subprocess.DEVNULL) -> AsyncIterator[Process]:
        """Run the program, as its users do."""
        environ = os.environ | {
            "PYTHONPATH": PYTHONPATH,
            "KUBECONFIG": str(self.kubeconfig),
            "XDG_RUNTIME_DIR": str(self.private),
        }
        environ.pop("SSH_AUTH_SOCK", None)
        command = (sys.executable, "-m", "unbounded.cli.plugin.main", *words)
        process = await asyncio.create_subprocess_exec(*command, stdin=stdin, stdout=PIPE, stderr=PIPE, env=environ)
        try:
            yield process
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()

    async def run(self, *words: str) -> Ran:
        async with self.running(*words) as process, asyncio.timeout(LIMIT_S):
            out, err = await process.communicate()
        return Ran(process.returncode or 0, out.decode(), err.decode())


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
    rules = [{"apiGroups": ["unbounded-cloud.io"], "resources": ["*"], "verbs": ["get", "list", "watch"]}]
    subject = {"apiGroup": _RBAC, "kind": "User", "name": READER}
    role = {"apiGroup": _RBAC, "kind": "ClusterRole", "name": READER}
    async with HttpApi(from_kubeconfig(hosts.kubeconfig)) as api:
        await api.create(SECRETS, secret, namespace=NAMESPACE)
        for plural, body in (("clusterroles", {"rules": rules}), ("clusterrolebindings", {"roleRef": role})):
            kind: Kind[Raw] = Kind(_RBAC, "v1", "", plural, dict)
            await api.create(kind, {"metadata": {"name": READER}, "subjects": [subject], **body})


@pytest.fixture
async def api(hosts: Hosts) -> AsyncIterator[HttpApi]:
    async with HttpApi(from_kubeconfig(hosts.kubeconfig)) as admin:
        yield admin
