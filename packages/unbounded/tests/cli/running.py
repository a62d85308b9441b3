"""`unbounded up` as its users run it: a process of its own, watched through what it prints."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import sys
import time
from asyncio.subprocess import DEVNULL, PIPE, STDOUT, Process
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from signal import SIGINT, SIGKILL, Signals
from typing import Any
from uuid import uuid4

from tests.support.paths import ROOT

TOOLS = Path(sys.prefix) / "tools" / "bin"
PATH = f"{TOOLS}:{os.environ['PATH']}"
KUBECTL = shutil.which("kubectl", path=PATH)
LIMIT_S = 60.0
MACHINA_WATCHES = {
    **dict.fromkeys(("machineoperations", "machines", "nodes", "certificatesigningrequests"), 1),
    **dict.fromkeys(("machineconfigurations", "machineconfigurationversions", "machinedisruptionbudgets"), 1),
    "configmaps": 4,  # the pause of all operations, cluster-info, kube-root-ca.crt, and the key of releases
    "services": 1,  # kube-dns
}


def watches(metrics: str) -> dict[str, int]:
    """Return the number of watches of a newly started process for each kind; each has a connection of its own."""
    found = re.findall(
        r'^unbounded_api_requests_total\{.*kind="(\w+)",verb="watch"\} ([0-9.]+)$', metrics, re.MULTILINE
    )
    return {kind: int(float(count)) for kind, count in found}


class Up:
    """A running `unbounded up`, and all that it has printed."""

    def __init__(self, process: Process, data: Path, within: Sequence[str] = ()) -> None:
        self.process = process
        self.within = within
        self.data = data
        self.printed = ""
        self._more = asyncio.Event()
        self._reader = asyncio.create_task(self._read())

    async def _read(self) -> None:
        assert self.process.stdout is not None
        while chunk := await self.process.stdout.read(65536):
            self.printed += chunk.decode()
            self._more.set()
        self._more.set()

    async def says(self, pattern: str, *, within_s: float = LIMIT_S) -> re.Match[str]:
        """Wait until it has printed something like this."""
        try:
            async with asyncio.timeout(within_s):
                while (found := re.search(pattern, self.printed)) is None:
                    assert not self._reader.done(), f"ended without saying {pattern!r}:\n{self.printed}"
                    self._more.clear()
                    await self._more.wait()
                return found
        except TimeoutError:
            raise AssertionError(f"did not say {pattern!r} in {within_s} s:\n{self.printed}") from None

    async def ended(self, *, within_s: float = LIMIT_S) -> int:
        """Wait for its end; returns its exit status."""
        async with asyncio.timeout(within_s):
            await self._reader
            return await self.process.wait()

    def signal(self, number: Signals) -> None:
        self.process.send_signal(number)

    async def kubectl(self, *arguments: str) -> str:
        """Run kubectl with the kubeconfig that this server has written, and return its output."""
        process = await asyncio.create_subprocess_exec(
            *self.within,
            KUBECTL or "kubectl",
            "--kubeconfig",
            str(self.data / "kubeconfig"),
            *arguments,
            env={"PATH": PATH, "HOME": str(self.data)},
            stdin=DEVNULL,
            stdout=PIPE,
            stderr=STDOUT,
        )
        async with asyncio.timeout(LIMIT_S):
            output, _ = await process.communicate()
        has_ended = self.process.returncode is not None
        assert process.returncode == 0, output.decode() + (
            f"the server has ended:\n{self.printed}" if has_ended else ""
        )
        return output.decode()

    async def get(self, *arguments: str) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(await self.kubectl("get", *arguments, "-o", "json"))
        return answer

    async def apply(self, *objects: dict[str, Any]) -> None:
        """Have kubectl apply objects of ours, without their apiVersion."""
        items = [{"apiVersion": "unbounded-cloud.io/v1alpha3"} | one for one in objects]
        file = self.data / f"applied-{uuid4()}.json"  # others may be applied meanwhile
        await asyncio.to_thread(file.write_text, json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
        await self.kubectl("apply", "-f", str(file))

    async def operate(self, machine: str, kind: str, name: str = "") -> None:
        """Have an operation Complete."""
        name = name or f"{machine}-{kind.lower()}"
        spec = {"machineRef": machine, "operationKind": kind}
        await self.apply({"kind": "MachineOperation", "metadata": {"name": name}, "spec": spec})
        await self.says(f"operation {name}: Complete")

    def children(self, module: str = "unbounded.cli.child") -> list[int]:
        """The pids of what it has started of a module, however it has ended itself."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal():
                try:
                    command = (entry / "cmdline").read_bytes().decode(errors="replace")
                except OSError:
                    continue
                if f"unbounded.cli.child\0{self.process.pid}\0" in command and module in command:
                    found.append(int(entry.name))
        return found

    async def stops(self, number: Signals = SIGINT) -> float:
        """Signal it, wait for its end without remains, and return the time that it took."""
        began = time.monotonic()
        self.signal(number)
        assert await self.ended() == 0
        assert "Stopped." in self.printed
        assert "Traceback" not in self.printed
        assert self.children() == []
        return time.monotonic() - began

    async def is_killed(self) -> None:
        """Kill it; what it has started ends with it."""
        self.signal(SIGKILL)
        await self.ended()
        async with asyncio.timeout(LIMIT_S):
            while self.children():  # noqa: ASYNC110  # there is nothing else to be told by
                await asyncio.sleep(0.05)


@asynccontextmanager
async def up(data: Path, *arguments: str, within: Sequence[str] = ()) -> AsyncIterator[Up]:
    """Run `unbounded up` without a terminal while inside; it is killed if it still runs at the end.

    Args:
        within: a command that runs others, such as `ip netns exec NAME`, for it and for kubectl.
    """
    process = await asyncio.create_subprocess_exec(
        *within,
        sys.executable,
        "-m",
        "unbounded.cli.main",
        "up",
        "--data",
        str(data),
        *arguments,
        cwd=ROOT,
        env={**os.environ, "PATH": PATH},
        stdin=DEVNULL,
        stdout=PIPE,
        stderr=STDOUT,
    )
    running = Up(process, data, within)
    try:
        yield running
    finally:
        if process.returncode is None:
            process.kill()
        await running.ended()
