"""The command line beside kubectl: time to start, and time to list 10,000 operations.

The API server is a separate process. Each command runs as for a user: a process starts, prints to a file, and ends.
kubectl and the plugin take turns, so that other load affects both alike. Through kubectl, the plugin's start adds to
kubectl's own, which `kubectl version` measures.
"""

from __future__ import annotations

import asyncio
import os
import resource
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from benchmarks import children
from benchmarks.frame import Limit, Measured, print_progress, run_benchmark

RUN_S: Final = 120.0
PLUGIN: Final = "kubectl-unbounded"
HELP: Final = (PLUGIN, "--help")
THROUGH_KUBECTL: Final = ("kubectl", "unbounded", "--help")
LIST: Final = (PLUGIN, "machine", "operation", "list")
GET: Final = ("kubectl", "get", "machineoperations")
VERSION: Final = ("kubectl", "version", "--client")

AMOUNT: Final = "{starts:g} starts of each command; {operations:g} operations and as many Machines to list"
LIMITS: Final[Mapping[str, Limit]] = {
    "help_ms": Limit("kubectl-unbounded --help, ms", most=150.0),
    "kubectl_help_vs_kubectl_version": Limit("kubectl unbounded --help, over kubectl version --client", most=3.0),
    "kubectl_help_ms": Limit("the same, ms"),
    "kubectl_version_ms": Limit("kubectl version --client, ms"),
    "list_vs_kubectl_get": Limit("a list of all operations, over kubectl get", most=1.5, aim=1.0),
    "list_ms": Limit("the same, ms"),
    "kubectl_get_ms": Limit("kubectl get of all operations, ms"),
    "list_cpu_ms": Limit("CPU of the list, ms"),
    "kubectl_get_cpu_ms": Limit("CPU of kubectl get, ms"),
    "list_mib": Limit("memory of the list at its highest, MiB"),
    "kubectl_get_mib": Limit("memory of kubectl get at its highest, MiB"),
}


@dataclass(frozen=True)
class Size:
    operations: int
    starts: int
    lists: int


FULL: Final = Size(operations=10_000, starts=20, lists=7)
QUICK: Final = Size(operations=200, starts=3, lists=2)


@dataclass(frozen=True)
class CommandUsage:
    """Seconds, seconds of CPU, and memory at its highest."""

    wall_s: float
    cpu_s: float
    mib: float


def missing() -> str | None:
    """Return a missing requirement; None if there is none."""
    absent = [name for name in ("kubectl", PLUGIN) if shutil.which(name, path=path()) is None]
    return f"{absent[0]} in the PATH" if absent else None


def path() -> str:
    """Return a PATH that starts with the tools beside this Python."""
    return f"{Path(sys.prefix) / 'bin'}{os.pathsep}{Path(sys.prefix) / 'tools' / 'bin'}{os.pathsep}{os.environ['PATH']}"


async def run(quick: bool) -> Measured:
    lacking = missing()
    if lacking is not None:
        raise SystemExit(f"this needs {lacking}")
    size = QUICK if quick else FULL
    with TemporaryDirectory(prefix="unbounded-benchmark-") as folder:
        data = Path(folder) / "data"
        filled = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "benchmarks.fleet_data", str(data), str(size.operations)
        )
        if await filled.wait():
            raise RuntimeError("cannot create the fleet")
        async with children.start("benchmarks.server", str(data)) as server:
            user = User(Path(folder), server.ready["kubeconfig"])
            return await asyncio.to_thread(_measure, user, size)


def _measure(user: User, size: Size) -> Measured:
    found: dict[Sequence[str], list[CommandUsage]] = {HELP: [], THROUGH_KUBECTL: [], VERSION: [], LIST: [], GET: []}
    for command in found:  # the first run fills the page cache
        user.run(command, lines=_lines(command, size))
    for commands, times in (((HELP, THROUGH_KUBECTL, VERSION), size.starts), ((LIST, GET), size.lists)):
        for _ in range(times):
            for command in commands:
                found[command].append(user.run(command, lines=_lines(command, size)))
    middle = {command: _median(took) for command, took in found.items()}
    print_progress(f"{middle}")
    return Measured(
        figures={
            "starts": size.starts,
            "operations": size.operations,
            "help_ms": 1000 * middle[HELP].wall_s,
            "kubectl_help_ms": 1000 * middle[THROUGH_KUBECTL].wall_s,
            "kubectl_version_ms": 1000 * middle[VERSION].wall_s,
            "list_ms": 1000 * middle[LIST].wall_s,
            "kubectl_get_ms": 1000 * middle[GET].wall_s,
            "list_cpu_ms": 1000 * middle[LIST].cpu_s,
            "kubectl_get_cpu_ms": 1000 * middle[GET].cpu_s,
            "list_mib": middle[LIST].mib,
            "kubectl_get_mib": middle[GET].mib,
        },
        ratios={
            "kubectl_help_vs_kubectl_version": middle[THROUGH_KUBECTL].wall_s / middle[VERSION].wall_s,
            "list_vs_kubectl_get": middle[LIST].wall_s / middle[GET].wall_s,
        },
    )


def _lines(command: Sequence[str], size: Size) -> int:
    """Return the least number of lines that a command has to print: a short answer is not a fast one."""
    return size.operations + 1 if command in (LIST, GET) else 1


def _median(took: Sequence[CommandUsage]) -> CommandUsage:
    return CommandUsage(*(statistics.median(getattr(one, name) for one in took) for name in ("wall_s", "cpu_s", "mib")))


@dataclass(frozen=True)
class User:
    """A user's home and cluster."""

    home: Path
    kubeconfig: str

    def run(self, command: Sequence[str], *, lines: int) -> CommandUsage:
        """Run a command. Raises RuntimeError if it fails, or prints fewer lines than expected."""
        program = shutil.which(command[0], path=path())
        assert program is not None, command
        printed = self.home / "printed"
        environment = {"PATH": path(), "HOME": str(self.home), "KUBECONFIG": self.kubeconfig}
        if "PYTHONPATH" in os.environ:
            environment["PYTHONPATH"] = os.environ["PYTHONPATH"]
        with printed.open("wb") as out:
            began = time.monotonic()
            process = subprocess.Popen([program, *command[1:]], stdin=subprocess.DEVNULL, stdout=out, env=environment)
            _, status, used = os.wait4(process.pid, 0)
            wall_s = time.monotonic() - began
            process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode or printed.read_bytes().count(b"\n") < lines:
            raise RuntimeError(f"{' '.join(command)}: status {process.returncode}, {printed.read_text()[:500]}")
        return CommandUsage(wall_s, _cpu_s(used), used.ru_maxrss / 1024)


def _cpu_s(used: resource.struct_rusage) -> float:
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    run_benchmark("cli", run)
