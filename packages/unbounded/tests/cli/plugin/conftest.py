"""A server for all tests here, and the commands as they are run against it."""

from __future__ import annotations

import asyncio
import contextlib
import io
import itertools
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.embedded_server import embedded_server, install_crds
from unbounded.api.machine import MACHINES, Machine
from unbounded.api.operation import MACHINE_OPERATIONS
from unbounded.cli.plugin import parsing
from unbounded.cli.plugin.command import CliInvocation
from unbounded.cli.plugin.main import run, run_command
from unbounded.cli.plugin.parsing import commands
from unbounded.kube.client import HttpApi
from unbounded.kube.config import from_kubeconfig

LIMIT_S = 60.0
_NUMBERS = itertools.count()
_REDFISH = {
    "url": "https://bmc.example.com",
    "username": "admin",
    "passwordRef": {"name": "bmc", "namespace": "unbounded-kube", "key": "password"},
}


@dataclass(frozen=True)
class Ran:
    status: int
    out: str
    err: str


class Cli:
    """Runs commands in this process, each with its own event loop in a thread, as the executable would."""

    def __init__(self, kubeconfig: Path) -> None:
        self.kubeconfig = kubeconfig

    def told(self, *words: str, **environ: str) -> tuple[Any, CliInvocation, io.StringIO, io.StringIO]:
        command, args = parsing.parse(commands(), [*words], program="kubectl unbounded", others={})
        out, err = io.StringIO(), io.StringIO()
        where = {"KUBECONFIG": str(self.kubeconfig), **environ}
        return command, CliInvocation(args, where, out, err, io.StringIO(), colour=False, terminal=False), out, err

    def now(self, *words: str, **environ: str) -> Ran:
        command, told, out, err = self.told(*words, **environ)
        return Ran(run(command, told), out.getvalue(), err.getvalue())

    async def __call__(self, *words: str, **environ: str) -> Ran:
        return await asyncio.to_thread(self.now, *words, **environ)


class Running:
    """A command that runs beside the test, and its output by now."""

    def __init__(self, cli: Cli, *words: str) -> None:
        command, told, self.out, self.err = cli.told(*words)
        self.task = asyncio.create_task(run_command(command, told))

    async def prints(self, text: str) -> None:
        """Wait until it has printed this."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LIMIT_S):
                while text not in self.out.getvalue() and not self.task.done():  # noqa: ASYNC110  # a StringIO tells nobody
                    await asyncio.sleep(0.02)
        assert text in self.out.getvalue(), self.err.getvalue()

    async def ended(self) -> Ran:
        async with asyncio.timeout(LIMIT_S):
            return Ran(await self.task, self.out.getvalue(), self.err.getvalue())


async def make_machine(api: HttpApi, site: str, *, bmc: bool = True) -> Machine:
    """Create a Machine whose host a metalman could switch, or one without a BMC that no executor could."""
    metadata = {"name": f"web-{next(_NUMBERS)}", "labels": {"unbounded-cloud.io/site": site}}
    spec: dict[str, Any] = {"pxe": {"image": "registry.example.com/i:1", "redfish": _REDFISH}} if bmc else {}
    return await api.create(MACHINES, {"metadata": metadata, "spec": spec})


async def says(api: HttpApi, name: str, **status: Any) -> None:
    """Write an operation's status, as its executor would."""
    await api.patch(MACHINE_OPERATIONS, name, {"status": status}, subresource="status")


@pytest.fixture
async def machine(api: HttpApi) -> Machine:
    return await make_machine(api, "rack1")


@pytest.fixture(scope="package")
def kubeconfig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with embedded_server(tmp_path_factory.mktemp("server")) as path:
        asyncio.run(install_crds(path))
        yield path


@pytest.fixture
def cli(kubeconfig: Path) -> Cli:
    return Cli(kubeconfig)


@pytest.fixture
async def api(kubeconfig: Path) -> AsyncIterator[HttpApi]:
    async with HttpApi(from_kubeconfig(kubeconfig)) as admin:
        yield admin
