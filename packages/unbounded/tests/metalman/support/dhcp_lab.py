"""A small network of namespaces: a server, a client beside it, a relay, and a client behind that. Needs root.

server 10.66.0.1 --- switch --- client "near"
                        |
                      relay 10.66.0.2 / 10.67.0.1 --- client "far"
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any, Final

from tests.support.paths import ROOT, environment

NEAR_MAC: Final = "52:54:00:00:00:01"
FAR_MAC: Final = "52:54:00:00:00:02"
LEASES: Final = {
    NEAR_MAC: ["10.66.0.50", "255.255.255.0", "10.66.0.1", ["10.66.0.53"]],
    FAR_MAC: ["10.67.0.50", "255.255.255.0", "10.67.0.1", ["10.66.0.53"]],
}


def ip(command: str) -> None:
    subprocess.run(["ip", *command.split()], check=True, capture_output=True)


class Lab:
    """The namespaces, by the names in the drawing."""

    def __init__(self, name: str) -> None:
        self._name = name

    def ns(self, role: str) -> str:
        return f"{self._name}-{role}"

    def build(self) -> None:
        for role in ("server", "relay", "near", "far"):
            ip(f"netns add {self.ns(role)}")
            ip(f"-n {self.ns(role)} link set lo up")
        server, relay, near, far = (self.ns(role) for role in ("server", "relay", "near", "far"))
        ip(f"-n {server} link add sw0 type bridge")
        for peer, port, far_port in ((near, "p0", "eth0"), (relay, "p1", "up0")):
            ip(f"-n {server} link add {port} type veth peer name {far_port} netns {peer}")
            ip(f"-n {server} link set {port} master sw0 up")
            ip(f"-n {peer} link set {far_port} up")
        ip(f"-n {relay} link add dn0 type veth peer name eth0 netns {far}")
        ip(f"-n {near} link set eth0 address {NEAR_MAC}")
        ip(f"-n {far} link set eth0 address {FAR_MAC} up")
        for where, device, address in (
            (server, "sw0", "10.66.0.1/24"),
            (relay, "up0", "10.66.0.2/24"),
            (relay, "dn0", "10.67.0.1/24"),
        ):
            ip(f"-n {where} addr add {address} dev {device}")
            ip(f"-n {where} link set {device} up")
        ip(f"-n {server} route add 10.67.0.0/24 via 10.66.0.2")

    def remove(self) -> None:
        for role in ("server", "relay", "near", "far"):
            self.kill_processes(role)
            subprocess.run(["ip", "netns", "del", self.ns(role)], check=False, capture_output=True)

    def kill_processes(self, role: str) -> None:
        """Kill the processes of a namespace, such as a client that went on in the background."""
        listed = subprocess.run(["ip", "netns", "pids", self.ns(role)], check=False, capture_output=True, text=True)
        for pid in listed.stdout.split():
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)

    @asynccontextmanager
    async def process(self, role: str, *command: str) -> AsyncIterator[asyncio.subprocess.Process]:
        """A process in a namespace, which is ended on leaving."""
        started = await asyncio.create_subprocess_exec(
            *("ip", "netns", "exec", self.ns(role), *command),
            stdout=asyncio.subprocess.PIPE,
            cwd=ROOT,
            env=environment(),
        )
        try:
            yield started
        finally:
            if started.returncode is None:
                started.terminate()
            async with asyncio.timeout(60):
                await started.communicate()

    async def run(self, role: str, *command: str, within_s: float = 60) -> str:
        """Run a command that ends by itself, and return its output; its exit code is ignored."""
        process = await asyncio.create_subprocess_exec(
            *("ip", "netns", "exec", self.ns(role), *command),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env=environment(),
        )
        try:
            async with asyncio.timeout(within_s):
                said, _ = await process.communicate()
        except TimeoutError:
            process.kill()
            said, _ = await process.communicate()
            raise AssertionError(f"{command[0]} did not end: {said.decode(errors='replace')}") from None
        return said.decode(errors="replace")

    async def listening(self, role: str, port: int) -> None:
        """Wait until a process in a namespace has that UDP port."""
        async with asyncio.timeout(60):
            while f":{port:04X} " not in await self.run(role, "cat", "/proc/net/udp"):  # noqa: ASYNC110 - a process
                await asyncio.sleep(0.02)

    @asynccontextmanager
    async def server(self, mode: str = "interface") -> AsyncIterator[DhcpProcess]:
        """Our server at 10.66.0.1, serving."""
        asked = {"mode": mode, "interface": "sw0", "address": "10.66.0.1", "leases": LEASES}
        async with self.server_with("server", asked) as started:
            yield started

    @asynccontextmanager
    async def server_with(self, role: str, asked: dict[str, Any]) -> AsyncIterator[DhcpProcess]:
        command = (sys.executable, "-m", "tests.metalman.support.dhcp_process", json.dumps(asked))
        async with self.process(role, *command) as process:
            server = DhcpProcess(process)
            assert await server.next("ready")
            yield server


class DhcpProcess:
    """The output of the server's process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def next(self, what: str) -> Any:
        """The next thing of that kind that it prints; others before it are passed over."""
        assert self._process.stdout is not None
        async with asyncio.timeout(60):
            async for line in self._process.stdout:
                said = json.loads(line)
                if what in said:
                    return said[what]
        raise AssertionError(f"the server ended and did not say: {what}")

    async def counts(self) -> dict[str, int]:
        """End it; how often each thing happened."""
        self._process.terminate()
        counts = await self.next("counts")
        assert isinstance(counts, dict)
        return counts


@contextmanager
def lab() -> Iterator[Lab]:
    """The network, which is removed on leaving."""
    made = Lab(f"nl{os.getpid()}")
    try:
        made.build()
        yield made
    finally:
        made.remove()
