"""Boots for tests of the HTTP server: files by name, and a list of all reports."""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import dataclass, field
from pathlib import Path

from unbounded.api.machine_status import DiskErasureRecord
from unbounded.metalman.http.boot_service import (
    CloudInitEvent,
    FileRejected,
    HardwareReport,
    NotReadyYet,
    OnDisk,
    ProgressReport,
    Rendered,
    ReportAnswer,
    RescueReport,
)

PREFIX = "abcdefghijklmnopqrstuvwxyz234567"
CFG = b"set timeout=0\nboot\n"
MODIFIED = 1_700_000_000.4
DONE = ReportAnswer(200, {"ok": True})


@dataclass
class FixedBoots:
    """Serves the files of a folder, with any prefix and to everybody, and some names that go wrong."""

    folder: Path
    told: list[tuple[object, ...]] = field(default_factory=list)
    outcome: ReportAnswer = DONE
    held: asyncio.Event | None = None
    etags: dict[str, str] = field(default_factory=dict)

    def put(self, name: str, content: bytes) -> bytes:
        (self.folder / name).write_bytes(content)
        self.etags[name] = etag_of(content)
        return content

    def put_zeros(self, name: str, size: int) -> None:
        """A large file that takes no room."""
        with (self.folder / name).open("wb") as file:
            file.truncate(size)

    async def file(self, client: str, prefix: str | None, path: str) -> OnDisk | Rendered | NotReadyYet | FileRejected:
        if self.held is not None:
            await self.held.wait()
        found = self.folder / path
        match path:
            case "grub/grub.cfg":
                return Rendered(CFG + client.encode(), "cfg-1", "text/plain; charset=utf-8")
            case "pulling" if not found.is_file():
                return NotReadyYet(1, "the image is being pulled")
            case "contested":
                return FileRejected(409, "this boot is contested")
            case "broken":
                raise ZeroDivisionError
            case "vanished":
                return OnDisk(found, 3, "gone", MODIFIED)
        if "/" in path or not found.is_file():
            return FileRejected(404, f"no machine has {client}")
        size = found.stat().st_size
        return OnDisk(found, size, self.etags.get(path, f"{path}-{size}"), MODIFIED)

    async def served(self, client: str, prefix: str | None, path: str) -> None:
        self.told.append(("served", client, prefix, path))
        if path == "untold":
            raise ZeroDivisionError

    async def disable(self, client: str, prefix: str) -> ReportAnswer:
        self.told.append(("disable", client, prefix))
        return self.outcome

    async def cloud_init(self, client: str, prefix: str, event: CloudInitEvent) -> ReportAnswer:
        self.told.append(("cloud-init", client, prefix, event))
        return self.outcome

    async def progress(self, client: str, prefix: str, report: ProgressReport) -> ReportAnswer:
        self.told.append(("progress", client, prefix, report))
        return self.outcome

    async def hardware(self, client: str, prefix: str, report: HardwareReport) -> ReportAnswer:
        self.told.append(("hardware", client, prefix, report))
        return self.outcome

    async def erasure(self, client: str, prefix: str, report: DiskErasureRecord) -> ReportAnswer:
        self.told.append(("erasure", client, prefix, report))
        return self.outcome

    async def rescue(self, client: str, prefix: str, report: RescueReport) -> ReportAnswer:
        self.told.append(("rescue", client, prefix, report))
        return self.outcome

    async def attest(self, client: str, prefix: str, request: bytes) -> ReportAnswer:
        self.told.append(("attest", client, prefix, request))
        return self.outcome


def etag_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
