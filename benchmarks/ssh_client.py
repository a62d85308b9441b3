"""A child process with machina's SSH client: `python -m benchmarks.ssh_client TARGETS KEY CONFIG SCRIPT`.

It answers each job on its input. A `Job` provisions all hosts, `at_once` at a time, each by an attempt as in machina.
An `Open` opens connections, and reports their memory.
"""

from __future__ import annotations

import asyncio
import resource
import sys
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

import msgspec

from benchmarks import children
from benchmarks.ssh_jobs import Job, JobResult, Open, Target
from unbounded.api.machine import SSHHop
from unbounded.kube.logs import SecretStr
from unbounded.machina.machines import attempts
from unbounded.machina.machines.host_runs import HostRun, HostRuns
from unbounded.machina.provisioning.model import Finished, Install
from unbounded.machina.provisioning.remote import HostInstaller
from unbounded.machina.ssh.client import SshClient
from unbounded.machina.ssh.model import Hop, HostKeyPins, HostPort, SshIdentity, SshRoute

LIMITS: Final = attempts.AttemptLimits(whole_s=600.0, silence_s=600.0)


class Client:
    def __init__(self, targets: list[Target], identity: SshIdentity, config: str, script: str) -> None:
        self.routes = {one.name: _route(one, identity) for one in targets}
        self.config, self.script = config, script
        self.ssh, self.installer = SshClient(), HostInstaller()
        self.runs = HostRuns(len(targets), lambda _machine, _within_s: None)
        self.rounds = 0

    async def provision(self, at_once: int) -> JobResult:
        limiter = asyncio.Semaphore(at_once)
        self.rounds += 1
        began, cpu_s = time.monotonic(), _cpu_s()
        async with asyncio.TaskGroup() as group:
            for name in self.routes:
                group.create_task(self._one(name, limiter))
        return JobResult(time.monotonic() - began, _cpu_s() - cpu_s)

    async def _one(self, name: str, limiter: asyncio.Semaphore) -> None:
        attempt = f"{self.rounds:016x}"
        install = Install(uid=name, attempt=attempt, config=SecretStr(self.config), script=self.script)
        route = attempts.HostRoute(self.routes[name], generation=1)

        async def current_route() -> attempts.HostRoute:
            return route

        job = attempts.AttemptJob(
            name, attempt, resume=False, host=None, route=current_route, first_use=_pinned, install=install
        )
        async with limiter:
            run = HostRun(attempt, time.monotonic())
            ended = await attempts.carry_out(job, run, self.runs, self.ssh, self.installer, LIMITS)
        if not isinstance(ended, Finished) or ended.status:
            raise RuntimeError(f"{name}: {ended}")

    async def hold(self, logins: int) -> JobResult:
        limiter = asyncio.Semaphore(50)
        before, began, cpu_s = _memory_kib(), time.monotonic(), _cpu_s()
        async with AsyncExitStack() as stack:

            async def one(route: SshRoute) -> None:
                async with limiter:
                    await stack.enter_async_context(self.ssh.login(route, on_first_use=_pinned))

            async with asyncio.TaskGroup() as group:
                for route in [*self.routes.values()] * logins:
                    group.create_task(one(route))
            return JobResult(time.monotonic() - began, _cpu_s() - cpu_s, _memory_kib() - before)


async def _pinned(hop: SSHHop, fingerprint: str) -> None:
    raise AssertionError(f"{hop} has a key that is not pinned: {fingerprint}")


def _route(target: Target, identity: SshIdentity) -> SshRoute:
    at = HostPort(target.address, target.port)
    return SshRoute(Hop(SSHHop.HOST, at, "root", identity, HostKeyPins(keys=(target.key,))))


def _memory_kib() -> float:
    return 1024 * children.memory_mib(int(Path("/proc/self").readlink().name))


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def client_of(targets: Path, key: Path, config: Path, script: Path) -> Client:
    identity = SshIdentity(SecretStr(key.read_text()), "benchmark")
    known = msgspec.json.decode(targets.read_bytes(), type=list[Target])
    return Client(known, identity, config.read_text(), script.read_text())


async def main(client: Client) -> None:
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin.buffer)
    _write_line({})
    while line := await reader.readline():
        match msgspec.json.decode(line, type=Job | Open):
            case Job(at_once=at_once):
                _write_line(await client.provision(at_once))
            case Open(logins=logins):
                _write_line(await client.hold(logins))
    await client.ssh.close()


def _write_line(words: object) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(words) + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    asyncio.run(main(client_of(*map(Path, sys.argv[1:]))))
