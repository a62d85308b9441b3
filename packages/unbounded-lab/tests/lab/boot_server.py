"""A server of one boot, as a lab host sees it: the files and reports of an install, with dials for what goes wrong."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from aiohttp import web

from tests.support.waiting import eventually
from unbounded_lab.bmc.local import LabBmc
from unbounded_lab.bmc.power import HostBootOverride, HostEvent, HostPower, OverrideEnabled, Press

ADDRESS: Final = "127.0.0.9"
UID: Final = "uid-1"
IMAGE: Final = b"an image"
VENDOR_DATA: Final = b"""#cloud-config
write_files:
- path: /etc/unbounded/agent/config.json
  content: |
    {"MachineName": "m1"}
"""


@dataclass
class BootFake:
    """Answers of the server, and what it was asked.

    Attributes:
        action: what the installer is told to do after its last report.
        seen: source address, method and path of each request.
    """

    action: dict[str, Any] = field(default_factory=lambda: {"action": "Write", "disk": "/dev/sda"})
    waits: int = 0
    digest: str = hashlib.sha256(IMAGE).hexdigest()
    seen: list[tuple[str, str, str]] = field(default_factory=list)
    reports: list[dict[str, Any]] = field(default_factory=list)
    url: str = ""

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        path = request.path.removeprefix("/boot/b1/")
        self.seen.append((request.remote or "", request.method, path))
        if request.method == "POST":
            return self._report(path, await request.json())
        files = {
            "metadata.yaml": b"",
            "disk.img.zst": IMAGE,
            "disk.img.zst.size": b"100",
            "disk.img.zst.sha256": self.digest.encode(),
            "cloud-init/meta-data": b"instance-id: m1\n",
            "cloud-init/user-data": b"#cloud-config\n",
            "cloud-init/vendor-data": VENDOR_DATA,
        }
        return web.Response(body=files[path]) if path in files else web.Response(status=404)

    def _report(self, path: str, body: dict[str, Any]) -> web.Response:
        self.reports.append({"path": path, **body})
        if path != "hardware":
            return web.json_response({"status": "ok"})
        if self.waits:
            self.waits -= 1
            return web.json_response({"status": "ok", "action": "Wait"})
        if "error" in self.action:
            return web.json_response(self.action, status=409)
        return web.json_response({"status": "ok", **self.action})

    def clients(self) -> set[str]:
        return {address for address, _, _ in self.seen}

    @property
    def medium(self) -> bytes:
        """A boot medium, as far as a lab host reads it."""
        return f"menuentry x {{\n    linux /vmlinuz unbounded.serve_url={self.url}".encode()


@asynccontextmanager
async def serving(handler: Any) -> AsyncIterator[str]:
    """Serve HTTP on loopback; yield the URL."""
    runner = web.ServerRunner(web.Server(handler), shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def booting(fake: BootFake, *, profile: str = "ideal") -> AsyncIterator[LabBmc]:
    """Start a host from its CD drive, with the medium of a boot in it."""
    async with (
        serving(fake.handle) as url,
        LabBmc("h1", profile=profile, boot_s=0.05, shutdown_s=0.05, power=HostPower.OFF, boots=True) as bmc,
    ):
        fake.url = f"{url}/boot/b1"
        words = f"unbounded.machine=m1 unbounded.machine_uid={UID} unbounded.lease={bmc.identity.mac(0)},{ADDRESS},x,y"
        bmc.media_content = fake.medium + f" {words}\n}}\n".encode()
        system = bmc.bmc.systems[0]
        system.image = "https://media.example/boot.iso"
        system.host.boot = HostBootOverride(OverrideEnabled.ONCE, "Cd")
        system.press(Press.ON, bmc.clock.now(), bmc.bmc.faults)
        yield bmc


async def happens(bmc: LabBmc, what: str, detail: str = "") -> HostEvent:
    """Wait for an event of the host."""

    def found() -> HostEvent | None:
        return next((one for one in bmc.history() if one.what == what and detail in one.detail), None)

    return await eventually(found, bmc.history)


async def is_asked(fake: BootFake, path: str) -> None:
    """Wait for a request."""
    await eventually(lambda: any(asked == path for _, _, asked in fake.seen), lambda: fake.seen)
