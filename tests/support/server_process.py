"""The API server in a process of its own: its memory can be measured, and nothing of the test slows it down."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.support.paths import ROOT, environment
from unbounded.cli.servers import api_server
from unbounded.kube.process import until_signal
from unbounded_apiserver.http.listener import CONNECTIONS

START_S: Final = 60.0
READY: Final = "ready"


@dataclass(frozen=True)
class ServerProcess:
    """One that runs. `log` is all that it has logged, from INFO on."""

    pid: int
    data: Path

    @property
    def kubeconfig(self) -> Path:
        return self.data / "kubeconfig"

    def log(self) -> str:
        return _log_of(self.data).read_text(errors="replace")

    def resident_mib(self) -> float:
        """The memory that is its own or its share of what it has in common with others."""
        text = Path(f"/proc/{self.pid}/smaps_rollup").read_text()
        found = re.search(r"^Pss: +([0-9]+) kB$", text, re.MULTILINE)
        assert found is not None, text
        return int(found[1]) / 1024

    def cpu_s(self) -> float:
        """Seconds of processor time that it has used."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def server_process(data: Path, *, connections: int = 0) -> Iterator[ServerProcess]:
    """Run one while entered. `connections` is how many it accepts, if not as many as usual."""
    command = [sys.executable, "-m", "tests.support.server_process", str(data), str(connections)]
    data.mkdir(parents=True, exist_ok=True)
    with (
        _log_of(data).open("ab") as log,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, env=environment(), cwd=ROOT) as process,
    ):
        try:
            assert process.stdout is not None
            said = process.stdout.readline().decode().strip()
            assert said == READY, f"the server did not start:\n{_log_of(data).read_text()}"
            yield ServerProcess(process.pid, data)
        finally:
            process.send_signal(signal.SIGTERM)
            _ended(process)


def _ended(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(START_S)
    except subprocess.TimeoutExpired:
        process.kill()
        raise


def _log_of(data: Path) -> Path:
    return data / "server.log"


async def _serve(data: Path, connections: int) -> int:
    server = api_server(data, connections=connections or CONNECTIONS)
    await server.start()
    print(READY, flush=True)
    try:
        await asyncio.Event().wait()
    finally:
        await server.stop()
    return 0


def main() -> int:
    data, connections = sys.argv[1:]
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    return asyncio.run(until_signal(_serve(Path(data), int(connections))))


if __name__ == "__main__":
    sys.exit(main())
