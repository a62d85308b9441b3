"""The Redfish emulator of sushy-tools as a process of its own: another project's server, with TLS and basic auth.

It has no sessions, no ETags and no tasks; its `fake` driver changes power after a delay, which is made short here.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import sys
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import bcrypt
import trustme

from tests.support.libvirt import LibvirtDriver

USERNAME: Final = "admin"
PASSWORD: Final = "calvin"
START_S: Final = 30.0
LISTENING: Final = re.compile(r"Running on https://127\.0\.0\.1:(\d+)")

# The driver waits a random 1..11 s before power changes; `random` is its own module's name, so only that is replaced.
# Each requested change of power is recorded, with the time at which the driver carries it out.
_SHORT: Final = """
import json, sys, types
import sushy_tools.emulator.resources.systems.fakedriver as driver
driver.random = types.SimpleNamespace(randint=lambda low, high: 1)
change = driver.FakeDriver.set_power_state

def noted(self, identity, state):
    change(self, identity, state)
    pending = self._systems[identity]["pending_power"]
    with open(journal_path, "a") as journal:
        journal.write(json.dumps([pending["apply_time"], identity, pending["power_state"]]) + "\\n")

driver.FakeDriver.set_power_state = noted
journal_path = sys.argv[2]
"""
_MAIN: Final = """
import sys
from sushy_tools.emulator.main import main
sys.argv = ["sushy-emulator", "--config", sys.argv[1]]
sys.exit(main())
"""


@dataclass(frozen=True)
class Sushy:
    url: str
    device_ids: tuple[str, ...]
    ca_bundle: str
    journal: Path

    def changes(self) -> list[tuple[float, str, str]]:
        """Return the changes of power so far: when, of which system, and to which state."""
        lines = self.journal.read_text().splitlines() if self.journal.exists() else []
        return [(float(at), device, state) for at, device, state in map(json.loads, lines)]


@asynccontextmanager
async def sushy(
    folder: Path,
    *,
    systems: int = 1,
    libvirt: LibvirtDriver | None = None,
    environment: Mapping[str, str] = MappingProxyType({}),
) -> AsyncIterator[Sushy]:
    """Run the emulator on loopback with that many systems, all off; USERNAME and PASSWORD open it.

    Args:
        libvirt: its machine is the only system; without it the systems are the emulator's own.
        environment: more variables of the emulator.
    """
    ca = trustme.CA()
    device_ids = system_ids(systems)
    config = _configure(folder, ca, device_ids, {} if libvirt is None else libvirt.settings)
    launcher, before, more = (
        (_SHORT + _MAIN, (), {}) if libvirt is None else (_MAIN, libvirt.command, libvirt.environment)
    )
    log = (folder / "sushy.log").open("wb")
    with log:
        process = await asyncio.create_subprocess_exec(
            *(*before, sys.executable, "-c", launcher, str(config), str(folder / "journal")),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, "NO_PROXY": "*", **more, **environment},
        )
        try:
            port = await _wait_listening(process, folder / "sushy.log")
            url = f"https://127.0.0.1:{port}"
            yield Sushy(url, device_ids, ca.cert_pem.bytes().decode(), folder / "journal")
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


def system_ids(systems: int = 1) -> tuple[str, ...]:
    """Return the UUIDs of that many systems."""
    return tuple(str(uuid.uuid5(uuid.NAMESPACE_DNS, f"node{number}")) for number in range(systems))


def _configure(folder: Path, ca: trustme.CA, device_ids: tuple[str, ...], more: Mapping[str, Any]) -> Path:
    leaf = ca.issue_cert("127.0.0.1", "localhost")
    leaf.private_key_pem.write_to_path(folder / "key.pem")
    leaf.cert_chain_pems[0].write_to_path(folder / "cert.pem")
    hashed = bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(rounds=4)).decode()
    (folder / "htpasswd").write_text(f"{USERNAME}:{hashed}\n")
    (folder / "state").mkdir()
    fakes = [
        {"uuid": device_id, "name": f"node{number}", "power_state": "Off", "nics": []}
        for number, device_id in enumerate(device_ids)
    ]
    settings = {
        "LISTEN_IP": "127.0.0.1",
        "LISTEN_PORT": 0,
        "FAKE_DRIVER": True,
        "STATE_DIR": str(folder / "state"),
        "SSL_CERT": str(folder / "cert.pem"),
        "SSL_KEY": str(folder / "key.pem"),
        "AUTH_FILE": str(folder / "htpasswd"),
        "FAKE_SYSTEMS": fakes,
        **more,
    }
    path = folder / "emulator.conf"
    path.write_text("".join(f"SUSHY_EMULATOR_{name} = {value!r}\n" for name, value in settings.items()))
    return path


async def _wait_listening(process: asyncio.subprocess.Process, log: Path) -> int:
    """Return the port of the emulator, from its log."""
    async with asyncio.timeout(START_S):
        while True:
            assert process.returncode is None, f"the emulator ended, see {log}"
            said = LISTENING.search(await asyncio.to_thread(log.read_text))
            if said is not None:
                return int(said[1])
            await asyncio.sleep(0.05)
