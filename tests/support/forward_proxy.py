"""tinyproxy as a process of its own: an HTTP proxy that others wrote."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

START_S: Final = 20.0
_SETTINGS: Final = """Port {port}
Listen {address}
Timeout 60
MaxClients 50
LogLevel Connect
LogFile "{log}"
{more}
"""


@dataclass(frozen=True)
class ForwardProxy:
    """Args:
    url: http://address:port.
    """

    url: str
    log: Path

    @property
    def asked(self) -> list[str]:
        """Return the first lines of the requests, such as `CONNECT host:443 HTTP/1.1`."""
        lines = self.log.read_text(errors="replace").splitlines()
        return [line.rpartition("): ")[2] for line in lines if "Request (file descriptor" in line]


@contextmanager
def forward_proxy(folder: Path, *more: str, address: str = "127.0.0.1") -> Iterator[ForwardProxy]:
    """Run one; skip the test where tinyproxy is missing.

    Args:
        more: further lines of its configuration.
    """
    program = shutil.which("tinyproxy")
    if program is None:
        pytest.skip("tinyproxy is not there; scripts/net-tools gets it")
    folder.mkdir(parents=True, exist_ok=True)
    with socket.create_server((address, 0)) as probe:
        port = int(probe.getsockname()[1])
    settings, log = folder / "tinyproxy.conf", folder / "tinyproxy.log"
    settings.write_text(_SETTINGS.format(port=port, address=address, log=log, more="\n".join(more)))
    with (folder / "output").open("wb") as output:
        process = subprocess.Popen([program, "-d", "-c", str(settings)], stdout=output, stderr=output)
    try:
        _answers(process, address, port, folder / "output")
        yield ForwardProxy(f"http://{address}:{port}", log)
    finally:
        process.kill()
        process.wait()


def _answers(process: subprocess.Popen[bytes], address: str, port: int, output: Path) -> None:
    limit = time.monotonic() + START_S
    while True:
        try:
            socket.create_connection((address, port), 1).close()
        except OSError:
            assert process.poll() is None, output.read_text()
            assert time.monotonic() < limit, output.read_text()
            time.sleep(0.02)
        else:
            return
