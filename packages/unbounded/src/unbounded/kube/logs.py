"""Structured logs: a constant text, and the facts as fields beside it. `SecretStr` keeps passwords out of them.

    log = Log(__name__).bind(machine="m1", operation="reboot-m1")
    log.info("power accepted", desired="Off", attempt=2)

The records go through the standard library's logging; `configure` sets their format in `main`.
"""

from __future__ import annotations

import hmac
import json
import logging
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final, Protocol

import msgspec

from unbounded.kube.clock import rfc3339
from unbounded.kube.tracing import traceparent
from unbounded.kube.visible_text import visible_text

FIELDS: Final = "fields"  # the attribute of a LogRecord that holds them


class SecretStr:
    """A text that only `reveal` shows: not a repr, a format string, a log, or JSON."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return "SecretStr(…)"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SecretStr) and hmac.compare_digest(self._text.encode(), other._text.encode())

    def __hash__(self) -> int:
        return hash(("Secret", self._text))

    def __bool__(self) -> bool:
        return bool(self._text)


class Log:
    """A logger with bound fields; `bind` gives another one with more, and leaves this one alone."""

    __slots__ = ("_fields", "_logger")

    def __init__(self, name: str, fields: Mapping[str, Any] | None = None) -> None:
        self._logger = logging.getLogger(name)
        self._fields = dict(fields or {})

    def bind(self, **fields: Any) -> Log:
        return Log(self._logger.name, self._fields | fields)

    def debug(self, text: str, /, **fields: Any) -> None:
        """Log an observation without consequence."""
        self._write(logging.DEBUG, text, fields)

    def info(self, text: str, /, **fields: Any) -> None:
        """A phase changed, or the outside was altered."""
        self._write(logging.INFO, text, fields)

    def warning(self, text: str, /, error: BaseException | None = None, **fields: Any) -> None:
        """Log a failure that will be retried; `error` is logged with its causes."""
        self._write(logging.WARNING, text, fields | ({"error": chain(error)} if error else {}))

    def error(self, text: str, /, **fields: Any) -> None:
        """A person has to act."""
        self._write(logging.ERROR, text, fields)

    def exception(self, text: str, /, **fields: Any) -> None:
        """The same with the traceback of the exception that is being handled: our bug."""
        self._write(logging.ERROR, text, fields, traceback=True)

    def _write(self, level: int, text: str, fields: dict[str, Any], *, traceback: bool = False) -> None:
        if self._logger.isEnabledFor(level):
            # Logger.log would search the stack for the caller, which no format shows.
            caught = sys.exc_info() if traceback else None
            record = logging.LogRecord(self._logger.name, level, "", 0, text, (), caught)
            fields = self._fields | fields
            if (parent := traceparent()) is not None:
                fields["traceparent"] = parent
            setattr(record, FIELDS, fields)
            self._logger.handle(record)


def chain(error: BaseException) -> str:
    """An exception and what caused it, each by its own message."""
    parts: list[str] = []
    at: BaseException | None = error
    while at is not None and len(parts) < 8:
        parts.append(f"{type(at).__name__}: {at}" if str(at) else type(at).__name__)
        at = at.__cause__
    return " ← ".join(parts)


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, logger, message, the fields, and a traceback where there is one."""

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, Any] = {
            "time": rfc3339(datetime.fromtimestamp(record.created, UTC), micro=True),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        for name, value in getattr(record, FIELDS, {}).items():
            entry[f"field_{name}" if name in entry else name] = value
        if record.exc_info:
            entry["traceback"] = self.formatException(record.exc_info)
        try:
            text = msgspec.json.encode(entry, enc_hook=repr).decode()
        except UnicodeEncodeError:  # half of a surrogate pair, which JSON of others may have
            return json.dumps(entry, default=repr)
        return visible_text(text)  # which JSON reads as the same text


class HumanFormatter(logging.Formatter):
    """For a terminal: time, level, message, fields."""

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created).astimezone().strftime("%H:%M:%S")
        fields = " ".join(f"{name}={_plain(value)}" for name, value in getattr(record, FIELDS, {}).items())
        line = f"{at} {record.levelname:<7} {record.getMessage()}" + (f"  {fields}" if fields else "")
        whole = f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line
        return visible_text(whole, keep="\n\t")  # a terminal would obey the rest


def _plain(value: object) -> str:
    text = str(value)
    return repr(text) if not text or " " in text or not text.isprintable() else text


class LogStream(Protocol):
    """The stream to which logs are written."""

    def write(self, text: str, /) -> object: ...
    def flush(self) -> object: ...


def configure(*, json: bool, level: str = "INFO", stream: LogStream | None = None) -> None:
    """Send all logs to a stream (stderr), replacing what was configured before."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if json else HumanFormatter())
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False  # no format shows them
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for theirs in ("asyncio", "aiohttp.access", "azure", "msal", "oci", "urllib3"):  # many lines for each call
        logging.getLogger(theirs).setLevel(logging.WARNING)
