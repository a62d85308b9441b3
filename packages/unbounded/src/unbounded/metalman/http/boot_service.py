"""Interface of the HTTP server to network boot: the files of a boot, and the receiver of the booted host's reports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import msgspec

from unbounded.api.hardware import HardwareFacts
from unbounded.api.machine_status import DiskErasureRecord


@dataclass(frozen=True, slots=True)
class OnDisk:
    """File of an image, which does not change during a transfer.

    `etag` is the bare tag, without quotes and without `W/`, and identifies the bytes; `modified` is in seconds since
    1970.
    """

    path: Path
    size: int
    etag: str
    modified: float


@dataclass(frozen=True, slots=True)
class Rendered:
    """Text that is generated for this Machine. `etag` is bare, as in `OnDisk`; `media` is the Content-Type."""

    content: bytes
    etag: str
    media: str


@dataclass(frozen=True, slots=True)
class NotReadyYet:
    """The file will exist later: 503, with a Retry-After of so many seconds."""

    retry_after_s: int
    text: str


@dataclass(frozen=True, slots=True)
class FileRejected:
    """The client gets nothing. `text` is for the log: all clients get the same text with a 404."""

    code: int
    text: str


@dataclass(frozen=True, slots=True)
class ReportAnswer:
    """Answer to a report: a status code, an object that is sent as JSON, and the seconds until a retry."""

    code: int
    body: Mapping[str, object]
    retry_after_s: int | None = None


class CloudInitEvent(msgspec.Struct, frozen=True, kw_only=True):
    """Event as cloud-init's webhook reporter posts it; absent fields are empty."""

    name: str = ""
    description: str = ""
    event_type: str = ""
    origin: str = ""
    timestamp: float = 0.0
    result: str = ""


class ProgressReport(msgspec.Struct, frozen=True, kw_only=True):
    """State of an installer.

    Attributes:
        percent: written part of the image.
        disk: the disk that the installer writes, as a path below /dev/disk/by-id; empty before the choice, and for a
            disk without such a path.
    """

    stage: str
    percent: int | None = None
    disk: str = ""
    message: str = ""
    failed: bool = False


class HardwareReport(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Inspection by an installer, before it writes.

    Attributes:
        final: the installer has waited for late disks as long as it does.
        image_bytes: size of the unpacked image; 0 if it is unknown.
        large_sectors: the installer has an image of its own for disks with sectors of 4096 bytes.
    """

    hardware: HardwareFacts
    final: bool = False
    image_bytes: int = 0
    large_sectors: bool = False


class RescueReport(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """State of a rescue system, which repeats it for as long as it runs.

    Attributes:
        host_key: public host key of its SSH server.
        ended: the user switches the system off.
    """

    host_key: str
    ended: bool = False


class BootService(Protocol):
    """Requested boots. `client` is an IPv4 address; `prefix` is None for requests without one.

    A `path` is normalized: relative, without `.`, `..`, empty and unprintable parts. Implementations need not normalize
    it again. It need not exist, and must not be joined to a folder without a check of links.
    """

    async def file(self, client: str, prefix: str | None, path: str) -> OnDisk | Rendered | NotReadyYet | FileRejected:
        """Return the file of a path. The server calls this for every request, also for HEAD and for each range."""
        ...

    async def served(self, client: str, prefix: str | None, path: str) -> None:
        """Record that the end of the file was sent, by a GET of the whole file or of a range up to its last byte."""
        ...

    async def disable(self, client: str, prefix: str) -> ReportAnswer:
        """Record that the image is written and the host is to boot from its disk."""
        ...

    async def cloud_init(self, client: str, prefix: str, event: CloudInitEvent) -> ReportAnswer: ...

    async def progress(self, client: str, prefix: str, report: ProgressReport) -> ReportAnswer: ...

    async def hardware(self, client: str, prefix: str, report: HardwareReport) -> ReportAnswer:
        """Record the hardware, and answer with the disk that the installer is to write."""
        ...

    async def erasure(self, client: str, prefix: str, report: DiskErasureRecord) -> ReportAnswer:
        """Record the state of a disk's erasure; the first report of a disk asks for permission to begin."""
        ...

    async def rescue(self, client: str, prefix: str, report: RescueReport) -> ReportAnswer:
        """Record the state of a rescue system, and answer with the keys that may log in."""
        ...

    async def attest(self, client: str, prefix: str, request: bytes) -> ReportAnswer:
        """Answer a request of the TPM protocol, of at most 1 MiB; the server does not parse it."""
        ...
