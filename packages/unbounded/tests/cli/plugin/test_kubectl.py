"""kubectl itself runs the plugin: on a terminal and off it, against a control plane with a simulated machine."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import shutil
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.cli.plugin.conftest import Ran
from tests.cli.running import KUBECTL, PATH, up
from tests.cli.test_terminal import Terminal, terminal
from tests.support.paths import PYTHONPATH, ROOT

LIMIT_S = 90.0
EXECUTABLES = {
    "kubectl-unbounded": "unbounded.cli.plugin.main",
    "kubectl_complete-unbounded": "unbounded.cli.plugin.completion",
}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(KUBECTL is None, reason="kubectl is not on PATH"),
    pytest.mark.timeout(300),
]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A PATH on which kubectl finds the plugin of this checkout."""
    folder = tmp_path_factory.mktemp("plugins")
    for name, module in EXECUTABLES.items():
        place = folder / name
        place.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m {module} "$@"\n')
        place.chmod(0o755)
    yield f"{folder}:{PATH}"
    shutil.rmtree(folder)


class Kubectl:
    """kubectl with the plugin beside it, and a cluster."""

    def __init__(self, path: str, kubeconfig: Path) -> None:
        self.environ = {
            **os.environ,
            "PATH": path,
            "KUBECONFIG": str(kubeconfig),
            "PYTHONPATH": PYTHONPATH,
        }

    async def __call__(self, *words: str) -> Ran:
        command = [KUBECTL or "kubectl", *words]
        process = await asyncio.create_subprocess_exec(
            *command, env=self.environ, cwd=ROOT, stdin=asyncio.subprocess.DEVNULL, stdout=PIPE, stderr=PIPE
        )
        async with asyncio.timeout(LIMIT_S):
            out, err = await process.communicate()
        return Ran(process.returncode or 0, out.decode(), err.decode())

    @asynccontextmanager
    async def on_a_terminal(self, *words: str, columns: int = 80) -> AsyncIterator[Terminal]:
        own = [f"{name}={self.environ[name]}" for name in ("PATH", "KUBECONFIG", "PYTHONPATH")]
        async with terminal("env", *own, KUBECTL or "kubectl", *words, columns=columns) as screen:
            yield screen


async def _status(screen: Terminal) -> int:
    async with asyncio.timeout(LIMIT_S):
        return await screen.process.wait()


async def test_a_machine_is_worked_on_by_kubectl_unbounded(path: str, tmp_path: Path) -> None:
    async with up(tmp_path / "data", "--lab", "1") as control_plane:
        await control_plane.says("Try next")
        kubectl = Kubectl(path, control_plane.data / "kubeconfig")
        await _reboots(kubectl)
        await _completes(kubectl)
        await _asks(kubectl)
        await _moves_on_a_terminal(kubectl)
        await _is_left_with_ctrl_c(kubectl)


async def _reboots(kubectl: Kubectl) -> None:
    done = await kubectl("unbounded", "machine", "host-reboot", "lab-01", "--now", "--operation-name", "again")
    assert done.status == 0, done
    assert "machineoperation.unbounded-cloud.io/again created" in done.out
    assert re.search(r"lab-01: InProgress · \w+", done.out)
    assert "operation again is complete" in done.out
    plain = await kubectl("get", "mop", "--no-headers", "-o", "custom-columns=:metadata.name")
    names = await kubectl("unbounded", "machine", "operation", "list")
    assert [line.split()[0] for line in names.out.splitlines()[1:]] == plain.out.split()
    assert (await kubectl("unbounded", "machine", "dance")).status == 2


async def _completes(kubectl: Kubectl) -> None:
    async with asyncio.timeout(LIMIT_S):  # names are resolved within a second, or not offered
        while True:
            offered = await kubectl("__complete", "unbounded", "machine", "host-reboot", "la")
            if "lab-01\n" in offered.out:
                break
    assert offered.out.splitlines()[-1] == ":4"
    words = await kubectl("__complete", "unbounded", "machine", "operation", "c")
    assert [line.split("\t")[0] for line in words.out.splitlines()] == ["create", "cancel", ":4"]


async def _asks(kubectl: Kubectl) -> None:
    async with kubectl.on_a_terminal("unbounded", "machine", "repave", "lab-01") as screen:
        await screen.shows(r"lab-01: this loses everything on its disk")
        await screen.shows("Type `lab-01` to continue: ")
        screen.type("lab-02\n")
        await screen.shows("the text differs: nothing was changed")
        assert await _status(screen) == 1
    async with kubectl.on_a_terminal("unbounded", "machine", "agent-reset", "lab-01", "--wait=false") as screen:
        await screen.shows("Type `lab-01` to continue: ")
        screen.type("lab-01\n")
        name = (await screen.shows(r"machineoperation\.unbounded-cloud\.io/(\S+) created"))[1]
        assert await _status(screen) == 0
    cancelled = await kubectl("unbounded", "machine", "operation", "cancel", name)
    assert cancelled.status == 0, cancelled
    async with kubectl.on_a_terminal("unbounded", "machine", "agent-reset", "lab-01") as screen:
        await screen.shows("Type `lab-01` to continue: ")
        screen.type("\x03")
        assert await _status(screen) == 130
        assert "Traceback" not in screen.written


async def _moves_on_a_terminal(kubectl: Kubectl) -> None:
    async with kubectl.on_a_terminal("unbounded", "machine", "power-off", "lab-01", "--now") as screen:
        await screen.shows(r"HostPowerOff lab-01-power-off-\d{8}-\d{6}")
        await screen.shows(r"MACHINE\s+PHASE\s+STAGE\s+TIME")
        await screen.shows(r"lab-01\s+InProgress")
        await screen.shows(r"operation \S+ is complete")
        assert await _status(screen) == 0
        assert re.search(r"\x1b\[\d*A", screen.written), "the table was never drawn over"
        assert "Traceback" not in screen.written


async def _is_left_with_ctrl_c(kubectl: Kubectl) -> None:
    assert (await kubectl("unbounded", "machine", "pause", "lab-01", "--reason", "a test")).status == 0
    words = ("unbounded", "machine", "power-on", "lab-01", "--operation-name", "held")
    async with kubectl.on_a_terminal(*words, columns=120) as screen:
        await screen.shows(r"Paused, held by Machine lab-01")
        screen.type("\x03")
        await screen.shows("operation held continues")
        await screen.shows("`kubectl unbounded machine operation cancel held` stops it")
        assert await _status(screen) == 130
        assert "Traceback" not in screen.written
    cancelled = await kubectl("unbounded", "machine", "operation", "cancel", "held")
    assert (cancelled.status, "operation held is cancelled" in cancelled.out) == (0, True), cancelled
