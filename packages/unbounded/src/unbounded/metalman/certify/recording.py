"""Recording of the answers of a BMC to reads, made while metalman's client reads."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from unbounded.metalman.redfish.http import BmcResponse
from unbounded.metalman.redfish.ports import Garbled
from unbounded.metalman.redfish.session import BmcChannel


@dataclass(frozen=True, slots=True)
class RecordedAnswer:
    """Last answer to a GET of one path. `document` is None where the body is not a JSON object."""

    status: int
    content_type: str
    etag: str
    document: Mapping[str, Any] | None
    is_empty: bool = False


@dataclass(slots=True)
class Recording:
    """Answers by their paths without a slash at the end, and the times of the requests."""

    answers: dict[str, RecordedAnswer] = field(default_factory=dict)
    seconds: list[float] = field(default_factory=list)
    slowest: str = ""  # path of the slowest request

    def add(self, reference: str, answer: BmcResponse) -> None:
        try:
            document = answer.document()
        except Garbled:
            document = None
        headers = answer.headers
        content_type, etag = headers.get("Content-Type", ""), headers.get("ETag", "")
        found = RecordedAnswer(answer.status, content_type, etag, document, is_empty=not answer.body)
        self.answers[path_of(reference)] = found

    def time(self, reference: str, seconds: float) -> None:
        if seconds >= max(self.seconds, default=0.0):
            self.slowest = path_of(reference)
        self.seconds.append(seconds)


def path_of(reference: str) -> str:
    """Return the path of a link: without host, query, fragment and a slash at its end."""
    return "/" + urlsplit(reference).path.strip("/")


class RecordingChannel(BmcChannel):
    """A channel that records the answers to reads. Credentials and the bodies of requests are not recorded."""

    recording: Recording

    async def send(
        self,
        method: str,
        reference: str,
        *,
        body: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        leave_by: float | None = None,
    ) -> BmcResponse:
        started = time.monotonic()
        try:
            answer = await super().send(method, reference, body=body, headers=headers, leave_by=leave_by)
        finally:
            self.recording.time(reference, time.monotonic() - started)
        if method == "GET":
            self.recording.add(reference, answer)
        return answer
