"""Access of tests to the environment of machines that boot from the network; see `pxe_world`."""

from __future__ import annotations

import asyncio
import base64
import json
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from tests.metalman.support.dhcp_lab import FAR_MAC, NEAR_MAC, Lab

MACS: Final = {"near": NEAR_MAC, "far": FAR_MAC}


class Around:
    """The BMC and the registry, through the output of their process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.machine: dict[str, Any] = {}
        self.secret: dict[str, Any] = {}

    async def next(self, what: str, *, within_s: float = 60) -> Any:
        assert self._process.stdout is not None
        async with asyncio.timeout(within_s):
            async for line in self._process.stdout:
                said = json.loads(line)
                if what in said:
                    return said[what]
        raise AssertionError(f"it ended and did not say {what}")


@asynccontextmanager
async def around(
    network: Lab, folder: Path, images: Mapping[str, Mapping[str, str | bytes]], *leases: Mapping[str, Any]
) -> AsyncIterator[Around]:
    """Both, in the servers' namespace.

    Args:
        leases: those of the Machine.
    """
    packed = {name: {path: _base64(body) for path, body in files.items()} for name, files in images.items()}
    (folder / "world.json").write_text(json.dumps({"images": packed}))
    command = (sys.executable, "-m", "tests.metalman.support.pxe_world", str(folder / "world.json"))
    async with network.process("server", *command) as process:
        made = Around(process)
        ready = await made.next("ready")
        made.machine, made.secret = ready["machine"], ready["secret"]
        made.machine["spec"]["pxe"]["dhcpLeases"] = list(leases)
        yield made


def _base64(body: str | bytes) -> str:
    return base64.b64encode(body.encode() if isinstance(body, str) else body).decode()


async def play(network: Lab, role: str = "near", **more: str) -> dict[str, dict[str, Any]]:
    """Let the machine in a namespace boot; return its reports by step."""
    asked = json.dumps({"interface": "eth0", "mac": MACS[role], **more})
    said = await network.run(role, sys.executable, "-m", "tests.metalman.support.pxe_machine", asked, within_s=90)
    steps = {}
    for line in said.splitlines():
        assert line.startswith("{"), said
        step = json.loads(line)
        steps[step.pop("step")] = step
    return steps
