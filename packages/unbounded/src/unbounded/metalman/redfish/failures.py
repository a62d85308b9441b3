"""Failures of a BMC, and their texts from the extended error, cleaned for display.

Each is a narrower subclass of the class in `unbounded.api.failures` that decides who acts next.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from unbounded.api.failures import Rejected, Transient, Uncertain


class BmcUnreachable(Transient):
    """No answer, and nothing changed: refused, unknown host, TLS failed, timed out, or cut off while reading."""


class BmcAnswerLost(Uncertain):
    """A changing request was sent, and its answer was lost."""


class BmcBusy(Transient):
    """The BMC or its queue has no capacity now, and nothing was done. `retry_after_s` is the BMC's, else None."""

    def __init__(self, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class CircuitOpen(BmcBusy):
    """No call was made, as the last calls got no answer; the message has the start and the end of the pause."""


class Garbled(Transient):
    """The answer to a read was cut off, or is not JSON."""


class TaskFailed(Transient):
    """The BMC accepted the action, and its task failed; the message is the task's."""


class PasswordRejected(Rejected):
    """The BMC rejected the password, which is not offered again until the Secret changes."""


class CertificateUntrusted(Rejected):
    """The CA bundle does not verify the BMC's certificate, or nothing is pinned yet. No password was sent."""


class CertificateChanged(CertificateUntrusted):
    """The BMC presents another certificate than the pinned one. No password was sent."""

    def __init__(self, message: str, *, pinned: str, seen: str) -> None:
        super().__init__(message)
        self.pinned = pinned
        self.seen = seen


class InvalidBmcUrl(Rejected):
    """`spec.pxe.redfish.url` is not an address of a BMC. Nothing was sent."""


class Unsupported(Rejected):
    """The BMC does not support the call, by its status (400, 404, 405, 410, 501) or its lists."""


MESSAGE_CHARS: Final = 1024
_HIDDEN: Final = "***"


def clean(text: str, *, hide: Iterable[str] = ()) -> str:
    """Return one line of printable text, at most 1024 characters, without the secrets in `hide`."""
    for secret in sorted(filter(None, hide), key=len, reverse=True):
        text = text.replace(secret, _HIDDEN)
    text = text[: 8 * MESSAGE_CHARS]
    line = " ".join("".join(char if char.isprintable() else " " for char in text).split())
    return line if len(line) <= MESSAGE_CHARS else line[: MESSAGE_CHARS - 1] + "…"


def error_text(document: Mapping[str, Any]) -> str:
    """Return ids and texts of a Redfish error (DSP0266, 8.6): the extended messages, else its code and message."""
    error = document.get("error")
    error = error if isinstance(error, Mapping) else document
    return "; ".join(dict.fromkeys(extended(error))) or _id_and_text(error.get("code"), error.get("message"))


def extended(holder: Mapping[str, Any]) -> Iterator[str]:
    """Yield each message of `@Message.ExtendedInfo`, or of a Task's `Messages`, as "Id: text"."""
    for key in ("@Message.ExtendedInfo", "Messages"):
        found = holder.get(key)
        for message in found if isinstance(found, list) else [found]:
            if isinstance(message, Mapping):
                text = _id_and_text(message.get("MessageId"), message.get("Message"))
                if text:
                    yield text
            elif isinstance(message, str):
                yield message


def _id_and_text(identity: object, text: object) -> str:
    return ": ".join(part for part in (identity, text) if isinstance(part, str) and part)
