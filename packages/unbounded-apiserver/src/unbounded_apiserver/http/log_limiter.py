"""Log lines that a flood of requests cannot multiply."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, Final

from aiohttp.http_exceptions import HttpProcessingError

from unbounded.kube.logs import Log

EVERY_S: Final = 60.0
CONNECTIONS: Final = "unbounded_apiserver.http.connections"


class LogLimiter:
    """A log line that is written at most once in `every_s`; its `more` counts the lines left out since the last.

    `write` is a method of a Log.
    """

    def __init__(
        self,
        write: Callable[..., None],
        text: str,
        *,
        every_s: float = EVERY_S,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._write = write
        self._text = text
        self._every_s = every_s
        self._now = now
        self._next = float("-inf")
        self._left_out = 0

    def __call__(self, **facts: Any) -> None:
        """Write the line, or count it."""
        now = self._now()
        if now < self._next:
            self._left_out += 1
            return
        left_out, self._left_out, self._next = self._left_out, 0, now + self._every_s
        self._write(self._text, **facts, more=left_out)


class HttpLogFilter(logging.Filter):
    """A filter for the HTTP library's logger: clients' mistakes are not our errors, and get a rate-limited line."""

    def __init__(self) -> None:
        super().__init__()
        self._not_http = LogLimiter(Log(f"{CONNECTIONS}.refused").info, "a client sent invalid HTTP")

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, HttpProcessingError):
            self._not_http(error=type(error).__name__)
            return False
        return not isinstance(error, ConnectionError)


def connection_log() -> logging.Logger:
    """Return the logger for the HTTP library."""
    log = logging.getLogger(CONNECTIONS)
    log.filters = [HttpLogFilter()]
    return log
