"""What the HTTP server needs from outside: the files of a boot, and somebody who takes what the booted host reports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import msgspec


@dataclass(frozen=True, slots=True)
class OnDisk:
    """A file of an image, which stays as it is while it is sent.

    `etag` is the bare tag, without quotes and without `W/`, and stands for the bytes; `modified` is in seconds since
    1970.
    """

    path: Path
    size: int
    etag: str
    modified: float


@dataclass(frozen=True, slots=True)
class Rendered:
    """A text that was made for this Machine. `etag` is bare, as in `OnDisk`; `media` is the Content-Type."""

    content: bytes
    etag: str
    media: str


@dataclass(frozen=True, slots=True)
class NotYet:
    """It will be there: 503, with a Retry-After of so many seconds."""

    retry_after_s: int
    text: str


@dataclass(frozen=True, slots=True)
class Refused:
    """There is nothing for this client. `text` is for the log: with 404 all clients are told the same."""

    code: int
    text: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """The answer to a report: a status code, an object that is sent as JSON, and when to ask again."""

    code: int
    body: Mapping[str, object]
    retry_after_s: int | None = None


class CloudInitEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An event as cloud-init's webhook reporter posts it; what it did not say is empty."""

    name: str = ""
    description: str = ""
    event_type: str = ""
    origin: str = ""
    timestamp: float = 0.0
    result: str = ""


class ProgressReport(msgspec.Struct, frozen=True, kw_only=True):
    """State of an installer.

    Attributes:
        percent: of the image that is being written.
        disk: that is being written, as a path below /dev/disk/by-id; empty before it is chosen, and where it has none.
    """

    stage: str
    percent: int | None = None
    disk: str = ""
    message: str = ""
    failed: bool = False


class Boots(Protocol):
    """Knows which boots are wanted. `client` is an IPv4 address; `prefix` is None for what was asked without one.

    A `path` is plain: relative, without `.`, `..`, empty and unprintable parts; it never has to be cleaned again. It
    was not looked up, and is not to be joined to a folder without a look at links.
    """

    async def file(self, client: str, prefix: str | None, path: str) -> OnDisk | Rendered | NotYet | Refused:
        """What is there under a name. It is asked for every request, also for HEAD and for each range."""
        ...

    async def served(self, client: str, prefix: str | None, path: str) -> None:
        """The end of the file went out, by a GET of all of it or of a range up to its last byte."""
        ...

    async def disable(self, client: str, prefix: str) -> Outcome:
        """The image is written, and the host is to boot from its disk."""
        ...

    async def cloud_init(self, client: str, prefix: str, event: CloudInitEvent) -> Outcome: ...

    async def progress(self, client: str, prefix: str, report: ProgressReport) -> Outcome: ...

    async def attest(self, client: str, prefix: str, request: bytes) -> Outcome:
        """A request as the TPM protocol defines it, of 1 MiB at most; it was not parsed."""
        ...
